/* SPDX-License-Identifier: MIT
 *
 * What new ranks take of old residuals: nothing is lost, whatever the numbers of ranks.
 */
#include "bench/train/factors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { MOST = 17 };

static void the_mean_of_what_waits_stays(void **state) {
    (void)state;
    for (uint32_t olds = 1; olds <= MOST; olds++) {
        for (uint32_t ranks = 1; ranks <= MOST; ranks++) {
            for (uint32_t old = 0; old < olds; old++) {
                double sum = 0.0;
                for (uint32_t r = 0; r < ranks; r++)
                    sum += factor_of(r, ranks, old, olds);
                assert_float_equal(sum / ranks, 1.0 / olds, 1e-12);
            }
        }
    }
}

/* No residual is much larger than those of before, and none is empty. */
static void every_new_rank_takes_something(void **state) {
    (void)state;
    for (uint32_t olds = 1; olds <= MOST; olds++) {
        for (uint32_t ranks = 1; ranks <= MOST; ranks++) {
            for (uint32_t r = 0; r < ranks; r++) {
                double sum = 0.0;
                for (uint32_t old = 0; old < olds; old++)
                    sum += factor_of(r, ranks, old, olds);
                assert_true(sum > 0.0 && sum < 2.0);
            }
        }
    }
}

static void as_many_ranks_take_their_own(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= MOST; ranks++)
        for (uint32_t r = 0; r < ranks; r++)
            for (uint32_t old = 0; old < ranks; old++)
                assert_true(factor_of(r, ranks, old, ranks) == (r == old ? 1.0 : 0.0));
}

static void the_drawn_cases_are_these(void **state) {
    (void)state;
    assert_true(factor_of(0, 2, 0, 4) == 0.5 && factor_of(0, 2, 2, 4) == 0.5);
    assert_true(factor_of(0, 2, 1, 4) == 0.0 && factor_of(1, 2, 3, 4) == 0.5);
    assert_true(factor_of(0, 4, 0, 2) == 1.0 && factor_of(2, 4, 0, 2) == 1.0);
    assert_true(factor_of(3, 4, 1, 2) == 1.0 && factor_of(3, 4, 0, 2) == 0.0);
    assert_true(factor_of(0, 3, 0, 2) == 0.75 && factor_of(1, 3, 1, 2) == 1.5);
    assert_true(factor_of(2, 3, 0, 2) == 0.75);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_of_what_waits_stays),
        cmocka_unit_test(every_new_rank_takes_something),
        cmocka_unit_test(as_many_ranks_take_their_own),
        cmocka_unit_test(the_drawn_cases_are_these),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
