/* SPDX-License-Identifier: MIT
 *
 * Schemes that cover every way of sending: shared by the tests of index codecs and of value codecs.
 */
#ifndef TEST_CODEC_CASES_H
#define TEST_CODEC_CASES_H

#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/trial.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

#define AND_CODEC(NAME, name, number) , TAMIS_INDEX_##NAME
static const tamis_index_codec index_codecs[] = {TAMIS_INDEX_AUTO TAMIS_INDEX_CODECS(AND_CODEC)};

/* Every exchange, ownership and kind of packet; with `capacity` packets are fixed. */
static const struct {
    const char *scheme;
    double capacity;
} cases[] = {
    {"tamis", 0},
    {"topk", 0},
    {"deft", 0},
    {"micro", 0},
    {"micro", 1.5},
    {"cyclic+norm+predict+pairs", 0},
    {"all+global+exact+pairs", 0},
    {"rotate+global+step+pairs", 0},
    {"rotate+global+step+pairs", 2},
    {"cltk", 0},
    {"leader+global+exact+pairs", 0},
};

static trial trial_of(size_t which, uint32_t nranks, size_t n, double density) {
    trial what = trial_usual(cases[which].scheme, nranks, n, density);
    what.capacity = cases[which].capacity;
    return what;
}

static void run(const trial *what, trial_record *out) {
    if (!trial_run(what, out))
        fail_msg("[%s] was refused: %s", test_context_text(), tamis_last_error());
    check_ranks_identical(out);
    check_union(out);
    check_stats(out);
}

#endif
