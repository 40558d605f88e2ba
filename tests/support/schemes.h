/* SPDX-License-Identifier: MIT
 *
 * Every scheme there is: the presets and all free combinations, with what follows from their names.
 */
#ifndef TEST_SCHEMES_H
#define TEST_SCHEMES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct scheme_case {
    char name[64];
    bool dense;       /* no residual */
    bool whole;       /* everything travels */
    bool exclusive;   /* one owner per entry, known before the step: not ownership all or bins */
    bool all;         /* ownership all: every rank selects from everything */
    bool counted;     /* threshold exact or predict: the count is not left to a threshold */
    bool all_at_once; /* with density 1 each step applies everything of every rank; not so for
                         pairs with one owner, which sends only its own value */
    bool by_segment;  /* counts are rounded segment by segment, as in DEFT */
} scheme_case;

/** The index-th preset whose exchange is given; `auto` chooses among them (test_auto.c). @return
 * false past the end. */
bool scheme_preset(size_t index, scheme_case *out);

/** The index-th of all combinations of the four policies. @return false past the end. */
bool scheme_combination(size_t index, scheme_case *out);

#endif
