/* SPDX-License-Identifier: MIT
 *
 * The outer optimizer of local steps: torch's SGD with Nesterov momentum, bounds, pace.
 */
#include "lib/policy/outer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* From torch 1.13: p = [1, -2], gradients [0.5, 1], [-1, 0.25], [2, 2]; lr 0.7, momentum 0.9. */
static void test_torch(void **state) {
    (void)state;
    static const float gradients[3][2] = {{0.5f, 1.0f}, {-1.0f, 0.25f}, {2.0f, 2.0f}};
    static const float want[3][2] = {
        {0.335000008f, -3.32999992f}, {1.38150001f, -4.22949982f}, {-0.966650009f, -7.54154968f}};
    float p[2] = {1.0f, -2.0f}, m[2] = {0};
    for (int t = 0; t < 3; t++) {
        tam_outer_seen seen = tam_outer_step((tam_outer){0.7f, 0.9f}, gradients[t], 2, m, p);
        assert_int_equal(seen.bad, 0);
        for (int i = 0; i < 2; i++)
            assert_true(fabsf(p[i] - want[t][i]) < 1e-6f);
    }
}

static void test_bounds(void **state) {
    (void)state;
    const float mean[4] = {1.0f, -3e38f, 2.0f, NAN};
    float p[4] = {1.0f, 3e38f, 2.0f, 5.0f}, m[4] = {0};
    tam_outer_seen seen = tam_outer_step((tam_outer){1.0f, 0.5f}, mean, 4, m, p);
    assert_int_equal(seen.bad, 2);
    assert_true(p[0] == -0.5f && p[1] == 3e38f && p[2] == -1.0f && p[3] == 5.0f);
    assert_true(m[0] == 1.0f && m[1] == 0.0f && m[3] == 0.0f);
    assert_true(fabs(seen.square - (1.5 * 1.5 + 9.0)) < 1e-12);
}

static void test_return(void **state) {
    (void)state;
    const float base[3] = {1.0f, 2.0f, 3.0f}, left[3] = {0.5f, 0.0f, 0.0f};
    const float since[3] = {4.0f, 4.0f, 4.0f};
    float params[3] = {4.25f, 4.0f, NAN};
    tam_outer_return(base, left, since, 3, params);
    assert_true(params[0] == 0.75f && params[1] == 2.0f && params[2] == 3.0f);
    tam_outer_return(base, left, NULL, 3, params);
    assert_true(params[0] == 0.5f && params[1] == 2.0f && params[2] == 3.0f);
    tam_outer_follow(base, NULL, 3, params);
    assert_memory_equal(params, base, sizeof base);
}

/* An exchange of 1 s after H steps of 10 ms takes a tenth of the time if H is 900. */
static void test_pace(void **state) {
    (void)state;
    tam_outer_pace pace = {0};
    assert_int_equal(tam_outer_steps(&pace, 1.0, 0.01, 0.1, 100, 1, 5000), 900);
    assert_int_equal(tam_outer_steps(&pace, 1.0, 0.01, 0.1, 900, 1, 5000), 900);
    assert_int_equal(tam_outer_steps(&pace, 1.1, 0.01, 0.1, 900, 1, 5000), 900); /* not worth it */
    assert_int_equal(tam_outer_steps(&pace, 1.0, 0.01, 0.1, 100, 1, 500), 500);
    pace.ratio = 0.0;
    assert_int_equal(tam_outer_steps(&pace, 0.0, 0.01, 0.1, 100, 7, 500), 7);
    assert_int_equal(tam_outer_steps(&pace, 1.0, 0.0, 0.1, 100, 7, 500), 100); /* unknown */
    assert_int_equal(tam_outer_steps(&pace, NAN, 0.1, 0.1, 100, 7, 500), 100);
    assert_int_equal(tam_outer_steps(&pace, 1e300, 1e-300, 0.1, 100, 7, 500), 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_return),
        cmocka_unit_test(test_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
