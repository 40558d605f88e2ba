/* SPDX-License-Identifier: MIT
 *
 * From measured times to a plan: medians, the numbers of the network, what is proposed and what is
 * taken.
 */
#include "lib/policy/calibration.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define GBIT 8e-9

static uint64_t drawn = 1;

static uint64_t draw(void) {
    drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return drawn >> 33;
}

/* -- medians ---------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t sorted_median(const uint64_t *table, uint32_t nranks, uint32_t width,
                              uint32_t column) {
    uint64_t values[64];
    uint32_t n = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        if (table[r * width + column] > 0)
            values[n++] = table[r * width + column];
    }
    qsort(values, n, sizeof values[0], ascending);
    return n > 0 ? values[(n - 1) / 2] : 0;
}

static void medians_are_those_of_sorted_columns(void **state) {
    enum { WIDTH = 3, MOST = 64 };
    static uint64_t table[WIDTH * MOST];
    static const uint64_t scales[] = {1, 2, 5, 1000, UINT64_MAX};
    (void)state;
    for (uint32_t nranks = 1; nranks <= MOST; nranks++)
        for (size_t s = 0; s < LENGTH(scales); s++) {
            for (uint32_t i = 0; i < WIDTH * nranks; i++)
                table[i] =
                    s + 1 < LENGTH(scales) ? draw() % (scales[s] + 1) : UINT64_MAX - draw() % 3;
            for (uint32_t c = 0; c < WIDTH; c++)
                assert_int_equal(tam_calibration_median(table, nranks, WIDTH, c),
                                 sorted_median(table, nranks, WIDTH, c));
        }
}

/* -- network ---------------------------------------------------------------------------------- */

static const tam_net ib = {8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, 0.0, 0.4e-6, 0.0, 0.0};
static const tam_net tcp = {1, 20e-6, GBIT / 25, 20e-6, GBIT / 25, 0.0, 5e-6, 0.0, 0.0};
static const tam_net slow = {1, 10e-6, GBIT / 1, 10e-6, GBIT / 1, 0.0, 150e-6, 0.0, 0.0};
static const tam_net distant = {1, 1e-3, GBIT / 10, 1e-3, GBIT / 10, 0.0, 1e-6, 0.0, 0.0};
static const tam_net wan = {16, 20e-6, GBIT / 25, 20e-3, GBIT / 1, 0.0, 5e-6, 0.0, 0.0};

/* What ranks on a network measure. */
static void times_of(const tam_net *net, uint32_t nranks, uint64_t ns[TAM_CALIBRATION_EXCHANGES]) {
    double peers = nranks - 1 < TAM_CALIBRATION_PEERS ? nranks - 1 : TAM_CALIBRATION_PEERS;
    double more = TAM_CALIBRATION_LONG - TAM_CALIBRATION_SHORT,
           s[TAM_CALIBRATION_EXCHANGES] = {0.0};
    bool near = net->ranks_per_node > 1, far = net->ranks_per_node < nranks;
    if (near) {
        s[TAM_CALIBRATION_NEAR] = net->near_s + net->message_s;
        s[TAM_CALIBRATION_NEAR_LONG] = s[TAM_CALIBRATION_NEAR] + more * net->near_s_per_byte;
    }
    if (far) {
        s[TAM_CALIBRATION_FAR] = net->far_s + net->message_s;
        s[TAM_CALIBRATION_FAR_LONG] = s[TAM_CALIBRATION_FAR] + more * net->far_s_per_byte;
    }
    s[TAM_CALIBRATION_FAN] = (far ? net->far_s : net->near_s) + peers * net->message_s;
    for (uint32_t i = 0; i < TAM_CALIBRATION_EXCHANGES; i++)
        ns[i] = (uint64_t)(1e9 * s[i]);
}

static void close_to(double got, double expected) {
    if (!(fabs(got - expected) <= 0.02 * expected + 2e-9))
        fail_msg("%.6g, not %.6g", got, expected);
}

static void numbers_come_back(void **state) {
    static const tam_net *nets[] = {&ib, &tcp, &slow, &wan};
    (void)state;
    for (size_t i = 0; i < LENGTH(nets); i++)
        for (uint32_t nranks = 3; nranks <= 64; nranks++) {
            tam_net net = *nets[i];
            uint64_t ns[TAM_CALIBRATION_EXCHANGES];
            if (nranks % net.ranks_per_node != 0)
                net.ranks_per_node = nranks % 2 ? nranks : 1;
            times_of(&net, nranks, ns);
            tam_net got = tam_calibration_net(ns, nranks, net.ranks_per_node);
            bool near = net.ranks_per_node > 1, far = net.ranks_per_node < nranks;
            assert_int_equal(got.ranks_per_node, net.ranks_per_node);
            close_to(got.message_s, net.message_s);
            close_to(got.near_s, near ? net.near_s : net.far_s);
            close_to(got.near_s_per_byte, near ? net.near_s_per_byte : net.far_s_per_byte);
            close_to(got.far_s, far ? net.far_s : net.near_s);
            close_to(got.far_s_per_byte, far ? net.far_s_per_byte : net.near_s_per_byte);
            assert_true(got.cable_s_per_byte == 0.0 && got.copy_s_per_byte == 0.0);
        }
}

