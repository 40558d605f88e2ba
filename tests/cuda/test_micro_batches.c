/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): micro-batches that are added
 * to the residual in the order of a stream, before steps that the device runs by itself. The bits
 * are those of the CPU; what is not finite counts in the next step; the host waits for nothing.
 *
 * test: release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/pair.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__) /* which sees the threads of a kernel, and takes its time */
enum { STEPS = 3 };
#else
enum { STEPS = 5 };
#endif
enum { BATCHES = 3, BAD_BATCH = 4 };

static uint32_t number_of(uint32_t step, uint32_t batch) {
    return step * BATCHES + batch;
}

static void run_batches(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t step = 0; step < STEPS && !self->failure[0]; step++) {
        for (uint32_t batch = 0; batch + 1 < BATCHES && !self->failure[0]; batch++)
            pair_accumulate(&p, number_of(step, batch));
        pair_step(&p, number_of(step, BATCHES - 1), PAIR_START, TAMIS_OK);
    }
    pair_close(&p);
}

static void test_micro_batches_give_the_bits_of_the_cpu(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "all+global+exact+pairs"};
    static const uint64_t lengths[] = {0, PAIR_N / 5};
    pair_order order = pair_usual();
    (void)state;
    for (size_t i = test_stride(2) - 1; i < 6; i += test_stride(4)) {
        order.scheme = schemes[i % 3];
        order.bucket_length = lengths[i / 3];
        order.by_segment = i % 2;
        order.output = i == 1 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
        order.type = i == 3 ? TAMIS_DTYPE_BFLOAT16 : TAMIS_DTYPE_FLOAT32;
        test_context("%s, buckets of %llu", order.scheme, (unsigned long long)order.bucket_length);
        ranks_run(1 + (uint32_t)i % 3, 0, run_batches, &order);
    }
}

/* -- numbers that are not finite -------------------------------------------------------------- */

static void put_nan(uint32_t rank, uint32_t number, float *grad) {
    if (number == BAD_BATCH && rank == 1)
        grad[7] = grad[PAIR_N / 2] = NAN;
}

/* The bad batch is of step 1, whose own gradient is sound. A state taken in between remembers. */
static void step_with_nan(test_rank *self) {
    const pair_order *order = self->shared;
    char name[32], path[SCRATCH_PATH];
    pair p;
    snprintf(name, sizeof name, "early.%u", self->id);
    scratch_path(name, path);
    if (!pair_open(self, order, &p))
        return;
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    pair_accumulate(&p, BAD_BATCH);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_save(p.cuda, path));
    pair_accumulate(&p, 5);
    RANK_OK(self, tamis_reducer_load(p.cuda, path));
    RANK_OK(self, tamis_reducer_load(p.cpu, path));
    bool skips = order->nonfinite != TAMIS_NONFINITE_DROP;
    pair_step(&p, 6, PAIR_START,
              order->nonfinite == TAMIS_NONFINITE_ERROR ? TAMIS_E_NONFINITE : TAMIS_OK);
    tamis_stats stats = TAMIS_STATS_INIT;
    RANK_OK(self, tamis_reducer_stats(p.cuda, &stats));
    RANK_CHECK(self, stats.nonfinite == 2 && stats.skipped == skips, "%llu bad, skipped %llu",
               (unsigned long long)stats.nonfinite, (unsigned long long)stats.skipped);
    for (uint32_t i = 7; i < 10 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK); /* and are forgotten */
    pair_close(&p);
}

static void test_bad_entries_of_micro_batches_count_in_the_next_step(void **state) {
    char path[SCRATCH_PATH];
    pair_order order = pair_usual();
    (void)state;
    order.touch = put_nan;
    scratch_path("early", path);
    for (int i = 0; i < 6; i += (int)test_stride(4)) {
        order.nonfinite = (tamis_nonfinite)(i % 3);
        order.bucket_length = i < 3 ? 0 : PAIR_N / 5;
        test_context("policy %d, buckets of %llu", i % 3, (unsigned long long)order.bucket_length);
        ranks_run(2, 0, step_with_nan, &order);
    }
}

/* -- in stream order -------------------------------------------------------------------------- */

