/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): steps that the device runs by
 * itself. The host may run ahead, allocates nothing, waits for nothing; steps can be captured by
 * the caller; a state moves between devices; whatever fails is named and loses nothing.
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/place.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/nccl.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 2100, STEPS = 24, FIRST = 4, RANKS = 3, SHORT_MS = 2000 };

/* What one rank works with. */
typedef struct seat {
    tamis_comm *comm;
    tamis_reducer *reducer;
    cudaStream_t stream;
    float *grad;        /* device */
    float *given, *got; /* pinned: [STEPS * N] what goes in, what comes out */
} seat;

#define RANK_CUDA(self, call)                                                                      \
    RANK_CHECK(self, (call) == cudaSuccess, "%s: %s", #call, cudaGetErrorName(cudaGetLastError()))

static tamis_reducer_config usual_config(tamis_device device) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.05;
    config.device = device;
    return config;
}

static tamis_status make(tamis_comm *comm, const tamis_reducer_config *config,
                         tamis_reducer **out) {
    tamis_layout *layout = data_layout(N);
    tamis_status status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void sit_down_with(test_rank *self, const char *scheme, uint32_t timeout_ms,
                          tamis_nonfinite policy, seat *out) {
    tamis_comm_config limit = TAMIS_COMM_CONFIG_INIT;
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CUDA);
    seat s = {0};
    limit.timeout_ms = timeout_ms;
    config.nonfinite = policy;
    config.scheme = scheme;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, &limit, &s.comm));
    RANK_OK(self, make(s.comm, &config, &s.reducer));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&s.grad, N * sizeof *s.grad));
    RANK_CUDA(self, cudaMallocHost((void **)&s.given, STEPS * N * sizeof *s.given));
    RANK_CUDA(self, cudaMallocHost((void **)&s.got, STEPS * N * sizeof *s.got));
    for (uint32_t i = 0; i < STEPS; i++)
        data_fill_real(self->id, i, N, s.given + i * N);
    *out = s;
}

static void sit_down(test_rank *self, uint32_t timeout_ms, tamis_nonfinite policy, seat *out) {
    sit_down_with(self, "tamis", timeout_ms, policy, out);
}

static void stand_up(seat *s) {
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
    cudaStreamDestroy(s->stream);
    cudaFree(s->grad);
    cudaFreeHost(s->given);
    cudaFreeHost(s->got);
}

static tamis_step step_of(const seat *s) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = s->grad;
    step.stream = s->stream;
    return step;
}

/* What a training loop does, all in stream order. */
static void enqueue_step(test_rank *self, seat *s, uint32_t number) {
    size_t bytes = N * sizeof *s->grad;
    tamis_step step = step_of(s);
    RANK_CUDA(self, cudaMemcpyAsync(s->grad, s->given + number * N, bytes, cudaMemcpyHostToDevice,
                                    s->stream));
    RANK_OK(self, tamis_reduce_start(s->reducer, &step));
    RANK_OK(self, tamis_reduce_join(s->reducer, s->stream));
    RANK_CUDA(self, cudaMemcpyAsync(s->got + number * N, s->grad, bytes, cudaMemcpyDeviceToHost,
                                    s->stream));
}

static void wait_step(test_rank *self, seat *s, uint32_t number) {
    size_t bytes = N * sizeof *s->grad;
    tamis_step step = step_of(s);
    RANK_CUDA(self, cudaMemcpyAsync(s->grad, s->given + number * N, bytes, cudaMemcpyHostToDevice,
                                    s->stream));
    RANK_OK(self, tamis_reduce_start(s->reducer, &step));
    RANK_OK(self, tamis_reduce_wait(s->reducer));
    memcpy(s->got + number * N, s->grad, bytes);
}

/* The same steps on the CPU over the local communicator. */
static void compute_expected(test_rank *self, uint32_t first, uint32_t end, tamis_reducer *reducer,
                             float *expected) {
    tamis_step step = TAMIS_STEP_INIT;
    for (uint32_t i = first; i < end; i++) {
        step.grad = expected + i * N;
        data_fill_real(self->id, i, N, step.grad);
        RANK_OK(self, tamis_reduce_start(reducer, &step));
        RANK_OK(self, tamis_reduce_wait(reducer));
    }
}