/* Also of times that no network has: all ranks still get one plan that can be opened. */
static void any_times_give_a_network(void **state) {
    static const uint64_t odd[] = {0, 1, 2, 1000, 1000000, UINT64_MAX / 2, UINT64_MAX};
    (void)state;
    for (int turn = 0; turn < 3000; turn++) {
        uint64_t ns[TAM_CALIBRATION_EXCHANGES];
        tam_plan plans[TAM_CALIBRATION_OTHERS];
        uint32_t nranks = 3 + (uint32_t)(draw() % 3000), node = turn % 2 ? nranks : 1;
        for (uint32_t i = 0; i < TAM_CALIBRATION_EXCHANGES; i++)
            ns[i] = odd[draw() % LENGTH(odd)];
        tam_net net = tam_calibration_net(ns, nranks, node);
        assert_true(net.message_s > 0.0 && net.near_s_per_byte > 0.0 && net.far_s_per_byte > 0.0);
        assert_true(net.near_s >= 0.0 && net.far_s >= 0.0);
        uint32_t count = tam_calibration_propose(&net, nranks, plans);
        assert_true(count <= TAM_CALIBRATION_OTHERS);
        for (uint32_t i = 0; i < count; i++)
            assert_true(tam_plan_valid(&plans[i], nranks) && tam_plan_fits(&plans[i]));
        uint32_t floats = tam_calibration_floats(&net, nranks);
        assert_true(floats >= TAM_CALIBRATION_FEW && floats <= TAM_CALIBRATION_FLOATS);
        uint32_t rounds = tam_calibration_rounds(&net, nranks, floats, 3);
        assert_true(rounds >= 1 && rounds <= TAM_CALIBRATION_ROUNDS);
    }
}

/* -- proposal --------------------------------------------------------------------------------- */

static void proposes(const tam_net *net, uint32_t nranks, const char *expected) {
    tam_plan plans[TAM_CALIBRATION_OTHERS];
    char text[64] = "", both[160] = "";
    uint32_t count = tam_calibration_propose(net, nranks, plans);
    for (uint32_t i = 0; i < count; i++)
        snprintf(both + strlen(both), sizeof both - strlen(both), "%s%s", i > 0 ? " " : "",
                 tam_plan_text(&plans[i], text, sizeof text));
    if (strcmp(both, expected) != 0)
        fail_msg("%u ranks: \"%s\", not \"%s\"", nranks, both, expected);
}

/* Slow processors: fewer messages. Long ways: fewer stages. Others: usual. */
static void networks_lead_to_their_plans(void **state) {
    (void)state;
    proposes(&ib, 8, "");
    proposes(&tcp, 4, "");
    proposes(&tcp, 8, "");
    proposes(&slow, 8, "4x2 2x2x2");
    proposes(&slow, 4, "");
    proposes(&tcp, 16, "");
    proposes(&distant, 16, "16");
    proposes(&distant, 12, "16");
    proposes(&ib, 64, "");
    proposes(&wan, 64, "");
    proposes(&tcp, 4096, "");
}

/* Whoever sends few messages never tries what sends thousands. */
static void what_sends_many_messages_is_never_proposed(void **state) {
    static const uint32_t sizes[] = {129, 200, 256, 1000, 1024, 2400, 4096, 65536};
    tam_net far_away = {1, 1.0, 1e-9, 1.0, 1e-9, 0.0, 1e-7, 0.0, 0.0};
    uint32_t proposed = 0;
    (void)state;
    for (size_t s = 0; s < LENGTH(sizes); s++)
        for (uint32_t node = 1; node <= 64; node *= 8) {
            tam_plan plans[TAM_CALIBRATION_OTHERS];
            far_away.ranks_per_node = node;
            uint32_t count = tam_calibration_propose(&far_away, sizes[s], plans);
            for (uint32_t i = 0; i < count; i++)
                assert_true(tam_plan_messages(&plans[i]) <= TAM_CALIBRATION_MESSAGES);
            proposed += count;
        }
    assert_true(proposed > 0);
}

