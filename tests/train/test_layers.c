/* SPDX-License-Identifier: MIT
 *
 * The exponential of the models; their layers are tested with the models, in test_gradients.
 */
#include "bench/train/layers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static void exponential_is_right_to_the_last_bits(void **state) {
    (void)state;
    const int count = 1000000;
    for (int i = 0; i <= count; i++) {
        float x = -87.0f + 175.0f * (float)i / (float)count;
        double exact = exp((double)x), off = fabs((double)layers_exp(x) / exact - 1.0);
        if (!(off < 2e-7))
            fail_msg("e^%.9g is off by %g of itself", (double)x, off);
    }
    assert_true(layers_exp(0.0f) == 1.0f);
}

static void exponential_ends_where_its_range_ends(void **state) {
    (void)state;
    assert_true(layers_exp(-1e30f) == layers_exp(-87.0f));
    assert_true(layers_exp(-INFINITY) == layers_exp(-87.0f));
    assert_true(layers_exp(INFINITY) == layers_exp(88.0f));
    assert_true(isfinite(layers_exp(88.0f)) && layers_exp(-87.0f) > 0.0f);
    assert_true(isnan(layers_exp(NAN)));
}

/* Where e^-2u is at an end of its range GELU is x or nearly nothing, and its slope 1 or nothing. */
static void gelu_is_itself_far_out(void **state) {
    (void)state;
    const float x[] = {-1e20f, -50.0f, 0.0f, 50.0f, 1e10f};
    const float wanted[] = {0.0f, 0.0f, 0.0f, 50.0f, 1e10f},
                slope[] = {0.0f, 0.0f, 0.5f, 1.0f, 1.0f};
    float y[5], dy[5] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    gelu_forward(5, x, y);
    gelu_backward(5, x, dy);
    for (size_t i = 1; i < 5; i++) {
        assert_float_equal(y[i], wanted[i], 1e-30);
        assert_float_equal(dy[i], slope[i], 1e-6);
    }
    assert_true(fabsf(y[0]) < 1e-15f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_is_right_to_the_last_bits),
        cmocka_unit_test(exponential_ends_where_its_range_ends),
        cmocka_unit_test(gelu_is_itself_far_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
