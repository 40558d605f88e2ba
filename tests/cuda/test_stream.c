/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): steps that the device runs by
 * itself. The host may run ahead, allocates nothing, waits for nothing; steps can be captured by
 * the caller; a state moves between devices; all ranks decide the same on NaN.
 *
 * test: tsan
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/endpoint.h"
#include "tests/support/data.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
enum { FIRST = 4, RANKS = 2 };
#else
enum { FIRST = 4, RANKS = 3 };
#endif

/* -- ahead of the device ---------------------------------------------------------------------- */

static void run_ahead(test_rank *self) {
    const endpoint_order order = {.scheme = self->shared};
    endpoint s;
    tamis_stats stats = TAMIS_STATS_INIT;
    if (!endpoint_open(self, &order, &s))
        return;
    endpoint_join(self, &s, 0, FIRST);
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    RANK_BARRIER(self);
    uint64_t before = fake_cuda_forbidden_calls(), replays = fake_cuda_calls("cudaGraphLaunch");
    endpoint_join(self, &s, FIRST, ENDPOINT_STEPS - 1);
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_forbidden_calls() == before,
               "allocations or synchronising calls in steps");
    RANK_CHECK(self, fake_cuda_calls("cudaGraphLaunch") > replays, "no step was replayed");
    RANK_BARRIER(self);
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    endpoint_wait(self, &s, ENDPOINT_STEPS - 1, ENDPOINT_STEPS);
    RANK_OK(self, tamis_reducer_stats(s.reducer, &stats));
    RANK_CHECK(self, stats.steps == ENDPOINT_STEPS, "%llu steps in the statistics",
               (unsigned long long)stats.steps);
    endpoint_compare(self, order.scheme, 0, ENDPOINT_STEPS, s.got);
    endpoint_close(&s);
}

static void test_joined_steps_run_without_the_host(void **state) {
    static char schemes[][8] = {"tamis", "dense"};
    (void)state;
    for (size_t i = 0; i < 2; i += test_stride(2))
        ranks_run(RANKS, 0, run_ahead, schemes[i]);
}

static void leave_at_once(test_rank *self) {
    endpoint s;
    if (!endpoint_open(self, NULL, &s))
        return;
    endpoint_join(self, &s, 0, ENDPOINT_STEPS);
    tamis_reducer_destroy(s.reducer); /* up to eight steps are still under way */
    s.reducer = NULL;
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    endpoint_compare(self, NULL, 0, ENDPOINT_STEPS, s.got);
    endpoint_close(&s);
}

static void test_a_reducer_is_destroyed_after_the_steps_that_were_joined(void **state) {
    (void)state;
    ranks_run(2, 0, leave_at_once, NULL);
}

/* -- captured by the caller ------------------------------------------------------------------- */

