/* SPDX-License-Identifier: MIT
 *
 * Exchange auto: every bucket is union or dense, all ranks choose alike, and a reducer with both
 * keeps the rules of each.
 */
#include "collectives/reducer/reducer.h"
#include "collectives/transport/faulty.h"
#include "tests/support/mail.h"
#include "tests/support/ranks.h"
#include "tests/support/trial.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SMALL = 200, LARGE = 8000, N = 3 * SMALL + LARGE, FIRST_LARGE = 2 * SMALL, RANKS = 3 };

/* Two small segments, a large one, a small one; each is a bucket. On this link a message's latency
 * costs as much as 2500 bytes, so small buckets are dense and the large one is not. */
static tamis_status open_mixed(tamis_comm *comm, tamis_reducer_config *config,
                               tamis_reducer **out) {
    static const tamis_segment segments[] = {
        {"one", SMALL}, {"two", SMALL}, {"large", LARGE}, {"three", SMALL}};
    tamis_layout *layout;
    TAM_TRY(tamis_layout_create(segments, 4, &layout));
    config->scheme = "auto";
    config->op = TAMIS_OP_SUM;
    config->bucket_length = 1;
    tamis_status status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_reducer_config slow_link(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.link_latency_us = 20.0;
    config.link_gbit = 1.0;
    return config;
}

static bool is_large(size_t element) {
    return element >= FIRST_LARGE && element < FIRST_LARGE + LARGE;
}

/* -- the choice ------------------------------------------------------------------------------- */

static void run_choice(test_rank *self) {
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    for (uint32_t b = 0; b < 4; b++) {
        tamis_bucket bucket = TAMIS_BUCKET_INIT;
        RANK_OK(self, tamis_reducer_bucket_at(r, b, &bucket));
        const char *expected = bucket.length == LARGE ? "union" : "dense";
        RANK_CHECK(self, strcmp(bucket.exchange, expected) == 0, "bucket %u is %s", b,
                   bucket.exchange);
        RANK_CHECK(self, bucket.predicted_us > 0.0, "bucket %u has no time", b);
        RANK_CHECK(self, bucket.length == LARGE || bucket.target == SMALL, "target %llu",
                   (unsigned long long)bucket.target);
    }
    tamis_reducer_destroy(r);
}

static void small_buckets_are_dense_and_large_ones_are_not(void **state) {
    (void)state;
    test_context("a given link");
    ranks_run(RANKS, 0, run_choice, NULL);
}

static uint32_t count_dense(const tamis_reducer *r) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        count += tam_scheme_dense(r->buckets[i].scheme);
    return count;
}

static void sparse_results_need_sparse_buckets(test_rank *self) {
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    config.output = TAMIS_OUTPUT_SPARSE;
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    RANK_CHECK(self, count_dense(r) == 0, "%u buckets are dense", count_dense(r));
    tamis_reducer_destroy(r);
}

static void nothing_is_dense_where_the_result_is_sparse(void **state) {
    (void)state;
    test_context("sparse output");
    ranks_run(RANKS, 0, sparse_results_need_sparse_buckets, NULL);
}

static void run_other_link(test_rank *self) {
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    config.link_gbit = self->id == 1 ? 0.0 : 1.0; /* only rank 1 would measure */
    RANK_STATUS(self, TAMIS_E_MISMATCH, open_mixed(self->comm, &config, &r));
    RANK_CHECK(self, has_word(tamis_last_error(), "link_gbit"), "it says: %s", tamis_last_error());
}

static void ranks_that_do_not_all_measure_are_told(void **state) {
    (void)state;
    test_context("another link on rank 1");
    ranks_run(RANKS, 0, run_other_link, NULL);
}

typedef struct measured {
    uint64_t dense[RANKS], formats[RANKS];
    tam_costs costs[RANKS];
} measured;

/* Operation 0 is the agreement, 1 a barrier, and so on: at one of them rank 1 sleeps. */
static void run_measured(test_rank *self) {
    measured *m = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    for (uint32_t n = 0; n < 3 && self->id == 1; n++)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_DELAY, 30 + 7 * n, 20));
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    m->dense[self->id] = r->agreement.fields[TAM_FACT_DENSE_BUCKETS];
    m->formats[self->id] = r->agreement.fields[TAM_FACT_BUCKET_FORMATS];
    m->costs[self->id] = self->comm->costs;
    for (uint32_t b = 0; b < r->nbuckets; b++)
        RANK_CHECK(self, r->buckets[b].predicted_s > 0.0, "bucket %u has no time", b);
    tamis_reducer_destroy(r);
}

