/* SPDX-License-Identifier: MIT
 *
 * Ok-Topk: where entries divide, what damage is refused and in whose name, what a state may hold.
 */
#include "collectives/exchange/ok_topk.h"
#include "collectives/exchange/table.h"
#include "collectives/transport/comm.h"
#include "collectives/transport/faulty.h"
#include "lib/policy/grid.h"
#include "lib/policy/rules.h"
#include "lib/policy/node_shard.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3, N = 12, CAPACITY = 4, K = 2 };

/* The example of ok_topk.h. */
static const uint32_t selected[RANKS][2] = {{1, 9}, {5, 9}, {1, 10}};
static const float valued[RANKS][2] = {{5, 2}, {4, 3}, {1, -2}};

typedef struct ok_topk_case {
    uint32_t bad_rank; /* whose operation number `bad_op` is damaged; RANKS: none */
    uint64_t bad_op; /* 0 headers, 1 pairs, 2-5 counts, 6 headers of what was selected, 7 shards */
    uint32_t bit;    /* of what it sends, or receives */
    const char *reason; /* NULL: all is well */
    bool received;      /* damage to what came to this rank alone */
} ok_topk_case;

static tamis_status open_packets(uint32_t rank, size_t capacity, uint64_t n, tam_packets *s) {
    *s = (tam_packets){.rank = rank,
                       .nranks = RANKS,
                       .nwords = tam_ok_topk_header_words(RANKS),
                       .headers_only = true,
                       .capacity = capacity,
                       .growing = true,
                       .with_values = true,
                       .value_codec = tam_value_codec_of(TAMIS_VALUE_FLOAT32),
                       .index_codec = TAMIS_INDEX_U32,
                       .span = n,
                       .config = 77};
    return tam_packets_open(s);
}

static tam_link link_of(const test_rank *self) {
    tamis_comm *comm = self->comm;
    return (tam_link){comm->transport,
                      comm->self,
                      self->id,
                      RANKS,
                      {.deadline_ns = tam_clock_ns() + comm->timeout_ns, .poison = &comm->poison}};
}

static tamis_status exchange(test_rank *self, const float given[2], uint64_t step, tam_packets *s,
                             tam_ok_topk *g, uint32_t *indices, float *values, size_t *count) {
    tam_link link = link_of(self);
    tam_packet_begin(s)->count = 2;
    s->step = step;
    memcpy(tam_packet_own_indices(s), selected[self->id], sizeof selected[0]);
    memcpy(tam_packet_own_values(s), given, sizeof valued[0]);
    tam_ok_topk_divide(g, selected[self->id], 2, tam_packet_own_words(s));
    TAM_TRY(tam_packets_exchange(s, &link));
    return tam_ok_topk_exchange(g, s, K, &link, indices, values, count);
}

static void check_result(test_rank *self, tam_packets *s, tam_ok_topk *g, const uint32_t *indices,
                         const float *values, size_t count) {
    static const size_t sent_of[RANKS] = {2, 1, 1};
    RANK_CHECK(self, count == 2 && indices[0] == 1 && indices[1] == 9, "%zu were selected", count);
    RANK_CHECK(self, values[0] == 6.0f && values[1] == 5.0f, "sums %g and %g", (double)values[0],
               (double)values[1]);
    size_t sent =
        tam_ok_topk_sent(indices, count, tam_packet_own_indices(s), tam_packet_own_values(s), 2);
    RANK_CHECK(self, sent == sent_of[self->id], "sent %zu", sent);
    tam_ok_topk_learn(g, s, K, count);
    RANK_CHECK(self,
               g->state[TAM_OK_TOPK_THRESHOLD] == tam_bits64(5.0) &&
                   tam_ok_topk_threshold_holds(g, K) && !tam_ok_topk_threshold_holds(g, K + 1),
               "the threshold is %#llx", (unsigned long long)g->state[TAM_OK_TOPK_THRESHOLD]);
    /* the ranks propose 1 9, 5 9 and 1 10, taking entries 0 and 1 of two */
    RANK_CHECK(self, g->state[TAM_OK_TOPK_ENDS] == 2 && g->state[TAM_OK_TOPK_ENDS + 1] == 9,
               "borders %llu %llu", (unsigned long long)g->state[TAM_OK_TOPK_ENDS],
               (unsigned long long)g->state[TAM_OK_TOPK_ENDS + 1]);
    RANK_CHECK(self, tam_ok_topk_valid(g->state, RANKS, N), "its state %s", "is not valid");
}