/* The gradient is overwritten as soon as the stream allows it. */
static void enqueue_batches(pair *p, float *pinned, uint32_t first, uint32_t count) {
    test_rank *self = p->self;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->grad;
    step.stream = p->stream;
    for (uint32_t i = first; i < first + count; i++) {
        RANK_CUDA(self, cudaMemcpyAsync(p->grad, pinned + i * PAIR_N, p->bytes,
                                        cudaMemcpyHostToDevice, p->stream));
        if (i % BATCHES < BATCHES - 1) {
            RANK_OK(self, tamis_reducer_accumulate(p->cuda, &step));
        } else {
            RANK_OK(self, tamis_reducer_start(p->cuda, &step));
            RANK_OK(self, tamis_reducer_join(p->cuda, p->stream));
        }
    }
}

static void follow_on_cpu(pair *p, const float *pinned, uint32_t count) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->host;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(p->host, pinned + i * PAIR_N, p->bytes);
        if (i % BATCHES < BATCHES - 1) {
            RANK_OK(p->self, tamis_reducer_accumulate(p->cpu, &step));
            continue;
        }
        RANK_OK(p->self, tamis_reducer_start(p->cpu, &step));
        RANK_OK(p->self, tamis_reducer_wait(p->cpu));
    }
}

static void run_in_order(test_rank *self) {
    const uint32_t ALL = (test_stride(2) > 1 ? 6 : 12) * BATCHES, FIRST = 2 * BATCHES;
    float *pinned = NULL;
    const float *cpu, *cuda;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    RANK_CUDA(self, cudaMallocHost((void **)&pinned, ALL * PAIR_N * sizeof *pinned));
    for (uint32_t i = 0; i < ALL; i++)
        data_fill_real(self->id, i, PAIR_N, pinned + i * PAIR_N);
    enqueue_batches(&p, pinned, 0, FIRST);
    RANK_BARRIER(self);
    uint64_t before = fake_cuda_forbidden_calls();
    RANK_BARRIER(self);
    enqueue_batches(&p, pinned, FIRST, ALL - FIRST);
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_forbidden_calls() == before, "allocations or synchronising calls");
    RANK_BARRIER(self);
    RANK_CUDA(self, cudaStreamSynchronize(p.stream));
    follow_on_cpu(&p, pinned, ALL);
    RANK_CHECK(self, memcmp(p.grad, p.host, p.bytes) == 0, "the gradients differ");
    RANK_OK(self, tamis_reducer_residual(p.cpu, &cpu));
    RANK_OK(self, tamis_reducer_residual(p.cuda, &cuda));
    RANK_CHECK(self, memcmp(cuda, cpu, p.bytes) == 0, "the residuals differ");
    cudaFreeHost(pinned);
    pair_close(&p);
}

static void test_micro_batches_follow_their_stream_without_the_host(void **state) {
    pair_order order = pair_usual();
    (void)state;
    order.bucket_length = 0;
    ranks_run(2, 0, run_in_order, &order);
}

/* -- in a graph of the caller ----------------------------------------------------------------- */

static void capture_batches(pair *p, cudaGraphExec_t *out) {
    test_rank *self = p->self;
    cudaGraph_t graph;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->grad;
    step.stream = p->stream;
    RANK_CUDA(self, cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal));
    RANK_CUDA(self,
              cudaMemcpyAsync(p->grad, p->given, p->bytes, cudaMemcpyHostToDevice, p->stream));
    RANK_OK(self, tamis_reducer_accumulate(p->cuda, &step));
    RANK_CUDA(self, cudaStreamEndCapture(p->stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(out, graph, 0));
    RANK_CUDA(self, cudaGraphDestroy(graph));
}

static void replay_batches(test_rank *self) {
    cudaGraphExec_t graph = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    if (!self->failure[0])
        capture_batches(&p, &graph);
    for (uint32_t i = 1; i < 4 && !self->failure[0]; i++) {
        tamis_step host = TAMIS_STEP_INIT;
        pair_fill(&p, 2 * i); /* also on the device, where the graph does so again */
        host.grad = p.host;
        RANK_CUDA(self, cudaGraphLaunch(graph, p.stream));
        RANK_OK(self, tamis_reducer_accumulate(p.cpu, &host));
        pair_step(&p, 2 * i + 1, PAIR_START, TAMIS_OK);
    }
    cudaGraphExecDestroy(graph);
    pair_close(&p);
}

static void test_a_captured_micro_batch_replays(void **state) {
    pair_order order = pair_usual();
    (void)state;
    order.bucket_length = 0;
    ranks_run(2, 0, replay_batches, &order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_bad_entries_of_micro_batches_count_in_the_next_step),
        cmocka_unit_test(test_micro_batches_follow_their_stream_without_the_host),
        cmocka_unit_test(test_a_captured_micro_batch_replays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