static void ranks_that_measure_other_times_choose_alike(void **state) {
    measured m = {0};
    (void)state;
    test_context("rank 1 is late while it measures");
    ranks_run(RANKS, 0, run_measured, &m);
    for (uint32_t r = 1; r < RANKS; r++) {
        assert_true(m.dense[r] == m.dense[0] && m.formats[r] == m.formats[0]);
        assert_memory_equal(&m.costs[r], &m.costs[0], sizeof m.costs[0]);
    }
    assert_true(m.costs[0].sum.count > 1 && m.costs[0].gather.count > 1);
}

/* -- different numbers ------------------------------------------------------------------------ */

/* Link models of the ranks, as if they had come to hold different numbers. */
typedef struct forced {
    tam_link_model links[2]; /* of rank 1; of the others */
    const char *words;
} forced;

enum { WIDE = 300000 };

static tamis_status open_wide(tamis_comm *comm, tamis_reducer_config *config, tamis_reducer **out) {
    static const tamis_segment all = {"all", WIDE};
    tamis_layout *layout;
    TAM_TRY(tamis_layout_create(&all, 1, &layout));
    config->scheme = "auto";
    config->density = 0.01;
    tamis_status status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void set_costs(tamis_comm *comm, const tam_link_model *link) {
    const tam_net net = tam_net_of_link(link, RANKS, 1);
    tam_costs_of_net(&net, &comm->stages, &comm->costs);
}

static void run_forced(test_rank *self) {
    const forced *f = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    self->comm->measured = true;
    set_costs(self->comm, &f->links[self->id != 1]);
    RANK_STATUS(self, TAMIS_E_MISMATCH, open_wide(self->comm, &config, &r));
    RANK_CHECK(self, r == NULL && strstr(tamis_last_error(), f->words), "it says: %s",
               tamis_last_error());
}

static void ranks_with_other_numbers_are_refused_and_do_not_hang(void **state) {
    static forced cases[] = {{{{1e-9, 1.0}, {1.0, 1e-15}}, "buckets that are dense"},
                             {{{1e-6, 8e-8}, {1e-6, 4e-10}}, "index formats of the buckets"}};
    (void)state;
    for (int c = 0; c < 2; c++) {
        test_context("other %s", cases[c].words);
        ranks_run(RANKS, 0, run_forced, &cases[c]);
    }
}

/* -- index formats ---------------------------------------------------------------------------- */

typedef struct format_case {
    double gbit;
    tamis_index_format asked;
    const char *expected;
} format_case;

static void run_format(test_rank *self) {
    const format_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    tamis_reducer *r = NULL;
    config.link_latency_us = 1.0;
    config.link_gbit = c->gbit;
    config.index_format = c->asked;
    RANK_OK(self, open_wide(self->comm, &config, &r));
    RANK_OK(self, tamis_reducer_bucket_at(r, 0, &bucket));
    RANK_CHECK(self, strcmp(bucket.index_format, c->expected) == 0, "%s over %g Gbit/s",
               bucket.index_format, c->gbit);
    tamis_reducer_destroy(r);
}

/* By bytes alone the choice would be block16 for all of them. */
static void the_slower_the_link_the_fewer_the_bytes(void **state) {
    static format_case cases[] = {{20.0, TAMIS_INDEX_AUTO, "u32"},
                                  {3.0, TAMIS_INDEX_AUTO, "block16"},
                                  {0.1, TAMIS_INDEX_AUTO, "rice"},
                                  {0.1, TAMIS_INDEX_U32, "u32"},
                                  {20.0, TAMIS_INDEX_BITMAP, "bitmap"}};
    (void)state;
    for (int c = 0; c < 5; c++) {
        test_context("%g Gbit/s", cases[c].gbit);
        ranks_run(RANKS, 0, run_format, &cases[c]);
    }
}

/* -- many ranks ------------------------------------------------------------------------------- */

enum { MANY = RANKS_MOST, PIECES = 40, PIECE = 1900 };

typedef struct many {
    const char *plan;
    uint32_t nbuckets[MANY];
    double small_us[MANY]; /* expected of two elements */
} many;

/* 40 segments at 1 %, over 40 us and 10 Mbit/s. */
static void run_many(test_rank *self) {
    many *m = self->shared;
    tamis_segment segments[PIECES];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    tamis_layout *layout;
    tamis_reducer *r = NULL;
    for (int i = 0; i < PIECES; i++)
        segments[i] = (tamis_segment){NULL, PIECE};
    config.density = 0.01;
    config.link_latency_us = 40.0;
    config.link_gbit = 0.01;
    config.bucket_length = TAMIS_BUCKETS_PLANNED;
    RANK_CHECK(self, strcmp(tamis_comm_plan(self->comm), m->plan) == 0, "the plan is %s",
               tamis_comm_plan(self->comm));
    RANK_OK(self, tamis_layout_create(segments, PIECES, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &r));
    tamis_layout_destroy(layout);
    m->nbuckets[self->id] = r->nbuckets;
    tamis_reducer_destroy(r);
    config.scheme = "auto";
    config.bucket_length = 0;
    RANK_OK(self, data_reducer(self->comm, 2, &config, &r));
    RANK_OK(self, tamis_reducer_bucket_at(r, 0, &bucket));
    m->small_us[self->id] = bucket.predicted_us;
    tamis_reducer_destroy(r);
}

/* The model takes ranks for hosts in the usual stages, on every transport. A gather of nothing
 * takes twice 40 us and 2.5 us, then 7 and 3 times 2.5 us; a sum takes two, but the last stage
 * once. Transfer is 93 ns an element. */
static void buckets_are_the_same_on_every_transport(void **state) {
    many all = {.plan = "32"}, staged = {.plan = "8x4/1024"};
    tamis_comm *comms[MANY];
    (void)state;
    test_context("32 ranks, all with all");
    ranks_run(MANY, 0, run_many, &all);
    test_context("32 ranks in stages");
    mail *m = mail_create(MANY, 0);
    mail_comms(m, comms);
    ranks_run_on(comms, MANY, run_many, &staged);
    for (int r = 0; r < MANY; r++)
        tamis_comm_destroy(comms[r]);
    mail_destroy(m);
    for (int r = 0; r < MANY; r++) {
        assert_int_equal(staged.nbuckets[r], 6); /* of 11,639 elements at least: 7 segments */
        assert_int_equal(all.nbuckets[r], 6);
        assert_true(fabs(staged.small_us[r] - 183.0) < 20.0);
        assert_true(all.small_us[r] == staged.small_us[r]);
    }
}

/* -- the rules of every scheme ---------------------------------------------------------------- */

static trial auto_trial(uint32_t nranks, size_t n, double density, double latency_us, double gbit) {
    trial what = trial_usual("auto", nranks, n, density);
    what.latency_us = latency_us;
    what.gbit = gbit;
    return what;
}

static void mixed_reducers_keep_all_rules(void **state) {
    static const uint32_t nranks[] = {1, 2, 3, 5};
    static const double densities[] = {1, 0.1, 0.01, 0.001};
    (void)state;
    for (int p = 0; p < 4; p++)
        for (int d = 0; d < 4; d++)
            for (int form = 0; form < 4; form++) {
                if (!test_drawn(5))
                    continue;
                trial_record record;
                trial what = auto_trial(nranks[p], 20000, densities[d], 10.0, 1.0);
                what.bucket_length = 500;
                what.by_segment = form & 1;
                what.disorder = form & 1 ? 7 : 0;
                what.worker = form & 2 ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER;
                what.wire = form == 3 ? TAMIS_WIRE_BFLOAT16 : TAMIS_WIRE_FLOAT32;
                assert_true(trial_run(&what, &record));
                check_alike(&record);
                check_union(&record);
                check_stats(&record);
                check_conservation(&record);
                record_free(&record);
            }
}

static void check_as(const char *scheme, double latency_us, double gbit, uint64_t length) {
    trial_record chosen, fixed;
    trial what = auto_trial(RANKS, 20000, 0.01, latency_us, gbit);
    trial plain = trial_usual(scheme, RANKS, 20000, 0.01);
    what.bucket_length = plain.bucket_length = length;
    what.real = plain.real = true;
    assert_true(trial_run(&what, &chosen));
    assert_true(trial_run(&plain, &fixed));
    check_same(&chosen, &fixed);
    record_free(&chosen);
    record_free(&fixed);
}

static void where_nothing_is_dense_the_bits_are_those_of_tamis(void **state) {
    (void)state;
    check_as("tamis", 0.001, 0.001, 0);
}

static void where_all_is_dense_the_bits_are_those_of_dense(void **state) {
    (void)state;
    check_as("dense", 1e5, 1e6, 3000);
}

/* -- all or nothing, micro-batches, states ---------------------------------------------------- */

typedef struct mixed_run {
    tamis_nonfinite policy;
    size_t bad; /* the entry that is NaN on rank 1; N: none */
    bool early; /* in a micro-batch before the step */
    float after[RANKS][N];
} mixed_run;

static void fill(uint32_t rank, uint32_t step, float *out) {
    data_fill(DATA_HEAVY, rank, step, N, out);
}

/* What waited is lost with a skipped step: the next one has its own micro-batch alone. */
static void step_again(test_rank *self, tamis_reducer *r) {
    float grad[N];
    tamis_step step = data_step(grad);
    for (size_t i = 0; i < N; i++)
        grad[i] = 2.0f;
    RANK_OK(self, tamis_reducer_accumulate(r, &step));
    for (size_t i = 0; i < N; i++)
        grad[i] = 4.0f;
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, is_large(i) || grad[i] == 6.0f * RANKS, "then entry %zu is %g", i,
                   (double)grad[i]);
}