/* -- one plan for all steps ------------------------------------------------------------------- */

static const struct {
    tam_net net;
    uint32_t sites; /* whose ranks are a node */
} grid[] = {
    {{8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, GBIT / 3200, 0.4e-6, 5e-11, 0.0}, 0},
    {{8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, GBIT / 400, 0.4e-6, 5e-11, 0.0}, 0},
    {{1, 0.0, 0.0, 20e-6, GBIT / 25, GBIT / 25, 5e-6, 1e-10, 5e-6}, 0},
    {{8, 1e-6, GBIT / 80, 20e-6, GBIT / 25, GBIT / 25, 5e-6, 1e-10, 5e-6}, 0},
    {{1, 20e-6, GBIT / 25, 20e-3, GBIT / 1, GBIT / 1, 5e-6, 1e-10, 0.0}, 4},
    {{1, 0.0, 0.0, 10e-6, GBIT / 1, 0.0, 150e-6, 1e-10, 0.0}, 0},
    {{8, 10e-6, GBIT / 10, 10e-6, GBIT / 1, 0.0, 50e-6, 1e-10, 0.0}, 0},
};

enum { ONE_PLAN, PROPOSED, USUAL, WAYS };

typedef struct regret {
    double worst[WAYS], sum[WAYS];
    uint32_t count;
} regret;

static double weighed(const tam_net *net, const tam_plan *plan) {
    const tam_plan usual = tam_plan_usual(plan->nranks, net->ranks_per_node);
    double sum = 0.0;
    for (double floats = TAM_CALIBRATION_FEW; floats <= TAM_CALIBRATION_FLOATS; floats *= 25.0) {
        tam_plan_case c = {plan->nranks,
                           TAM_CALIBRATION_PACKET + 4.0 * floats / plan->nranks,
                           4.0 * floats,
                           {0, 0, 0}};
        sum += tam_plan_step_s(net, plan, &c) / tam_plan_step_s(net, &usual, &c);
    }
    return sum;
}

static tam_plan least_weighed(const tam_net *net, uint32_t nranks) {
    tam_plan candidates[TAM_PLAN_CANDIDATES];
    uint32_t best = 0;
    tam_plan_candidates(nranks, net->ranks_per_node, candidates);
    for (uint32_t i = 0; i < TAM_PLAN_CANDIDATES; i++)
        candidates[i].fused_bytes = tam_plan_fused(net, &candidates[i]);
    for (uint32_t i = 1; i < TAM_PLAN_CANDIDATES; i++) {
        if (weighed(net, &candidates[i]) < weighed(net, &candidates[best]))
            best = i;
    }
    return candidates[best];
}

static void compare_steps(const tam_net *net, uint32_t nranks, regret *r) {
    static const double elements[] = {1e6, 25e6, 350e6}, densities[] = {0.01, 0.001};
    tam_plan plans[TAM_CALIBRATION_OTHERS], ways[WAYS];
    ways[ONE_PLAN] = least_weighed(net, nranks);
    ways[USUAL] = tam_plan_usual(nranks, net->ranks_per_node);
    ways[USUAL].fused_bytes = tam_plan_fused(net, &ways[USUAL]);
    ways[PROPOSED] = tam_calibration_propose(net, nranks, plans) > 0 ? plans[0] : ways[USUAL];
    for (size_t e = 0; e < LENGTH(elements) * LENGTH(densities); e++) {
        double entries = elements[e / 2] * densities[e % 2];
        tam_plan_case c = {
            nranks, TAM_CALIBRATION_PACKET + 4.0 * entries / nranks, 4.0 * entries, {0, 0, 0}};
        tam_plan own = tam_plan_choose(net, &c);
        for (int w = 0; w < WAYS; w++) {
            double over = tam_plan_step_s(net, &ways[w], &c) / tam_plan_step_s(net, &own, &c) - 1.0;
            r->worst[w] = over > r->worst[w] ? over : r->worst[w];
            r->sum[w] += over;
        }
        r->count++;
    }
}

/* A communicator has one plan, a step might want another: by the formula, on the networks of
 * bench.scale_grid and two of slow processors, what one plan for all steps takes longer than that
 * which is chosen for the step. */