static void run_exchange(test_rank *self) {
    const ok_topk_case *c = self->shared;
    uint32_t indices[RANKS * CAPACITY];
    float values[RANKS * CAPACITY];
    size_t count = 0;
    tam_packets packets;
    tam_ok_topk g;
    if (self->id == c->bad_rank)
        RANK_OK(self, tam_faulty_install(self->comm, c->received ? TAM_FAULT_FLIP : TAM_FAULT_SPOIL,
                                         c->bad_op, c->bit));
    RANK_OK(self, open_packets(self->id, CAPACITY, N, &packets));
    RANK_OK(self, tam_ok_topk_open(self->id, RANKS, N, CAPACITY, &g));
    tamis_status status =
        exchange(self, valued[self->id], 2, &packets, &g, indices, values, &count);
    if (!c->reason && status == TAMIS_OK)
        check_result(self, &packets, &g, indices, values, count);
    tam_ok_topk_close(&g);
    tam_packets_close(&packets);
    RANK_CHECK(self, status == (c->reason ? TAMIS_E_PROTOCOL : TAMIS_OK), "%s: %s",
               tamis_status_name(status), tamis_last_error());
    if (c->reason)
        RANK_CHECK(self, strstr(tamis_last_error(), c->reason), "said: %s", tamis_last_error());
}

/* k is 2. One sum that is not zero: all are selected, and the next step looks again, and finds 4 at
 * 5 and 1 at 10. What equals that threshold is not selected in the step after, so it goes down, and
 * then it does. */
static void run_adapting(test_rank *self) {
    static const struct {
        float values[RANKS][2];
        size_t count, threshold_steps;
        double threshold;
    } steps[] = {{{{5, 2}, {4, -2}, {-5, 0}}, 4, 0, 0},
                 {{{5, 2}, {4, -2}, {-5, 1}}, 2, 30, 1},
                 {{{5, 2}, {1, -2}, {-5, 0}}, 0, 29, 1 / 1.008},
                 {{{0, 0}, {1, 0}, {0, 0}}, 1, 28, 1 / 1.008 / 1.008}};
    uint32_t indices[RANKS * CAPACITY];
    float values[RANKS * CAPACITY];
    tam_packets packets;
    tam_ok_topk g;
    RANK_OK(self, open_packets(self->id, CAPACITY, N, &packets));
    RANK_OK(self, tam_ok_topk_open(self->id, RANKS, N, CAPACITY, &g));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        size_t count = 99;
        RANK_OK(self, exchange(self, steps[i].values[self->id], i, &packets, &g, indices, values,
                               &count));
        RANK_CHECK(self, count == steps[i].count && (i == 0 || count == 0 || indices[0] == 5),
                   "step %zu: %zu were selected", i, count);
        tam_ok_topk_learn(&g, &packets, K, count);
        RANK_CHECK(self,
                   g.state[TAM_OK_TOPK_THRESHOLD] == tam_bits64(steps[i].threshold) &&
                       g.state[TAM_OK_TOPK_THRESHOLD_STEPS] == steps[i].threshold_steps,
                   "step %zu: threshold %g for %u steps", i,
                   tam_double(g.state[TAM_OK_TOPK_THRESHOLD]),
                   (unsigned)g.state[TAM_OK_TOPK_THRESHOLD_STEPS]);
    }
    tam_ok_topk_close(&g);
    tam_packets_close(&packets);
}

static void the_threshold_of_the_sums_is_adapted(void **state) {
    (void)state;
    test_context("four steps");
    ranks_run(RANKS, 0, run_adapting, NULL);
}

static void the_example_comes_out_as_drawn(void **state) {
    ok_topk_case c = {.bad_rank = RANKS};
    (void)state;
    test_context("the example");
    ranks_run(RANKS, 0, run_exchange, &c);
}