/* Two micro-batches, then the step. */
static void run_micro_batches(test_rank *self) {
    mixed_run *run = self->shared;
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    const float *residual;
    float *grad = run->after[self->id];
    config.nonfinite = run->policy;
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    RANK_CHECK(self, count_dense(r) == 3, "%u buckets are dense", count_dense(r));
    for (uint32_t batch = 0; batch < 3; batch++) {
        fill(self->id, batch, grad);
        if (self->id == 1 && run->bad < N && run->early == (batch == 0) && batch != 1)
            grad[run->bad] = NAN;
        tamis_step step = data_step(grad);
        if (batch < 2)
            RANK_OK(self, tamis_reducer_accumulate(r, &step));
        else
            RANK_OK(self, tamis_reducer_start(r, &step));
    }
    bool bad = run->bad < N && run->policy == TAMIS_NONFINITE_ERROR;
    RANK_STATUS(self, bad ? TAMIS_E_NONFINITE : TAMIS_OK, tamis_reducer_wait(r));
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.skipped == (run->bad < N && run->policy != TAMIS_NONFINITE_DROP),
               "skipped is %llu", (unsigned long long)stats.skipped);
    RANK_OK(self, tamis_reducer_residual(r, &residual));
    for (size_t i = 0; i < N && run->bad == N; i++)
        RANK_CHECK(self, is_large(i) || residual[i] == 0.0f, "residual[%zu] is %g", i, residual[i]);
    if (stats.skipped)
        step_again(self, r);
    tamis_reducer_destroy(r);
}