static void compare_scheme(test_rank *self, const char *scheme, uint32_t first, uint32_t end,
                           const float *got) {
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CPU);
    tamis_reducer *reducer = NULL;
    config.scheme = scheme;
    float *expected = malloc(STEPS * N * sizeof *expected);
    RANK_CHECK(self, expected, "no memory");
    RANK_OK(self, make(self->comm, &config, &reducer));
    compute_expected(self, 0, end, reducer, expected);
    for (uint32_t i = first; i < end && !self->failure[0]; i++)
        if (memcmp(got + i * N, expected + i * N, N * sizeof *got) != 0)
            rank_fail(self, __FILE__, __LINE__, "step %u differs from the CPU's", i);
    tamis_reducer_destroy(reducer);
    free(expected);
}

static void compare_steps(test_rank *self, uint32_t first, uint32_t end, const float *got) {
    compare_scheme(self, "tamis", first, end, got);
}

/* -- ahead of the device ---------------------------------------------------------------------- */

/* Calls that a step must not make. */
static uint64_t forbidden_calls(void) {
    return fake_cuda_blocking_calls() + fake_cuda_allocations() +
           fake_cuda_calls("cudaGraphInstantiate");
}

static void run_ahead(test_rank *self) {
    const char *scheme = self->shared;
    seat s;
    tamis_stats stats = TAMIS_STATS_INIT;
    sit_down_with(self, scheme, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    for (uint32_t i = 0; i < FIRST && !self->failure[0]; i++)
        enqueue_step(self, &s, i);
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    uint64_t before = forbidden_calls(), replays = fake_cuda_calls("cudaGraphLaunch");
    for (uint32_t i = FIRST; i < STEPS - 1 && !self->failure[0]; i++)
        enqueue_step(self, &s, i);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    RANK_CHECK(self, forbidden_calls() == before, "allocations or synchronising calls in steps");
    RANK_CHECK(self, fake_cuda_calls("cudaGraphLaunch") > replays, "no step was replayed");
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    wait_step(self, &s, STEPS - 1);
    RANK_OK(self, tamis_reducer_stats(s.reducer, &stats));
    RANK_CHECK(self, stats.steps == STEPS, "%llu steps in the statistics",
               (unsigned long long)stats.steps);
    compare_scheme(self, scheme, 0, STEPS, s.got);
    stand_up(&s);
}

static void test_joined_steps_run_without_the_host(void **state) {
    static char schemes[][8] = {"tamis", "dense"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        ranks_run(RANKS, 0, run_ahead, schemes[i]);
}

static void leave_at_once(test_rank *self) {
    seat s;
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++)
        enqueue_step(self, &s, i);
    tamis_reducer_destroy(s.reducer); /* up to eight steps are still under way */
    s.reducer = NULL;
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    compare_steps(self, 0, STEPS, s.got);
    stand_up(&s);
}

static void test_a_reducer_is_destroyed_after_the_steps_that_were_joined(void **state) {
    (void)state;
    ranks_run(2, 0, leave_at_once, NULL);
}

/* -- captured by the caller ------------------------------------------------------------------- */

static void capture(test_rank *self, seat *s, cudaGraphExec_t *out) {
    cudaGraph_t graph;
    size_t bytes = N * sizeof *s->grad;
    tamis_step step = step_of(s);
    RANK_CUDA(self, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    RANK_CUDA(self, cudaMemcpyAsync(s->grad, s->given, bytes, cudaMemcpyHostToDevice, s->stream));
    RANK_OK(self, tamis_reduce_start(s->reducer, &step));
    RANK_OK(self, tamis_reduce_join(s->reducer, s->stream));
    RANK_CUDA(self, cudaMemcpyAsync(s->got, s->grad, bytes, cudaMemcpyDeviceToHost, s->stream));
    RANK_CUDA(self, cudaStreamEndCapture(s->stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(out, graph, 0));
    RANK_CUDA(self, cudaGraphDestroy(graph));
}

/* The statistics are those of the step that was last. */
static void check_residual_norm(test_rank *self, seat *s, double norm) {
    const float *residual = NULL;
    double sum = 0.0;
    RANK_OK(self, tamis_reducer_residual(s->reducer, &residual));
    for (size_t i = 0; i < N; i++)
        sum += (double)residual[i] * residual[i];
    RANK_CHECK(self, fabs(norm - sqrt(sum)) <= 1e-3 * norm, "norm %g, not %g", norm, sqrt(sum));
}

static void replay_captured(test_rank *self) {
    seat s;
    cudaGraphExec_t graph = NULL;
    float *got = malloc(STEPS * N * sizeof *got);
    RANK_CHECK(self, got, "no memory");
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    for (uint32_t i = 0; i < FIRST && !self->failure[0]; i++)
        enqueue_step(self, &s, i);
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    memcpy(got, s.got, FIRST * N * sizeof *got);
    capture(self, &s, &graph);
    for (uint32_t i = FIRST; i < STEPS - 1 && !self->failure[0]; i++) {
        memcpy(s.given, s.given + i * N, N * sizeof *got);
        RANK_CUDA(self, cudaGraphLaunch(graph, s.stream));
        RANK_CUDA(self, cudaStreamSynchronize(s.stream));
        memcpy(got + i * N, s.got, N * sizeof *got);
    }
    /* A step of one's own after the replays, whose reports have not been looked at. */
    tamis_stats stats = TAMIS_STATS_INIT;
    wait_step(self, &s, STEPS - 1);
    memcpy(got + (STEPS - 1) * N, s.got + (STEPS - 1) * N, N * sizeof *got);
    RANK_OK(self, tamis_reducer_stats(s.reducer, &stats));
    check_residual_norm(self, &s, stats.residual_norm);
    RANK_CHECK(self, stats.steps == STEPS && stats.selected == stats.target,
               "%llu steps, %llu entries", (unsigned long long)stats.steps,
               (unsigned long long)stats.selected);
    compare_steps(self, 0, STEPS, got);
    cudaGraphExecDestroy(graph);
    stand_up(&s);
    free(got);
}

static void test_a_captured_step_replays_with_the_bits_of_the_cpu(void **state) {
    (void)state;
    ranks_run(RANKS, 0, replay_captured, NULL);
}

/* -- state files ------------------------------------------------------------------------------ */

static void save_on_cuda_load_on_cpu(test_rank *self) {
    seat s;
    char name[32], path[SCRATCH_PATH];
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CPU);
    tamis_reducer *resumed = NULL;
    float *got = malloc(STEPS * N * sizeof *got);
    RANK_CHECK(self, got, "no memory");
    snprintf(name, sizeof name, "moved.%u", self->id);
    scratch_path(name, path);
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    for (uint32_t i = 0; i < FIRST && !self->failure[0]; i++)
        enqueue_step(self, &s, i);
    RANK_OK(self, tamis_reducer_save(s.reducer, path)); /* waits for what was joined */
    RANK_OK(self, make(self->comm, &config, &resumed));
    RANK_OK(self, tamis_reducer_load(resumed, path));
    compute_expected(self, FIRST, 2 * FIRST, resumed, got);
    RANK_OK(self, tamis_reducer_save(resumed, path));
    RANK_OK(self, tamis_reducer_load(s.reducer, path)); /* and back */
    for (uint32_t i = 2 * FIRST; i < STEPS && !self->failure[0]; i++)
        wait_step(self, &s, i);
    memcpy(got + 2 * FIRST * N, s.got + 2 * FIRST * N, (STEPS - 2 * FIRST) * N * sizeof *got);
    compare_steps(self, FIRST, STEPS, got);
    tamis_reducer_destroy(resumed);
    stand_up(&s);
    free(got);
}

static void test_a_state_moves_between_devices(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("moved", path);
    ranks_run(RANKS, 0, save_on_cuda_load_on_cpu, NULL);
}

/* -- gradients that are not finite ------------------------------------------------------------ */

/* One step, then one in which an entry of rank 1 is bad. */
static void step_on_nan(test_rank *self, seat *s, tamis_nonfinite policy) {
    tamis_stats stats = TAMIS_STATS_INIT;
    wait_step(self, s, 0);
    if (self->id == 1)
        s->given[N + 7] = 0.0f / 0.0f;
    tamis_step step = step_of(s);
    RANK_CUDA(self, cudaMemcpyAsync(s->grad, s->given + N, N * sizeof *s->grad,
                                    cudaMemcpyHostToDevice, s->stream));
    RANK_OK(self, tamis_reduce_start(s->reducer, &step));
    tamis_status expected = policy == TAMIS_NONFINITE_ERROR ? TAMIS_E_NONFINITE : TAMIS_OK;
    RANK_STATUS(self, expected, tamis_reduce_wait(s->reducer));
    RANK_OK(self, tamis_reducer_stats(s->reducer, &stats));
    RANK_CHECK(self, stats.nonfinite == 1, "%llu bad entries", (unsigned long long)stats.nonfinite);
    RANK_CHECK(self, stats.skipped == (policy != TAMIS_NONFINITE_DROP), "skipped %llu",
               (unsigned long long)stats.skipped);
    RANK_CHECK(self, (stats.selected == 0) == (policy != TAMIS_NONFINITE_DROP), "selected %llu",
               (unsigned long long)stats.selected);
}

static void meet_nan(test_rank *self) {
    const tamis_nonfinite policy = *(const tamis_nonfinite *)self->shared;
    seat s;
    sit_down(self, 0, policy, &s);
    if (!self->failure[0])
        step_on_nan(self, &s, policy);
    for (uint32_t i = 2; i < 6 && !self->failure[0]; i++)
        wait_step(self, &s, i);
    if (self->failure[0])
        return;
    const float *residual = NULL;
    RANK_OK(self, tamis_reducer_residual(s.reducer, &residual));
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, residual[i] - residual[i] == 0.0f, "entry %zu is not finite", i);
    stand_up(&s);
}

/* Without a residual: the gradient is cleared, or its bad entry. */
static void meet_nan_dense(test_rank *self) {
    const tamis_nonfinite policy = *(const tamis_nonfinite *)self->shared;
    tamis_result result;
    seat s;
    sit_down_with(self, "dense", 0, policy, &s);
    if (!self->failure[0])
        step_on_nan(self, &s, policy);
    if (self->failure[0])
        return;
    size_t left = policy == TAMIS_NONFINITE_DROP ? N : 0;
    RANK_OK(self, tamis_reduce_result(s.reducer, &result));
    RANK_CHECK(self, result.count == left && !result.indices && !result.values, "%zu entries",
               result.count);
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, (s.grad[i] == 0.0f) == (left == 0 || i == 7), "entry %zu is %g", i,
                   (double)s.grad[i]);
    for (uint32_t i = 2; i < 6 && !self->failure[0]; i++)
        wait_step(self, &s, i);
    compare_scheme(self, "dense", 2, 6, s.got);
    stand_up(&s);
}

