/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: reducers of scheme dense on a device, over
 * NCCL. They keep only the number of a step, through graphs of the caller and states; and ranks
 * that sum different things are found.
 *
 * test: tsan
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/rank.h"
#include "tests/support/data.h"
#include "tests/support/scratch.h"
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/nccl.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 5203, RANKS = 3 };

/* -- the step number -------------------------------------------------------------------------- */

enum { STEPS = 6 };

static void start_and_join(test_rank *self, tamis_reducer *reducer, float *grad,
                           cudaStream_t stream) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    step.stream = stream;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_join(reducer, stream));
}

static void replay(test_rank *self, tamis_reducer *reducer, float *grad, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    RANK_CUDA(self, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    start_and_join(self, reducer, grad, stream);
    RANK_CUDA(self, cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < STEPS; i++)
        RANK_CUDA(self, cudaGraphLaunch(exec, stream));
    RANK_CUDA(self, cudaStreamSynchronize(stream));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

/* What a failing step says is how its number shows. */
static void expect_number(test_rank *self, tamis_reducer *reducer, float *grad, const char *words) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    grad[0] = 0.0f / 0.0f;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, TAMIS_E_NONFINITE, tamis_reducer_wait(reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), words), "%s", tamis_last_error());
}

/* Sums of ones: P after the first step, P^2 after the second. */
static void count_steps(test_rank *self) {
    char own[32], path[SCRATCH_PATH];
    tamis_comm *comm = NULL;
    tamis_reducer *reducer = NULL, *cpu = NULL;
    tamis_layout *layout = data_layout(N);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    const float *residual = &(float){0};
    cudaStream_t stream;
    float *grad;
    config.scheme = "dense";
    config.device = TAMIS_DEVICE_CUDA;
    config.op = TAMIS_OP_SUM;
    snprintf(own, sizeof own, "dense.%u", self->id);
    scratch_path(own, path);
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, NULL, &comm));
    RANK_OK(self, tamis_reducer_create(comm, layout, &config, &reducer));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&grad, N * sizeof *grad));
    for (size_t i = 0; i < N; i++)
        grad[i] = 1.0f;
    for (int i = 0; i < 2 && !self->failure[0]; i++)
        start_and_join(self, reducer, grad, stream);
    RANK_OK(self, tamis_reducer_save(reducer, path)); /* waits */
    config.device = TAMIS_DEVICE_CPU;
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &cpu));
    RANK_OK(self, tamis_reducer_load(cpu, path));
    RANK_OK(self, tamis_reducer_stats(cpu, &stats));
    RANK_CHECK(self, stats.steps == 2, "%u steps", (unsigned)stats.steps);
    RANK_CHECK(self, grad[0] == 9.0f && grad[N - 1] == 9.0f, "%g", (double)grad[0]);
    replay(self, reducer, grad, stream);
    if (self->failure[0])
        return;
    RANK_CHECK(self, grad[0] == 6561.0f && grad[N - 1] == 6561.0f, "%g", (double)grad[0]);
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_CHECK(self, stats.steps == 2 + STEPS && stats.selected == N, "%u steps",
               (unsigned)stats.steps);
    RANK_OK(self, tamis_reducer_load(reducer, path));
    RANK_OK(self, tamis_reducer_save(reducer, path));
    RANK_OK(self, tamis_reducer_load(reducer, path));
    expect_number(self, reducer, grad, "step 2:");
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_CHECK(self, !residual, "a residual");
    tamis_reducer_destroy(cpu);
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    tamis_layout_destroy(layout);
    cudaFree(grad);
    cudaStreamDestroy(stream);
}

static void test_graphs_of_the_caller_and_states_count_steps(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("dense", path);
    ranks_run(RANKS, 0, count_steps, NULL);
}

/* -- ranks that sum different things ---------------------------------------------------------- */

static tamis_reducer *open_reducer(test_rank *self, tamis_comm *comm) {
    tamis_layout *layout = data_layout(N);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    config.scheme = "dense";
    config.device = TAMIS_DEVICE_CUDA;
    config.op = TAMIS_OP_SUM;
    config.bucket_length = self->shared ? N / 3 : 0;
    rank_status(self, __FILE__, __LINE__, "tamis_reducer_create", TAMIS_OK,
                tamis_reducer_create(comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);
    return reducer;
}

/* There are two reducers, and rank 1 begins with the second; or it is a step further than the
 * others. */
static void disagree(test_rank *self, bool about_step, const char *words) {
    tamis_comm *comm = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_reducer *pair[2];
    unsigned char control[2][4096];
    size_t bytes = 0;
    bool odd = self->id == 1;
    float *grad;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, NULL, &comm));
    RANK_CUDA(self, cudaMalloc((void **)&grad, N * sizeof *grad));
    for (int i = 0; i < 2; i++)
        pair[i] = open_reducer(self, comm);
    step.grad = grad;
    for (int i = 0; i < 2; i++) {
        for (size_t e = 0; e < N; e++)
            grad[e] = 1.0f;
        RANK_OK(self, tamis_reducer_start(pair[0], &step));
        RANK_OK(self, tamis_reducer_wait(pair[0]));
        RANK_CHECK(self, grad[N - 1] == RANKS, "%g", (double)grad[N - 1]);
        RANK_OK(self, tamis_reducer_control_bytes(pair[0], &bytes));
        RANK_CHECK(self, bytes <= sizeof control[0], "%zu bytes", bytes);
        RANK_OK(self, tamis_reducer_save_control(pair[0], control[i], bytes));
    }
    if (about_step)
        RANK_OK(self, tamis_reducer_load_memory(pair[0], control[odd], bytes, NULL));
    RANK_OK(self, tamis_reducer_start(pair[odd && !about_step], &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(pair[odd && !about_step]));
    RANK_SAYS(self, words);
    for (size_t e = 0; e < N; e++)
        RANK_CHECK(self, grad[e] == RANKS, "element %zu became %g", e, (double)grad[e]);
    tamis_reducer_destroy(pair[0]);
    tamis_reducer_destroy(pair[1]);
    tamis_comm_destroy(comm);
    cudaFree(grad);
}

/* A header has a byte of the configuration's hash, which may be the same: then the step differs. */
static void mix_up(test_rank *self) {
    disagree(self, false, "configuration|another step");
}

static void be_further(test_rank *self) {
    disagree(self, true, "another step");
}

static void test_ranks_that_sum_different_things_are_found(void **state) {
    (void)state;
    for (int several = 0; several < 2; several++) {
        ranks_run(RANKS, 0, mix_up, several ? &several : NULL);
        ranks_run(RANKS, 0, be_further, several ? &several : NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_of_the_caller_and_states_count_steps),
        cmocka_unit_test(test_ranks_that_sum_different_things_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