static void dense_buckets_send_their_micro_batches(void **state) {
    mixed_run *run = calloc(1, sizeof *run);
    static float sum[N], one[N];
    (void)state;
    test_context("micro-batches");
    memset(sum, 0, sizeof sum);
    run->bad = N;
    ranks_run(RANKS, 0, run_micro_batches, run);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t batch = 0; batch < 3; batch++) {
            fill(r, batch, one);
            for (size_t i = 0; i < N; i++)
                sum[i] += one[i];
        }
    for (uint32_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < N; i++)
            if (!is_large(i) && run->after[r][i] != sum[i])
                fail_msg("rank %u, entry %zu: %g, not %g", r, i, run->after[r][i], sum[i]);
    free(run);
}

static void check_bad(size_t bad, bool early) {
    static const tamis_nonfinite policies[] = {TAMIS_NONFINITE_ERROR, TAMIS_NONFINITE_SKIP};
    for (int p = 0; p < 2; p++) {
        mixed_run *run = calloc(1, sizeof *run);
        run->policy = policies[p];
        run->bad = bad;
        run->early = early;
        test_context("NaN at %zu, %s, policy %d", bad, early ? "early" : "late", policies[p]);
        ranks_run(RANKS, 0, run_micro_batches, run);
        for (uint32_t r = 0; r < RANKS; r++)
            for (size_t i = 0; i < N; i++)
                if (run->after[r][i] != 0.0f)
                    fail_msg("[%s] rank %u, entry %zu is %g after a skipped step",
                             test_context_text(), r, i, run->after[r][i]);
        free(run);
    }
}