static void every_damaged_bit_is_refused_by_all_ranks(void **state) {
    static const struct {
        uint64_t op;
        uint32_t rank, bytes;
        const char *reason;
    } messages[] = {
        {0, 1, 112, "rank 1"},
        {0, 2, 112, "rank 2"},
        {1, 1, 32, "the list of rank 1"},
        {1, 0, 32, "the list of rank 0"},
        {2, 0, 1032, "the list of rank 0, or its counts"},
        {5, 1, 1032, "the list of rank 1, or its counts"},
        {6, 2, 40, "selected sums in the region of rank 2"},
        {7, 2, 8, "selected sums in the region of rank 2"},
    };
    (void)state;
    for (size_t m = 0; m < sizeof messages / sizeof messages[0]; m++)
        for (uint32_t bit = 0; bit<8 * messages[m].bytes; bit += messages[m].bytes> 1000 ? 61 : 5) {
            ok_topk_case c = {messages[m].rank, messages[m].op, bit, messages[m].reason, false};
            test_context("operation %u of rank %u, bit %u", (unsigned)messages[m].op,
                         messages[m].rank, bit);
            ranks_run(RANKS, 0, run_exchange, &c);
        }
}

/* -- sums move -------------------------------------------------------------------------------- */

enum { MANY = 40, LONG_N = 3 * MANY, LONG_K = MANY };

/* All ranks select all of region 0 and nothing else; rank 2 of 3 adds the larger part. */
static void run_crowd(test_rank *self) {
    uint32_t indices[RANKS * MANY];
    float values[RANKS * MANY];
    const ok_topk_case *c = self->shared;
    size_t count = 0;
    tam_packets s;
    tam_ok_topk g;
    if (self->id == c->bad_rank)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_SPOIL, c->bad_op, c->bit));
    tam_link link = link_of(self);
    RANK_OK(self, open_packets(self->id, MANY, LONG_N, &s));
    RANK_OK(self, tam_ok_topk_open(self->id, RANKS, LONG_N, MANY, &g));
    tam_packet_begin(&s)->count = MANY;
    for (uint32_t i = 0; i < MANY; i++) {
        tam_packet_own_indices(&s)[i] = i;
        ((float *)tam_packet_own_values(&s))[i] = (float)(i + 1) * (self->id == 2 ? -4 : 1);
    }
    tam_ok_topk_divide(&g, tam_packet_own_indices(&s), MANY, tam_packet_own_words(&s));
    tamis_status status = tam_packets_exchange(&s, &link);
    if (status == TAMIS_OK)
        status = tam_ok_topk_exchange(&g, &s, LONG_K, &link, indices, values, &count);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += indices[i] != i || values[i] != -2.0f * (float)(i + 1);
    tam_ok_topk_close(&g);
    tam_packets_close(&s);
    RANK_CHECK(self, status == (c->reason ? TAMIS_E_PROTOCOL : TAMIS_OK), "%s: %s",
               tamis_status_name(status), tamis_last_error());
    if (c->reason)
        RANK_CHECK(self, strstr(tamis_last_error(), c->reason), "said: %s", tamis_last_error());
    else
        RANK_CHECK(self, count == MANY && wrong == 0, "%zu of %zu are wrong", wrong, count);
}

/* Operation 7 moves them, 8 gathers: 14, 14 and 12. */
static void selected_sums_of_one_region_move_to_even_shards(void **state) {
    ok_topk_case c = {.bad_rank = RANKS};
    (void)state;
    test_context("all in one region");
    ranks_run(RANKS, 0, run_crowd, &c);
    for (uint32_t bit = 0; bit < 8 * 8 * MANY; bit += 101) {
        c = (ok_topk_case){.bad_rank = 0,
                           .bad_op = 7,
                           .bit = bit,
                           .reason = "selected sums in the region of rank 0"};
        test_context("moved sums of rank 0, bit %u", bit);
        ranks_run(RANKS, 0, run_crowd, &c);
        if (bit >= 8 * 8 * 14)
            continue;
        c.bad_rank = 1;
        c.bad_op = 8;
        test_context("gathered sums, bit %u", bit);
        ranks_run(RANKS, 0, run_crowd, &c);
    }
}

/* -- counts and states ------------------------------------------------------------------------ */

/* Rank 1 alone finds it, goes on to its header, and there all hear of it: nobody is left
 * waiting. */
static void damaged_counts_of_which_one_rank_knows_are_refused_by_all(void **state) {
    (void)state;
    for (uint64_t op = 2; op <= 5; op++)
        for (uint32_t sender = 0; sender < RANKS; sender++)
            for (uint32_t byte = 7; byte < 1032; byte += 97) {
                char reason[64];
                snprintf(reason, sizeof reason,
                         "rank %u, or its counts of sums, was refused by "
                         "rank 1",
                         sender);
                ok_topk_case c = {1, op, 8 * (1032 * sender + byte), reason, true};
                test_context("counts of rank %u, byte %u, operation %u", sender, byte,
                             (unsigned)op);
                ranks_run(RANKS, 0, run_exchange, &c);
            }
}

