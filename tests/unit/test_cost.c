/* SPDX-License-Identifier: MIT
 *
 * The model by which exchange auto chooses.
 */
#include "lib/policy/cost.h"
#include "lib/policy/grid.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static void near(double got, double expected) {
    if (!(fabs(got - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.17g, not %.17g", got, expected);
}

static void a_curve_is_straight_between_its_points_and_goes_on(void **state) {
    tam_curve c = {0};
    (void)state;
    near(tam_curve_at(&c, 5.0), 0.0);
    tam_curve_add(&c, 10.0, 2.0);
    near(tam_curve_at(&c, 100.0), 2.0);
    tam_curve_add(&c, 20.0, 4.0);
    tam_curve_add(&c, 40.0, 5.0);
    near(tam_curve_at(&c, 1.0), 2.0);
    near(tam_curve_at(&c, 15.0), 3.0);
    near(tam_curve_at(&c, 30.0), 4.5);
    near(tam_curve_at(&c, 80.0), 9.0); /* 0.05 from 20 to 40, 0.1 from 10 */
    tam_curve_add(&c, 50.0, 8.0);
    near(tam_curve_at(&c, 80.0), 17.0);
}

static void what_took_longer_than_a_larger_size_took_as_long(void **state) {
    tam_curve c = {0};
    (void)state;
    tam_curve_add(&c, 1.0, 1.0);
    tam_curve_add(&c, 2.0, 9.0); /* disturbed */
    tam_curve_add(&c, 3.0, 3.0);
    near(tam_curve_at(&c, 1.0), 1.0);
    near(tam_curve_at(&c, 2.0), 3.0);
    near(tam_curve_at(&c, 9.0), 9.0);             /* as from 1 to 3 */
    for (int i = 0; i < 2 * TAM_COST_POINTS; i++) /* more than there is room for */
        tam_curve_add(&c, 4.0 + i, 4.0 + i);
    assert_int_equal(c.count, TAM_COST_POINTS);
}

/* P = 4: two rounds; 1 us a byte. */
static void a_given_link_costs_what_its_formulas_say(void **state) {
    const tam_link_model link = {1.0, 1e-6};
    tam_costs costs;
    (void)state;
    tam_costs_of_link(&link, 4, &costs);
    near(tam_curve_at(&costs.sum, 1000.0), 4.0 + 8.0 * 1000.0 * 1e-6 * 3.0 / 4.0);
    near(tam_curve_at(&costs.gather, 1000.0), 2.0 + 1000.0 * 1e-6 * 3.0);
    near(tam_curve_at(&costs.pass, 4e6), 1e-3);
}

static void the_denser_the_rather_dense(void **state) {
    const tam_link_model links[] = {{50e-6, 8e-9}, {5e-6, 8e-11}, {1e-3, 1e-6}};
    (void)state;
    for (int l = 0; l < 3; l++)
        for (uint64_t n = 1; n <= 10000000; n *= 10) {
            tam_costs costs;
            bool dense = false;
            tam_costs_of_link(&links[l], 4, &costs);
            for (uint64_t k = 1; k <= n; k *= 10) {
                tam_cost_case c = {n, k, 4, tam_curve_at(&costs.gather, 88.0 + (double)k),
                                   (double)k};
                bool now = tam_cost_prefers_dense(&costs, &c);
                assert_true(now || !dense);
                dense = now;
            }
            assert_true(dense); /* k = n: nothing is gained by indices */
        }
}

static void one_rank_needs_no_lists(void **state) {
    const tam_link_model link = {50e-6, 8e-9};
    tam_cost_case c = {1000000, 1000, 1, 0.0, 1000.0};
    tam_costs costs;
    (void)state;
    tam_costs_of_link(&link, 1, &costs);
    assert_true(tam_cost_prefers_dense(&costs, &c));
}

/* Nothing else costs anything here. */
static void a_union_costs_a_tenth_of_a_microsecond_for_each_block_of_the_division(void **state) {
    const tam_costs none = {0};
    (void)state;
    for (uint32_t nranks = 2; nranks <= 4096; nranks *= 2)
        for (uint64_t n = 1000; n < 1000000000; n *= 10) {
            tam_cost_case c = {n, 1, nranks, 0.0, 1.0};
            near(tam_cost_union(&none, &c), 15e-6 + 1e-7 * (double)tam_blocks_wished(n, nranks));
        }
}

static void what_does_not_grow_is_not_believed(void **state) {
    tam_costs costs = {0}, usual;
    const tam_link_model memory = {5e-6, 0.1e-9};
    (void)state;
    tam_curve_add(&costs.sum, 32.0, 0.0);
    tam_curve_add(&costs.sum, 1024.0, 0.0);
    tam_curve_add(&costs.gather, 128.0, 1.0);
    tam_curve_add(&costs.gather, 4096.0, 2.0);
    tam_costs_complete(&costs, 4);
    tam_costs_of_link(&memory, 4, &usual);
    near(tam_curve_at(&costs.sum, 1e6), tam_curve_at(&usual.sum, 1e6));
    near(tam_curve_at(&costs.pass, 1e6), tam_curve_at(&usual.pass, 1e6));
    near(tam_curve_at(&costs.gather, 4096.0), 2.0); /* as measured */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_curve_is_straight_between_its_points_and_goes_on),
        cmocka_unit_test(what_took_longer_than_a_larger_size_took_as_long),
        cmocka_unit_test(a_given_link_costs_what_its_formulas_say),
        cmocka_unit_test(the_denser_the_rather_dense),
        cmocka_unit_test(one_rank_needs_no_lists),
        cmocka_unit_test(a_union_costs_a_tenth_of_a_microsecond_for_each_block_of_the_division),
        cmocka_unit_test(what_does_not_grow_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
