/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): segments that have rows, on a
 * device, over the local communicator and over NCCL. The host drives such steps; gradients, results
 * and residuals are those of the CPU, bit for bit.
 *
 * test: release
 */
#include "lib/base/half.h"
#include "tests/cuda/rank.h"
#include "tests/support/data.h"
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/nccl.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* An ordinary segment, 90 rows of 33, another. */
enum { HEAD = 700, LENGTH = 33, ROWS = 90, WORDS = ROWS * LENGTH, TAIL = 200 };
enum { N = HEAD + WORDS + TAIL, STEPS = 5 };

typedef struct order {
    const char *scheme;
    tamis_dtype type;
    bool nccl;
    uint32_t capacity;
} order;

/* The last entry of a row is all that is touched in some. Step 3 touches every row. */
static void fill(uint32_t rank, uint32_t step, tamis_dtype type, void *out) {
    float grad[N];
    data_fill_real(rank, step, N, grad);
    for (size_t i = 0; i < WORDS; i++) {
        size_t row = i / LENGTH;
        bool whole = row % 13 == rank || step == 3, last = row % 17 == step && i % LENGTH == 32;
        if (!whole && !last)
            grad[HEAD + i] = 0.0f;
    }
    tam_narrow(grad, N, type, out);
}

static tamis_status make(tamis_comm *comm, const order *o, tamis_device device,
                         tamis_reducer **out) {
    static const tamis_segment segments[] = {{"head", HEAD}, {"words", WORDS}, {"tail", TAIL}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_status status = tamis_layout_create(segments, 3, &layout);
    config.scheme = o->scheme;
    config.density = 0.05;
    config.device = device;
    config.grad_dtype = o->type;
    config.rows_capacity = o->capacity;
    if (status == TAMIS_OK)
        status = tamis_layout_set_rows(layout, 1, LENGTH);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_status one_step(tamis_reducer *reducer, void *grad) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

static void compare(test_rank *self, tamis_reducer *cpu, tamis_reducer *cuda, uint32_t step) {
    const order *o = self->shared;
    tamis_stats here = TAMIS_STATS_INIT, there = TAMIS_STATS_INIT;
    tamis_result a = TAMIS_RESULT_INIT, b = TAMIS_RESULT_INIT;
    const float *left, *right;
    RANK_OK(self, tamis_reducer_result(cpu, &a));
    RANK_OK(self, tamis_reducer_result(cuda, &b));
    RANK_CHECK(self, a.count == b.count, "step %u: %zu entries, not %zu", step, b.count, a.count);
    RANK_CHECK(self, !a.indices || memcmp(a.indices, b.indices, a.count * 4) == 0, "indices");
    RANK_CHECK(self, !a.indices || memcmp(a.values, b.values, a.count * 4) == 0, "values");
    RANK_OK(self, tamis_reducer_residual(cpu, &left));
    RANK_OK(self, tamis_reducer_residual(cuda, &right));
    RANK_CHECK(self, !left || memcmp(left, right, N * sizeof *left) == 0, "residuals differ");
    RANK_OK(self, tamis_reducer_stats(cpu, &here));
    RANK_OK(self, tamis_reducer_stats(cuda, &there));
    RANK_CHECK(self, here.deferred == there.deferred, "step %u: deferred", step);
    for (size_t i = HEAD; left && o->capacity == 0 && i < HEAD + WORDS; i++)
        RANK_CHECK(self, left[i] == 0.0f, "step %u left something of the rows", step);
}

static void run(test_rank *self) {
    const order *o = self->shared;
    tamis_comm *comm = self->comm, *nccl = NULL;
    tamis_reducer *cpu = NULL, *cuda = NULL;
    size_t bytes = N * tam_type_bytes(o->type);
    unsigned char *host = malloc(bytes);
    void *grad = NULL;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    if (o->nccl)
        RANK_OK(self, tamis_comm_create_nccl(comm, NULL, &nccl));
    RANK_OK(self, make(comm, o, TAMIS_DEVICE_CPU, &cpu));
    RANK_OK(self, make(nccl ? nccl : comm, o, TAMIS_DEVICE_CUDA, &cuda));
    RANK_CUDA(self, cudaMalloc(&grad, bytes));
    for (uint32_t step = 0; step < STEPS && !self->failure[0]; step++) {
        fill(self->id, step, o->type, host);
        RANK_CUDA(self, cudaMemcpy(grad, host, bytes, cudaMemcpyHostToDevice));
        RANK_OK(self, one_step(cuda, grad));
        RANK_OK(self, one_step(cpu, host));
        RANK_CHECK(self, memcmp(grad, host, bytes) == 0, "step %u: gradients differ", step);
        compare(self, cpu, cuda, step);
    }
    tamis_reducer_destroy(cuda);
    tamis_reducer_destroy(cpu);
    tamis_comm_destroy(nccl);
    cudaFree(grad);
    free(host);
}

static void test_rows_on_a_device_give_the_bits_of_the_cpu(void **state) {
    static const char *const schemes[] = {"tamis", "dense", "all+global+exact+pairs"};
    (void)state;
    for (int i = 0; i < 12; i++) {
        order o = {schemes[i % 3], (tamis_dtype)(i / 2 % 3), i % 2, 0};
        if (!test_drawn(5))
            continue;
        test_context("%s, type %d, nccl %d", o.scheme, (int)o.type, (int)o.nccl);
        ranks_run(1 + (uint32_t)i % 3, 0, run, &o);
    }
}

static void test_rows_beyond_a_bound_wait_on_a_device_as_on_the_cpu(void **state) {
    static const uint32_t capacities[] = {1, 7, 89};
    (void)state;
    for (int i = 0; i < 3; i++) {
        order o = {i % 2 ? "all+global+exact+pairs" : "tamis", (tamis_dtype)i, false, 0};
        o.capacity = capacities[i];
        test_context("%s, type %d, capacity %u", o.scheme, (int)o.type, o.capacity);
        ranks_run(1 + (uint32_t)i, 0, run, &o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_on_a_device_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_rows_beyond_a_bound_wait_on_a_device_as_on_the_cpu),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
