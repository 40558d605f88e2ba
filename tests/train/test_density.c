/* SPDX-License-Identifier: MIT
 *
 * The density of a step, and what reduced updates are multiplied by at it.
 */
#include "bench/train/density.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static const train_settings usual = {.density = 0.01};

static void density_stays_unless_told(void **state) {
    (void)state;
    assert_false(density_moves(&usual));
    assert_true(density_most(&usual) == 0.01);
    for (uint64_t step = 0; step < 20; step++)
        assert_true(density_at(&usual, step, 10) == 0.01);
}

/* By the same factor in every step, ends included. */
static void warm_up_falls_exponentially(void **state) {
    (void)state;
    train_settings s = usual;
    s.density_warm_up = 8;
    assert_true(density_moves(&s));
    assert_true(density_most(&s) == 0.25);
    assert_true(density_at(&s, 0, 100) == 0.25);
    for (uint64_t step = 0; step < 8; step++)
        assert_float_equal(density_at(&s, step + 1, 100) / density_at(&s, step, 100),
                           pow(0.01 / 0.25, 1.0 / 8), 1e-12);
    for (uint64_t step = 8; step < 200; step++)
        assert_true(density_at(&s, step, 100) == 0.01);
}

/* Deep Gradient Compression: 25 %, 6.25 %, 1.5625 %, 0.4 %, 0.1 % in epochs 1 to 5. */
static void warm_up_passes_the_published_densities(void **state) {
    (void)state;
    static const double published[] = {0.25, 0.0625, 0.015625, 0.004, 0.001};
    train_settings s = usual;
    s.density = 0.25 / 256;
    s.density_warm_up = 400;
    for (uint64_t epoch = 0; epoch < 5; epoch++)
        assert_float_equal(density_at(&s, 100 * epoch, 1000) / published[epoch], 1.0, 0.03);
}

static void density_moves_to_its_end_over_the_run(void **state) {
    (void)state;
    train_settings s = usual;
    s.density_end = 0.04;
    assert_true(density_moves(&s));
    assert_true(density_most(&s) == 0.04);
    assert_true(density_at(&s, 0, 100) == 0.01);
    assert_float_equal(density_at(&s, 50, 100), 0.02, 1e-12);
    assert_true(density_at(&s, 100, 100) == 0.04);
    assert_true(density_at(&s, 150, 100) == 0.04);
    s.density_warm_up = 20;
    assert_true(density_most(&s) == 0.25);
    assert_true(density_at(&s, 20, 100) == 0.01);
    assert_float_equal(density_at(&s, 60, 100), 0.02, 1e-12);
    assert_true(density_at(&s, 20, 20) == 0.04); /* no step is left between them */
    assert_true(density_at(&s, 10, 15) == density_at(&s, 10, 100));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(density_stays_unless_told),
        cmocka_unit_test(warm_up_falls_exponentially),
        cmocka_unit_test(warm_up_passes_the_published_densities),
        cmocka_unit_test(density_moves_to_its_end_over_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
