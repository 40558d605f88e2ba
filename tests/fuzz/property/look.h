/* SPDX-License-Identifier: MIT
 *
 * A step that is looked at: what the files that judge it share.
 */
#ifndef FUZZ_LOOK_H
#define FUZZ_LOOK_H

#include "tests/fuzz/property/property.h"

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
    const bool *member; /* [n] it is in the result */
    const float *value; /* [n] of the result; 0 elsewhere */
    char *failure;
} look;

/** Note what is wrong. @return false */
bool look_fail(look *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool look_is_kind(const tamis_bucket *b, const char *kind);

/** Sums of an entry, or of some ranks of it, or the quotient, may be infinite. */
bool look_may_overflow(const look *l, uint64_t i);

/** Values or sums travel in a type with a scale for several, or each in another type. */
bool look_is_mixed(const look *l);

/** An entry of a step that was applied. */
bool look_entry(look *l, const tamis_bucket *b, uint64_t i);

bool look_moments(look *l);

/** Whether those were chosen that the scheme says, of k. */
bool look_choice(look *l, uint64_t k);

#endif
