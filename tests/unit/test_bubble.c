/* SPDX-License-Identifier: MIT
 *
 * One budget for the stages of a pipeline, against every division there is.
 */
#include "lib/policy/bubble.h"
#include "tests/support/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { STAGES_MOST = 32 };

typedef struct pipe_case {
    uint32_t nstages;
    uint64_t k, lengths[STAGES_MOST], even[STAGES_MOST], budgets[STAGES_MOST];
    double windows_s[STAGES_MOST], entry_s[STAGES_MOST];
} pipe_case;

static void divide(pipe_case *c) {
    memset(c->budgets, 0xff, sizeof c->budgets);
    tam_bubble_divide(c->k, c->nstages, c->lengths, c->windows_s, c->entry_s, c->even, c->budgets);
}

static tam_bounds bounds_of(const pipe_case *c, uint32_t s) {
    return tam_bucket_bounds(c->even[s], c->lengths[s],
                             tam_bucket_more(c->k, c->nstages, TAM_STAGE_TENTHS));
}

static double latest(const pipe_case *c, const uint64_t *budgets) {
    double worst = -INFINITY;
    for (uint32_t s = 0; s < c->nstages; s++)
        worst = fmax(worst, c->entry_s[s] * (double)budgets[s] - c->windows_s[s]);
    return worst;
}

static void check_sum_and_bounds(const pipe_case *c) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < c->nstages; s++) {
        tam_bounds bounds = bounds_of(c, s);
        assert_true(c->budgets[s] >= bounds.low && c->budgets[s] <= bounds.high);
        assert_true(c->budgets[s] <= c->lengths[s]);
        sum += c->budgets[s];
    }
    assert_int_equal(sum, c->k);
}

static double uniform(uint64_t seed) {
    return (double)(data_mix(seed) >> 11) / 9007199254740992.0;
}

/* The best of all divisions within the bounds, stage by stage. */
static double best(const pipe_case *c, uint32_t s, uint64_t left, uint64_t *budgets) {
    tam_bounds bounds = bounds_of(c, s);
    if (s == c->nstages - 1) {
        budgets[s] = left;
        return left >= bounds.low && left <= bounds.high ? latest(c, budgets) : INFINITY;
    }
    double least = INFINITY;
    for (budgets[s] = bounds.low; budgets[s] <= bounds.high && budgets[s] <= left;) {
        least = fmin(least, best(c, s + 1, left - budgets[s], budgets));
        budgets[s]++;
    }
    return least;
}

static void no_division_ends_more_than_one_entry_earlier(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        pipe_case c = {.nstages = 2 + (uint32_t)(seed % 3)};
        uint64_t n = 0, budgets[STAGES_MOST];
        double slowest = 0.0;
        for (uint32_t s = 0; s < c.nstages; s++) {
            uint64_t base = seed * 100 + 10 * s;
            c.lengths[s] = 1 + data_mix(base) % 40;
            c.windows_s[s] = 10.0 * uniform(base + 1) - 1.0;
            c.entry_s[s] = seed % 2 ? 0.2 : 0.05 + uniform(base + 2);
            slowest = fmax(slowest, c.entry_s[s]);
            n += c.lengths[s];
        }
        c.windows_s[0] = fabs(c.windows_s[0]);
        c.k = c.nstages + data_mix(seed) % (n - c.nstages + 1);
        divide(&c);
        check_sum_and_bounds(&c);
        assert_true(latest(&c, c.budgets) <= best(&c, 0, c.k, budgets) + slowest + 1e-9);
    }
}

/* 400 entries, 1 ms each. By length 100 each, so bounds are 50 and 200. */
static void check_example(const double windows_s[4], const uint64_t expected[4]) {
    pipe_case c = {.nstages = 4, .k = 400};
    for (uint32_t s = 0; s < 4; s++) {
        c.lengths[s] = 1000;
        c.entry_s[s] = 1e-3;
        c.windows_s[s] = windows_s[s];
    }
    divide(&c);
    assert_memory_equal(c.budgets, expected, 4 * sizeof expected[0]);
}

static void examples_worked_by_hand(void **state) {
    (void)state;
    check_example((double[]){0.5, 0.5, 0.5, 0.5}, (uint64_t[]){100, 100, 100, 100});
    check_example((double[]){0.01, 0.03, 0.05, 0.07}, (uint64_t[]){70, 90, 110, 130});
    /* 100 entries, or 0.1 s, before the windows end: -100, 0, 100, 200, two of them below 50 */
    check_example((double[]){0.0, 0.1, 0.2, 0.3}, (uint64_t[]){50, 50, 100, 200});
    check_example((double[]){9.0, 0.1, 0.1, 0.1}, (uint64_t[]){200, 67, 66, 67});
}

