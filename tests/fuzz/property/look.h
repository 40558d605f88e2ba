/* SPDX-License-Identifier: MIT
 *
 * A step under examination: shared by the files that check it.
 */
#ifndef FUZZ_LOOK_H
#define FUZZ_LOOK_H

#include "tests/fuzz/property/property.h"

#include <tamis/overlap.h>

typedef struct look {
    const record *r;
    const fuzz_case *c;
    const common *all;
    uint32_t step;
    uint64_t n;
    model m;
    const float *after[MOST_RANKS]; /* residuals */
    double largest;                 /* magnitude in any residual before the step */
    bool skipped;
    const bool *member; /* [n] entry is in the result */
    const float *value; /* [n] of the result; 0 elsewhere */
    const bool *leaves; /* [n] entry is of a row that some rank lists, config.rows_capacity */
    char *failure;
} look;

/** Record what is wrong. @return false */
bool look_fail(look *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool look_is_kind(const tamis_bucket *b, const char *kind);

/** Whether a sum of the entry over ranks, or the quotient, may be infinite. */
bool look_may_overflow(const look *l, uint64_t i);

/** Values or sums travel in a type with a scale for several, or each in another type. */
bool look_is_mixed(const look *l);

/** An entry of a step that was applied. */
bool look_entry(look *l, const tamis_bucket *b, uint64_t i);

/** bound.c: fill in `leaves`. */
void look_rows(look *l, bool *leaves);

bool look_moments(look *l);

/** Whether the k chosen entries are those that the scheme promises. */
bool look_choice(look *l, uint64_t k);

#endif
