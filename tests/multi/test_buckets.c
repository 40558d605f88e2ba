/* SPDX-License-Identifier: MIT
 *
 * Several buckets: all rules hold as for one; no order of readiness changes a bit or hangs; a step
 * is applied whole or not at all; k is divided and stays exact.
 */
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/trial.h"
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* -- all rules, all schemes ------------------------------------------------------------------- */

static void check_scheme(const scheme_case *scheme, const trial_record *record) {
    check_ranks_identical(record);
    check_union(record);
    check_stats(record);
    check_conservation(record);
    if (scheme->exclusive && scheme->counted)
        check_count(record);
    if (scheme->all_at_once && (scheme->whole || record->trial.density == 1))
        check_all_applied(record);
}

/* In order by start, and out of order by ready, also on gradients in pieces: the same bits. */
static void try_orders(const scheme_case *scheme, trial what) {
    trial_record straight, mixed;
    if (!trial_run(&what, &straight)) { /* an invalid combination */
        record_free(&straight);
        return;
    }
    check_scheme(scheme, &straight);
    what.disorder = 1 + what.nranks;
    what.worker = what.nranks % 2 ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER;
    what.by_segment = what.n % 2 == 0;
    assert_true(trial_run(&what, &mixed));
    check_same(&straight, &mixed);
    record_free(&mixed);
    record_free(&straight);
}

static void test_all_schemes_keep_all_rules_in_buckets(void **state) {
    static const size_t sizes[] = {7, 1000, 4097};
    static const uint32_t ranks_of[] = {1, 2, 5};
    static const double densities[] = {1, 0.1, 0.003};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_combination(s, &scheme); s++)
        for (size_t i = 0; i < COUNT(sizes); i++) {
            if (!test_drawn(5))
                continue;
            trial what = trial_usual(scheme.name, ranks_of[(s + i) % COUNT(ranks_of)], sizes[i],
                                     densities[(s + i) % COUNT(densities)]);
            what.bucket_length = sizes[i] / 5 + 1;
            what.bucket_budget = s % 3 == 0 ? TAMIS_BUCKET_BUDGET_LENGTH : TAMIS_BUCKET_BUDGET_NORM;
            try_orders(&scheme, what);
        }
}

/* With one rank there is nothing to wait for, with one entry nothing to divide. Programs may trap
 * division by zero, as this one does. */
static void test_planned_buckets_are_planned_without_traps(void **state) {
    static const double densities[] = {1, 0.3, 1e-305};
    (void)state;
    for (uint32_t nranks = 1; nranks <= 2; nranks++)
        for (size_t d = 0; d < COUNT(densities); d++) {
            trial_record record;
            trial what = trial_usual("tamis", nranks, 1000, densities[d]);
            what.bucket_length = TAMIS_BUCKETS_PLANNED;
            assert_true(trial_run(&what, &record));
            check_count(&record);
            record_free(&record);
        }
}

static void test_presets_keep_all_rules_in_buckets(void **state) {
    static const uint32_t ranks_of[] = {2, 3, 8};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < COUNT(ranks_of); p++) {
            if (!test_drawn(4))
                continue;
            trial what = trial_usual(scheme.name, ranks_of[p], 20000, 0.01);
            what.bucket_length = 3000;
            try_orders(&scheme, what);
        }
}

static void test_a_thousand_orders_of_readiness_give_the_same_bits(void **state) {
    trial what = trial_usual("tamis", 3, 3000, 0.02);
    trial_record straight, mixed;
    (void)state;
    what.bucket_length = 200;
    what.steps = 10;
    assert_true(trial_run(&what, &straight));
    for (uint32_t seed = 1; seed <= 100; seed += test_stride(10)) { /* ten steps each */
        what.disorder = seed;
        assert_true(trial_run(&what, &mixed));
        check_same(&straight, &mixed);
        record_free(&mixed);
    }
    record_free(&straight);
}

/* -- one reducer by hand ---------------------------------------------------------------------- */

