/* SPDX-License-Identifier: MIT
 *
 * The model by which exchange auto chooses.
 */
#include "lib/policy/cost.h"
#include "lib/policy/grid.h"
#include "tests/support/ranks.h"

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

/* -- networks --------------------------------------------------------------------------------- */

static tam_costs costs_of(const tam_link_model *link, const tam_plan *plan) {
    tam_net net = tam_net_of_link(link, plan->nranks, 1);
    tam_costs costs;
    tam_costs_of_net(&net, plan, &costs);
    return costs;
}

/* All with all, P = 4: 8 s of latency, 1 us a byte, 2.5 us of processor at each end of a message.
 * Without bytes, one is sent and three are received one after another; with many, only the first
 * and the last are not hidden behind the wire. */
static void a_given_link_costs_what_its_formulas_say(void **state) {
    const tam_link_model link = {8.0, 1e-6};
    const tam_plan plan = tam_plan_linear(4);
    const tam_costs costs = costs_of(&link, &plan);
    (void)state;
    near(tam_curve_at(&costs.gather, 0.0), 8.0 + 10e-6);
    near(tam_curve_at(&costs.gather, 1e9), 8.0 + 5e-6 + 3e3);
    near(tam_curve_at(&costs.sum, 0.0), 2.0 * (8.0 + 10e-6));
    near(tam_curve_at(&costs.pass, 4e6), 1e-3);
}

static void nodes_are_near_and_one_node_is_all_there_is(void **state) {
    const tam_link_model slow = {50e-6, 8e-9}, fast = {1e-6, 1e-11};
    (void)state;
    tam_net net = tam_net_of_link(&slow, 64, 8);
    assert_int_equal(net.ranks_per_node, 8);
    near(net.near_s, 5e-6);
    near(net.near_s_per_byte, 1e-10);
    near(net.far_s, 50e-6);
    near(net.far_s_per_byte, 8e-9);
    near(net.message_s, 5e-6);
    net = tam_net_of_link(&fast, 64, 8); /* no node is slower than its network */
    near(net.near_s, 1e-6);
    near(net.near_s_per_byte, 1e-11);
    near(net.message_s, 0.125e-6);
    for (uint32_t size = 0; size <= 128; size += 64) /* unknown; all; more */
        assert_int_equal(tam_net_of_link(&slow, 64, size).ranks_per_node, 1);
}

typedef struct network {
    tam_plan plan;
    tam_net net;
} network;

enum { NETWORKS = 9 * 2 * 2 * 16 };

/* All with all and in stages, ranks by themselves and in nodes of 8, links of 1 us to 1 ms and 0.1
 * to 100 Gbit/s. */
static network network_at(uint32_t i) {
    static const uint32_t nranks[] = {2, 3, 4, 8, 16, 64, 1000, 1024, 4096};
    uint32_t p = nranks[i % 9], node = i / 9 % 2 ? 8 : 1, staged = i / 18 % 2, link = i / 36;
    tam_link_model model = {1e-6 * pow(10.0, link % 4), 8e-8 / pow(10.0, link / 4)};
    network out = {tam_plan_linear(p), tam_net_of_link(&model, p, node)};
    if (staged)
        out.plan = tam_plan_make(p, node, 8);
    return out;
}

static void check_curve(uint32_t i, bool sums) {
    network now = network_at(i);
    tam_costs costs;
    tam_costs_of_net(&now.net, &now.plan, &costs);
    const tam_curve *curve = sums ? &costs.sum : &costs.gather;
    for (double size = 1.0, at = 0; at < 150 + curve->count; size *= 1.17, at++) {
        bool point = at < curve->count;
        double x = point ? curve->size[(int)at] : size, got = tam_curve_at(curve, x);
        double expected = sums ? tam_plan_sum_s(&now.net, &now.plan, 4.0 * x)
                               : tam_plan_gather_s(&now.net, &now.plan, x);
        if (!(fabs(got - expected) <= (point ? 1e-12 : 0.1) * expected))
            fail_msg("network %u, %g %s: %g s, not %g", i, x, sums ? "floats" : "bytes", got,
                     expected);
        size = point ? 1.0 : size;
    }
}