static void large_stages_sum_exactly(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        pipe_case c = {.nstages = 1 + (uint32_t)(seed % STAGES_MOST)};
        uint64_t n = 0;
        for (uint32_t s = 0; s < c.nstages; s++) {
            uint64_t base = seed * 1000 + 10 * s;
            c.lengths[s] = seed % 3 ? TAM_LENGTH_MAX - data_mix(base) % 1000
                                    : 1 + data_mix(base) % TAM_LENGTH_MAX;
            c.windows_s[s] = pow(10.0, 20.0 * uniform(base + 1) - 10.0);
            c.entry_s[s] = pow(10.0, 40.0 * uniform(base + 2) - 20.0);
            n += c.lengths[s];
        }
        c.k = seed % 5 ? c.nstages + data_mix(seed) % (n / (seed % 100 + 1) - c.nstages) : n;
        divide(&c);
        check_sum_and_bounds(&c);
    }
}

static void a_longer_window_gets_more(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        pipe_case c = {.nstages = 8, .k = 8 * (1 + seed)};
        for (uint32_t s = 0; s < 8; s++) {
            c.lengths[s] = 10000;
            c.entry_s[s] = 1e-6;
            c.windows_s[s] = (s ? c.windows_s[s - 1] : 0.0) + 1e-4 * uniform(seed * 8 + s);
        }
        divide(&c);
        check_sum_and_bounds(&c);
        for (uint32_t s = 1; s < 8; s++)
            assert_true(c.budgets[s] + 1 >= c.budgets[s - 1]); /* both are rounded */
        assert_true(c.budgets[7] > c.budgets[0] || c.k < 100);
    }
}

static void hostile_numbers_leave_budgets_by_length(void **state) {
    (void)state;
    static const double windows_s[][3] = {{1, NAN, 2}, {INFINITY, 1, 2}, {0, 0, 0}, {-1, 0, -5},
                                          {1, 2, 3},   {1, 2, 3},        {1, 2, 3}};
    static const double entry_s[][3] = {{1, 1, 1}, {1, 1, 1},   {1, 1, 1},       {1, 1, 1},
                                        {1, 0, 1}, {1, NAN, 1}, {1, 1, INFINITY}};
    for (size_t i = 0; i < sizeof windows_s / sizeof windows_s[0]; i++) {
        pipe_case c = {.nstages = 3, .k = 111, .lengths = {300, 500, 310}};
        memcpy(c.windows_s, windows_s[i], sizeof windows_s[i]);
        memcpy(c.entry_s, entry_s[i], sizeof entry_s[i]);
        divide(&c);
        assert_memory_equal(c.budgets, c.even, 3 * sizeof c.even[0]);
        check_sum_and_bounds(&c);
    }
}

static void extreme_numbers_keep_sum_and_bounds(void **state) {
    (void)state;
    static const double extremes[] = {1e-308, 1e308, 1.0, 5e-324, 1e-100, 1e100};
    for (uint64_t seed = 0; seed < 2000; seed++) {
        pipe_case c = {.nstages = 3, .k = 111, .lengths = {300, 500, 310}};
        for (uint32_t s = 0; s < 3; s++) {
            c.windows_s[s] = extremes[data_mix(seed * 6 + s) % 6];
            c.entry_s[s] = extremes[data_mix(seed * 6 + s + 3) % 6];
        }
        divide(&c);
        check_sum_and_bounds(&c);
    }
}

static void with_fewer_entries_than_stages_the_first_get_one(void **state) {
    (void)state;
    pipe_case c = {.nstages = 3, .k = 2, .lengths = {300, 500, 310}};
    for (uint32_t s = 0; s < 3; s++)
        c.windows_s[s] = c.entry_s[s] = 1.0 + s;
    divide(&c);
    assert_memory_equal(c.budgets, ((uint64_t[]){1, 1, 0}), 3 * sizeof c.budgets[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_division_ends_more_than_one_entry_earlier),
        cmocka_unit_test(examples_worked_by_hand),
        cmocka_unit_test(large_stages_sum_exactly),
        cmocka_unit_test(a_longer_window_gets_more),
        cmocka_unit_test(hostile_numbers_leave_budgets_by_length),
        cmocka_unit_test(extreme_numbers_keep_sum_and_bounds),
        cmocka_unit_test(with_fewer_entries_than_stages_the_first_get_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
