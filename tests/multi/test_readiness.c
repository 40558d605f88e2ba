/* SPDX-License-Identifier: MIT
 *
 * A step in buckets whose caller is late, leaves, or asks for something else than the others:
 * nothing hangs, nothing is left behind, and no error goes unnoticed.
 *
 * test: waits tsan
 */
#include "collectives/transport/comm.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/pipeline.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 4, LENGTH = 500, N = SEGMENTS * LENGTH };

static void run_step(test_rank *self, tamis_reducer *r, uint32_t number) {
    float grad[N];
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, number, N, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
}

/* -- densities that differ -------------------------------------------------------------------- */

/* 11 and 12 entries: with two ranks their packets have the same size. */
static void ask_apart(test_rank *self) {
    const char *const *scheme = self->shared;
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    config.scheme = *scheme;
    config.bucket_length = 0;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    run_step(self, r, 0);
    RANK_OK(self, tamis_reducer_set_density(r, self->id == 0 ? 11.5 / N : 12.5 / N));
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 1, N, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(r));
    RANK_CHECK(self, has_word(tamis_last_error(), "density"), "%s", tamis_last_error());
    tamis_reducer_destroy(r);
}

static void test_densities_that_differ_are_noticed(void **state) {
    static const char *schemes[] = {"tamis", "topk", "micro", "deft"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        test_context("%s", schemes[s]);
        ranks_run(2, 0, ask_apart, &schemes[s]);
    }
}

/* -- results and micro-batches ---------------------------------------------------------------- */

static void accumulate_after(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    tamis_result before = TAMIS_RESULT_INIT, after = TAMIS_RESULT_INIT;
    float grad[N];
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    run_step(self, r, 0);
    RANK_OK(self, tamis_reducer_result(r, &before));
    uint64_t hash = data_hash(0, before.values, before.count * sizeof before.values[0]);
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 1, N, grad);
    RANK_OK(self, tamis_reducer_accumulate(r, &step));
    RANK_OK(self, tamis_reducer_result(r, &after));
    RANK_CHECK(self,
               after.count == before.count &&
                   data_hash(0, after.values, after.count * sizeof after.values[0]) == hash,
               "the result has changed");
    tamis_reducer_destroy(r);
}

static void test_a_result_lasts_until_the_next_start(void **state) {
    (void)state;
    test_context("accumulate after a step");
    ranks_run(2, 0, accumulate_after, NULL);
}

/* -- the waiting thread exchanges ready buckets ----------------------------------------------- */

typedef struct early {
    tamis_reducer *reducer;
    tamis_status status;
    atomic_bool exchanged; /* the first bucket */
} early;

static void record_exchange(void *context, const tamis_phase_event *event) {
    early *e = context;
    if (event->phase == TAMIS_PHASE_EXCHANGE && event->bucket == 0)
        atomic_store(&e->exchanged, true);
}

static void *wait_early(void *context) {
    early *e = context;
    e->status = tamis_reducer_wait(e->reducer);
    return NULL;
}

/* The communicator has no thread, so the waiting thread drives the exchange. */
static void mark_and_watch(test_rank *self) {
    early e = {0};
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    pthread_t thread;
    config.on_phase = record_exchange;
    config.on_phase_context = &e;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &e.reducer));
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    RANK_OK(self, tamis_reducer_ready(e.reducer, SEGMENTS - 1, &step));
    RANK_CHECK(self, pthread_create(&thread, NULL, wait_early, &e) == 0, "no thread");
    for (uint64_t begin = now_ms();
         !atomic_load(&e.exchanged) && now_ms() - begin < test_long_ms() / 2;)
        sleep_ms(1);
    RANK_CHECK(self, atomic_load(&e.exchanged), "nobody exchanged the bucket that is ready");
    for (uint32_t s = SEGMENTS - 1; s-- > 0;)
        RANK_OK(self, tamis_reducer_ready(e.reducer, s, &step));
    pthread_join(thread, NULL);
    RANK_OK(self, e.status);
    tamis_reducer_destroy(e.reducer);
}

static void test_who_waits_exchanges_buckets_while_others_are_missing(void **state) {
    (void)state;
    test_context("wait on another thread");
    ranks_run(2, 0, mark_and_watch, NULL);
}

/* -- the waiting thread leaves, the marking thread is late ------------------------------------ */

enum { EXTRA_MS = 200 }; /* a pass that has begun is granted 500 ms more */

typedef struct late {
    tamis_reducer *reducer;
    tamis_step step;
    tamis_status status;
    uint32_t bucket;
    atomic_uint_fast64_t wait_ms; /* when the other thread began to wait */
} late;

/* The accumulate pass of one bucket takes longer than the other thread waits. */
static void delay_pass(void *context, const tamis_phase_event *event) {
    late *l = context;
    if (event->phase != TAMIS_PHASE_ACCUMULATE || event->bucket != l->bucket)
        return;
    while (atomic_load(&l->wait_ms) == 0 ||
           now_ms() < atomic_load(&l->wait_ms) + test_short_ms() + EXTRA_MS)
        sleep_ms(1);
}

