/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): steps of several buckets in
 * which something goes wrong in one of them, or between two. Nothing is applied in any, nothing is
 * lost.
 *
 * test: waits release
 */
#include "collectives/reducer/inflight.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/pair.h"
#include "tests/support/data.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* A deadline that a step in good order keeps also under a sanitizer, beside other tests. */
static uint32_t short_ms(void) {
    return test_stretch_ms(3000);
}

/* -- a step that is lost ---------------------------------------------------------------------- */

/* A rank on the way to a step that fails: one step is behind it, its gradient is on the device. */
typedef struct victim {
    pair p;
    tamis_step step;
    float before[PAIR_N], given[PAIR_N]; /* residual and gradient */
    char path[SCRATCH_PATH];
} victim;

static victim *prepare(test_rank *self) {
    static victim victims[RANKS_MOST];
    victim *v = &victims[self->id];
    const float *residual = NULL;
    char name[32];
    snprintf(name, sizeof name, "victim.%u", self->id);
    scratch_path(name, v->path);
    if (pair_open(self, self->shared, &v->p))
        pair_step(&v->p, 0, PAIR_START, TAMIS_OK);
    if (!self->failure[0])
        pair_fill(&v->p, 1);
    if (self->failure[0] || tamis_reducer_residual(v->p.cuda, &residual) != TAMIS_OK)
        return NULL;
    cudaStreamSynchronize(v->p.stream);
    memcpy(v->before, residual, sizeof v->before);
    memcpy(v->given, v->p.host, sizeof v->given);
    v->step = (tamis_step)TAMIS_STEP_INIT;
    v->step.grad = v->p.grad;
    v->step.stream = v->p.stream;
    return v;
}

/* What was accumulated of the gradient, and so is no longer in it, is in the residual with what was
 * there before: nothing was applied. Numbers are whole. */
static void check_kept(test_rank *self, victim *v) {
    const float *residual = NULL, *grad = v->p.grad;
    RANK_OK(self, tamis_reducer_save(v->p.cuda, v->path)); /* after which nothing is under way */
    RANK_OK(self, tamis_reducer_residual(v->p.cuda, &residual));
    for (size_t i = 0; i < PAIR_N; i++)
        RANK_CHECK(self, residual[i] + grad[i] == v->before[i] + v->given[i], "entry %zu is lost",
                   i);
    RANK_STATUS(self, tamis_comm_status(v->p.comm), tamis_reducer_start(v->p.cuda, &v->step));
    RANK_BARRIER(self);
    pair_close(&v->p);
}

static void run_victims(uint32_t nranks, uint32_t timeout_ms, rank_body body) {
    char path[SCRATCH_PATH];
    pair_order order = pair_usual();
    order.real = false;
    order.timeout_ms = timeout_ms;
    scratch_path("victim", path);
    ranks_run(nranks, timeout_ms, body, &order);
}

/* Bucket 2 of rank 1 remembers another result of the step before. */
static void forge_result(test_rank *self, const tamis_reducer *reducer) {
    tam_cuda_step *step = reducer->inflight->steps[2];
    tam_cuda_past past;
    uint64_t config = reducer->buckets[2].view.config_hash + reducer->k;
    RANK_OK(self, tam_cuda_step_save(step, &past));
    past.last_result ^= 1;
    RANK_OK(self, tam_cuda_step_load(step, config, &past));
}