static void curves_are_times_of_the_plan(void **state) {
    (void)state;
    for (uint32_t i = 0; i < NETWORKS; i++) {
        check_curve(i, true);
        check_curve(i, false);
    }
}

/* 50 us and 25 Gbit/s, as TCP: a little to all takes 20 ms where 4096 ranks send to all, not the 12
 * latencies of a tree; in stages of 8 it takes four times as long as among 8. */
static void little_takes_all_with_all_as_long_as_p_and_stages_as_log_p(void **state) {
    const tam_link_model link = {50e-6, 0.32e-9};
    const uint32_t nranks[] = {8, 64, 512, 4096};
    double all_s[4], staged_s[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        const tam_plan linear = tam_plan_linear(nranks[i]), stages = tam_plan_make(nranks[i], 1, 8);
        const tam_costs all = costs_of(&link, &linear), staged = costs_of(&link, &stages);
        all_s[i] = tam_curve_at(&all.gather, 0.0);
        staged_s[i] = tam_curve_at(&staged.gather, 0.0);
        near(tam_curve_at(&all.sum, 0.0), 2.0 * tam_curve_at(&all.gather, 0.0));
    }
    for (int i = 1; i < 4; i++) {
        near(staged_s[i], (i + 1) * staged_s[0]);
        assert_true(all_s[i] > 3.0 * all_s[i - 1]);
    }
    assert_true(all_s[3] > 7.0 * all_s[2] && all_s[3] > 10e-3 && all_s[3] < 25e-3);
    assert_true(staged_s[3] < 400e-6);
}

/* A small bucket of 4096 ranks is dense if sparse needs one exchange more, a large one is not. What
 * lies between grows with the latency. */
static void the_slower_little_is_the_rather_dense(void **state) {
    const tam_link_model link = {50e-6, 0.32e-9};
    const tam_plan linear = tam_plan_linear(4096), stages = tam_plan_make(4096, 1, 8);
    uint64_t least[2];
    (void)state;
    for (int s = 0; s < 2; s++) {
        const tam_costs costs = costs_of(&link, s ? &stages : &linear);
        for (least[s] = 1000; least[s] < UINT64_C(1) << 40; least[s] *= 2) {
            uint64_t k = least[s] / 100;
            tam_cost_case c = {least[s], k, 4096,
                               tam_curve_at(&costs.gather, 4.0 * (double)k / 4096), (double)k};
            if (!tam_cost_prefers_dense(&costs, &c))
                break;
        }
    }
    if (!(least[0] > 8 * least[1] && least[1] > 1000 && least[0] < UINT64_C(1) << 40))
        fail_msg("sparse from %llu elements on all with all, from %llu in stages",
                 (unsigned long long)least[0], (unsigned long long)least[1]);
}

/* -- links that fit --------------------------------------------------------------------------- */

/* What the model itself takes, so that only the fit is judged. */
static tam_timing timing_of(const tam_link_model *link, const tam_plan *plan, uint32_t node,
                            bool sums, double large) {
    tam_net net = tam_net_of_link(link, plan->nranks, node);
    tam_timing timing = {.sums = sums, .bytes = {8.0, large}};
    for (int i = 0; i < 2; i++)
        timing.seconds[i] = sums ? tam_plan_sum_s(&net, plan, timing.bytes[i])
                                 : tam_plan_gather_s(&net, plan, timing.bytes[i]);
    return timing;
}

static void within(double got, double expected, double part) {
    if (!(fabs(got - expected) <= part * expected))
        fail_msg("%g, not %g", got, expected);
}

static void a_link_is_found_again(void **state) {
    static const tam_link_model links[] = {{50e-6, 8e-9}, {5e-6, 1e-10}, {20e-3, 8e-8}};
    static const uint32_t nranks[] = {2, 3, 8, 64, 4096};
    (void)state;
    for (int i = 0; i < 3 * 5 * 2 * 2 * 2; i++) {
        const tam_link_model *link = &links[i % 3];
        uint32_t p = nranks[i / 3 % 5], node = i / 15 % 2 ? 8 : 1;
        bool sums = i / 30 % 2, staged = i / 60 % 2;
        tam_plan plan = staged ? tam_plan_make(p, node, 8) : tam_plan_linear(p);
        tam_timing timing = timing_of(link, &plan, node, sums, 1e8);
        tam_link_model found;
        test_context("%u ranks, nodes of %u, %s, link %d", p, node, staged ? "staged" : "all",
                     i % 3);
        assert_true(tam_link_fit(&timing, &plan, node, &found));
        within(found.latency_s, link->latency_s, 0.25);
        within(found.seconds_per_byte, link->seconds_per_byte, 0.01);
    }
}