static void test_all_ranks_decide_alike_on_nan(void **state) {
    static tamis_nonfinite policies[] = {TAMIS_NONFINITE_ERROR, TAMIS_NONFINITE_SKIP,
                                         TAMIS_NONFINITE_DROP};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        ranks_run(RANKS, 0, meet_nan, &policies[i]);
        ranks_run(RANKS, 0, meet_nan_dense, &policies[i]);
    }
}

/* -- faults ----------------------------------------------------------------------------------- */

/* A failed step leaves its gradient in the residual, which can be saved. */
static void check_kept(test_rank *self, seat *s, const char *name) {
    char own[48], path[SCRATCH_PATH];
    const float *residual = NULL;
    snprintf(own, sizeof own, "%s.%u", name, self->id);
    scratch_path(own, path);
    RANK_OK(self, tamis_reducer_save(s->reducer, path));
    RANK_OK(self, tamis_reducer_residual(s->reducer, &residual));
    RANK_CHECK(self, memcmp(residual, s->given, N * sizeof *residual) == 0,
               "the residual does not hold the gradient");
}

static void stay_silent(test_rank *self) {
    seat s;
    sit_down(self, SHORT_MS, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    tamis_step step = step_of(&s);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id == 1) { /* is there, but never starts */
        RANK_CHECK(self, rank_barrier(self), "a rank has left");
        stand_up(&s);
        return;
    }
    RANK_CUDA(self, cudaMemcpyAsync(s.grad, s.given, N * sizeof *s.grad, cudaMemcpyHostToDevice,
                                    s.stream));
    uint64_t begin = now_ms();
    RANK_OK(self, tamis_reduce_start(s.reducer, &step));
    self->where = "wait for a silent rank";
    tamis_status status = tamis_reduce_wait(s.reducer);
    uint64_t took = now_ms() - begin;
    RANK_CHECK(self, status == TAMIS_E_TIMEOUT, "%s", tamis_status_name(status));
    RANK_CHECK(self, took <= (SHORT_MS + 1000) * test_slowness(), "%llu ms",
               (unsigned long long)took);
    RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_reduce_start(s.reducer, &step));
    check_kept(self, &s, "silent");
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    stand_up(&s);
}

