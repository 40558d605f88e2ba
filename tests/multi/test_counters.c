/* SPDX-License-Identifier: MIT
 *
 * What is only added up over the ranks (docs/exchange.md#counters), in each of its three ways: the
 * same numbers on all ranks and over all transports, whether a step is applied, skipped early or
 * skipped by a later bucket; and damage to sums that carry no checksum.
 *
 * test: slow
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/gather.h"
#include "tests/support/loopback.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 3, LENGTH = 400, N = SEGMENTS * LENGTH, STEPS = 6, LIMIT_MS = 60000 };
enum { NAN_STEP = 2, INF_STEP = 4 }; /* of the last rank alone; of all ranks */

typedef enum way { LOCAL, GATHERS, MESSAGES, WAYS } way;

typedef struct run_case {
    const char *scheme;
    uint32_t nranks, nodes; /* ranks_per_node */
    tamis_value_codec value_codec;
    tamis_nonfinite nonfinite;
    uint32_t bad_bucket; /* that of NaN and Inf; SEGMENTS: none */
    bool buckets, rows;  /* each segment is a bucket; that in the middle has rows */
    /* by the ranks */
    tamis_status created[RANKS_MOST], status[RANKS_MOST][STEPS];
    uint64_t hash[RANKS_MOST][STEPS];
    tamis_stats stats[RANKS_MOST][STEPS];
} run_case;

