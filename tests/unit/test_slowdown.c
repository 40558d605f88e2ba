/* SPDX-License-Identifier: MIT
 *
 * A density that hides the exchange, on links of which everything is known.
 */
#include "lib/policy/slowdown.h"
#include "tests/support/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* exposed = fixed + slope * density, with noise */
typedef struct link_case {
    double fixed_s, slope_s, noise, want;
} link_case;

enum { COMPUTING_US = 100000 };

static const double most = 0.3;
static const tam_slowdown_goal goal = {.asked = 0.05, .least = 0.08};

static double noisy(double value, double noise, uint64_t number) {
    double unit = (double)(data_mix(number) >> 11) * 0x1p-53;
    return value * (1.0 + noise * (2.0 * unit - 1.0));
}

static double window_of(tam_slowdown *s, double density, uint32_t computing_us,
                        uint32_t exposed_us) {
    for (uint32_t step = 0; step < TAM_SLOWDOWN_LEARNS + TAM_SLOWDOWN_TIMED; step++) {
        assert_false(tam_slowdown_full(s));
        assert_true(tam_slowdown_valid(s));
        uint32_t pause_us = step % 16 == 9 ? 40 * COMPUTING_US : 0; /* as for a checkpoint */
        tam_slowdown_step(s, computing_us + pause_us, exposed_us);
    }
    assert_true(tam_slowdown_full(s));
    return tam_slowdown_decide(s, &goal, density);
}

static double next_of(tam_slowdown *s, const link_case *l, double density, uint64_t number) {
    double exposed_s = noisy(l->fixed_s + l->slope_s * density, l->noise, number);
    double next = window_of(s, density, COMPUTING_US, (uint32_t)(1e6 * exposed_s));
    assert_true(next >= fmin(goal.least, s->most) && next <= s->most);
    assert_true(next >= 0.499 * density && next <= 2.001 * density);
    return next;
}

static const link_case links[] = {
    {0.0, 0.01, 0.0, 0.3},     /* hidden at all densities */
    {0.0, 0.025, 0.0, 0.2},    /* 5 ms at 20 % */
    {0.002, 0.02, 0.0, 0.15},  /* 5 ms at 15 % */
    {0.001, 0.2, 0.0, 0.0885}, /* never: a tenth over what 8 % leaves */
    {0.02, 0.0, 0.0, 0.3},     /* latency, which no density takes away */
    {0.02, 0.001, 0.0, 0.3},   /* almost so */
    {0.002, 0.02, 0.1, 0.15},  {0.0, 0.025, 0.1, 0.2},
};

static void test_it_finds_the_density_of_a_link(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        tam_slowdown s = {.most = most};
        double density = most, sum = 0.0;
        for (uint64_t window = 0; window < 40; window++) {
            density = next_of(&s, &links[i], density, window);
            sum += window >= 20 ? density / 20 : 0.0;
        }
        if (fabs(sum / links[i].want - 1.0) > 0.12)
            fail_msg("link %zu: %g, not %g", i, sum, links[i].want);
    }
}

static void test_it_follows_a_link_that_changes(void **state) {
    tam_slowdown s = {.most = most};
    double density = most;
    (void)state;
    for (uint64_t window = 0; window < 120; window++) {
        density = next_of(&s, &links[window / 40 == 1 ? 3 : 0], density, window);
        if (window % 40 == 39)
            assert_true(fabs(density / (window / 40 == 1 ? 0.0885 : most) - 1.0) < 0.2);
    }
}

/* Times that make no sense move nothing out of bounds. */
static void test_odd_times_stay_in_bounds(void **state) {
    static const uint32_t odd[][2] = {
        {0, 0}, {1, 0}, {0, 1}, {UINT32_MAX / 2, UINT32_MAX}, {1, UINT32_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        tam_slowdown s = {.most = most};
        double density = most;
        for (int window = 0; window < 10; window++) {
            density = window_of(&s, density, odd[i][0], odd[i][1]);
            assert_true(density >= goal.least && density <= most);
        }
    }
}

/* Its bound goes below the least that suits the update, and up again. */
static void test_the_caller_gives_another_bound(void **state) {
    tam_slowdown s = {.most = most};
    double density = 0.05;
    (void)state;
    tam_slowdown_bound(&s, 0.05);
    assert_true(next_of(&s, &links[3], 0.05, 0) == 0.05);
    tam_slowdown_bound(&s, most);
    for (uint64_t window = 0; window < 40; window++)
        density = window_of(&s, density, COMPUTING_US, (uint32_t)(1e6 * 0.2 * density));
    assert_true(density >= goal.least && density < 1.2 * goal.least);
}

static void test_impossible_states_are_known(void **state) {
    const tam_slowdown bad[] = {{.most = 0.0},
                                {.most = 1.5},
                                {.most = NAN},
                                {.most = 0.1, .weight = -1.0},
                                {.most = 0.1, .product = INFINITY},
                                {.most = 0.1, .steps = 40}};
    const tam_slowdown fine = {.most = 0.1, .steps = 39};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(tam_slowdown_valid(&bad[i]));
    assert_true(tam_slowdown_valid(&fine));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_finds_the_density_of_a_link),
        cmocka_unit_test(test_it_follows_a_link_that_changes),
        cmocka_unit_test(test_odd_times_stay_in_bounds),
        cmocka_unit_test(test_the_caller_gives_another_bound),
        cmocka_unit_test(test_impossible_states_are_known),
    };
    return cmocka_run_group_tests_name("slowdown", tests, NULL, NULL);
}