enum { SEGMENTS = 6, LENGTH = 500, N = SEGMENTS * LENGTH };

/* The sum of targets is k in every step, and budgets follow the norms within their bounds. */
static void check_budgets(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    uint64_t first[SEGMENTS];
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    RANK_CHECK(self, tamis_reducer_nbuckets(r) == SEGMENTS, "%u buckets",
               tamis_reducer_nbuckets(r));
    for (uint32_t number = 0; number < 8; number++) {
        uint64_t sum = 0;
        for (uint32_t b = 0; b < SEGMENTS; b++) {
            tamis_bucket bucket = TAMIS_BUCKET_INIT;
            RANK_OK(self, tamis_reducer_bucket_at(r, b, &bucket));
            RANK_CHECK(self,
                       bucket.first_segment == SEGMENTS - 1 - b && bucket.nsegments == 1 &&
                           bucket.begin == bucket.first_segment * LENGTH && bucket.length == LENGTH,
                       "bucket %u begins at %llu", b, (unsigned long long)bucket.begin);
            first[b] = bucket.target;
            sum += bucket.target;
        }
        RANK_CHECK(self, sum == N / 20, "step %u: targets sum to %llu", number,
                   (unsigned long long)sum);
        data_fill(DATA_HEAVY, self->id, number, N, grad);
        for (uint32_t i = 0; i < N; i++)
            grad[i] *= i / LENGTH == 5 ? 100.0f : i / LENGTH == 0 ? 0.01f : 1.0f;
        tamis_step step = data_step(grad);
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
    }
    uint64_t even = N / 20 / SEGMENTS, most = even + even / 10; /* of all but the quiet one */
    RANK_CHECK(self, first[0] == most && first[5] == N / 20 - (SEGMENTS - 1) * most,
               "budgets %llu and %llu do not reach their bounds", (unsigned long long)first[0],
               (unsigned long long)first[5]);
    tamis_reducer_destroy(r);
}

static void test_budgets_follow_norms_and_sum_to_k(void **state) {
    (void)state;
    test_context("budgets");
    ranks_run(3, 0, check_budgets, NULL);
}

