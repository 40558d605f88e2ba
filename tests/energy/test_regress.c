/* SPDX-License-Identifier: MIT
 *
 * Watts from sums of rows, against what defines them.
 */
#include "lib/energy/attribute/fit.h"
#include "tests/support/generator.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { MOST = TAM_FIT_MAX, ROWS = 100 };

static const uint32_t apart[MOST]; /* no groups */

static tam_unknowns sought(uint32_t count, double ridge) {
    return (tam_unknowns){UINT32_MAX >> (MOST - count), apart, 200.0, ridge};
}

/* Seconds of phases below `count`, between 0 and 10 ms. */
static tam_row some_row(uint32_t count, uint64_t *random) {
    tam_row row = {.weight = 1.0};
    for (uint32_t k = 0; k < count; k++)
        row.x[k] = 0.01 * generator_uniform(random);
    return row;
}

static double dot(const tam_row *row, const double *watts) {
    double sum = 0.0;
    for (uint32_t k = 0; k < MOST; k++)
        sum += row->x[k] * watts[k];
    return sum;
}

/* By how much the sum of squares would fall per watt more, of rows and prior, halved. */
static double slope(const tam_row *rows, const tam_unknowns *u, const double *watts, uint32_t k) {
    double sum = u->ridge * (u->mean_w - watts[k]);
    for (uint32_t i = 0; i < ROWS; i++)
        sum += rows[i].x[k] * (rows[i].y - dot(&rows[i], watts));
    return sum;
}

/* Positive where the slope is 0, and 0 where more would be worse. */
static void the_least_of_what_is_not_negative_is_found(void **state) {
    (void)state;
    static tam_row rows[ROWS];
    uint64_t random = 2;
    uint32_t bound = 0;
    for (uint32_t round = 0; round < 300; round++) {
        tam_normal n = {0};
        tam_unknowns u = sought(1 + round % MOST, 1e-6);
        double watts[MOST], error_j2, squares = 0.0;
        for (uint32_t i = 0; i < ROWS; i++) {
            rows[i] = some_row(1 + round % MOST, &random);
            rows[i].y = 1.0 + 3.0 * generator_normal(&random);
            tam_normal_add(&n, u.phases, 1.0, &rows[i]);
        }
        assert_true(tam_normal_solve(&n, &u, watts, &error_j2));
        for (uint32_t k = 0; k < 1 + round % MOST; k++) {
            assert_true(watts[k] >= 0.0);
            assert_true(watts[k] > 0.0 ? fabs(slope(rows, &u, watts, k)) < 1e-9
                                       : slope(rows, &u, watts, k) < 1e-9);
            bound += watts[k] == 0.0;
        }
        for (uint32_t i = 0; i < ROWS; i++)
            squares += pow(rows[i].y - dot(&rows[i], watts), 2.0);
        assert_true(fabs(error_j2 * ROWS / squares - 1.0) < 1e-9);
    }
    assert_true(bound > 1000);
}

static void the_spread_is_that_of_watts(void **state) {
    (void)state;
    enum { PHASES = 5, TRIALS = 2000 };
    const double truth[MOST] = {100, 200, 300, 400, 500};
    uint64_t random = 3;
    double squares[PHASES] = {0}, spread[MOST];
    tam_unknowns u = sought(PHASES, 1e-12);
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        uint64_t same = 4; /* rows; noise differs */
        tam_normal n = {0};
        double watts[MOST], error_j2;
        for (uint32_t i = 0; i < ROWS; i++) {
            tam_row row = some_row(PHASES, &same);
            row.y = dot(&row, truth) + 0.01 * generator_normal(&random);
            tam_normal_add(&n, u.phases, 0.99, &row);
        }
        assert_true(tam_normal_solve(&n, &u, watts, &error_j2));
        assert_true(tam_normal_spread(&n, &u, spread));
        for (uint32_t k = 0; k < PHASES; k++)
            squares[k] += (watts[k] - truth[k]) * (watts[k] - truth[k]) / TRIALS;
    }
    for (uint32_t k = 0; k < PHASES; k++)
        assert_true(fabs(sqrt(squares[k] / (1e-4 * spread[k])) - 1.0) < 0.15);
    assert_true(spread[PHASES] == 1.0 / u.ridge);
}

/* 2 comes with 7 always, 9 has never been seen, and 0, 1, 3 are told from all. */
static void phases_that_come_together_are_one_group(void **state) {
    (void)state;
    const uint32_t pair = 1u << 2 | 1u << 7;
    uint64_t random = 5;
    uint32_t group[MOST];
    double condition, watts[MOST], error_j2;
    tam_normal n = {0};
    tam_unknowns u = {.phases = 0xf | pair | 1u << 9, .group = group, .mean_w = 200, .ridge = 1e-9};
    for (uint32_t i = 0; i < ROWS; i++) {
        tam_row row = some_row(4, &random);
        row.x[7] = 3.0 * row.x[2];
        row.y = 100.0 * (row.x[0] + row.x[1] + row.x[3]) + 300.0 * (row.x[2] + row.x[7]);
        tam_normal_add(&n, u.phases, 1.0, &row);
    }
    tam_normal_groups(&n, u.phases, &(tam_normal){0}, group, &condition);
    for (uint32_t k = 0; k < MOST; k++)
        assert_int_equal(group[k], pair >> k & 1 ? pair : 0);
    assert_true(condition > 1000.0);
    assert_true(tam_normal_solve(&n, &u, watts, &error_j2));
    assert_true(fabs(watts[0] - 100.0) < 0.01 && fabs(watts[2] - 300.0) < 0.01);
    assert_true(watts[7] == watts[2] && watts[9] == 200.0);
}

/* What varies by no more than its times are wrong by tells nothing. */
static void what_uncertain_times_make_of_a_phase_tells_nothing(void **state) {
    (void)state;
    uint64_t random = 6;
    uint32_t group[MOST];
    double condition;
    tam_normal n = {0}, blur = {0};
    for (uint32_t i = 0; i < ROWS; i++) {
        tam_row row = some_row(1, &random), wrong = {.weight = 1.0};
        wrong.x[1] = 1e-4 * generator_normal(&random);
        row.x[1] = 0.02 + wrong.x[1];
        row.x[2] = 0.01;
        tam_normal_add(&n, 7, 1.0, &row);
        tam_normal_add(&blur, 7, 1.0, &wrong);
    }
    tam_normal_groups(&n, 7, &(tam_normal){0}, group, &condition);
    assert_true(group[0] == 0 && group[1] == 0 && group[2] == 0);
    tam_normal_groups(&n, 7, &blur, group, &condition);
    assert_true(group[0] == 0 && group[1] == 6 && group[2] == 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_what_is_not_negative_is_found),
        cmocka_unit_test(the_spread_is_that_of_watts),
        cmocka_unit_test(phases_that_come_together_are_one_group),
        cmocka_unit_test(what_uncertain_times_make_of_a_phase_tells_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
