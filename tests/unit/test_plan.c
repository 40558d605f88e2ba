/* SPDX-License-Identifier: MIT
 *
 * Plans of stages: virtual ranks, what is a plan, how many messages.
 */
#include "lib/policy/plan.h"
#include "tests/support/vranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LARGE = 65536, SOME = 300, RANKS_LAST = SOME + 4 };

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t radices[] = {2, 4, 8, 16, 32};
static const uint32_t nodes[] = {0, 1, 2, 3, 4, 8, 12, 64, 70000};

/* 1 to 300, and four above. */
static uint32_t ranks_at(uint32_t i) {
    static const uint32_t above[] = {1000, 1024, 4096, LARGE};
    return i <= SOME ? i : above[i - SOME - 1];
}

static void same_text(const tam_plan *plan, const char *expected) {
    char text[64];
    assert_string_equal(tam_plan_text(plan, text, sizeof text), expected);
}

/* -- vranks ----------------------------------------------------------------------------------- */

static void vranks_and_ranks_are_inverse(void **state) {
    static uint32_t who[LARGE];
    static bool primary[LARGE];
    (void)state;
    for (uint32_t i = 1; i <= RANKS_LAST; i++) {
        uint32_t nranks = ranks_at(i), vranks = vranks_list(nranks, who, primary), nprimary = 0;
        tam_plan plan = tam_plan_linear(nranks);
        assert_int_equal(tam_plan_nvranks(nranks), vranks);
        assert_int_equal(plan.nvranks, vranks);
        for (uint32_t v = 0; v < vranks; v++) {
            assert_int_equal(tam_plan_rank(&plan, v), who[v]);
            assert_int_equal(tam_plan_is_primary(&plan, v), primary[v]);
            if (primary[v])
                assert_int_equal(tam_plan_vrank(&plan, who[v]), v);
            assert_true(v < 2 || who[v] != who[v - 2]); /* two virtual ranks at most */
            nprimary += primary[v];
        }
        assert_int_equal(nprimary, nranks);
        assert_int_equal(who[vranks - 1], nranks - 1);
    }
}

/* -- plans ------------------------------------------------------------------------------------ */

