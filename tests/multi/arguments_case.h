/* SPDX-License-Identifier: MIT
 *
 * Shared by the tests of arguments: one rank, its objects, and checks of refused calls.
 */
#ifndef TEST_ARGUMENTS_CASE_H
#define TEST_ARGUMENTS_CASE_H

#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 100, FIRST = 60 };

static tamis_comm *comm;
static tamis_layout *layout;
static tamis_reducer *reducer;
static float gradient[N + 1];

static tamis_reducer_config usual_config(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.1;
    return config;
}

static tamis_step usual_step(void) {
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, 0, 0, N, gradient);
    step.grad = gradient;
    return step;
}

static int set_up(void **state) {
    const tamis_segment segments[] = {{"first", FIRST}, {"second", N - FIRST}};
    tamis_reducer_config config = usual_config();
    (void)state;
    return tamis_comm_create_local(1, NULL, &comm) != TAMIS_OK ||
           tamis_layout_create(segments, 2, &layout) != TAMIS_OK ||
           tamis_reducer_create(comm, layout, &config, &reducer) != TAMIS_OK;
}

static int tear_down(void **state) {
    (void)state;
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    return 0;
}

/* `words`: the message must hold one of them; they are separated by '|'. */
static void expect_status(const char *call, tamis_status expected, tamis_status got,
                          const char *words) {
    if (got != expected)
        fail_msg("%s: %s, not %s (%s)", call, tamis_status_name(got), tamis_status_name(expected),
                 tamis_last_error());
    if (!has_word(tamis_last_error(), words))
        fail_msg("%s: \"%s\" does not name %s", call, tamis_last_error(), words);
}

#define EXPECT(expected, words, call) expect_status(#call, expected, call, words)

#define EXPECT_OK(call)                                                                            \
    do {                                                                                           \
        if ((call) != TAMIS_OK)                                                                    \
            fail_msg("%s: %s", #call, tamis_last_error());                                         \
    } while (0)

/* After a refused call a whole step must work. */
static void expect_usable(void) {
    tamis_step step = usual_step();
    tamis_result result = TAMIS_RESULT_INIT;
    EXPECT_OK(tamis_comm_status(comm));
    EXPECT_OK(tamis_reducer_start(reducer, &step));
    EXPECT_OK(tamis_reducer_wait(reducer));
    EXPECT_OK(tamis_reducer_result(reducer, &result));
    assert_int_equal(result.count, 10);
}

#endif