/* Step 0 of the endpoint, with its copies. */
static void capture(test_rank *self, endpoint *s, cudaGraphExec_t *out) {
    cudaGraph_t graph;
    RANK_CUDA(self, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    endpoint_join(self, s, 0, 1);
    RANK_CUDA(self, cudaStreamEndCapture(s->stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(out, graph, 0));
    RANK_CUDA(self, cudaGraphDestroy(graph));
}

/* The statistics are those of the step that was last. */
static void check_residual_norm(test_rank *self, endpoint *s, double norm) {
    const float *residual = NULL;
    double sum = 0.0;
    RANK_OK(self, tamis_reducer_residual(s->reducer, &residual));
    for (size_t i = 0; i < ENDPOINT_N; i++)
        sum += (double)residual[i] * residual[i];
    RANK_CHECK(self, fabs(norm - sqrt(sum)) <= 1e-3 * norm, "norm %g, not %g", norm, sqrt(sum));
}

static void replay_captured(test_rank *self) {
    endpoint s;
    cudaGraphExec_t graph = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    float *got = malloc((size_t)ENDPOINT_STEPS * ENDPOINT_BYTES);
    RANK_CHECK(self, got, "no memory");
    if (!endpoint_open(self, NULL, &s))
        return;
    endpoint_join(self, &s, 0, FIRST);
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    memcpy(got, s.got, (size_t)FIRST * ENDPOINT_BYTES);
    capture(self, &s, &graph);
    for (uint32_t i = FIRST; i < ENDPOINT_STEPS - 1 && !self->failure[0]; i++) {
        memcpy(s.given, s.given + i * ENDPOINT_N, ENDPOINT_BYTES);
        RANK_CUDA(self, cudaGraphLaunch(graph, s.stream));
        RANK_CUDA(self, cudaStreamSynchronize(s.stream));
        memcpy(got + i * ENDPOINT_N, s.got, ENDPOINT_BYTES);
    }
    /* A step of one's own after the replays, whose reports have not been looked at. */
    const uint32_t last = ENDPOINT_STEPS - 1;
    endpoint_wait(self, &s, last, ENDPOINT_STEPS);
    memcpy(got + last * ENDPOINT_N, s.got + last * ENDPOINT_N, ENDPOINT_BYTES);
    RANK_OK(self, tamis_reducer_stats(s.reducer, &stats));
    check_residual_norm(self, &s, stats.residual_norm);
    RANK_CHECK(self, stats.steps == ENDPOINT_STEPS && stats.selected == stats.target,
               "%llu steps, %llu entries", (unsigned long long)stats.steps,
               (unsigned long long)stats.selected);
    endpoint_compare(self, NULL, 0, ENDPOINT_STEPS, got);
    cudaGraphExecDestroy(graph);
    endpoint_close(&s);
    free(got);
}

static void test_a_captured_step_replays_with_the_bits_of_the_cpu(void **state) {
    (void)state;
    ranks_run(RANKS, 0, replay_captured, NULL);
}

/* STATE has no effect: the right call can follow. */
static void wait_for_captured(test_rank *self) {
    endpoint s;
    cudaGraph_t graph = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    if (!endpoint_open(self, NULL, &s))
        return;
    tamis_step step = endpoint_step(&s);
    RANK_CUDA(self, cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(self, tamis_reducer_start(s.reducer, &step));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_wait(s.reducer));
    RANK_OK(self, tamis_reducer_join(s.reducer, s.stream));
    RANK_CUDA(self, cudaStreamEndCapture(s.stream, &graph));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_result(s.reducer, &result));
    RANK_CUDA(self, cudaGraphDestroy(graph));
    endpoint_close(&s);
}

static void test_a_captured_step_can_only_be_joined(void **state) {
    (void)state;
    ranks_run(1, 0, wait_for_captured, NULL);
}

/* -- state files ------------------------------------------------------------------------------ */

static void save_on_cuda_load_on_cpu(test_rank *self) {
    const uint32_t second = 2 * FIRST;
    endpoint s;
    char path[SCRATCH_PATH];
    tamis_reducer_config config = endpoint_config(TAMIS_DEVICE_CPU, NULL);
    tamis_reducer *resumed = NULL;
    endpoint_path(self, "moved", path);
    if (!endpoint_open(self, NULL, &s))
        return;
    endpoint_join(self, &s, 0, FIRST);
    RANK_OK(self, tamis_reducer_save(s.reducer, path)); /* waits for what was joined */
    RANK_OK(self, data_reducer(self->comm, ENDPOINT_N, &config, &resumed));
    RANK_OK(self, tamis_reducer_load(resumed, path));
    endpoint_compute(self, FIRST, second, resumed, s.got);
    RANK_OK(self, tamis_reducer_save(resumed, path));
    RANK_OK(self, tamis_reducer_load(s.reducer, path)); /* and back */
    endpoint_wait(self, &s, second, ENDPOINT_STEPS);
    endpoint_compare(self, NULL, FIRST, ENDPOINT_STEPS, s.got);
    tamis_reducer_destroy(resumed);
    endpoint_close(&s);
}

static void test_a_state_moves_between_devices(void **state) {
    (void)state;
    ranks_run(RANKS, 0, save_on_cuda_load_on_cpu, NULL);
}

/* A graph of the caller has messages of a fixed size. */
static void load_other_density(test_rank *self) {
    endpoint s;
    char path[SCRATCH_PATH];
    tamis_reducer_config config = endpoint_config(TAMIS_DEVICE_CPU, NULL);
    tamis_reducer *sparser = NULL;
    cudaGraphExec_t graph = NULL;
    endpoint_path(self, "sparser", path);
    if (!endpoint_open(self, NULL, &s))
        return;
    RANK_OK(self, data_reducer(self->comm, ENDPOINT_N, &config, &sparser));
    RANK_OK(self, tamis_reducer_set_density(sparser, 0.02));
    RANK_OK(self, tamis_reducer_save(sparser, path));
    capture(self, &s, &graph);
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_reducer_load(s.reducer, path));
    RANK_SAYS(self, "density");
    RANK_OK(self, tamis_reducer_load(sparser, path));
    endpoint_wait(self, &s, 0, 3);
    endpoint_compare(self, NULL, 0, 3, s.got);
    cudaGraphExecDestroy(graph);
    tamis_reducer_destroy(sparser);
    endpoint_close(&s);
}

