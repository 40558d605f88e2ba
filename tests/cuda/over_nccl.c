/* SPDX-License-Identifier: MIT */
#include "tests/cuda/over_nccl.h"

#include "tests/cuda/fake.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <tamis/nccl.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

uint32_t over_short_ms(void) {
    return test_short_ms();
}

typedef struct plan {
    uint32_t timeout_ms;
    rank_body body;
} plan;

static void run(test_rank *self) {
    const plan *p = self->shared;
    tamis_comm *local = self->comm, *comm = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(local, &config, &comm));
    test_deadline(comm, p->timeout_ms);
    self->comm = comm;
    self->shared = local;
    p->body(self);
    self->where = "tamis_comm_destroy";
    self->comm = NULL;
    tamis_comm_destroy(comm);
}

void over_nccl_leaving(uint32_t nranks, uint32_t timeout_ms, rank_body body) {
    plan p = {timeout_ms ? timeout_ms : test_long_ms(), body};
    test_context("P=%u", nranks);
    ranks_run(nranks, 0, run, &p);
}

void over_assert_no_leak(void) {
    fake_cuda_objects alive = fake_cuda_alive();
    if (alive.allocations || alive.streams || alive.events || alive.graphs || alive.comms)
        fail_msg("[%s] left: %u allocations, %u streams, %u events, %u graphs, %u communicators",
                 test_context_text(), alive.allocations, alive.streams, alive.events, alive.graphs,
                 alive.comms);
}

void over_nccl(uint32_t nranks, uint32_t timeout_ms, rank_body body) {
    over_nccl_leaving(nranks, timeout_ms, body);
    over_assert_no_leak();
}

void over_nccl_crowds(uint32_t least, uint32_t timeout_ms, rank_body body) {
    static const uint32_t crowds[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof crowds / sizeof crowds[0]; i++)
        if (crowds[i] >= least)
            over_nccl(crowds[i], timeout_ms, body);
}

/* -- host memory ------------------------------------------------------------------------------ */

static tamis_status run_ask(tam_job *job, tam_link *link) {
    over_ask *a = (over_ask *)(void *)job;
    if (a->values)
        return link->transport->allreduce_sum(link->self, a->values, a->count, &link->call);
    return link->transport->allgather(link->self, a->send, a->bytes, a->recv, &link->call);
}

over_ask over_ask_gather(const void *send, size_t bytes, void *recv) {
    return (over_ask){.job = {.run = run_ask}, .send = send, .bytes = bytes, .recv = recv};
}

tamis_status over_gather(tamis_comm *comm, const void *send, size_t bytes, void *recv,
                         uint64_t *wire_bytes) {
    over_ask a = over_ask_gather(send, bytes, recv);
    tamis_status status = tam_comm_run(comm, &a.job);
    *wire_bytes = a.job.wire_bytes;
    return status;
}

tamis_status over_sum(tamis_comm *comm, float *values, size_t count) {
    over_ask a = {.job = {.run = run_ask}, .values = values, .count = count};
    return tam_comm_run(comm, &a.job);
}

tamis_status over_touch(tamis_comm *comm) {
    unsigned char mine[8] = {0}, all[RANKS_MOST * sizeof mine];
    uint64_t wire_bytes;
    return over_gather(comm, mine, sizeof mine, all, &wire_bytes);
}

unsigned char over_byte(uint32_t seed, size_t i) {
    return (unsigned char)((i * 2654435761u + seed * 40503u) >> 8);
}

void over_fill(uint32_t seed, size_t bytes, void *out) {
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)out)[i] = over_byte(seed, i);
}

bool over_is_filled(uint32_t seed, size_t bytes, const void *memory) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)memory)[i] != over_byte(seed, i))
            return false;
    return true;
}

/* -- streams ---------------------------------------------------------------------------------- */

void over_stream_open(test_rank *self, over_stream *out) {
    size_t all = self->nranks * OVER_SHARD;
    RANK_CUDA(self, cudaStreamCreateWithFlags(&out->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&out->memory, 3 * all));
    RANK_CUDA(self, cudaMallocHost((void **)&out->pinned, 2 * all * OVER_ROUNDS));
    RANK_CUDA(self, cudaMallocHost((void **)&out->sent, all));
    for (uint32_t r = 0; r < self->nranks; r++) /* shard r is for rank r */
        over_fill(self->id * 16 + r, OVER_SHARD, out->sent + r * OVER_SHARD);
}

void over_stream_close(over_stream *l) {
    cudaStreamDestroy(l->stream);
    cudaFree(l->memory);
    cudaFreeHost(l->pinned);
    cudaFreeHost(l->sent);
}

void over_enqueue(test_rank *self, const over_stream *l, unsigned char *out) {
    const tam_stream_transport *t = self->comm->transport->stream;
    const tam_members among = {0, 1, self->nranks, self->id};
    size_t all = self->nranks * OVER_SHARD, own = self->id * OVER_SHARD;
    unsigned char *shards = l->memory + all, *came = l->memory + 2 * all;
    RANK_CUDA(self, cudaMemcpyAsync(l->memory + own, l->sent + own, OVER_SHARD,
                                    cudaMemcpyHostToDevice, l->stream));
    RANK_CUDA(self, cudaMemcpyAsync(shards, l->sent, all, cudaMemcpyHostToDevice, l->stream));
    RANK_OK(self, t->allgather(self->comm->self, &among, OVER_SHARD, l->memory, l->stream));
    RANK_OK(self, t->alltoall(self->comm->self, &among, shards, OVER_SHARD, came, l->stream));
    RANK_CUDA(self, cudaMemcpyAsync(out, l->memory, all, cudaMemcpyDeviceToHost, l->stream));
    RANK_CUDA(self, cudaMemcpyAsync(out + all, came, all, cudaMemcpyDeviceToHost, l->stream));
}

void over_check(test_rank *self, const unsigned char *out) {
    size_t all = self->nranks * OVER_SHARD;
    for (uint32_t r = 0; r < self->nranks; r++) {
        RANK_CHECK(self, over_is_filled(r * 16 + r, OVER_SHARD, out + r * OVER_SHARD),
                   "all-gather on a stream: what came from rank %u is wrong", r);
        RANK_CHECK(self, over_is_filled(r * 16 + self->id, OVER_SHARD, out + all + r * OVER_SHARD),
                   "all-to-all on a stream: what came from rank %u is wrong", r);
    }
}
