/* SPDX-License-Identifier: MIT
 *
 * How long plans take by the model, and which is chosen.
 */
#include "lib/policy/plan.h"
#include "tests/support/vranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { LARGE = 65536, SOME = 300 };

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t radices[] = {2, 4, 8, 16, 32};
static const uint32_t nodes[] = {0, 1, 2, 3, 4, 8, 12, 64, 70000};
static const uint32_t sizes[] = {1, 2, 3, 5, 8, 9, 16, 24, 64, 100, 256, 1000, 1024, 4096, LARGE};

static void same_text(const tam_plan *plan, const char *expected) {
    char text[64];
    assert_string_equal(tam_plan_text(plan, text, sizeof text), expected);
}

#define GBIT 8e-9 /* seconds to send a byte at 1 Gbit/s */

/* InfiniBand with 8 ranks a node, with a card each or one for all; TCP with a rank a host. */
static const tam_net nets[] = {
    {8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, GBIT / 3200, 0.4e-6, 5e-11, 0.0},
    {8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, GBIT / 400, 0.4e-6, 5e-11, 0.0},
    {1, 0.0, 0.0, 20e-6, GBIT / 25, GBIT / 25, 5e-6, 1e-10, 0.0},
};

enum { IB, ONE_CARD, TCP };

static void near_to(double got, double expected) {
    if (!(fabs(got - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.17g, not %.17g", got, expected);
}

/* Expected values are of another program (Python), which counts so: of radix - 1 messages each in
 * pieces of 256 KiB, a processor spends half of message_s and of the copies to send (`half` in all,
 * `piece` for one piece) and as much to receive; `wire` is the longest of the bytes inside and
 * those across by their own bandwidths, and those across of all ranks of a node by the cable's;
 * `hop` one piece on the wire. first = latency + piece + hop; last = latency + piece + max(wire,
 * half - piece + hop). A stage takes max(last + piece, max(first, half) + half), with the latency
 * far if any message leaves the node. In a gather a stage with virtual ranks `stride` apart sends
 * messages of bytes_each * P / (stride * radix), in the two halves of a sum bytes / (stride *
 * radix). Here 250,000 indices and as many floats of 4 bytes, and 16 bytes more from each rank. */
static void times_are_those_of_the_model(void **state) {
    (void)state;
    static const struct {
        int net;
        uint32_t nranks, radix; /* 0: linear */
        double gather_us, sum_us;
    } cases[] = {
        {IB, 4, 0, 38.702400000000004, 77.4},
        {IB, 4, 2, 40.95248, 81.89999999999999},
        {IB, 4, 8, 38.702400000000004, 77.4},
        {IB, 64, 0, 74.46915, 148.8375},
        {IB, 64, 2, 67.13581, 134.1625},
        {IB, 64, 8, 54.869150000000005, 109.6375},
        {IB, 1024, 0, 459.96957187499993, 918.30234375},
        {IB, 1024, 2, 82.59640062499999, 163.41328125},
        {IB, 1024, 8, 64.131356875, 126.63359375},
        {IB, 4096, 0, 1691.2637929687498, 3375.9755859374995},
        {IB, 4096, 2, 90.58839015625, 177.1158203125},
        {IB, 4096, 8, 67.7594284375, 129.004296875},
        {ONE_CARD, 4, 0, 38.702400000000004, 77.4},
        {ONE_CARD, 4, 2, 40.95248, 81.89999999999999},
        {ONE_CARD, 4, 8, 38.702400000000004, 77.4},
        {ONE_CARD, 64, 0, 144.32541, 288.3625},
        {ONE_CARD, 64, 2, 82.46398999999998, 164.78750000000002},
        {ONE_CARD, 64, 8, 68.29477, 136.4625},
        {ONE_CARD, 1024, 0, 459.96957187499993, 918.30234375},
        {ONE_CARD, 1024, 2, 100.24416187500002, 198.13984375},
        {ONE_CARD, 1024, 8, 78.578604375, 155.04296875000003},
        {ONE_CARD, 4096, 0, 1691.2637929687498, 3375.9755859374995},
        {ONE_CARD, 4096, 2, 109.19885046875, 212.0474609375},
        {ONE_CARD, 4096, 8, 82.78867718750001, 157.140234375},
        {TCP, 4, 0, 290.01696, 580.0},
        {TCP, 4, 2, 340.01856000000004, 680.0},
        {TCP, 4, 8, 290.01696, 580.0},
        {TCP, 64, 0, 413.5383, 826.875},
        {TCP, 64, 2, 538.8352600000001, 1076.8750000000002},
        {TCP, 64, 8, 379.39946, 758.1250000000001},
        {TCP, 1024, 0, 5216.539143750001, 10429.8046875},
        {TCP, 1024, 2, 651.05480375, 1289.1796875000002},
        {TCP, 1024, 8, 451.30002625, 891.7578125000001},
        {TCP, 4096, 0, 20581.5275859375, 41149.951171875},
        {TCP, 4096, 2, 698.5787942708334, 1389.7949218750002},
        {TCP, 4096, 8, 482.3136512500001, 921.2890625000001},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        uint32_t nranks = cases[i].nranks;
        const tam_net *net = &nets[cases[i].net];
        tam_plan plan = cases[i].radix ? tam_plan_make(nranks, net->ranks_per_node, cases[i].radix)
                                       : tam_plan_linear(nranks);
        tam_plan_case c = {nranks, 16.0 + 1e6 / nranks, 1e6, {0, 0, 0}};
        near_to(1e6 * tam_plan_gather_s(net, &plan, c.gathered), cases[i].gather_us);
        near_to(1e6 * tam_plan_sum_s(net, &plan, c.summed), cases[i].sum_us);
        near_to(1e6 * tam_plan_step_s(net, &plan, &c), cases[i].gather_us + cases[i].sum_us);
        c.gathered = 0.0;
        near_to(1e6 * tam_plan_step_s(net, &plan, &c), cases[i].sum_us);
        c.summed = 0.0;
        assert_true(tam_plan_step_s(net, &plan, &c) == 0.0);
    }
}

/* P = 96 in nodes of 8: 8x16, 128 virtual ranks, 64 of them with ranks of their own. */
static void a_stage_takes_the_longest_of_its_resources(void **state) {
    const tam_plan plan = tam_plan_make(96, 8, 16), linear = tam_plan_linear(96);
    const double bytes = 1000.0;
    const tam_net unit[] = {
        {.ranks_per_node = 8, .near_s = 1.0},
        {.ranks_per_node = 8, .far_s = 1.0},
        {.ranks_per_node = 8, .near_s_per_byte = 1.0},
        {.ranks_per_node = 8, .far_s_per_byte = 1.0},
        {.ranks_per_node = 8, .cable_s_per_byte = 1.0},
        {.ranks_per_node = 8, .message_s = 1.0},
        {.ranks_per_node = 8, .copy_s_per_byte = 1.0},
        {.ranks_per_node = 8, .incast_s = 1.0},
    };
    /* inside; across, where a rank with two virtual ranks has 15 + 8 peers; all with all */
    static const double expected[][3] = {
        {1, 0, 0},           {0, 1, 1},   {7000, 0, 7000},       {0, 15000, 120000},
        {0, 120000, 960000}, {7, 23, 95}, {7000, 15000, 127000}, {0, 15, 80},
    };
    (void)state;
    same_text(&plan, "8x16");
    for (size_t i = 0; i < LENGTH(unit); i++) {
        assert_true(tam_plan_stage_s(&unit[i], &plan, 0, bytes) == expected[i][0]);
        assert_true(tam_plan_stage_s(&unit[i], &plan, 1, bytes) == expected[i][1]);
        assert_true(tam_plan_stage_s(&unit[i], &linear, 0, bytes) == expected[i][2]);
    }
    const tam_net all = {8, 1.0, 2.0, 16.0, 1.0, 0.5, 2000.0, 0.25, 4.0};
    /* Wires hold the first two up, and so the first and the last message on the processors; of one
     * byte the third, where processors send and then receive. */
    near_to(tam_plan_stage_s(&all, &plan, 0, bytes), 1.0 + 14000.0 + 2.0 * (1000.0 + 125.0));
    near_to(tam_plan_stage_s(&all, &plan, 1, bytes),
            16.0 + 60000.0 + (23.0 * 2000.0 + 3750.0) / 23.0 + 15.0 * 4.0);
    near_to(tam_plan_stage_s(&all, &plan, 1, 1.0), 46000.0 + 3.75 + 15.0 * 4.0);
}

/* In pieces of 256 KiB, one of which is on the wire while the next is packed: the same time on the
 * wire, but only one piece is packed before, and one unpacked behind. */
static void long_messages_travel_in_pieces(void **state) {
    const tam_plan plan = tam_plan_linear(2);
    const tam_net net = {.ranks_per_node = 1, .far_s_per_byte = 1.0, .copy_s_per_byte = 0.5};
    const tam_net messages = {.ranks_per_node = 1, .message_s = 1.0};
    const double piece = TAM_PLAN_PIECE;
    (void)state;
    near_to(tam_plan_stage_s(&net, &plan, 0, piece), piece + 0.5 * piece);
    near_to(tam_plan_stage_s(&net, &plan, 0, 4.0 * piece), 4.0 * piece + 0.5 * piece);
    assert_true(tam_plan_stage_s(&messages, &plan, 0, piece) == 1.0);
    assert_true(tam_plan_stage_s(&messages, &plan, 0, piece + 1.0) == 2.0);
    assert_true(tam_plan_stage_s(&messages, &plan, 0, 9.5 * piece) == 10.0);
}

/* Nodes of 6 of 16 ranks: pairs sit together; of ranks 2, 4 apart a third, two thirds do not. */
static void nodes_of_any_size_count_what_crosses(void **state) {
    const tam_plan plan = tam_plan_make(16, 6, 2), four = tam_plan_make(16, 6, 4);
    const tam_net cable = {.ranks_per_node = 6, .cable_s_per_byte = 1.0};
    const tam_net inside = {.ranks_per_node = 6, .near_s_per_byte = 1.0};
    static const double crossing[] = {0.0, 2.0, 4.0, 6.0};
    (void)state;
    for (uint32_t s = 0; s < LENGTH(crossing); s++) {
        near_to(1.0 + tam_plan_stage_s(&cable, &plan, s, 100.0), 1.0 + 100.0 * crossing[s]);
        near_to(1.0 + tam_plan_stage_s(&inside, &plan, s, 100.0),
                1.0 + 100.0 * (1.0 - crossing[s] / 6.0));
    }
    near_to(tam_plan_stage_s(&cable, &four, 0, 100.0), 100.0 * (1.0 + 2.0 + 3.0));
    near_to(tam_plan_stage_s(&cable, &four, 1, 100.0), 100.0 * (4.0 + 6.0 + 6.0));
}

/* Ranks in one node have no network: whatever its numbers are, nothing goes over it. */
static void what_is_not_used_costs_nothing(void **state) {
    const tam_plan plan = tam_plan_make(8, 8, 8);
    (void)state;
    for (uint32_t node = 8; node < 20; node++) {
        tam_net net = {.ranks_per_node = node, .near_s = 1.0, .near_s_per_byte = 0.5, .far_s = NAN};
        net.far_s_per_byte = net.cable_s_per_byte = net.incast_s = INFINITY;
        assert_true(tam_plan_gather_s(&net, &plan, 2.0) == 1.0 + 7.0);
    }
}

/* Each product and sum rounds by itself, or ranks of other compilers choose otherwise. */
static void nothing_is_fused(void **state) {
    const tam_plan plan = tam_plan_make(64, 8, 8);
    (void)state;
    for (int i = 1; i <= 1000; i++) {
        tam_net net = {.ranks_per_node = 8,
                       .far_s = 1.0 / i,
                       .far_s_per_byte = 1.0 / (i + 7),
                       .copy_s_per_byte = 1.0 / (i + 3)};
        volatile double bytes = i / 3.0, sent = 7.0 * bytes, wire_s = sent * net.far_s_per_byte;
        volatile double copy_s = sent * net.copy_s_per_byte, half_s = copy_s * 0.5;
        volatile double piece_s = half_s / 7.0, hop_s = bytes * net.far_s_per_byte;
        volatile double others_s = half_s - piece_s, behind_s = others_s + hop_s;
        volatile double begin_s = net.far_s + piece_s, here_s = piece_s + hop_s;
        volatile double last_s = begin_s + (wire_s > behind_s ? wire_s : behind_s);
        volatile double first_s = here_s + net.far_s, end_s = last_s + piece_s;
        volatile double busy_s = (first_s > half_s ? first_s : half_s) + half_s;
        volatile double expected = end_s > busy_s ? end_s : busy_s;
        assert_true(tam_plan_stage_s(&net, &plan, 1, bytes) == expected);
    }
}

/* Bytes that a rank receives in the last stage of a gather, in its node, counted by virtual ranks:
 * from the other ranks in its group all that their virtual ranks have by then. And in all stages:
 * what all others gave. */
static void all_bytes_arrive_once(void **state) {
    static uint32_t who[LARGE];
    static bool primary[LARGE];
    const tam_net inside = {.ranks_per_node = 8, .near_s_per_byte = 1.0};
    const tam_net anywhere = {.ranks_per_node = 1, .far_s_per_byte = 1.0};
    (void)state;
    for (uint32_t nranks = 16; nranks <= SOME; nranks += 8) {
        tam_plan plan = tam_plan_make(nranks, 8, 8);
        uint32_t vranks = vranks_list(nranks, who, primary), held[8] = {0};
        double received = 0.0;
        for (uint32_t v = 0; v < vranks; v++)
            held[v % 8] += primary[v];
        for (uint32_t v = 0; v < vranks; v++)
            for (uint32_t u = v - v % 8; primary[v] && u < v - v % 8 + 8; u++)
                received += who[u] != who[v] ? held[u % 8] : 0;
        near_to(tam_plan_gather_s(&inside, &plan, 1.0), received / nranks);
    }
    for (uint32_t i = 2; i <= SOME + LENGTH(sizes); i++)
        for (size_t r = 0; r <= LENGTH(radices); r++) {
            uint32_t nranks = i <= SOME ? i : sizes[i - SOME - 1];
            tam_plan plan = r < LENGTH(radices) ? tam_plan_make(nranks, 8, radices[r])
                                                : tam_plan_linear(nranks);
            near_to(tam_plan_gather_s(&anywhere, &plan, 10.0), 10.0 * (nranks - 1.0));
            near_to(tam_plan_sum_s(&anywhere, &plan, 10.0), 20.0 * (nranks - 1.0) / nranks);
        }
}

/* Stages that count as inside nodes are: for nodes of any size. */
static void what_counts_as_near_stays_in_its_node(void **state) {
    static uint32_t who[LARGE];
    static bool primary[LARGE];
    uint32_t stages = 0;
    (void)state;
    for (uint32_t nranks = 2; nranks <= 64; nranks++)
        for (uint32_t node = 0; node <= nranks + 1; node++) {
            const tam_net net = {.ranks_per_node = node, .far_s = 1.0};
            tam_plan plan = tam_plan_make(nranks, node, 2);
            uint32_t vranks = vranks_list(nranks, who, primary), size = node > 0 ? node : 1;
            bool power = (size & (size - 1)) == 0 && nranks % size == 0 && size < nranks;
            for (uint32_t s = 0, stride = 1; s < plan.nstages; s++, stride *= 2) {
                bool far = tam_plan_stage_s(&net, &plan, s, 1.0) != 0.0;
                for (uint32_t v = 0; v < vranks && !far; v++)
                    assert_int_equal(who[v] / size, who[v ^ stride] / size);
                if (power || node >= nranks)
                    assert_int_equal(far, power && stride >= size);
                stages += !far;
            }
        }
    assert_true(stages > 0);
}

/* -- choice ----------------------------------------------------------------------------------- */

static const double amounts[][2] = {{16.0, 1e4}, {1e3, 0.0}, {0.0, 4e8}, {1e6, 1e6}, {300.0, 1e6}};

static tam_net net_of(size_t i, uint32_t ranks_per_node, double incast_s) {
    tam_net net = nets[i];
    net.ranks_per_node = ranks_per_node;
    net.near_s = 1e-6;
    net.incast_s = incast_s;
    return net;
}

static void no_candidate_is_better(const tam_net *net, const tam_plan_case *c) {
    tam_plan best = tam_plan_choose(net, c), again, other[LENGTH(radices) + 2];
    double best_s = tam_plan_step_s(net, &best, c);
    uint32_t node = net->ranks_per_node;
    size_t n = 0, found = 0;
    assert_true(tam_plan_valid(&best, c->nranks));
    other[n++] = tam_plan_linear(c->nranks);
    for (size_t r = 0; r < LENGTH(radices); r++)
        other[n++] = tam_plan_make(c->nranks, node, radices[r]);
    if (node > 1 && node < c->nranks && (node & (node - 1)) == 0 && c->nranks % node == 0) {
        uint32_t vranks = tam_plan_nvranks(c->nranks);
        tam_plan levels = {c->nranks, vranks, 2, {node, vranks / node}, 0};
        if (vranks == c->nranks || vranks / node <= 128) /* else coll refuses it */
            other[n++] = levels;
    }
    for (size_t i = 0; i < n; i++) {
        double s = tam_plan_step_s(net, &other[i], c);
        assert_true(tam_plan_valid(&other[i], c->nranks));
        assert_true(best_s <= s);
        assert_true(best_s < s || best.nstages <= other[i].nstages);
        other[i].fused_bytes = best.fused_bytes;
        found += memcmp(&other[i], &best, sizeof best) == 0;
    }
    assert_true(found > 0);
    again = tam_plan_choose(net, c);
    assert_memory_equal(&again, &best, sizeof best);
}

static void the_choice_is_the_best_candidate(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(nets); i++)
        for (size_t n = 0; n < LENGTH(nodes); n++)
            for (size_t s = 0; s < LENGTH(sizes); s++)
                for (size_t a = 0; a < LENGTH(amounts); a++) {
                    tam_net net = net_of(i, nodes[n], a % 2 ? 1e-6 : 0.0);
                    tam_plan_case c = {sizes[s], amounts[a][0], amounts[a][1], {0, 0, 0}};
                    no_candidate_is_better(&net, &c);
                }
}

/* From the same program as the times, where the far stages of a sum are two. 16 bytes a rank. */
static void the_choice_is_that_of_the_model(void **state) {
    (void)state;
    static const struct {
        int net;
        uint32_t nranks;
        double entries;
        const char *text;
    } cases[] = {
        {IB, 4, 250000, "4"},
        {IB, 4, 25000, "4"},
        {IB, 64, 250000, "8x8"},
        {IB, 64, 25000, "8x8"},
        {IB, 1024, 250000, "8x16x8"},
        {IB, 1024, 25000, "8x16x8"},
        {IB, 4096, 250000, "8x8x8x8"},
        {IB, 4096, 25000, "8x8x8x8"},
        {ONE_CARD, 4, 250000, "4"},
        {ONE_CARD, 4, 25000, "4"},
        {ONE_CARD, 64, 250000, "8x8"},
        {ONE_CARD, 64, 25000, "8x8"},
        {ONE_CARD, 1024, 250000, "8x32x4"},
        {ONE_CARD, 1024, 25000, "8x16x8"},
        {ONE_CARD, 4096, 250000, "8x32x16"},
        {ONE_CARD, 4096, 25000, "8x8x8x8"},
        {TCP, 4, 250000, "4"},
        {TCP, 4, 25000, "4"},
        {TCP, 64, 250000, "32x2"},
        {TCP, 64, 25000, "8x8"},
        {TCP, 1024, 250000, "16x16x4"},
        {TCP, 1024, 25000, "8x8x8x2"},
        {TCP, 4096, 250000, "8x8x8x8"},
        {TCP, 4096, 25000, "8x8x8x8"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        double bytes = 4.0 * cases[i].entries;
        tam_plan_case c = {cases[i].nranks, 16.0 + bytes / cases[i].nranks, bytes, {0, 0, 0}};
        tam_plan plan = tam_plan_choose(&nets[cases[i].net], &c);
        same_text(&plan, cases[i].text);
    }
}

/* A clock that ticks twice as fast: all times are those before times two, exactly. A sum whose
 * stages are apart takes as long as two gathers. */
static void the_same_question_has_the_same_answer(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(nets); i++)
        for (size_t s = 0; s < LENGTH(sizes); s++) {
            tam_net net = net_of(i, 8, 1e-6), fast = net;
            double *fields[] = {&fast.near_s,          &fast.near_s_per_byte,  &fast.far_s,
                                &fast.far_s_per_byte,  &fast.cable_s_per_byte, &fast.message_s,
                                &fast.copy_s_per_byte, &fast.incast_s};
            for (size_t f = 0; f < LENGTH(fields); f++)
                *fields[f] *= 2.0;
            tam_plan_case c = {sizes[s], 1e4, 1e5, {0, 0, 0}};
            tam_plan plan = tam_plan_choose(&net, &c), other = tam_plan_choose(&fast, &c);
            assert_memory_equal(&other, &plan, sizeof plan);
            plan.fused_bytes = 0;
            assert_true(tam_plan_sum_s(&net, &plan, 1e4 * sizes[s]) ==
                        2.0 * tam_plan_gather_s(&net, &plan, 1e4));
        }
}

/* Where only bytes count all plans between equal hosts take the same time, and so do all that end a
 * stage with the node. Where nothing costs anything, nothing is known. */
static void ties_go_to_fewer_stages(void **state) {
    const tam_net hosts = {.ranks_per_node = 1, .far_s_per_byte = 1.0};
    const tam_net cables = {.ranks_per_node = 8, .cable_s_per_byte = 1.0}, nothing = {0};
    const tam_plan_case c = {4096, 1.0, 1.0, {0, 0, 0}};
    const tam_plan eight = tam_plan_make(4096, 8, 8), two = {4096, 4096, 2, {8, 512}, 0};
    (void)state;
    assert_true(tam_plan_step_s(&cables, &eight, &c) == tam_plan_step_s(&cables, &two, &c));
    tam_plan plan = tam_plan_choose(&hosts, &c), usual = tam_plan_usual(4096, 0);
    same_text(&plan, "4096");
    plan = tam_plan_choose(&cables, &c);
    same_text(&plan, "8x512");
    plan = tam_plan_choose(&nothing, &c);
    assert_memory_equal(&plan, &usual, sizeof plan);
}

/* The last stage by itself, once with whole parts and twice with the shares of them. */
static void a_stage_is_fused_where_that_takes_less(void **state) {
    uint32_t fused = 0, apart = 0;
    (void)state;
    for (size_t i = 0; i < LENGTH(nets); i++)
        for (uint32_t nranks = 16; nranks <= 4096; nranks *= 4)
            for (double bytes = 1e3; bytes < 1e9; bytes *= 10.0) {
                tam_plan_case c = {nranks, 0.0, bytes, {0, 0, 0}};
                tam_plan plan = tam_plan_choose(&nets[i], &c), other = plan;
                bool fuses = tam_plan_fuses(&plan, (uint64_t)bytes);
                other.fused_bytes = fuses ? 0 : UINT32_MAX;
                if (plan.nstages < 2)
                    continue;
                uint32_t radix = plan.radix[plan.nstages - 1], last = plan.nstages - 1;
                double part = bytes * radix / nranks;
                double once_s = tam_plan_stage_s(&nets[i], &plan, last, part);
                double twice_s = 2.0 * tam_plan_stage_s(&nets[i], &plan, last, part / radix);
                near_to(tam_plan_sum_s(&nets[i], &plan, bytes) - (fuses ? once_s : twice_s),
                        tam_plan_sum_s(&nets[i], &other, bytes) - (fuses ? twice_s : once_s));
                if (fuses)
                    assert_true(once_s < twice_s);
                else /* or part is longer than half of the longest that is tried */
                    assert_true(twice_s <= once_s || part > TAM_PLAN_PIECE / 16.0 ||
                                2.0 * part > plan.fused_bytes);
                fused += fuses;
                apart += !fuses;
            }
    assert_true(fused > 5 && apart > 5);
}

static void no_number_of_a_network_does_harm(void **state) {
    static const double odd[] = {0.0,    -0.0, -1.0, -1e-9,    1e308,
                                 5e-324, NAN,  -NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t s = 0; s < LENGTH(sizes); s++)
        for (size_t o = 0; o < LENGTH(odd); o++) {
            tam_plan_case c = {sizes[s], 1e3, 1e6, {0, 0, 0}};
            tam_plan_case odd_case = {sizes[s], odd[o], odd[o], {0, 0, 0}};
            tam_plan plan, usual = tam_plan_usual(sizes[s], 8);
            for (size_t f = 0; f <= 8; f++) { /* one number after the other, then all at once */
                tam_net net = net_of(IB, 8, 1e-6);
                double *fields[] = {&net.near_s,          &net.near_s_per_byte,  &net.far_s,
                                    &net.far_s_per_byte,  &net.cable_s_per_byte, &net.message_s,
                                    &net.copy_s_per_byte, &net.incast_s};
                for (size_t g = 0; g < LENGTH(fields); g++)
                    *fields[g] = g == f || f == LENGTH(fields) ? odd[o] : *fields[g];
                plan = tam_plan_choose(&net, &c);
                assert_true(tam_plan_valid(&plan, sizes[s]));
            }
            if (!(odd[o] > 0.0 && odd[o] < 1e300))
                assert_memory_equal(&plan, &usual, sizeof plan);
            plan = tam_plan_choose(&nets[IB], &odd_case);
            assert_true(tam_plan_valid(&plan, sizes[s]));
            if (!(odd[o] > 0.0))
                assert_memory_equal(&plan, &usual, sizeof plan);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_those_of_the_model),
        cmocka_unit_test(a_stage_takes_the_longest_of_its_resources),
        cmocka_unit_test(long_messages_travel_in_pieces),
        cmocka_unit_test(nodes_of_any_size_count_what_crosses),
        cmocka_unit_test(what_is_not_used_costs_nothing),
        cmocka_unit_test(nothing_is_fused),
        cmocka_unit_test(all_bytes_arrive_once),
        cmocka_unit_test(what_counts_as_near_stays_in_its_node),
        cmocka_unit_test(the_choice_is_the_best_candidate),
        cmocka_unit_test(the_choice_is_that_of_the_model),
        cmocka_unit_test(the_same_question_has_the_same_answer),
        cmocka_unit_test(ties_go_to_fewer_stages),
        cmocka_unit_test(a_stage_is_fused_where_that_takes_less),
        cmocka_unit_test(no_number_of_a_network_does_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
