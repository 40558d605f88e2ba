/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: scheme dense with sum_order transport. The
 * fake NCCL adds from the last rank to the first, so the bits are those of this order and not those
 * of the tree. Pieces, lost collectives, NaN: test_dense.c.
 *
 * test: release
 */
#include "lib/base/half.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/over_nccl.h"
#include "tests/support/data.h"
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 5203, RANKS = 3, STEPS = 3 };

static tamis_reducer_config usual(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = "dense";
    config.device = TAMIS_DEVICE_CUDA;
    config.sum_order = TAMIS_SUM_ORDER_TRANSPORT;
    return config;
}

/* -- the order of the transport --------------------------------------------------------------- */

static void fill(uint32_t rank, uint32_t step, tamis_dtype type, void *out) {
    float values[N];
    data_fill_real(rank, step, N, values);
    tam_narrow(values, N, type, out);
}

/* Means in the type of gradients. @return how many sums have other bits in the tree's order */
static size_t expect(uint32_t step, tamis_dtype type, void *out) {
    static _Thread_local float given[RANKS][N], means[N];
    size_t others = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        fill(r, step, type, means);
        tam_widen(type, means, N, given[r]);
    }
    for (size_t i = 0; i < N; i++) {
        volatile float last = given[2][i] + given[1][i], first = given[0][i] + given[1][i];
        float sum = last + given[0][i], by_tree = first + given[2][i];
        others += sum != by_tree;
        means[i] = sum / (float)RANKS;
    }
    tam_narrow(means, N, type, out);
    return others;
}

static void step_and_compare(test_rank *self, tamis_reducer *reducer, uint32_t number,
                             tamis_dtype type, void *grad) {
    unsigned char expected[N * sizeof(float)];
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    fill(self->id, number, type, grad);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    size_t others = expect(number, type, expected); /* sums of three numbers of 16 bits are exact */
    RANK_CHECK(self, type != TAMIS_DTYPE_FLOAT32 || others > N / 100, "the order does not show");
    RANK_CHECK(self, memcmp(grad, expected, N * tam_type_bytes(type)) == 0,
               "type %d, step %u: other bits", (int)type, number);
}

static void sum(test_rank *self, tamis_dtype type, uint64_t bucket_length) {
    tamis_reducer_config config = usual();
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    void *grad;
    config.grad_dtype = type;
    config.bucket_length = bucket_length;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    RANK_CUDA(self, cudaMalloc(&grad, N * sizeof(float)));
    for (uint32_t s = 0; s < STEPS && !self->failure[0]; s++)
        step_and_compare(self, reducer, s, type, grad);
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_CHECK(self, stats.steps == STEPS && stats.selected == N, "%u steps",
               (unsigned)stats.steps);
    cudaFree(grad);
    tamis_reducer_destroy(reducer);
}

static void sum_all(test_rank *self) {
    sum(self, TAMIS_DTYPE_FLOAT32, 0);
    sum(self, TAMIS_DTYPE_FLOAT16, N / 3);
    sum(self, TAMIS_DTYPE_BFLOAT16, 0);
    RANK_CHECK(self, fake_cuda_calls("ncclAllReduce") > 0, "it was not used");
}

static void test_sums_are_added_in_the_order_of_the_transport(void **state) {
    (void)state;
    fake_cuda_reset();
    over_nccl(RANKS, 0, sum_all);
}

/* -- what is refused -------------------------------------------------------------------------- */

static void refuse(test_rank *self, tamis_comm *comm, tamis_reducer_config config,
                   const char *words) {
    tamis_reducer *reducer = NULL;
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, data_reducer(comm, N, &config, &reducer));
    RANK_SAYS(self, words);
}

static void ask_elsewhere(test_rank *self) {
    tamis_reducer_config config = usual();
    tamis_reducer *reducer = NULL;
    refuse(self, self->shared, config,
           "sum_order transport cannot be combined with steps that "
           "the host drives");
    config.device = TAMIS_DEVICE_CPU;
    refuse(self, self->comm, config, "the host drives");
    config = usual();
    config.scheme = self->id % 2 ? "topk" : "all+global+exact+auto";
    refuse(self, self->comm, config, "a scheme other than dense");
    config = usual();
    config.sum_order = self->id % 2 ? TAMIS_SUM_ORDER_TRANSPORT : TAMIS_SUM_ORDER_TREE;
    RANK_STATUS(self, TAMIS_E_MISMATCH, data_reducer(self->comm, N, &config, &reducer));
    RANK_SAYS(self, "sum_order differs: rank 0 has tree, rank 1 has transport");
}

static void test_only_dense_steps_of_a_device_over_nccl_may_ask(void **state) {
    (void)state;
    over_nccl(RANKS, 0, ask_elsewhere);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_added_in_the_order_of_the_transport),
        cmocka_unit_test(test_only_dense_steps_of_a_device_over_nccl_may_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