static void test_a_density_that_a_graph_cannot_keep_is_refused(void **state) {
    (void)state;
    ranks_run(RANKS, 0, load_other_density, NULL);
}

/* -- gradients that are not finite ------------------------------------------------------------ */

/* One step, then one in which an entry of rank 1 is bad. */
static void step_on_nan(test_rank *self, endpoint *s, tamis_nonfinite policy) {
    tamis_stats stats = TAMIS_STATS_INIT;
    endpoint_wait(self, s, 0, 1);
    if (self->id == 1)
        s->given[ENDPOINT_N + 7] = 0.0f / 0.0f;
    tamis_step step = endpoint_step(s);
    tamis_status expected = policy == TAMIS_NONFINITE_ERROR ? TAMIS_E_NONFINITE : TAMIS_OK;
    endpoint_put(self, s, 1);
    RANK_OK(self, tamis_reducer_start(s->reducer, &step));
    RANK_STATUS(self, expected, tamis_reducer_wait(s->reducer));
    RANK_OK(self, tamis_reducer_stats(s->reducer, &stats));
    RANK_CHECK(self, stats.nonfinite == 1, "%llu bad entries", (unsigned long long)stats.nonfinite);
    RANK_CHECK(self, stats.skipped == (policy != TAMIS_NONFINITE_DROP), "skipped %llu",
               (unsigned long long)stats.skipped);
    RANK_CHECK(self, (stats.selected == 0) == (policy != TAMIS_NONFINITE_DROP), "selected %llu",
               (unsigned long long)stats.selected);
}

static void step_with_nan(test_rank *self) {
    const endpoint_order order = {.nonfinite = *(const tamis_nonfinite *)self->shared};
    const float *residual = NULL;
    endpoint s;
    if (!endpoint_open(self, &order, &s))
        return;
    step_on_nan(self, &s, order.nonfinite);
    endpoint_wait(self, &s, 2, 6);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_residual(s.reducer, &residual));
    for (size_t i = 0; i < ENDPOINT_N; i++)
        RANK_CHECK(self, residual[i] - residual[i] == 0.0f, "entry %zu is not finite", i);
    endpoint_close(&s);
}