static void refuse_one(test_rank *self) {
    victim *v = prepare(self);
    if (v && self->id == 1)
        forge_result(self, v->p.cuda);
    if (!v || self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_start(v->p.cuda, &v->step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(v->p.cuda));
    RANK_SAYS(self, "differs");
    check_kept(self, v);
}

static void test_a_packet_refused_in_one_bucket_applies_nothing_in_any(void **state) {
    (void)state;
    run_victims(3, 0, refuse_one);
}

static void lose_midway(test_rank *self) {
    victim *v = prepare(self);
    tamis_status status = TAMIS_OK;
    if (!v)
        return;
    for (size_t s = v->p.nsegments; s-- > 0 && status == TAMIS_OK;) {
        if (self->id == 0 && v->p.cuda->launched == 1)
            tamis_comm_abort(v->p.comm); /* between two buckets */
        status = tamis_reducer_ready(v->p.cuda, (uint32_t)s, &v->step);
    }
    self->where = "wait for a step that ended half way";
    status = tamis_reducer_wait(v->p.cuda);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    check_kept(self, v);
}

static void test_a_communicator_lost_between_buckets_keeps_the_residual(void **state) {
    (void)state;
    run_victims(2, short_ms(), lose_midway);
}

typedef struct failing {
    const char *function;
    int error;
} failing;

/* Where steps are replayed it is the graph with the collectives that cannot be launched. */
static failing what_fails(void) {
    if (getenv("TAMIS_GRAPHS"))
        return (failing){"ncclAllGather", 3 /* ncclInternalError */};
    return (failing){"cudaGraphLaunch", cudaErrorLaunchOutOfResources};
}

/* One call of rank 0 or 1, in bucket 1. */
static void fail_to_send(test_rank *self) {
    enum { NTH = 5 };
    victim *v = prepare(self);
    if (!v)
        return;
    RANK_BARRIER(self);
    if (self->id == 0)
        fake_cuda_fail(what_fails().function, NTH, what_fails().error);
    RANK_BARRIER(self);
    self->where = "a step in which a collective fails";
    tamis_status status = tamis_reducer_start(v->p.cuda, &v->step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(v->p.cuda);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    check_kept(self, v);
}

static void test_a_collective_that_fails_in_a_bucket_loses_nothing(void **state) {
    (void)state;
    run_victims(2, short_ms(), fail_to_send);
    fake_cuda_reset();
}

/* Rank 1 never marks the first segment: buckets before the last have been exchanged by then. */
static void leave_unready(test_rank *self) {
    victim *v = prepare(self);
    if (!v)
        return;
    for (size_t s = v->p.nsegments; s-- > self->id;)
        RANK_OK(self, tamis_reducer_ready(v->p.cuda, (uint32_t)s, &v->step));
    uint64_t begin = now_ms();
    self->where = "wait for a bucket that is not ready";
    RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_reducer_wait(v->p.cuda));
    RANK_CHECK(self, now_ms() - begin <= short_ms() + test_grace_ms(), "%llu ms",
               (unsigned long long)(now_ms() - begin));
    check_kept(self, v);
}

static void test_a_bucket_that_is_never_ready_is_a_timeout(void **state) {
    (void)state;
    run_victims(2, short_ms(), leave_unready);
}

/* -- in a graph of the caller ----------------------------------------------------------------- */

/* Some buckets in a graph, others not: that cannot be one step. */
static void capture_half(test_rank *self) {
    cudaGraph_t graph = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    size_t s;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    step.grad = p.grad;
    step.stream = p.stream;
    for (s = p.nsegments; s-- > 0 && p.cuda->launched == 0;)
        RANK_OK(self, tamis_reducer_ready(p.cuda, (uint32_t)s, &step));
    RANK_CUDA(self, cudaStreamBeginCapture(p.stream, cudaStreamCaptureModeThreadLocal));
    tamis_status status = tamis_reducer_start(p.cuda, &step);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    RANK_SAYS(self, "halfway");
    (void)cudaStreamEndCapture(p.stream, &graph);
    if (graph)
        cudaGraphDestroy(graph);
    pair_close(&p);
}

static void test_a_step_is_captured_whole_or_not_at_all(void **state) {
    pair_order order = pair_usual();
    (void)state;
    ranks_run(1, 0, capture_half, &order);
}

/* -- several reducers ------------------------------------------------------------------------- */

/* Between two buckets of one reducer no other may begin: ranks would not agree on the order. */
static void interleave(test_rank *self) {
    tamis_reducer *other = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    pair p;
    size_t s;
    if (!pair_open(self, self->shared, &p))
        return;
    tamis_reducer_config config = pair_config(p.order);
    config.device = TAMIS_DEVICE_CUDA;
    RANK_OK(self, data_reducer(p.comm, PAIR_N, &config, &other));
    step.grad = p.grad;
    step.stream = p.stream;
    for (s = p.nsegments; s-- > 0 && p.cuda->launched == 0;)
        RANK_OK(self, tamis_reducer_ready(p.cuda, (uint32_t)s, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_start(other, &step));
    RANK_SAYS(self, "segments are not all ready");
    RANK_OK(self, tamis_reducer_start(p.cuda, &step));
    RANK_OK(self, tamis_reducer_join(p.cuda, p.stream));
    RANK_OK(self, tamis_reducer_start(other, &step));
    RANK_OK(self, tamis_reducer_join(other, p.stream));
    RANK_OK(self, tamis_reducer_start(p.cuda, &step));
    RANK_OK(self, tamis_reducer_wait(p.cuda));
    tamis_reducer_destroy(other);
    pair_close(&p);
}

static void test_reducers_of_one_communicator_do_not_interleave(void **state) {
    pair_order order = pair_usual();
    (void)state;
    ranks_run(2, 0, interleave, &order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_packet_refused_in_one_bucket_applies_nothing_in_any),
        cmocka_unit_test(test_a_communicator_lost_between_buckets_keeps_the_residual),
        cmocka_unit_test(test_a_collective_that_fails_in_a_bucket_loses_nothing),
        cmocka_unit_test(test_a_bucket_that_is_never_ready_is_a_timeout),
        cmocka_unit_test(test_a_step_is_captured_whole_or_not_at_all),
        cmocka_unit_test(test_reducers_of_one_communicator_do_not_interleave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