/* NaN in the bucket that is exchanged last, after all others. */
static void step_with_nan(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    const float *residual;
    float grad[N], before[N];
    tamis_result result = TAMIS_RESULT_INIT;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    RANK_OK(self, tamis_reducer_residual(r, &residual));
    memcpy(before, residual, sizeof before);

    data_fill(DATA_HEAVY, self->id, 1, N, grad);
    for (uint32_t i = 0; i < N; i++)
        before[i] += i == 3 && self->id == 1 ? 0.0f : grad[i];
    if (self->id == 1)
        grad[3] = NAN;
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_STATUS(self, TAMIS_E_NONFINITE, tamis_reducer_wait(r));
    RANK_CHECK(self, has_word(tamis_last_error(), "first on rank 1"), "%s", tamis_last_error());
    RANK_CHECK(self, memcmp(before, residual, sizeof before) == 0,
               "the residual is not what it was and the gradient");
    RANK_OK(self, tamis_reducer_result(r, &result));
    RANK_CHECK(self, result.count == 0, "%zu entries", result.count);
    for (uint32_t i = 0; i < N; i++)
        RANK_CHECK(self, grad[i] == 0.0f, "gradient %u is %g", i, (double)grad[i]);

    data_fill(DATA_HEAVY, self->id, 2, N, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    tamis_reducer_destroy(r);
}

static void test_nan_in_one_bucket_applies_nothing_of_any(void **state) {
    (void)state;
    test_context("NaN");
    ranks_run(3, 0, step_with_nan, NULL);
}

/* -- wrong calls ------------------------------------------------------------------------------ */

static void misuse(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    static float grads[2][N];
    float *grad = grads[self->id];
    int done = -1;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    tamis_step step = data_step(grad), other = data_step(grad + 1);
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(NULL, 0, &step));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, 0, NULL));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, SEGMENTS, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_wait(r));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_test(r, &done));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_test(r, NULL));
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    RANK_OK(self, tamis_reducer_ready(r, 5, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_ready(r, 5, &step));
    RANK_CHECK(self, has_word(tamis_last_error(), "five"), "%s", tamis_last_error());
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, 4, &other));
    step.scale = 2.0f;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, 4, &step));
    step.scale = 1.0f;
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_accumulate(r, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_set_density(r, 0.01));
    RANK_OK(self, tamis_reducer_test(r, &done));
    RANK_CHECK(self, done == 0, "done with five segments missing");
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_start(r, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_ready(r, 0, &step));
    while (done == 0)
        RANK_OK(self, tamis_reducer_test(r, &done));
    RANK_OK(self, tamis_reducer_wait(r));
    for (uint32_t s = 0; s < SEGMENTS; s++) /* wrong calls had no effect */
        RANK_OK(self, tamis_reducer_ready(r, s, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    tamis_reducer_destroy(r);
}

static void test_wrong_calls_have_no_effect(void **state) {
    (void)state;
    test_context("wrong calls");
    ranks_run(2, 0, misuse, NULL);
}

static void overlap(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float memory[N + LENGTH];
    void *grads[SEGMENTS];
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    data_fill(DATA_HEAVY, self->id, 0, N + LENGTH, memory);
    for (uint32_t s = 0; s < SEGMENTS; s++)
        grads[s] = memory + s * LENGTH;
    tamis_step step = TAMIS_STEP_INIT;
    step.grads = grads;
    RANK_OK(self, tamis_reducer_ready(r, 2, &step));
    RANK_OK(self, tamis_reducer_ready(r, 4, &step));
    grads[3] = memory + 3 * LENGTH + 1;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, 3, &step));
    RANK_CHECK(self, has_word(tamis_last_error(), "three and four"), "%s", tamis_last_error());
    grads[3] = memory + 3 * LENGTH - 1;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, 3, &step));
    RANK_CHECK(self, has_word(tamis_last_error(), "two and three"), "%s", tamis_last_error());
    grads[3] = NULL;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_ready(r, 3, &step));
    grads[3] = memory + 2 * LENGTH;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_start(r, &step));
    grads[3] = memory + N;
    RANK_OK(self, tamis_reducer_ready(r, 3, &step));
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    tamis_reducer_destroy(r);
}

static void test_gradients_that_overlap_are_refused_one_by_one(void **state) {
    (void)state;
    test_context("overlaps");
    ranks_run(2, 0, overlap, NULL);
}

/* -- a segment that is never ready ------------------------------------------------------------ */

static void forget(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    rank_barrier(self);
    test_deadline(self->comm, test_short_ms());
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        if (s != 2 || self->id != 0)
            RANK_OK(self, tamis_reducer_ready(r, s, &step));
    }
    uint64_t begin = now_ms();
    tamis_status status = tamis_reducer_wait(r);
    RANK_CHECK(self,
               self->id == 0 ? status == TAMIS_E_TIMEOUT
                             : tamis_status_loss(status) == TAMIS_LOST_COMM,
               "%s", tamis_status_name(status));
    RANK_CHECK(self, now_ms() - begin < test_short_ms() + test_grace_ms(), "it took %llu ms",
               (unsigned long long)(now_ms() - begin));
    RANK_CHECK(self, self->id != 0 || has_word(tamis_last_error(), "gradient of two (segment 2)"),
               "%s", tamis_last_error());
    tamis_reducer_destroy(r);
}

static void test_a_segment_never_ready_is_named_at_the_deadline(void **state) {
    (void)state;
    test_context("a segment is never ready");
    ranks_run(2, 0, forget, NULL);
}

/* -- ready on one thread, wait on another ----------------------------------------------------- */