static tamis_status make(tamis_comm *comm, const run_case *c, tamis_reducer **out) {
    static const tamis_segment segments[] = {{"a", LENGTH}, {"b", LENGTH}, {"c", LENGTH}};
    tamis_reducer_config config = data_even_config(LENGTH);
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.value_codec = c->value_codec;
    config.nonfinite = c->nonfinite;
    config.bucket_length = c->buckets ? LENGTH : 0;
    config.ranks_per_node = c->nodes;
    config.link_latency_us = 1.0; /* auto: a link that wants buckets of both kinds */
    config.link_gbit = 20.0;
    tamis_status status = tamis_layout_create(segments, SEGMENTS, &layout);
    if (status == TAMIS_OK && c->rows)
        status = tamis_layout_set_rows(layout, 1, 5);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* Bucket 0 is the last segment. */
static void fill(const run_case *c, uint32_t rank, uint32_t step, float *grad) {
    data_fill_real(rank, step, N, grad);
    if (c->bad_bucket == SEGMENTS)
        return;
    float *at = grad + (SEGMENTS - 1 - c->bad_bucket) * LENGTH;
    if (step == NAN_STEP && rank == c->nranks - 1)
        at[7] = NAN;
    if (step == INF_STEP)
        at[11] = rank % 2 ? INFINITY : -INFINITY;
}

static tamis_status make_step(const run_case *c, tamis_reducer *r, uint32_t rank, uint32_t number,
                              float *grad) {
    const tamis_step step = data_step(grad);
    fill(c, rank, number, grad);
    tamis_status status = tamis_reducer_start(r, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(r) : status;
}

static void run_rank(test_rank *self) {
    run_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    uint32_t id = self->id;
    float grad[N];
    self->where = "the steps";
    c->created[id] = make(self->comm, c, &reducer);
    for (uint32_t s = 0; s < STEPS && c->created[id] == TAMIS_OK; s++) {
        c->stats[id][s] = (tamis_stats)TAMIS_STATS_INIT;
        c->status[id][s] = make_step(c, reducer, id, s, grad);
        RANK_CHECK(self, tamis_status_loss(c->status[id][s]) != TAMIS_LOST_COMM, "%s",
                   tamis_last_error());
        RANK_OK(self, tamis_reducer_stats(reducer, &c->stats[id][s]));
        c->hash[id][s] = data_hash(0, grad, sizeof grad);
    }
    tamis_reducer_destroy(reducer);
}

static void run_over(way how, run_case *c) {
    tamis_comm *comms[RANKS_MOST];
    gather *board = how == GATHERS ? gather_create(c->nranks, LIMIT_MS, NULL, NULL) : NULL;
    loopback *m = how == MESSAGES ? loopback_create(c->nranks, 0) : NULL;
    if (how == LOCAL) {
        ranks_run(c->nranks, 0, run_rank, c);
        return;
    }
    if (board)
        gather_comms(board, comms);
    else
        loopback_comms(m, comms);
    ranks_run_on(comms, c->nranks, run_rank, c);
    for (uint32_t r = 0; r < c->nranks; r++)
        tamis_comm_destroy(comms[r]);
    if (board)
        gather_destroy(board);
    else
        loopback_destroy(m);
}

/* -- the same everywhere ---------------------------------------------------------------------- */

static void check_figure(const char *name, uint32_t step, uint64_t a, uint64_t b) {
    if (a != b)
        fail_msg("[%s] step %u: %s %llu, and %llu", test_context_text(), step, name,
                 (unsigned long long)a, (unsigned long long)b);
}

static void check_same(const run_case *a, uint32_t rank, const run_case *b) {
    assert_int_equal(a->created[rank], b->created[0]);
    for (uint32_t s = 0; s < STEPS && a->created[rank] == TAMIS_OK; s++) {
        const tamis_stats *x = &a->stats[rank][s], *y = &b->stats[0][s];
        check_figure("status", s, a->status[rank][s], b->status[0][s]);
        check_figure("result", s, a->hash[rank][s], b->hash[0][s]);
        check_figure("selected", s, x->selected, y->selected);
        check_figure("skipped", s, x->skipped, y->skipped);
        check_figure("deferred", s, x->deferred, y->deferred);
        check_figure("candidates", s, x->candidates, y->candidates);
        check_figure("nonfinite", s, x->nonfinite, y->nonfinite);
        check_figure("rescans", s, x->rescans, y->rescans);
    }
}

/* Every rank that selects counts its own; dense buckets count sums. */
static void check_bad(const run_case *c) {
    bool drops = c->nonfinite == TAMIS_NONFINITE_DROP,
         tells = c->nonfinite == TAMIS_NONFINITE_ERROR;
    bool sums = strcmp(c->scheme, "auto") == 0 || strcmp(c->scheme, "dense") == 0;
    for (uint32_t s = 0; s < STEPS && c->created[0] == TAMIS_OK; s++) {
        const tamis_stats *stats = &c->stats[0][s];
        bool bad = c->bad_bucket < SEGMENTS && (s == NAN_STEP || s == INF_STEP);
        uint64_t all = c->nodes > 1 ? c->nranks / c->nodes : c->nranks;
        uint64_t expected = bad ? s == NAN_STEP ? 1 : all : 0;
        check_figure("skipped", s, stats->skipped, bad && !drops);
        check_figure("status", s, c->status[0][s], bad && tells ? TAMIS_E_NONFINITE : TAMIS_OK);
        check_figure("bad entries", s, sums ? stats->nonfinite > 0 : stats->nonfinite,
                     sums ? bad : expected);
    }
}

static void compare(const run_case *what) {
    static run_case runs[WAYS];
    for (int how = 0; how < WAYS; how++) {
        runs[how] = *what;
        test_context("%s, P=%u G=%u, value codec %d, nonfinite %d, bad bucket %u, buckets %d, rows "
                     "%d, transport %d",
                     what->scheme, what->nranks, what->nodes, (int)what->value_codec,
                     (int)what->nonfinite, what->bad_bucket, what->buckets, what->rows, how);
        run_over((way)how, &runs[how]);
        for (uint32_t r = 0; r < what->nranks; r++)
            check_same(&runs[how], r, &runs[0]);
        check_bad(&runs[how]);
    }
}

/* A sample of all policies, buckets and places of what is not finite. */
static void compare_some(const char *scheme, uint32_t nranks, uint32_t nodes,
                         tamis_value_codec value_codec, bool rows) {
    static uint32_t turn;
    uint32_t few = test_stride(5) > 1 ? 5 : 1;
    if (++turn % few == 0)
        compare(&(run_case){.scheme = scheme,
                            .nranks = nranks,
                            .nodes = nodes,
                            .value_codec = value_codec,
                            .nonfinite = (tamis_nonfinite)(turn / few % 3),
                            .bad_bucket = turn / few % (SEGMENTS + 1),
                            .buckets = rows || turn / few % 5 > 1,
                            .rows = rows});
}

static const tamis_value_codec value_codecs[] = {TAMIS_VALUE_FLOAT32, TAMIS_VALUE_BFLOAT16,
                                                 TAMIS_VALUE_FP4, TAMIS_VALUE_FP2};

static void counters_are_the_same_everywhere(void **state) {
    static const char *const schemes[] = {"tamis",
                                          "cltk",
                                          "exdyna",
                                          "deft",
                                          "quantized",
                                          "cyclic+global+predict+pairs",
                                          "all+norm+predict+pairs"};
    static const uint32_t sizes[] = {1, 3, 8, 9, 13, 16};
    (void)state;
    for (size_t p = 0; p < 6; p++)
        for (size_t s = 0; s < 7; s++)
            for (size_t w = 0; w<4; w += sizes[p]> 8 ? 1 : 3)
                compare_some(schemes[s], sizes[p], 0, value_codecs[w], false);
    for (size_t p = 0; p < 6; p++)
        compare_some("oktopk", sizes[p], 0, TAMIS_VALUE_FLOAT32, false);
}

static void counters_of_nodes_are_the_same_everywhere(void **state) {
    static const uint32_t sizes[][2] = {{4, 2}, {6, 3}, {9, 3}, {4, 4}, {10, 1}, {16, 8}, {16, 2}};
    (void)state;
    for (size_t p = 0; p < 7; p++)
        for (size_t w = 0; w < 4; w++)
            compare_some(w % 2 ? "cltk" : "tamis", sizes[p][0], sizes[p][1], value_codecs[w],
                         false);
}

static void counters_beside_rows_and_dense_buckets_are_the_same_everywhere(void **state) {
    static const char *const schemes[] = {"tamis", "exdyna", "auto", "dense",
                                          "cyclic+norm+predict+pairs"};
    static const uint32_t sizes[] = {1, 2, 5, 9, 16};
    (void)state;
    for (size_t p = 0; p < 5; p++)
        for (size_t s = 0; s < 5; s++)
            for (size_t w = 0; w < (s < 2 ? 3 : 1); w++)
                compare_some(schemes[s], sizes[p], 0, value_codecs[w], (p + s + w) % 3 > 0);
}

/* -- damage ----------------------------------------------------------------------------------- */

enum { COUNTERS = 14, LATER = 3, HURT = 1 };

typedef struct damage_case {
    run_case what;
    tam_fault fault;
    uint64_t nth;
    uint32_t argument;
    tamis_status status[RANKS_MOST];
    uint64_t hash[RANKS_MOST];
} damage_case;

/* After a good step one operation of the second goes wrong on one rank. */
static void run_damaged(test_rank *self) {
    damage_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    float grad[N];
    uint32_t id = self->id;
    RANK_OK(self, make(self->comm, &c->what, &reducer));
    for (uint32_t s = 0; s < LATER && c->status[id] == TAMIS_OK; s++) {
        if (s == 1 && id == HURT)
            RANK_OK(self, tam_faulty_install(self->comm, c->fault, c->nth, c->argument));
        self->where = "a step";
        c->status[id] = make_step(&c->what, reducer, id, s, grad);
        c->hash[id] = data_hash(c->hash[id], grad, sizeof grad);
    }
    if (c->status[id] != TAMIS_OK)
        tamis_comm_abort(self->comm); /* so that no rank waits */
    tamis_reducer_destroy(reducer);
}

/* A step of one bucket is an all-gather and a sum, whose last floats are counters. */
static void a_damaged_counter_is_refused_in_the_next_step(void **state) {
    const tamis_reducer_config config = data_even_config(LENGTH);
    uint32_t values = (uint32_t)(config.density * N), bits = 32 * (COUNTERS + SEGMENTS);
    (void)state;
    for (uint32_t bit = 0; bit < bits; bit += test_stride(7)) {
        damage_case c = {.what = {.scheme = "tamis", .nranks = 3, .bad_bucket = SEGMENTS},
                         .fault = TAM_FAULT_FLIP,
                         .nth = 1,
                         .argument = 32 * values + bit};
        test_context("bit %u of the counters", bit);
        ranks_run(3, 0, run_damaged, &c);
        for (uint32_t r = 0; r < 3; r++)
            if (c.status[r] != TAMIS_E_PROTOCOL)
                fail_msg("[%s] rank %u: %s", test_context_text(), r,
                         tamis_status_name(c.status[r]));
    }
}

static void check_ranks_identical(const damage_case *c) {
    bool failed = false;
    for (uint32_t r = 0; r < c->what.nranks; r++)
        failed = failed || c->status[r] != TAMIS_OK;
    for (uint32_t r = 0; r < c->what.nranks; r++)
        if ((c->status[r] != TAMIS_OK) != failed || (!failed && c->hash[r] != c->hash[0]))
            fail_msg("[%s] rank %u: %s, rank 0: %s", test_context_text(), r,
                     tamis_status_name(c->status[r]), tamis_status_name(c->status[0]));
}

/* Nine ranks: pairs, and values of few bits, have a sum of their counters alone. */
static void no_damage_passes_where_counters_go_alone(void **state) {
    static const struct {
        const char *scheme;
        tamis_value_codec value_codec;
        uint32_t operations; /* of a step */
    } cases[] = {{"cyclic+global+predict+pairs", TAMIS_VALUE_FLOAT32, 2},
                 {"all+norm+predict+pairs", TAMIS_VALUE_FP4, 2},
                 {"tamis", TAMIS_VALUE_FP4, 4}};
    static const tam_fault faults[] = {TAM_FAULT_ERROR, TAM_FAULT_FLIP, TAM_FAULT_SPOIL};
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t nth = 0; nth < cases[i].operations; nth++)
            for (uint32_t j = 0; j < 30; j += test_stride(7)) {
                damage_case c = {.fault = faults[j < 2 ? 0 : 1 + j % 2],
                                 .nth = nth,
                                 .argument = (uint32_t)data_mix(100 * nth + j)};
                c.what = (run_case){.scheme = cases[i].scheme,
                                    .nranks = 9,
                                    .value_codec = cases[i].value_codec,
                                    .bad_bucket = SEGMENTS};
                test_context("%s, fault %d of operation %u, %u", cases[i].scheme, (int)c.fault, nth,
                             c.argument);
                ranks_run(9, 0, run_damaged, &c);
                check_ranks_identical(&c);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_are_the_same_everywhere),
        cmocka_unit_test(counters_of_nodes_are_the_same_everywhere),
        cmocka_unit_test(counters_beside_rows_and_dense_buckets_are_the_same_everywhere),
        cmocka_unit_test(a_damaged_counter_is_refused_in_the_next_step),
        cmocka_unit_test(no_damage_passes_where_counters_go_alone),
    };
    return cmocka_run_group_tests_name("counters", tests, NULL, NULL);
}