static void test_a_silent_rank_is_a_timeout_and_nothing_is_lost(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("silent", path);
    ranks_run(RANKS, SHORT_MS, stay_silent, NULL);
}

typedef struct launch {
    const char *what;
    unsigned nth;
} launch;

/* A launch that fails leaves the device as it is: the residual can be saved. */
static void fail_to_launch(test_rank *self) {
    seat s;
    sit_down(self, SHORT_MS, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    tamis_step step = step_of(&s);
    const launch *fails = self->shared;
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id == 0)
        fake_cuda_fail(fails->what, fails->nth, cudaErrorLaunchOutOfResources);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    RANK_CUDA(self, cudaMemcpyAsync(s.grad, s.given, N * sizeof *s.grad, cudaMemcpyHostToDevice,
                                    s.stream));
    self->where = "a step in which a launch fails";
    tamis_status status = tamis_reduce_start(s.reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reduce_wait(s.reducer);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s: %s",
               tamis_status_name(status), tamis_last_error());
    RANK_STATUS(self, tamis_comm_status(s.comm), tamis_reduce_start(s.reducer, &step));
    char own[48], path[SCRATCH_PATH];
    snprintf(own, sizeof own, "launch.%u", self->id);
    scratch_path(own, path);
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    const float *residual = NULL;
    RANK_OK(self, tamis_reducer_residual(s.reducer, &residual));
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, residual[i] + s.grad[i] == s.given[i], "entry %zu is lost", i);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    stand_up(&s);
}