static void thresholds_are_found_every_32nd_step_and_adapted_after_all(void **state) {
    static const struct {
        uint64_t found;
        double rank, sums; /* what the threshold is multiplied by */
        bool raised;
    } cases[] = {{0, 1 / 1.012, 1 / 1.008, false},
                 {79, 1 / 1.012, 1 / 1.008, false},
                 {80, 1, 1, false},
                 {150, 1, 1, false},
                 {151, 1.012, 1, false},
                 {160, 1.012, 1, false},
                 {161, 1.012, 1.008, true},
                 {100000, 1.012, 1.008, true}};
    (void)state;
    for (uint64_t step = 0; step < 128; step++)
        assert_int_equal((step + 1 + tam_rule_hold(step)) % 32, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double rank = tam_rule_adapt(0.7, cases[i].found, 120);
        double sums = tam_rule_adapt_sums(0.7, cases[i].found, 120);
        assert_true(fabs(rank / (0.7 * cases[i].rank) - 1) < 1e-15);
        assert_true(fabs(sums / (0.7 * cases[i].sums) - 1) < 1e-15);
        assert_int_equal(tam_rule_too_many(cases[i].found, 120), cases[i].raised);
    }
    /* what equals the threshold is not over it, and the comparison is one of binary32 */
    assert_int_equal(tam_rule_over(0.5), tam_bits(0.5f) + 1);
    assert_int_equal(tam_rule_over(0.1), tam_bits(0.1f) + 1);
    assert_int_equal(tam_rule_over(3.4e38), TAM_INFINITE_BITS);
}

static void a_state_with_wrong_borders_is_not_valid(void **state) {
    uint64_t good[TAM_OK_TOPK_ENDS + RANKS] = {tam_bits64(5.0), 31, K, 0, 7, N};
    uint64_t bad[sizeof good / sizeof good[0]];
    static const struct {
        int word;
        uint64_t value;
    } cases[] = {{TAM_OK_TOPK_ENDS + 2, N - 1},
                 {TAM_OK_TOPK_ENDS, 8},
                 {TAM_OK_TOPK_THRESHOLD, UINT64_C(0x7ff0000000000000)}, /* Inf, NaN, -5, 0 */
                 {TAM_OK_TOPK_THRESHOLD, UINT64_C(0x7ff8000000000000)},
                 {TAM_OK_TOPK_THRESHOLD, UINT64_C(0xc014000000000000)},
                 {TAM_OK_TOPK_THRESHOLD, 0},
                 {TAM_OK_TOPK_THRESHOLD_STEPS, 32}};
    (void)state;
    assert_true(tam_ok_topk_valid(good, RANKS, N));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(bad, good, sizeof bad);
        bad[cases[i].word] = cases[i].value;
        assert_false(tam_ok_topk_valid(bad, RANKS, N));
    }
}

/* Each rank claims five sums of its region of 20; three ranks that select four cannot have 15. */
static void run_more_sums_than_entries(test_rank *self) {
    uint32_t indices[5 * RANKS];
    float sums[5 * RANKS];
    size_t count = 5;
    tam_ok_topk g;
    tam_link link = link_of(self);
    RANK_OK(self, tam_ok_topk_open(self->id, RANKS, 20 * RANKS, CAPACITY, &g));
    for (uint32_t i = 0; i < count; i++) {
        indices[i] = 20 * self->id + i;
        sums[i] = 1.0f; /* all reach the threshold */
    }
    tamis_status status = tam_ok_topk_select(&g, 1, K, 0, &link, indices, sums, &count);
    tam_ok_topk_close(&g);
    RANK_CHECK(self, status == TAMIS_E_PROTOCOL && strstr(tamis_last_error(), "15 selected sums"),
               "%s: %s", tamis_status_name(status), tamis_last_error());
}

