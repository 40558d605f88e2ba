/* SPDX-License-Identifier: MIT
 *
 * A reducer with dense and sparse buckets (exchange auto) keeps the rules of each.
 */
#include "tests/multi/mixed_case.h"
#include "tests/support/trial.h"
#include <math.h>
#include <stdio.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>

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
                what.value_codec = form == 3 ? TAMIS_VALUE_BFLOAT16 : TAMIS_VALUE_FLOAT32;
                assert_true(trial_run(&what, &record));
                check_ranks_identical(&record);
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