static void test_a_failing_launch_is_named_and_the_state_saved(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("launch", path);
    /* Of both ranks together: each launches three kernels beside its graph. */
    static launch launches[] = {
        {"kernel", 1}, {"kernel", 3}, {"kernel", 6}, {"cudaGraphLaunch", 1}};
    for (size_t i = 0; i < sizeof launches / sizeof launches[0]; i++) {
        ranks_run(2, SHORT_MS, fail_to_launch, &launches[i]);
        fake_cuda_reset();
    }
}

/* Read by LeakSanitizer where it is built in. Events, streams and graphs of a broken device cannot
 * be destroyed; what leaks otherwise is found by counting (fake_cuda_alive). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:cudaEventCreateWithFlags\nleak:cudaStreamCreate\nleak:cudaGraphInstantiate\n";
}

/* After a fault in a kernel CUDA gives nothing back: the file of before stays. */
static void break_device(test_rank *self) {
    seat s;
    char own[48], path[SCRATCH_PATH];
    size_t before = 0, after = 0;
    sit_down(self, SHORT_MS, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    snprintf(own, sizeof own, "broken.%u", self->id);
    scratch_path(own, path);
    wait_step(self, &s, 0);
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    free(scratch_read(path, &before));
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id == 0)
        fake_cuda_break(0, cudaErrorIllegalAddress);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    tamis_step step = step_of(&s);
    self->where = "a step on a broken device";
    tamis_status status = tamis_reduce_start(s.reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reduce_wait(s.reducer);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM || self->id == 0, "%s: %s",
               tamis_status_name(status), tamis_last_error());
    RANK_CHECK(self, self->id != 0 || status == TAMIS_E_DEVICE, "%s: %s", tamis_status_name(status),
               tamis_last_error());
    status = tamis_reducer_save(s.reducer, path);
    RANK_CHECK(self, status == (self->id == 0 ? TAMIS_E_DEVICE : TAMIS_OK), "save: %s (%s)",
               tamis_status_name(status), tamis_last_error());
    free(scratch_read(path, &after));
    RANK_CHECK(self, before > 0 && after == before, "the file has changed");
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    stand_up(&s);
}

static void test_a_broken_device_is_named_and_the_last_file_stays(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("broken", path);
    ranks_run(2, SHORT_MS, break_device, NULL);
    fake_cuda_reset();
}