static void more_selected_sums_than_entries_are_refused_by_all(void **state) {
    (void)state;
    test_context("15 selected sums of 12 entries");
    ranks_run(RANKS, 0, run_more_sums_than_entries, NULL);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void the_bytes_of_regions_are_those_of_their_arrays(void **state) {
    (void)state;
    /* three ranks, 4 entries each of 12: 3 * 5 received, 3 shards of 4 and a slack of 8 */
    assert_int_equal(tam_ok_topk_bytes(3, 12, 4), 8 * (3 * 5 + 3 * (4 + 8)) + 3 * (1032 + 40));
    /* 30 of 10 elements can have no more than 10 sums: shards of 4 */
    assert_int_equal(tam_ok_topk_bytes(3, 10, 10), 8 * (3 * 11 + 3 * (4 + 8)) + 3 * (1032 + 40));
    assert_true(tam_ok_topk_bytes(4096, 25000000, 1000000) > UINT64_C(30) << 30);
    assert_int_equal(tam_ok_topk_bytes(UINT32_MAX, UINT32_MAX, UINT32_MAX), UINT64_MAX);
}

/* Opens a scheme's exchange for one of so many ranks, 25M elements, k = 250,000. */
static tamis_status open_exchange(const char *name, uint32_t nranks) {
    static const tamis_segment segment = {"all", 25000000};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout;
    tam_division division;
    tam_scheme scheme;
    tam_node_shard shard;
    void *opened = NULL;
    assert_int_equal(tamis_layout_create(&segment, 1, &layout), TAMIS_OK);
    assert_int_equal(tam_scheme_parse(name, &scheme), TAMIS_OK);
    assert_int_equal(tam_division_open(layout, scheme, nranks, 0, &division), TAMIS_OK);
    assert_int_equal(tam_node_shard_open(layout, 0, 1, &shard), TAMIS_OK);
    tam_bucket_view view = {.config = &config,
                            .layout = layout,
                            .node_shard = &shard,
                            .division = &division,
                            .comm_nranks = nranks,
                            .nranks = nranks,
                            .k_max = 250000,
                            .k = 250000,
                            .index_codec = TAMIS_INDEX_U32};
    const tam_exchange *exchange = tam_exchange_flat(scheme.exchange);
    tamis_status status = exchange->open(&view, &opened);
    exchange->close(opened, false);
    tam_node_shard_close(&shard);
    tam_division_close(&division);
    tamis_layout_destroy(layout);
    return status;
}

static void ranks_whose_messages_would_fill_the_memory_are_refused(void **state) {
    static const struct {
        const char *scheme;
        uint32_t nranks;
        const char *words; /* NULL: all is well */
    } cases[] = {
        {"oktopk", 8, NULL},
        {"oktopk", 4096, "30.8 GiB on each of 4096 ranks, with room for 1000000 entries"},
        {"topk", 8, NULL},
        {"topk", 4096, "15.3 GiB on each of 4096 ranks, with room for 250000 entries"},
        {"all+global+exact+pairs", 4096, "on each of 4096 ranks"},
        {"tamis", 4096, NULL},
        {"cltk", 4096, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t live = tam_alloc_live();
        test_context("%s, %u ranks", cases[i].scheme, cases[i].nranks);
        tamis_status status = open_exchange(cases[i].scheme, cases[i].nranks);
        assert_int_equal(status, cases[i].words ? TAMIS_E_UNSUPPORTED : TAMIS_OK);
        if (cases[i].words && !strstr(tamis_last_error(), cases[i].words))
            fail_msg("%s: said: %s", cases[i].scheme, tamis_last_error());
        assert_int_equal(tam_alloc_live(), live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_comes_out_as_drawn),
        cmocka_unit_test(every_damaged_bit_is_refused_by_all_ranks),
        cmocka_unit_test(selected_sums_of_one_region_move_to_even_shards),
        cmocka_unit_test(damaged_counts_of_which_one_rank_knows_are_refused_by_all),
        cmocka_unit_test(the_threshold_of_the_sums_is_adapted),
        cmocka_unit_test(thresholds_are_found_every_32nd_step_and_adapted_after_all),
        cmocka_unit_test(a_state_with_wrong_borders_is_not_valid),
        cmocka_unit_test(more_selected_sums_than_entries_are_refused_by_all),
        cmocka_unit_test(the_bytes_of_regions_are_those_of_their_arrays),
        cmocka_unit_test(ranks_whose_messages_would_fill_the_memory_are_refused),
    };
    return cmocka_run_group_tests_name("ok_topk", tests, NULL, NULL);
}