/* Without a residual: the gradient is cleared, or its bad entry. */
static void step_with_nan_dense(test_rank *self) {
    const tamis_nonfinite policy = *(const tamis_nonfinite *)self->shared;
    const endpoint_order order = {.scheme = "dense", .nonfinite = policy};
    tamis_result result = TAMIS_RESULT_INIT;
    endpoint s;
    if (!endpoint_open(self, &order, &s))
        return;
    step_on_nan(self, &s, policy);
    if (self->failure[0])
        return;
    size_t left = policy == TAMIS_NONFINITE_DROP ? ENDPOINT_N : 0;
    RANK_OK(self, tamis_reducer_result(s.reducer, &result));
    RANK_CHECK(self, result.count == left && !result.indices && !result.values, "%zu entries",
               result.count);
    for (size_t i = 0; i < ENDPOINT_N; i++)
        RANK_CHECK(self, (s.grad[i] == 0.0f) == (left == 0 || i == 7), "entry %zu is %g", i,
                   (double)s.grad[i]);
    endpoint_wait(self, &s, 2, 6);
    endpoint_compare(self, "dense", 2, 6, s.got);
    endpoint_close(&s);
}

static void test_all_ranks_decide_the_same_way_on_nan(void **state) {
    static tamis_nonfinite policies[] = {TAMIS_NONFINITE_ERROR, TAMIS_NONFINITE_SKIP,
                                         TAMIS_NONFINITE_DROP};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        if (test_drawn(2))
            ranks_run(2, 0, step_with_nan, &policies[i]);
        if (test_drawn(2))
            ranks_run(2, 0, step_with_nan_dense, &policies[i]);
    }
}

/* -- what became of joined steps -------------------------------------------------------------- */

enum { BAD = 2 };

static void check_outcomes(test_rank *self, tamis_reducer *r, tamis_nonfinite policy) {
    const tamis_status bad = policy == TAMIS_NONFINITE_ERROR ? TAMIS_E_NONFINITE : TAMIS_OK;
    int applied;
    for (uint32_t back = 0; back < 8; back++) {
        bool is_bad = back < ENDPOINT_STEPS && ENDPOINT_STEPS - 1 - back == BAD;
        applied = -1;
        RANK_STATUS(self, is_bad ? bad : TAMIS_OK, tamis_reducer_outcome(r, back, &applied));
        RANK_CHECK(self, applied == !is_bad, "step %u before the last: applied %d", back, applied);
    }
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_outcome(r, 8, &applied));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_outcome(r, 0, NULL));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_outcome(NULL, 0, &applied));
}

/* All steps are joined at once, and one of them has no result. */
static void ask_for_outcomes(test_rank *self) {
    const endpoint_order order = {.nonfinite = *(const tamis_nonfinite *)self->shared};
    const char *why = NULL;
    endpoint s;
    if (!endpoint_open(self, &order, &s))
        return;
    if (self->id == 1)
        s.given[BAD * ENDPOINT_N + 7] = 0.0f / 0.0f;
    endpoint_join(self, &s, 0, ENDPOINT_STEPS);
    check_outcomes(self, s.reducer, order.nonfinite);
    RANK_CHECK(self, strcmp(tamis_reducer_driver(s.reducer, &why), "device") == 0 && !why[0],
               "the device does not drive: %s", why);
    endpoint_close(&s);
}

static void test_the_outcome_of_a_joined_step_can_be_asked_for(void **state) {
    static tamis_nonfinite policies[] = {TAMIS_NONFINITE_ERROR, TAMIS_NONFINITE_SKIP};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        ranks_run(2, 0, ask_for_outcomes, &policies[i]);
}

int main(void) {
    char path[SCRATCH_PATH];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_steps_run_without_the_host),
        cmocka_unit_test(test_a_reducer_is_destroyed_after_the_steps_that_were_joined),
        cmocka_unit_test(test_a_captured_step_replays_with_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_captured_step_can_only_be_joined),
        cmocka_unit_test(test_a_state_moves_between_devices),
        cmocka_unit_test(test_a_density_that_a_graph_cannot_keep_is_refused),
        cmocka_unit_test(test_all_ranks_decide_the_same_way_on_nan),
        cmocka_unit_test(test_the_outcome_of_a_joined_step_can_be_asked_for),
    };
    scratch_path("", path); /* before there are threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