static void what_is_not_finite_in_one_bucket_skips_all(void **state) {
    static const size_t entries[] = {3, FIRST_LARGE + 7, N - 1}; /* dense, sparse, dense */
    (void)state;
    for (int e = 0; e < 3; e++) {
        check_bad(entries[e], false);
        check_bad(entries[e], true);
    }
}

/* Saved when no bucket is dense, loaded when all are. */
static void run_other_choice(test_rank *self) {
    mixed_run *run = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL, *other = NULL;
    float *grad = run->after[self->id];
    const float *residual;
    size_t bytes;
    config.link_latency_us = 1.0;
    config.link_gbit = 0.0; /* measured, then overridden: both states have the same fields */
    self->comm->measured = true;
    tam_link_model slow = {1e-9, 1.0}, late = {1.0, 1e-15};
    set_costs(self->comm, &slow);
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    set_costs(self->comm, &late);
    RANK_OK(self, open_mixed(self->comm, &config, &other));
    RANK_CHECK(self, count_dense(r) == 0 && count_dense(other) == 4, "%u and %u buckets are dense",
               count_dense(r), count_dense(other));
    tamis_step step = data_step(grad);
    fill(self->id, 0, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    float *applied = malloc(N * sizeof *applied);
    memcpy(applied, grad, N * sizeof *applied);
    RANK_OK(self, tamis_reducer_residual(r, &residual));
    RANK_OK(self, tamis_reducer_control_bytes(r, &bytes));
    void *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(r, control, bytes));
    RANK_OK(self, tamis_reducer_load_memory(other, control, bytes, residual));
    fill(self->id, 1, grad);
    RANK_OK(self, tamis_reducer_start(other, &step));
    RANK_OK(self, tamis_reducer_wait(other));
    for (size_t i = 0; i < N; i++)
        grad[i] += applied[i];
    free(control);
    free(applied);
    tamis_reducer_destroy(other);
    tamis_reducer_destroy(r);
}

static void a_state_of_another_choice_loses_nothing(void **state) {
    mixed_run *run = calloc(1, sizeof *run);
    static float sum[N], one[N];
    (void)state;
    test_context("a state of another choice");
    memset(sum, 0, sizeof sum);
    ranks_run(RANKS, 0, run_other_choice, run);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t step = 0; step < 2; step++) {
            fill(r, step, one);
            for (size_t i = 0; i < N; i++)
                sum[i] += one[i];
        }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_memory_equal(run->after[r], sum, sizeof sum);
    free(run);
}

/* -- residuals of dense buckets decay like all others ----------------------------------------- */

static void wait_and_decay(test_rank *self) {
    enum { FEW = 64 };
    float grad[FEW] = {0}, residual[FEW];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    config.scheme = "auto";
    config.density = 0.5;
    config.op = TAMIS_OP_SUM;
    config.residual_decay = 0.5;
    config.link_latency_us = 10000;
    config.link_gbit = 1000;
    RANK_OK(self, data_reducer(self->comm, FEW, &config, &r));
    RANK_CHECK(self, count_dense(r) == 1, "%u buckets are dense", count_dense(r));
    for (size_t i = 0; i < FEW; i++)
        residual[i] = 1.0f;
    RANK_OK(self, tamis_reducer_load_memory(r, NULL, 0, residual));
    tamis_step step = data_step(grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    for (size_t i = 0; i < FEW; i++)
        RANK_CHECK(self, grad[i] == 0.5f * RANKS, "element %zu is %g", i, (double)grad[i]);
    tamis_reducer_destroy(r);
}

static void test_what_waits_for_a_dense_bucket_decays(void **state) {
    (void)state;
    test_context("decay of what waits");
    ranks_run(RANKS, 0, wait_and_decay, NULL);
}

/* -- what is dropped from what waits counts once ---------------------------------------------- */

/* Two segments that are too long to be summed together. */
static void drop_early(test_rank *self) {
    enum { LONG = 700000 };
    float *grad = calloc(2 * LONG, sizeof *grad);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer *r = NULL;
    config.scheme = "auto";
    config.density = 0.5;
    config.link_latency_us = 1e5;
    config.link_gbit = 1e6;
    config.nonfinite = TAMIS_NONFINITE_DROP;
    RANK_CHECK(self, grad, "no memory");
    RANK_OK(self, data_even_reducer(self->comm, 2, LONG, &config, &r));
    RANK_CHECK(self, count_dense(r) == 1, "%u buckets are dense", count_dense(r));
    tamis_step step = data_step(grad);
    grad[7] = self->id == 1 ? NAN : 0.0f;
    RANK_OK(self, tamis_reducer_accumulate(r, &step));
    grad[7] = 0.0f;
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.nonfinite == 1, "%llu entries were dropped",
               (unsigned long long)stats.nonfinite);
    tamis_reducer_destroy(r);
    free(grad);
}

