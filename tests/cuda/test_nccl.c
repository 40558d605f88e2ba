/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime: the transport over NCCL, without kernels of ours. The same bytes and
 * sums as the local transport, streams with delays and captures; no operation allocates or blocks.
 *
 * test: tsan
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/over_nccl.h"
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

enum { PIECE = 256 << 10 };

/* -- the same as the local transport ---------------------------------------------------------- */

static void check_gather(test_rank *self, tamis_comm *local, size_t bytes) {
    unsigned char *send = malloc(bytes + 1), *recv = malloc(bytes * self->nranks + 1);
    uint64_t wire = 0, wire_local = 0;
    over_fill(self->id, bytes, send);
    memset(recv, 0x5a, bytes * self->nranks + 1);
    tamis_status status = over_gather(self->comm, send, bytes, recv, &wire);
    bool right = recv[bytes * self->nranks] == 0x5a;
    for (uint32_t r = 0; r < self->nranks; r++)
        right = right && over_is_filled(r, bytes, recv + r * bytes);
    tamis_status also = over_gather(local, send, bytes, recv, &wire_local);
    free(send);
    free(recv);
    RANK_OK(self, status);
    RANK_OK(self, also);
    RANK_CHECK(self, right, "all-gather of %zu bytes is wrong", bytes);
    uint64_t hashes = (bytes + PIECE - 1) / PIECE * 8 * (self->nranks - 1);
    RANK_CHECK(self, wire == wire_local + hashes, "%zu bytes: %llu on the wire, not %llu", bytes,
               (unsigned long long)wire, (unsigned long long)(wire_local + hashes));
}

static void check_sum(test_rank *self, tamis_comm *local, size_t count) {
    float *ours = malloc((count + 1) * sizeof *ours), *theirs = malloc((count + 1) * sizeof *ours);
    for (size_t i = 0; i < count; i++) /* so that every order of addition has bits of its own */
        ours[i] = theirs[i] = (float)over_byte(self->id, i) / 3.0f * (i % 7 == 0 ? 1e4f : 1.0f);
    ours[count] = theirs[count] = -1.0f;
    tamis_status status = over_sum(self->comm, ours, count), also = over_sum(local, theirs, count);
    bool equal = memcmp(ours, theirs, (count + 1) * sizeof *ours) == 0;
    free(ours);
    free(theirs);
    RANK_OK(self, status);
    RANK_OK(self, also);
    RANK_CHECK(self, equal, "the sum of %zu values differs from the local one", count);
}

static void compare_with_local(test_rank *self) {
    tamis_comm *local = self->shared;
    static const size_t sizes[] = {0, 1, 7, 4096, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5};
    RANK_CHECK(self, strcmp(tamis_comm_transport(self->comm), "nccl") == 0, "it is called \"%s\"",
               tamis_comm_transport(self->comm));
    RANK_CHECK(self,
               tamis_comm_rank(self->comm) == self->id &&
                   tamis_comm_nranks(self->comm) == self->nranks,
               "rank or number of ranks is wrong");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_gather(self, local, sizes[i]);
        check_sum(self, local, sizes[i] / sizeof(float));
    }
}

static void test_same_as_local(void **state) {
    (void)state;
    fake_cuda_delay_us(300);
    over_nccl_crowds(1, 0, compare_with_local);
    fake_cuda_reset();
}

/* -- streams ---------------------------------------------------------------------------------- */

static void run_streams(test_rank *self) {
    over_stream l = {0};
    size_t all = self->nranks * OVER_SHARD;
    over_stream_open(self, &l);
    for (int i = 0; i < OVER_ROUNDS; i++)
        over_enqueue(self, &l, l.pinned + (size_t)i * 2 * all);
    RANK_OK(self, self->comm->transport->stream->poll(self->comm->self));
    RANK_CUDA(self, cudaStreamSynchronize(l.stream));
    for (int i = 0; i < OVER_ROUNDS; i++)
        over_check(self, l.pinned + (size_t)i * 2 * all);
    over_stream_close(&l);
}

static void test_streams(void **state) {
    (void)state;
    fake_cuda_delay_us(2000);
    over_nccl_crowds(1, 0, run_streams);
    fake_cuda_reset();
}