static void one_plan_for_all_steps_costs_little(void **state) {
    static const uint32_t sizes[] = {4, 8, 16, 64, 256, 1024, 4096};
    static const char *const words[] = {"one plan", "proposed", "usual"};
    regret r = {.count = 0};
    (void)state;
    for (size_t i = 0; i < LENGTH(grid); i++)
        for (size_t s = 0; s < LENGTH(sizes); s++) {
            tam_net net = grid[i].net;
            if (grid[i].sites > 0)
                net.ranks_per_node = sizes[s] > grid[i].sites ? sizes[s] / grid[i].sites : 1;
            compare_steps(&net, sizes[s], &r);
        }
    for (int w = 0; w < WAYS; w++)
        print_message("%s: %u steps at most %.1f %% longer, in the mean %.2f %%\n", words[w],
                      r.count, 100.0 * r.worst[w], 100.0 * r.sum[w] / r.count);
    assert_true(r.worst[PROPOSED] < 0.6 && r.sum[PROPOSED] < 0.03 * r.count);
    assert_true(r.sum[PROPOSED] < 0.5 * r.sum[USUAL]);
}

/* -- trial ------------------------------------------------------------------------------------ */

/* Medians of few and of many values, least times of both. */
static void what_is_clearly_better_is_taken(void **state) {
    static const struct {
        uint64_t ns[3][TAM_CALIBRATION_STEPS];
        uint32_t nplans, taken;
    } cases[] = {
        {{{100, 100, 90, 90}, {80, 90, 70, 80}}, 2, 1},
        {{{100, 100, 90, 90}, {80, 90, 70, 80}, {70, 90, 70, 80}}, 3, 2},
        {{{100, 100, 90, 90}, {70, 90, 70, 80}, {80, 90, 70, 80}}, 3, 1},
        {{{100, 100, 90, 90}, {70, 90, 70, 80}, {70, 90, 70, 80}}, 3, 1}, /* the first of two */
        {{{100, 100, 90, 90}, {91, 90, 70, 80}}, 2, 0},                   /* not clearly */
        {{{100, 100, 90, 90}, {70, 70, 90, 90}}, 2, 0},  /* only what disturbed it was less */
        {{{100, 100, 90, 90}, {95, 95, 50, 50}}, 2, 0},  /* or was lucky once */
        {{{100, 100, 90, 90}, {101, 50, 80, 40}}, 2, 0}, /* few values suffer */
        {{{100, 100, 90, 90}, {50, 101, 40, 80}}, 2, 0},
        {{{100, 100, 90, 90}, {50, 50, 0, 50}}, 2, 0}, /* not measured */
        {{{0, 100, 90, 90}, {50, 50, 50, 50}}, 2, 0},
        {{{100, 100, 90, 90}, {UINT64_MAX, 50, 40, 40}, {80, 80, 70, 70}}, 3, 2},
        {{{100, 100, 90, 90}}, 1, 0},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        double gain[TAM_CALIBRATION_PLANS];
        uint32_t taken = tam_calibration_choose(cases[i].ns[0], cases[i].nplans, gain);
        if (taken != cases[i].taken)
            fail_msg("case %zu: plan %u is taken, not %u", i, taken, cases[i].taken);
        assert_true(gain[0] == 0.0 && (taken == 0 || gain[taken] > 0.1));
    }
}

/* A third of the ranks measures anything at all, the others within 1 %: as without them. */
static void wrong_ranks_change_nothing(void **state) {
    enum { P = 12 };
    (void)state;
    for (int turn = 0; turn < 500; turn++) {
        uint64_t table[P * TAM_CALIBRATION_EXCHANGES], right[TAM_CALIBRATION_EXCHANGES],
            ns[TAM_CALIBRATION_EXCHANGES];
        const tam_net *net = turn % 2 ? &slow : &tcp;
        times_of(net, 8, right);
        for (uint32_t i = 0; i < P * TAM_CALIBRATION_EXCHANGES; i++) {
            uint64_t time = right[i % TAM_CALIBRATION_EXCHANGES];
            bool wrong = (i / TAM_CALIBRATION_EXCHANGES + (uint32_t)turn) % 3 == 0;
            table[i] = wrong ? draw() << (draw() % 33) : time + time * (draw() % 10) / 1000;
        }
        for (uint32_t i = 0; i < TAM_CALIBRATION_EXCHANGES; i++)
            ns[i] = tam_calibration_median(table, P, TAM_CALIBRATION_EXCHANGES, i);
        tam_net got = tam_calibration_net(ns, 8, 1);
        proposes(&got, 8, turn % 2 ? "4x2 2x2x2" : "");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_are_those_of_sorted_columns),
        cmocka_unit_test(numbers_come_back),
        cmocka_unit_test(any_times_give_a_network),
        cmocka_unit_test(networks_lead_to_their_plans),
        cmocka_unit_test(what_sends_many_messages_is_never_proposed),
        cmocka_unit_test(one_plan_for_all_steps_costs_little),
        cmocka_unit_test(what_is_clearly_better_is_taken),
        cmocka_unit_test(wrong_ranks_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