static void two_threads(test_rank *self) {
    data_marks b = {.nsegments = SEGMENTS, .pause_ms = 1};
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    pthread_t thread;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &b.reducer));
    b.step = data_step(grad);
    for (uint32_t number = 0; number < 5; number++) {
        data_fill(DATA_HEAVY, self->id, number, N, grad);
        RANK_OK(self, tamis_reducer_ready(b.reducer, SEGMENTS - 1, &b.step));
        RANK_CHECK(self, pthread_create(&thread, NULL, data_mark_all, &b) == 0, "no thread");
        tamis_status status = tamis_reducer_wait(b.reducer);
        pthread_join(thread, NULL);
        RANK_OK(self, status);
        RANK_OK(self, b.status);
    }
    tamis_reducer_destroy(b.reducer);
}

static void test_one_thread_marks_while_another_waits(void **state) {
    (void)state;
    test_context("two threads");
    ranks_run(3, 0, two_threads, NULL);
}

/* -- phases ----------------------------------------------------------------------------------- */

typedef struct heard {
    uint32_t count[TAMIS_PHASES][SEGMENTS + 1];
    bool sound;
} heard;

static void hear(void *context, const tamis_phase_event *event) {
    heard *h = context;
    uint32_t bucket = event->bucket == TAMIS_NO_BUCKET ? SEGMENTS : event->bucket;
    h->sound = h->sound && event->end_ns >= event->begin_ns && event->begin_ns > 0 &&
               event->size == sizeof *event && bucket <= SEGMENTS && event->phase < TAMIS_PHASES;
    if (h->sound)
        h->count[event->phase][bucket]++;
}

static void listen(test_rank *self) {
    enum { STEPS = 8 };
    heard h = {.sound = true};
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    tamis_stats stats = TAMIS_STATS_INIT;
    bool named = false; /* in one step: others are late, too, on a busy machine */
    float grad[N];
    config.on_phase = hear;
    config.on_phase_context = &h;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    tamis_step step = data_step(grad);
    for (uint32_t number = 0; number < STEPS; number++) {
        data_fill(DATA_HEAVY, self->id, number, N, grad);
        sleep_ms(self->id == 1 ? 30 : 0);
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        RANK_OK(self, tamis_reducer_stats(r, &stats));
        named |= stats.straggler == 1 && (self->id == 1 ? stats.lag_s == 0.0 : stats.lag_s > 0.01);
    }
    RANK_CHECK(self, h.sound, "an event makes no sense");
    for (uint32_t b = 0; b < SEGMENTS; b++)
        RANK_CHECK(self,
                   h.count[TAMIS_PHASE_ACCUMULATE][b] == STEPS &&
                       h.count[TAMIS_PHASE_SELECT][b] == STEPS &&
                       h.count[TAMIS_PHASE_EXCHANGE][b] == STEPS,
                   "bucket %u: phases are missing", b);
    RANK_CHECK(self, h.count[TAMIS_PHASE_APPLY][SEGMENTS] == STEPS, "apply is missing");
    RANK_CHECK(self, h.count[TAMIS_PHASE_WAIT][SEGMENTS] == STEPS, "wait is missing");
    RANK_CHECK(self, named, "rank %u is said to be last, lag %g s", stats.straggler, stats.lag_s);
    tamis_reducer_destroy(r);
}

static void test_phases_are_told_and_the_straggler_named(void **state) {
    (void)state;
    test_context("phases");
    ranks_run(3, 0, listen, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_schemes_keep_all_rules_in_buckets),
        cmocka_unit_test(test_presets_keep_all_rules_in_buckets),
        cmocka_unit_test(test_planned_buckets_are_planned_without_traps),
        cmocka_unit_test(test_a_thousand_orders_of_readiness_give_the_same_bits),
        cmocka_unit_test(test_budgets_follow_norms_and_sum_to_k),
        cmocka_unit_test(test_nan_in_one_bucket_applies_nothing_of_any),
        cmocka_unit_test(test_wrong_calls_have_no_effect),
        cmocka_unit_test(test_gradients_that_overlap_are_refused_one_by_one),
        cmocka_unit_test(test_a_segment_never_ready_is_named_at_the_deadline),
        cmocka_unit_test(test_one_thread_marks_while_another_waits),
        cmocka_unit_test(test_phases_are_told_and_the_straggler_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