static void replay(test_rank *self) {
    over_stream l = {0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    over_stream_open(self, &l);
    RANK_CUDA(self, cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
    over_enqueue(self, &l, l.pinned);
    RANK_CUDA(self, cudaStreamEndCapture(l.stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < OVER_ROUNDS; i++) {
        memset(l.pinned, 0x5a, 2 * self->nranks * OVER_SHARD);
        RANK_CUDA(self, cudaGraphLaunch(exec, l.stream));
        RANK_CUDA(self, cudaStreamSynchronize(l.stream));
        over_check(self, l.pinned);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    over_stream_close(&l);
}

static void test_capture(void **state) {
    (void)state;
    over_nccl_crowds(1, 0, replay);
}

/* The caller captures in the strictest mode while the library's thread is at work. */
static void capture_beside(test_rank *self) {
    unsigned char mine[64], all[8 * 64];
    cudaGraph_t graph;
    cudaStream_t stream;
    over_fill(self->id, sizeof mine, mine);
    over_ask a = over_ask_gather(mine, sizeof mine, all);
    RANK_CUDA(self, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    tam_comm_submit(self->comm, &a.job);
    RANK_OK(self, tam_comm_finish(self->comm, &a.job, tam_comm_deadline(self->comm)));
    RANK_CUDA(self, cudaStreamEndCapture(stream, &graph));
    for (uint32_t r = 0; r < self->nranks; r++)
        RANK_CHECK(self, over_is_filled(r, sizeof mine, all + r * sizeof mine), "rank %u is wrong",
                   r);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

static void test_beside_a_capture(void **state) {
    (void)state;
    over_nccl(3, 0, capture_beside);
}

/* -- costs ------------------------------------------------------------------------------------ */

static void count_calls(test_rank *self) {
    over_stream l = {0};
    unsigned char mine[200], all[4 * 200];
    float values[300] = {0};
    uint64_t wire;
    over_stream_open(self, &l);
    RANK_BARRIER(self);
    if (self->id == 0)
        fake_cuda_reset();
    uint64_t made = tam_alloc_made();
    RANK_BARRIER(self);
    for (int i = 0; i < OVER_ROUNDS; i++) {
        over_fill(self->id, sizeof mine, mine);
        RANK_OK(self, over_gather(self->comm, mine, sizeof mine, all, &wire));
        RANK_OK(self, over_sum(self->comm, values, 300));
    }
    for (int i = 0; i < OVER_ROUNDS; i++)
        over_enqueue(self, &l, l.pinned);
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_calls("ncclAllGather") >= 3 * OVER_ROUNDS,
               "the fake counts nothing");
    RANK_CHECK(self, fake_cuda_blocking_calls() == 0, "%llu calls that may block",
               (unsigned long long)fake_cuda_blocking_calls());
    RANK_CHECK(self, fake_cuda_allocations() == 0, "%llu allocations of CUDA",
               (unsigned long long)fake_cuda_allocations());
    RANK_CHECK(self, tam_alloc_made() == made, "allocations on the host");
    RANK_BARRIER(self);
    RANK_CUDA(self, cudaStreamSynchronize(l.stream));
    over_stream_close(&l);
}

static void test_no_allocation_no_wait(void **state) {
    (void)state;
    over_nccl(4, 0, count_calls);
}

/* -- steps of the host beside steps of a device ----------------------------------------------- */

/* Their collectives would not fit, so this is found before the first. */
static void mix_drivers(test_rank *self) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    config.device = self->id == 0 ? TAMIS_DEVICE_CPU : TAMIS_DEVICE_CUDA;
    RANK_STATUS(self, TAMIS_E_MISMATCH, data_reducer(self->comm, 2000, &config, &reducer));
    RANK_SAYS(self, "steps run by a device (1: yes) differs: rank 0 has 0, rank 1 has 1");
    RANK_CHECK(self, !reducer, "there is a reducer");
}

static void test_ranks_that_would_step_otherwise_are_refused(void **state) {
    (void)state;
    over_nccl(2, 0, mix_drivers);
}

/* -- buckets ---------------------------------------------------------------------------------- */

enum { LAYERS = 16, LAYER = 250000 };

/* @param latency_us, gbit  0: as the transport says */
static void make_layers(test_rank *self, tamis_comm *comm, double latency_us, double gbit,
                        tamis_reducer **out) {
    tamis_segment layers[LAYERS];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    *out = NULL;
    for (uint32_t i = 0; i < LAYERS; i++)
        layers[i] = (tamis_segment){"layer", LAYER};
    config.bucket_length = TAMIS_BUCKETS_PLANNED;
    config.link_latency_us = latency_us;
    config.link_gbit = gbit;
    RANK_OK(self, tamis_layout_create(layers, LAYERS, &layout));
    tamis_status status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    RANK_OK(self, status);
}

static void check_count(test_rank *self, tamis_comm *comm, double gbit, bool one) {
    tamis_reducer *reducer;
    make_layers(self, comm, 0.0, gbit, &reducer);
    uint32_t count = reducer ? tamis_reducer_nbuckets(reducer) : 0;
    tamis_reducer_destroy(reducer);
    RANK_CHECK(self, count > 0 && (count == 1) == one, "%s, %g Gbit/s: %u buckets",
               tamis_comm_transport(comm), gbit, count);
}

/* 4M elements at 1 %: on a link of 1 Gbit/s several, on NVLink a single bucket. */
static void plan_buckets(test_rank *self) {
    check_count(self, self->comm, 0.0, true);
    check_count(self, self->comm, 1.0, false);
    check_count(self, self->shared, 0.0, false);
}

static double between_gbit; /* what all ranks must find */

static void find_link(test_rank *self) {
    double gbit = self->comm->transport->usual(self->comm->self)->gbit;
    RANK_CHECK(self, gbit == between_gbit, "%g Gbit/s, not %g", gbit, between_gbit);
}

static void check_link(uint32_t nranks, double gbit) {
    between_gbit = gbit;
    over_nccl(nranks, 0, find_link);
}

static void test_ranks_plan_for_the_slowest_link_of_any(void **state) {
    (void)state;
    check_link(1, 2400.0);
    check_link(3, 2400.0);
    fake_cuda_without_nvlink(2);
    check_link(3, 200.0);
    check_link(2, 2400.0);
    fake_cuda_reset();
    check_link(3, 2400.0);
}

/* One rank gives what is usual elsewhere, the other nothing: their buckets would differ. */
static void plan_apart(test_rank *self) {
    tamis_segment layer = {"layer", LAYER};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    config.bucket_length = TAMIS_BUCKETS_PLANNED;
    config.link_latency_us = self->id == 0 ? 50.0 : 0.0;
    config.link_gbit = self->id == 0 ? 1.0 : 0.0;
    RANK_OK(self, tamis_layout_create(&layer, 1, &layout));
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, &reducer);
    tamis_layout_destroy(layout);
    tamis_reducer_destroy(reducer);
    RANK_STATUS(self, TAMIS_E_MISMATCH, status);
    RANK_SAYS(self, "link_latency_us differs");
}

static void test_links_that_differ_are_refused(void **state) {
    (void)state;
    over_nccl(2, 0, plan_apart);
}

static char planned[SCRATCH_PATH];

/* A state fits where its buckets do: elsewhere the link says so. */
static void carry_over(test_rank *self) {
    tamis_reducer *nccl, *usual, *told;
    char path[SCRATCH_PATH + 16];
    (void)snprintf(path, sizeof path, "%s.%u", planned, self->id);
    make_layers(self, self->comm, 0.0, 0.0, &nccl);
    make_layers(self, self->shared, 0.0, 0.0, &usual);
    make_layers(self, self->shared, 10.0, 2400.0, &told);
    RANK_OK(self, tamis_reducer_save(nccl, path));
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_reducer_load(usual, path));
    RANK_SAYS(self, "link_latency_us 10 and link_gbit 2400");
    RANK_OK(self, tamis_reducer_load(told, path));
    tamis_reducer_destroy(told);
    tamis_reducer_destroy(usual);
    tamis_reducer_destroy(nccl);
}

static void test_buckets_are_planned_for_the_transports_link(void **state) {
    (void)state;
    over_nccl(2, 0, plan_buckets);
}

static void test_a_state_goes_where_its_buckets_fit(void **state) {
    (void)state;
    scratch_path("planned", planned);
    over_nccl(2, 0, carry_over);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_local),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_beside_a_capture),
        cmocka_unit_test(test_no_allocation_no_wait),
        cmocka_unit_test(test_buckets_are_planned_for_the_transports_link),
        cmocka_unit_test(test_ranks_plan_for_the_slowest_link_of_any),
        cmocka_unit_test(test_links_that_differ_are_refused),
        cmocka_unit_test(test_a_state_goes_where_its_buckets_fit),
        cmocka_unit_test(test_ranks_that_would_step_otherwise_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