/* Creation on one rank while the i-th allocation fails, for every i. */
static void run_out_of_memory(test_rank *self) {
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CUDA);
    tamis_comm *comm = NULL;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, NULL, &comm));
    const char *const functions[] = {"cudaMalloc", "cudaHostAlloc", "cudaMallocHost"};
    for (size_t f = 0; f < 3; f++) {
        tamis_status status = TAMIS_E_NOMEM;
        for (unsigned nth = 1; status == TAMIS_E_NOMEM; nth++) {
            tamis_reducer *reducer = NULL;
            fake_cuda_reset();
            fake_cuda_objects before = fake_cuda_alive();
            fake_cuda_fail(functions[f], nth, cudaErrorMemoryAllocation);
            status = make(comm, &config, &reducer);
            RANK_CHECK(self, (status == TAMIS_OK) == (reducer != NULL), "an output was written");
            RANK_CHECK(self, status == TAMIS_OK || status == TAMIS_E_NOMEM, "%s: %s",
                       tamis_status_name(status), tamis_last_error());
            tamis_reducer_destroy(reducer);
            fake_cuda_objects after = fake_cuda_alive();
            RANK_CHECK(self, memcmp(&before, &after, sizeof before) == 0,
                       "%s %u left something behind", functions[f], nth);
        }
    }
    fake_cuda_reset();
    tamis_comm_destroy(comm);
}

static void test_too_little_memory_is_a_clean_error(void **state) {
    (void)state;
    ranks_run(1, 0, run_out_of_memory, NULL);
}

/* Rank 1 goes on from another step than the others believe; rank 0 is steps ahead by then. What rank
 * 0 has enqueued never meets its partners, and must not keep it from saving. */
static void fall_out_of_step(test_rank *self) {
    seat s;
    char own[48], path[SCRATCH_PATH];
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    snprintf(own, sizeof own, "ahead.%u", self->id);
    scratch_path(own, path);
    wait_step(self, &s, 0);
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    wait_step(self, &s, 1);
    if (self->id == 1)
        RANK_OK(self, tamis_reducer_load(s.reducer, path));
    tamis_step step = step_of(&s);
    for (uint32_t i = 0; i < (self->id == 0 ? 4 : 1); i++) {
        tamis_status status = tamis_reduce_start(s.reducer, &step);
        RANK_CHECK(self, status == TAMIS_OK || (i > 0 && status == TAMIS_E_PROTOCOL), "%s",
                   tamis_last_error());
        if (status == TAMIS_OK)
            RANK_OK(self, tamis_reduce_join(s.reducer, s.stream));
    }
    uint64_t begin = now_ms();
    self->where = "save after a refusal";
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    RANK_CHECK(self, now_ms() - begin < RANKS_TIMEOUT_MS / 2, "saving took %llu ms",
               (unsigned long long)(now_ms() - begin));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reduce_start(s.reducer, &step));
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    stand_up(&s);
}

static void test_a_rank_ahead_of_a_refusal_can_save(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("ahead", path);
    ranks_run(2, 0, fall_out_of_step, NULL);
}

/* deft needs the host in every step; its collectives must not meet those of `tamis`. */
static void mix_drivers(test_rank *self) {
    seat s;
    tamis_reducer *other = NULL;
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CUDA);
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    config.scheme = "deft";
    RANK_OK(self, make(s.comm, &config, &other));
    tamis_step step = step_of(&s);
    for (int i = 0; i < 3; i++) {
        RANK_OK(self, tamis_reduce_start(s.reducer, &step));
        RANK_OK(self, tamis_reduce_join(s.reducer, s.stream));
        RANK_OK(self, tamis_reduce_start(other, &step));
        tamis_status status = tamis_reduce_start(s.reducer, &step);
        RANK_CHECK(self, status == TAMIS_OK || status == TAMIS_E_STATE, "%s", tamis_last_error());
        RANK_OK(self, tamis_reduce_wait(other));
        RANK_CHECK(self, rank_barrier(self), "a rank has left");
        if (status == TAMIS_E_STATE)
            RANK_OK(self, tamis_reduce_start(s.reducer, &step));
        RANK_OK(self, tamis_reduce_wait(s.reducer));
    }
    tamis_reducer_destroy(other);
    stand_up(&s);
}

static void test_drivers_of_one_communicator_do_not_mix(void **state) {
    (void)state;
    ranks_run(2, 0, mix_drivers, NULL);
}

