/* SPDX-License-Identifier: MIT
 *
 * Small dense systems, against what defines their solutions.
 */
#include "lib/energy/attribute/solve.h"
#include "tests/support/generator.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { MOST = TAM_SOLVE_MOST };

/* The sum of `rank` random squares. */
static void fill(uint32_t n, uint32_t rank, uint64_t *random, tam_matrix *a) {
    memset(a, 0, sizeof *a);
    for (uint32_t r = 0; r < rank; r++) {
        double x[MOST];
        for (uint32_t i = 0; i < n; i++)
            x[i] = generator_normal(random);
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; j < n; j++)
                a->at[i][j] += x[i] * x[j];
        }
    }
}

static double row_times(uint32_t n, const tam_matrix *a, uint32_t i, const double *x) {
    double sum = 0.0;
    for (uint32_t j = 0; j < n; j++)
        sum += a->at[i][j] * x[j];
    return sum;
}

static void a_part_is_solved_and_the_rest_is_zero(void **state) {
    (void)state;
    uint64_t random = 1;
    for (uint32_t n = 1; n <= MOST; n++) {
        tam_matrix a;
        double b[MOST], x[MOST];
        uint32_t bits = (uint32_t)(generator_uniform(&random) * 4294967295.0) | 1u;
        fill(n, 2 * n, &random, &a);
        for (uint32_t i = 0; i < n; i++)
            b[i] = generator_normal(&random);
        assert_true(tam_solve_part(n, &a, b, bits, x));
        for (uint32_t i = 0; i < n; i++) {
            if (bits >> i & 1)
                assert_true(fabs(row_times(n, &a, i, x) - b[i]) < 1e-8);
            else
                assert_true(x[i] == 0.0);
        }
    }
}

/* Positive where the slope is 0, and 0 where more would be worse. */
static void the_least_of_what_is_not_negative_is_found(void **state) {
    (void)state;
    uint64_t random = 2;
    uint32_t bound = 0;
    for (uint32_t round = 0; round < 500; round++) {
        uint32_t n = 1 + round % MOST;
        tam_matrix a;
        double b[MOST], x[MOST];
        fill(n, n + 5, &random, &a);
        for (uint32_t i = 0; i < n; i++)
            b[i] = generator_normal(&random) + (round % 3 ? 0.0 : 1.0);
        assert_true(tam_solve_nonnegative(n, &a, b, x));
        for (uint32_t i = 0; i < n; i++) {
            double slope = b[i] - row_times(n, &a, i, x);
            assert_true(x[i] >= 0.0);
            assert_true(x[i] > 0.0 ? fabs(slope) < 1e-6 : slope < 1e-6);
            bound += x[i] == 0.0;
        }
    }
    assert_true(bound > 1000);
}

static void an_inverse_undoes(void **state) {
    (void)state;
    uint64_t random = 3;
    for (uint32_t n = 1; n <= MOST; n++) {
        tam_matrix a, inverse;
        fill(n, 2 * n, &random, &a);
        assert_true(tam_solve_inverse(n, &a, &inverse));
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; j < n; j++) {
                double sum = 0.0;
                for (uint32_t k = 0; k < n; k++)
                    sum += a.at[i][k] * inverse.at[k][j];
                assert_true(fabs(sum - (i == j)) < 1e-8);
            }
        }
    }
}

static void what_is_singular_shows_and_is_refused(void **state) {
    (void)state;
    uint64_t random = 4;
    for (uint32_t n = 2; n <= MOST; n++) {
        tam_matrix a, vectors;
        double values[MOST];
        uint32_t rank = 1 + n / 2, zeros = 0;
        fill(n, rank, &random, &a);
        tam_solve_eigen(n, &a, values, &vectors);
        for (uint32_t v = 0; v < n; v++) {
            double column[MOST];
            for (uint32_t i = 0; i < n; i++)
                column[i] = vectors.at[i][v];
            for (uint32_t i = 0; i < n; i++)
                assert_true(fabs(row_times(n, &a, i, column) - values[v] * column[i]) < 1e-9);
            zeros += fabs(values[v]) < 1e-10;
        }
        assert_int_equal(zeros, n - rank);
    }
    double b[MOST] = {1.0, 1.0}, x[MOST];
    tam_matrix singular = {.at = {{1.0, 1.0}, {1.0, 1.0}}}, inverse;
    assert_false(tam_solve_inverse(2, &singular, &inverse));
    assert_false(tam_solve_part(2, &singular, b, 3, x));
    assert_true(tam_solve_part(2, &singular, b, 1, x));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_is_solved_and_the_rest_is_zero),
        cmocka_unit_test(the_least_of_what_is_not_negative_is_found),
        cmocka_unit_test(an_inverse_undoes),
        cmocka_unit_test(what_is_singular_shows_and_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