static void what_is_dropped_early_counts_once(void **state) {
    (void)state;
    test_context("dropped early");
    ranks_run(RANKS, 0, drop_early, NULL);
}

/* -- micro-batches that leave zeros are micro-batches ----------------------------------------- */

/* A micro-batch of zeros, perhaps a new reducer with that state, then a gradient of -0. */
static void run_zeros(test_rank *self) {
    enum { FEW = 64 };
    float grad[2][FEW] = {{0}}, residual[FEW];
    tamis_reducer_config config = slow_link();
    config.scheme = "auto";
    config.density = 0.5;
    config.op = TAMIS_OP_SUM;
    for (int restores = 0; restores < 2; restores++) {
        tamis_step step = data_step(grad[restores]);
        tamis_reducer *r = NULL, *other = NULL;
        size_t bytes = 0;
        RANK_OK(self, data_reducer(self->comm, FEW, &config, &r));
        RANK_OK(self, data_reducer(self->comm, FEW, &config, &other));
        RANK_CHECK(self, count_dense(r) == 1, "%u buckets are dense", count_dense(r));
        RANK_OK(self, tamis_reducer_accumulate(r, &step));
        RANK_OK(self, tamis_reducer_control_bytes(r, &bytes));
        void *control = malloc(bytes);
        RANK_OK(self, tamis_reducer_save_control(r, control, bytes));
        RANK_OK(self, tamis_reducer_save_residual(r, residual));
        RANK_OK(self, tamis_reducer_load_memory(other, control, bytes, residual));
        for (size_t i = 0; i < FEW; i++)
            grad[restores][i] = -0.0f;
        RANK_OK(self, tamis_reducer_start(restores ? other : r, &step));
        RANK_OK(self, tamis_reducer_wait(restores ? other : r));
        free(control);
        tamis_reducer_destroy(other);
        tamis_reducer_destroy(r);
    }
    RANK_CHECK(self, memcmp(grad[0], grad[1], sizeof grad[0]) == 0,
               "%g without a restored state, %g with it", (double)grad[0][0], (double)grad[1][0]);
}

static void micro_batches_of_zeros_survive_a_state(void **state) {
    (void)state;
    test_context("micro-batches of zeros");
    ranks_run(1, 0, run_zeros, NULL);
    ranks_run(RANKS, 0, run_zeros, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_waits_for_a_dense_bucket_decays),
        cmocka_unit_test(what_is_dropped_early_counts_once),
        cmocka_unit_test(small_buckets_are_dense_and_large_ones_are_not),
        cmocka_unit_test(nothing_is_dense_where_the_result_is_sparse),
        cmocka_unit_test(ranks_that_do_not_all_measure_are_told),
        cmocka_unit_test(ranks_that_measure_other_times_choose_alike),
        cmocka_unit_test(ranks_with_other_numbers_are_refused_and_do_not_hang),
        cmocka_unit_test(the_slower_the_link_the_fewer_the_bytes),
        cmocka_unit_test(buckets_are_the_same_on_every_transport),
        cmocka_unit_test(mixed_reducers_keep_all_rules),
        cmocka_unit_test(where_nothing_is_dense_the_bits_are_those_of_tamis),
        cmocka_unit_test(where_all_is_dense_the_bits_are_those_of_dense),
        cmocka_unit_test(dense_buckets_send_their_micro_batches),
        cmocka_unit_test(what_is_not_finite_in_one_bucket_skips_all),
        cmocka_unit_test(a_state_of_another_choice_loses_nothing),
        cmocka_unit_test(micro_batches_of_zeros_survive_a_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