static void plans_are_as_expected(void **state) {
    (void)state;
    static const struct {
        uint32_t nranks, node, radix;
        const char *text;
    } cases[] = {
        {1, 1, 8, "1"},
        {1, 8, 2, "1"},
        {2, 2, 8, "2"},
        {5, 1, 2, "2x2x2"},
        {6, 1, 8, "8"},
        {6, 2, 8, "2x4"},
        {6, 4, 8, "8"},
        {6, 3, 8, "8"},
        {8, 8, 4, "4x2"},
        {9, 1, 8, "8x2"},
        {24, 8, 8, "8x4"},
        {64, 1, 8, "8x8"},
        {64, 8, 8, "8x8"},
        {64, 8, 2, "2x2x2x2x2x2"},
        {64, 16, 8, "8x2x4"},
        {64, 0, 16, "16x4"},
        {256, 8, 8, "8x8x4"},
        {1000, 8, 32, "8x32x4"},
        {1024, 8, 16, "8x16x8"},
        {4096, 8, 8, "8x8x8x8"},
        {65536, 1, 32, "32x32x32x2"},
        {65536, 4, 2, "2x2x2x2x2x2x2x2x2x2x2x2x2x2x2x2"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        tam_plan plan = tam_plan_make(cases[i].nranks, cases[i].node, cases[i].radix);
        same_text(&plan, cases[i].text);
    }
    for (uint32_t i = 1; i <= RANKS_LAST; i++) {
        tam_plan linear = tam_plan_linear(ranks_at(i)), usual = tam_plan_usual(ranks_at(i), 4);
        tam_plan eight = tam_plan_make(ranks_at(i), 4, 8);
        eight.fused_bytes = usual.fused_bytes;
        char text[16];
        snprintf(text, sizeof text, "%u", tam_plan_nvranks(ranks_at(i)));
        same_text(&linear, text);
        assert_memory_equal(&usual, ranks_at(i) <= 8 ? &linear : &eight, sizeof usual);
    }
}

static void radices_multiply_to_the_vranks(void **state) {
    (void)state;
    for (uint32_t i = 1; i <= RANKS_LAST; i++)
        for (size_t n = 0; n < LENGTH(nodes); n++)
            for (size_t r = 0; r < LENGTH(radices); r++) {
                tam_plan plan = tam_plan_make(ranks_at(i), nodes[n], radices[r]);
                uint64_t product = 1;
                bool ends = nodes[n] < 2 || nodes[n] >= ranks_at(i) ||
                            (nodes[n] & (nodes[n] - 1)) != 0 || ranks_at(i) % nodes[n] != 0;
                for (uint32_t s = 0; s < plan.nstages; s++) {
                    assert_true(plan.radix[s] <= radices[r]);
                    product *= plan.radix[s];
                    ends |= product == nodes[n]; /* a stage ends with the node */
                }
                assert_true(ends);
                assert_int_equal(product, tam_plan_nvranks(ranks_at(i)));
                assert_true(tam_plan_valid(&plan, ranks_at(i)));
            }
}

/* What a text names, and texts that name no plan of so many ranks. */
static void texts_name_plans(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t nranks;
        const char *plan; /* NULL: none */
    } cases[] = {
        {"usual", 5, "8"},
        {"usual", 16, "4x4"},
        {"usual", 12, "4x4"},
        {"linear", 64, "64"},
        {"8x8", 64, "8x8"},
        {"2x2x2", 5, "2x2x2"},
        {"1", 1, "1"},
        {"linear", 1, "1"},
        {"2", 2, "2"},
        {"4x256", 1024, "4x256"},
        {"256x4", 1000, "256x4"},
        {"8x128", 1000, "8x128"},
        {"4x256", 1000, NULL}, /* too many partial sums for ranks with two virtual ranks */
        {"8x4", 64, NULL},
        {"8x8x2", 64, NULL},
        {"8", 9, NULL},
        {"", 4, NULL},
        {"4", 1, NULL},
        {"1", 2, NULL},
        {"3x2", 6, NULL},
        {"02x2", 4, NULL},
        {"2x", 2, NULL},
        {"x2", 2, NULL},
        {"2 x2", 4, NULL},
        {"2x2 ", 4, NULL},
        {"2X2", 4, NULL},
        {"-2x2", 4, NULL},
        {"4294967298", 2, NULL},
        {"auto", 4, NULL},
        {"0", 4, NULL},
        {"1x4", 4, NULL},
        {"2x2x2x2x2x2x2x2x2x2x2x2x2x2x2x2x2", 65536, NULL},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const tam_plan none = {0};
        tam_plan plan = none;
        bool named = tam_plan_parse(cases[i].text, cases[i].nranks, 4, &plan);
        if (named != (cases[i].plan != NULL))
            fail_msg("\"%s\" of %u ranks: %d", cases[i].text, cases[i].nranks, named);
        if (named)
            same_text(&plan, cases[i].plan);
        else
            assert_memory_equal(&plan, &none, sizeof plan);
    }
    for (uint32_t i = 1; i <= RANKS_LAST; i++)
        for (size_t r = 0; r < LENGTH(radices); r++) {
            tam_plan plan = tam_plan_make(ranks_at(i), 4, radices[r]), again;
            char text[64];
            assert_true(
                tam_plan_parse(tam_plan_text(&plan, text, sizeof text), ranks_at(i), 1, &again));
            assert_memory_equal(&again, &plan, sizeof plan);
        }
}

static void a_short_text_is_cut(void **state) {
    tam_plan plan = tam_plan_make(LARGE, 1, 8);
    char whole[64], text[64];
    (void)state;
    same_text(&plan, "8x8x8x8x8x2");
    tam_plan_text(&plan, whole, sizeof whole);
    for (size_t size = 0; size <= strlen(whole) + 1; size++) {
        memset(text, '#', sizeof text);
        assert_ptr_equal(tam_plan_text(&plan, text, size), text);
        assert_int_equal(text[size], '#');
        if (size > 0) {
            assert_int_equal(strlen(text), size - 1);
            assert_memory_equal(text, whole, size - 1);
        }
    }
}