/* Messages between 4096 ranks take so long that 512 bytes each hide behind them: the rate is not to
 * be seen, and not guessed. */
static void a_rate_that_hides_is_not_known(void **state) {
    const tam_link_model link = {50e-6, 0.32e-9};
    const tam_plan plan = tam_plan_linear(4096), one = tam_plan_linear(1);
    tam_link_model found;
    (void)state;
    tam_timing timing = timing_of(&link, &plan, 1, false, 512.0);
    assert_false(tam_link_fit(&timing, &plan, 1, &found));
    within(found.latency_s, link.latency_s, 0.25);
    assert_true(found.seconds_per_byte == 0.0);
    timing.seconds[1] = 0.5 * timing.seconds[0]; /* disturbed */
    assert_false(tam_link_fit(&timing, &plan, 1, &found));
    timing = (tam_timing){false, {8.0, 1e6}, {1e-6, 1e-3}};
    assert_false(tam_link_fit(&timing, &one, 1, &found));
    assert_true(found.latency_s == 0.0 && found.seconds_per_byte == 0.0);
}

/* -- buckets ---------------------------------------------------------------------------------- */

static void the_denser_the_rather_dense(void **state) {
    const tam_link_model links[] = {{50e-6, 8e-9}, {5e-6, 8e-11}, {1e-3, 1e-6}};
    (void)state;
    for (int l = 0; l < 3; l++)
        for (uint64_t n = 1; n <= 10000000; n *= 10) {
            const tam_plan plan = tam_plan_linear(4);
            const tam_costs costs = costs_of(&links[l], &plan);
            bool dense = false;
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
    const tam_plan plan = tam_plan_linear(1);
    const tam_costs costs = costs_of(&link, &plan);
    (void)state;
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
    const tam_link_model memory = tam_link_usual(true);
    const tam_plan plan = tam_plan_linear(4);
    const tam_costs usual = costs_of(&memory, &plan);
    tam_costs costs = {0};
    (void)state;
    tam_curve_add(&costs.sum, 32.0, 0.0);
    tam_curve_add(&costs.sum, 1024.0, 0.0);
    tam_curve_add(&costs.gather, 128.0, 1.0);
    tam_curve_add(&costs.gather, 4096.0, 2.0);
    tam_costs_complete(&costs, &usual);
    near(tam_curve_at(&costs.sum, 1e6), tam_curve_at(&usual.sum, 1e6));
    near(tam_curve_at(&costs.pass, 1e6), tam_curve_at(&usual.pass, 1e6));
    near(tam_curve_at(&costs.gather, 4096.0), 2.0); /* as measured */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_curve_is_straight_between_its_points_and_goes_on),
        cmocka_unit_test(what_took_longer_than_a_larger_size_took_as_long),
        cmocka_unit_test(a_given_link_costs_what_its_formulas_say),
        cmocka_unit_test(nodes_are_near_and_one_node_is_all_there_is),
        cmocka_unit_test(curves_are_times_of_the_plan),
        cmocka_unit_test(little_takes_all_with_all_as_long_as_p_and_stages_as_log_p),
        cmocka_unit_test(the_slower_little_is_the_rather_dense),
        cmocka_unit_test(a_link_is_found_again),
        cmocka_unit_test(a_rate_that_hides_is_not_known),
        cmocka_unit_test(the_denser_the_rather_dense),
        cmocka_unit_test(one_rank_needs_no_lists),
        cmocka_unit_test(a_union_costs_a_tenth_of_a_microsecond_for_each_block_of_the_division),
        cmocka_unit_test(what_does_not_grow_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