static void *mark_late(void *context) {
    late *l = context;
    for (uint32_t s = SEGMENTS - 1; s-- > 0 && l->status == TAMIS_OK;)
        l->status = tamis_reducer_ready(l->reducer, s, &l->step);
    return NULL;
}

static void come_late(test_rank *self) {
    late l = {.bucket = SEGMENTS - 1};
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    pthread_t thread;
    config.on_phase = delay_pass;
    config.on_phase_context = &l;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &l.reducer));
    l.step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    test_deadline(self->comm, test_short_ms());
    RANK_OK(self, tamis_reducer_ready(l.reducer, SEGMENTS - 1, &l.step));
    RANK_CHECK(self, pthread_create(&thread, NULL, mark_late, &l) == 0, "no thread");
    uint64_t begin = now_ms();
    atomic_store(&l.wait_ms, begin);
    tamis_status status = tamis_reducer_wait(l.reducer);
    uint64_t took_ms = now_ms() - begin;
    pthread_join(thread, NULL);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    RANK_CHECK(self, took_ms < test_short_ms() + test_grace_ms(), "it took %llu ms",
               (unsigned long long)took_ms);
    RANK_CHECK(self, tamis_status_loss(l.status) == TAMIS_LOST_COMM, "ready says %s",
               tamis_status_name(l.status));
    tamis_reducer_destroy(l.reducer);
}

static void test_a_bucket_that_comes_too_late_is_left_out(void **state) {
    (void)state;
    test_context("a late bucket");
    ranks_run(1, 0, come_late, NULL);
}

/* A reducer's job must not stay in the queue of a communicator that outlives it. If the machine is
 * so busy that the pass is abandoned, the job stays with the reducer: then try again. */
static void leave_queue_empty(test_rank *self) {
    bool *left = self->shared;
    come_late(self);
    *left = self->comm->first != NULL;
}

static void test_a_late_bucket_leaves_no_job_behind(void **state) {
    bool left = true;
    (void)state;
    test_context("the queue after a late bucket");
    for (int trial = 0; trial < 5 && left; trial++)
        ranks_run(1, 0, leave_queue_empty, &left);
    assert_false(left);
}

/* -- after a load ----------------------------------------------------------------------------- */

static void load_and_go(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_pipeline *pipeline = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    tamis_pipeline_config stage = TAMIS_PIPELINE_CONFIG_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    char name[16], path[SCRATCH_PATH];
    snprintf(name, sizeof name, "ready%u", self->id);
    scratch_path(name, path);
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    for (uint32_t number = 0; number < 3; number++)
        run_step(self, r, number);
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.straggler != UINT32_MAX, "the last rank is not known");
    RANK_OK(self, tamis_reducer_save(r, path));
    RANK_OK(self, tamis_reducer_load(r, path));
    run_step(self, r, 3);
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.straggler == UINT32_MAX && stats.lag_s == 0.0,
               "rank %u is said to be last", stats.straggler);
    tamis_reducer_destroy(r);

    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    RANK_OK(self, tamis_reducer_load(r, path));
    stage.length = N;
    stage.density = 0.05;
    RANK_OK(self, tamis_pipeline_create(self->comm, &stage, &pipeline));
    RANK_OK(self, tamis_pipeline_balance(pipeline, r));
    tamis_pipeline_destroy(pipeline);
    tamis_reducer_destroy(r);
}

static void test_a_loaded_reducer_knows_its_length_and_no_old_times(void **state) {
    (void)state;
    test_context("load");
    char path[SCRATCH_PATH];
    scratch_path("first", path); /* makes the folder before threads start */
    ranks_run(2, 0, load_and_go, NULL);
}

/* -- destroyed in the middle of a step -------------------------------------------------------- */

static void leave_early(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    RANK_OK(self, tamis_reducer_ready(r, SEGMENTS - 1, &step));
    RANK_OK(self, tamis_reducer_ready(r, 0, &step));
    uint64_t begin = now_ms();
    tamis_reducer_destroy(r);
    RANK_CHECK(self, now_ms() - begin < test_long_ms() / 2, "it took %llu ms",
               (unsigned long long)(now_ms() - begin));
    RANK_OK(self,
            data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r)); /* nothing is lost */
    run_step(self, r, 0);
    tamis_reducer_destroy(r);
}

static void test_destroying_does_not_wait_for_segments_nobody_can_mark(void **state) {
    (void)state;
    test_context("destroyed in the middle");
    ranks_run(2, 0, leave_early, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_densities_that_differ_are_noticed),
        cmocka_unit_test(test_a_result_lasts_until_the_next_start),
        cmocka_unit_test(test_who_waits_exchanges_buckets_while_others_are_missing),
        cmocka_unit_test(test_a_bucket_that_comes_too_late_is_left_out),
        cmocka_unit_test(test_a_late_bucket_leaves_no_job_behind),
        cmocka_unit_test(test_destroying_does_not_wait_for_segments_nobody_can_mark),
        cmocka_unit_test(test_a_loaded_reducer_knows_its_length_and_no_old_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