static void damaged_plans_are_refused(void **state) {
    const tam_plan good = tam_plan_make(1000, 8, 8); /* 8x8x8x2 */
    static const uint32_t wrong[] = {0,  1,   3,    4,     6,        7,         9,
                                     16, 512, 1024, 65536, 1u << 31, UINT32_MAX};
    (void)state;
    assert_true(tam_plan_valid(&good, 1000));
    assert_false(tam_plan_valid(&good, 1001));
    assert_false(tam_plan_valid(&good, 0));
    for (size_t w = 0; w < LENGTH(wrong); w++) {
        uint32_t *field;
        tam_plan plan = good;
        plan.nranks = wrong[w];
        assert_false(tam_plan_valid(&plan, 1000));
        assert_int_equal(tam_plan_valid(&plan, wrong[w]),
                         wrong[w] == 1024); /* as many virtual ranks */
        plan = good;
        plan.nvranks = wrong[w];
        assert_int_equal(tam_plan_valid(&plan, 1000), wrong[w] == good.nvranks);
        plan = good;
        plan.nstages = wrong[w];
        assert_int_equal(tam_plan_valid(&plan, 1000), wrong[w] == good.nstages);
        for (field = plan.radix; field < plan.radix + TAM_PLAN_STAGES; field++) {
            plan = good;
            *field = wrong[w];
            assert_int_equal(tam_plan_valid(&plan, 1000), memcmp(&plan, &good, sizeof plan) == 0);
        }
    }
    tam_plan wraps = {LARGE, LARGE, 3, {LARGE, LARGE, LARGE}, 0},
             many = {LARGE + 1, 2 * LARGE, 1, {0}, 0};
    many.radix[0] = 2 * LARGE;
    assert_false(tam_plan_valid(&wraps, LARGE));
    assert_false(tam_plan_valid(&many, LARGE + 1));
    tam_plan none = {0}, one = {1, 1, 0, {0}, 0};
    assert_false(tam_plan_valid(&none, 0));
    assert_true(tam_plan_valid(&one, 1));
}

/* -- messages --------------------------------------------------------------------------------- */

typedef struct counted {
    uint32_t rank;                   /* the most messages of any rank, all stages together */
    uint32_t stage[TAM_PLAN_STAGES]; /* of any rank in this stage */
} counted;

/* Peers of each rank in each stage, by marking them. */
static counted count_messages(const tam_plan *plan) {
    static uint32_t who[LARGE], mark[LARGE], sent[LARGE];
    static bool primary[LARGE];
    uint32_t vranks = vranks_list(plan->nranks, who, primary), stride = 1, now = 0;
    counted most = {0};
    memset(mark, 0, sizeof mark);
    memset(sent, 0, sizeof sent);
    for (uint32_t s = 0; s < plan->nstages; stride *= plan->radix[s++])
        for (uint32_t v = 0, peers = 0; v < vranks; v++) {
            uint32_t digit = v / stride % plan->radix[s];
            if (v == 0 || who[v] != who[v - 1]) {
                peers = 0;
                mark[who[v]] = ++now; /* nothing is sent to oneself */
            }
            for (uint32_t e = 0; e < plan->radix[s]; e++) {
                uint32_t to = who[v - digit * stride + e * stride];
                peers += mark[to] != now;
                mark[to] = now;
            }
            most.stage[s] = peers > most.stage[s] ? peers : most.stage[s];
            if (v + 1 == vranks || who[v] != who[v + 1])
                sent[who[v]] += peers;
        }
    for (uint32_t r = 0; r < plan->nranks; r++)
        most.rank = sent[r] > most.rank ? sent[r] : most.rank;
    return most;
}

static uint32_t sum_of_radices(const tam_plan *plan) {
    uint32_t sum = 0;
    for (uint32_t s = 0; s < plan->nstages; s++)
        sum += plan->radix[s] - 1;
    return sum;
}

static void messages_are_those_counted_one_by_one(void **state) {
    static const tam_net of_messages = {.message_s = 1.0};
    (void)state;
    for (uint32_t nranks = 1; nranks <= SOME; nranks++)
        for (size_t r = 0; r <= LENGTH(radices); r++) {
            tam_plan plan = r < LENGTH(radices) ? tam_plan_make(nranks, 4, radices[r])
                                                : tam_plan_linear(nranks);
            counted most = count_messages(&plan);
            assert_int_equal(tam_plan_messages(&plan), most.rank);
            for (uint32_t s = 0; s < plan.nstages; s++)
                assert_true(tam_plan_stage_s(&of_messages, &plan, s, 0.0) == most.stage[s]);
            if (plan.nstages == 1)
                assert_int_equal(most.rank, nranks - 1);
            if (plan.nvranks == nranks)
                assert_int_equal(most.rank, sum_of_radices(&plan));
        }
}