/* Two reducers that devices drive, both under way. */
static void run_two(test_rank *self) {
    seat s;
    tamis_reducer *other = NULL;
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CUDA);
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    config.scheme = "topk";
    RANK_OK(self, make(s.comm, &config, &other));
    for (uint32_t i = 0; i < 6 && !self->failure[0]; i++) {
        tamis_step step = step_of(&s);
        enqueue_step(self, &s, i);
        RANK_OK(self, tamis_reduce_start(other, &step));
        RANK_OK(self, tamis_reduce_join(other, s.stream));
    }
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    compare_steps(self, 0, 6, s.got);
    tamis_reducer_destroy(other);
    stand_up(&s);
}

static void test_two_reducers_of_one_communicator_run_one_after_another(void **state) {
    (void)state;
    ranks_run(RANKS, 0, run_two, NULL);
}

/* STATE has no effect: the right call can follow. */
static void wait_for_captured(test_rank *self) {
    seat s;
    cudaGraph_t graph = NULL;
    tamis_result result;
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    tamis_step step = step_of(&s);
    RANK_CUDA(self, cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(self, tamis_reduce_start(s.reducer, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reduce_wait(s.reducer));
    RANK_OK(self, tamis_reduce_join(s.reducer, s.stream));
    RANK_CUDA(self, cudaStreamEndCapture(s.stream, &graph));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reduce_result(s.reducer, &result));
    RANK_CUDA(self, cudaGraphDestroy(graph));
    stand_up(&s);
}

static void test_a_captured_step_can_only_be_joined(void **state) {
    (void)state;
    ranks_run(1, 0, wait_for_captured, NULL);
}

static void give_host_memory(test_rank *self) {
    seat s;
    static float host[RANKS_MOST][N];
    sit_down(self, 0, TAMIS_NONFINITE_ERROR, &s);
    if (self->failure[0])
        return;
    tamis_step step = step_of(&s);
    step.grad = host[self->id];
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reduce_start(s.reducer, &step));
    RANK_CHECK(self, has_word(tamis_last_error(), "host memory"), "%s", tamis_last_error());
    for (uint32_t i = 0; i < 3 && !self->failure[0]; i++)
        wait_step(self, &s, i);
    compare_steps(self, 0, 3, s.got);
    stand_up(&s);
}

static void test_host_memory_is_refused_without_effect(void **state) {
    (void)state;
    ranks_run(2, 0, give_host_memory, NULL);
}

static void differ(test_rank *self) {
    tamis_comm *comm = NULL;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = usual_config(TAMIS_DEVICE_CUDA);
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, NULL, &comm));
    config.grad_type = self->id == 1 ? TAMIS_TYPE_BFLOAT16 : TAMIS_TYPE_FLOAT32;
    RANK_STATUS(self, TAMIS_E_MISMATCH, make(comm, &config, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "grad_type"), "%s", tamis_last_error());
    config.grad_type = TAMIS_TYPE_FLOAT32;
    config.device = self->id == 1 ? TAMIS_DEVICE_CPU : TAMIS_DEVICE_CUDA;
    RANK_STATUS(self, TAMIS_E_MISMATCH, make(comm, &config, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "device"), "%s", tamis_last_error());
    tamis_comm_destroy(comm);
}

static void test_ranks_that_differ_are_told_on_all(void **state) {
    (void)state;
    ranks_run(RANKS, 0, differ, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_steps_run_without_the_host),
        cmocka_unit_test(test_a_reducer_is_destroyed_after_the_steps_that_were_joined),
        cmocka_unit_test(test_a_captured_step_replays_with_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_state_moves_between_devices),
        cmocka_unit_test(test_all_ranks_decide_alike_on_nan),
        cmocka_unit_test(test_a_silent_rank_is_a_timeout_and_nothing_is_lost),
        cmocka_unit_test(test_a_failing_launch_is_named_and_the_state_saved),
        cmocka_unit_test(test_a_broken_device_is_named_and_the_last_file_stays),
        cmocka_unit_test(test_too_little_memory_is_a_clean_error),
        cmocka_unit_test(test_a_rank_ahead_of_a_refusal_can_save),
        cmocka_unit_test(test_drivers_of_one_communicator_do_not_mix),
        cmocka_unit_test(test_two_reducers_of_one_communicator_run_one_after_another),
        cmocka_unit_test(test_a_captured_step_can_only_be_joined),
        cmocka_unit_test(test_host_memory_is_refused_without_effect),
        cmocka_unit_test(test_ranks_that_differ_are_told_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