static void large_plans_have_few_messages(void **state) {
    static const tam_plan plans[] = {
        {1024, 1024, 3, {8, 16, 8}, 0},         {1024, 1024, 3, {8, 8, 16}, 0},
        {1024, 1024, 4, {8, 8, 8, 2}, 0},       {4096, 4096, 4, {8, 8, 8, 8}, 0},
        {4095, 4096, 4, {8, 8, 8, 8}, 0},       {2049, 4096, 4, {8, 8, 8, 8}, 0},
        {1000, 1024, 3, {8, 16, 8}, 0},         {65535, 65536, 6, {8, 8, 8, 8, 8, 2}, 0},
        {65536, 65536, 5, {16, 8, 8, 8, 8}, 0},
    };
    static const uint32_t expected[] = {29, 29, 22, 28, 48, 25, 42, 64, 43};
    (void)state;
    for (size_t i = 0; i < LENGTH(plans); i++) {
        assert_true(tam_plan_valid(&plans[i], plans[i].nranks));
        assert_int_equal(count_messages(&plans[i]).rank, expected[i]);
        assert_int_equal(tam_plan_messages(&plans[i]), expected[i]);
    }
}

/* What the busiest rank sends for what all send where every rank has one virtual rank. One with
 * two virtual ranks sends up to twice as much in all stages but the first, where it sends radix -
 * 2: so the ratio grows with the number of stages; 1.75 holds up to 4096 ranks, and 32,767 have
 * 62/35. */
static double worst_ratio(uint32_t from, uint32_t to, uint32_t *nranks) {
    double worst = 0.0;
    for (uint32_t p = from; p <= to; p++) {
        tam_plan plan = tam_plan_make(p, 1, 8);
        double ratio = (double)tam_plan_messages(&plan) / sum_of_radices(&plan);
        if (ratio > worst) {
            worst = ratio;
            *nranks = p;
        }
    }
    return worst;
}

static void the_busiest_rank_sends_at_most_1_75_times_as_many(void **state) {
    uint32_t nranks = 0;
    (void)state;
    assert_true(worst_ratio(2, SOME, &nranks) == 26.0 / 17.0); /* 1.53; 8x8x4 */
    assert_int_equal(nranks, 255);
    assert_true(worst_ratio(SOME, 4096, &nranks) == 48.0 / 28.0); /* 1.71; 8x8x8x8 */
    assert_true(worst_ratio(32767, 32767, &nranks) == 62.0 / 35.0);
}

/* Ranks of hosts, as letters; the ranks of a node that are found, and whether hosts are mixed. */
static void nodes_are_found_where_hosts_follow_each_other(void **state) {
    (void)state;
    static const struct {
        const char *hosts;
        uint32_t each;
        bool scattered;
    } cases[] = {{"a", 1, false},        {"aaaa", 4, false},      {"abcd", 1, false},
                 {"aabb", 2, false},     {"aaabbbccc", 3, false}, {"aaabb", 1, false},
                 {"abab", 1, true},      {"aabbaa", 1, true},     {"abba", 1, true},
                 {"aabbccdda", 1, true}, {"abbb", 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t hosts[16];
        uint32_t nranks = (uint32_t)strlen(cases[i].hosts);
        bool scattered = !cases[i].scattered;
        for (uint32_t r = 0; r < nranks; r++)
            hosts[r] = (uint64_t)cases[i].hosts[r];
        assert_int_equal(tam_plan_nodes(hosts, nranks, &scattered), cases[i].each);
        assert_int_equal(scattered, cases[i].scattered);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_found_where_hosts_follow_each_other),
        cmocka_unit_test(vranks_and_ranks_are_inverse),
        cmocka_unit_test(plans_are_as_expected),
        cmocka_unit_test(radices_multiply_to_the_vranks),
        cmocka_unit_test(texts_name_plans),
        cmocka_unit_test(a_short_text_is_cut),
        cmocka_unit_test(damaged_plans_are_refused),
        cmocka_unit_test(messages_are_those_counted_one_by_one),
        cmocka_unit_test(large_plans_have_few_messages),
        cmocka_unit_test(the_busiest_rank_sends_at_most_1_75_times_as_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
