/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime: the transport over NCCL, without kernels of ours. The same bytes and
 * sums as the local transport, streams with delays and captures, ranks that fail, stay silent or
 * disagree, aborts that hang; nothing leaks, no operation allocates or blocks.
 */
#include "collectives/transport/comm.h"
#include "tests/cuda/fake.h"
#include "tests/support/ranks.h"
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/nccl.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SHORT_MS = 1000, PIECE = 256 << 10, GRACE_MS = 1000 };

#define RANK_CUDA(self, call)                                                                      \
    RANK_CHECK(self, (call) == cudaSuccess, "%s: %s", #call, cudaGetErrorName(cudaGetLastError()))

static const uint32_t crowds[] = {1, 2, 3, 4, 8};
enum { CROWDS = sizeof crowds / sizeof crowds[0] };

static uint32_t short_ms(void) {
    return test_slowness() > 1 ? 3 * SHORT_MS : SHORT_MS;
}

/* -- ranks over NCCL -------------------------------------------------------------------------- */

typedef struct plan {
    uint32_t timeout_ms;
    void (*body)(test_rank *self, tamis_comm *local);
} plan;

/* The body sees NCCL's communicator as its own, and the local one besides. */
static void run_over_nccl(test_rank *self) {
    const plan *p = self->shared;
    tamis_comm *local = self->comm, *comm = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = p->timeout_ms;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(local, &config, &comm));
    self->comm = comm;
    p->body(self, local);
    self->where = "tamis_comm_destroy";
    self->comm = NULL;
    tamis_comm_destroy(comm);
}

static void assert_no_leak(void) {
    fake_cuda_objects alive = fake_cuda_alive();
    if (alive.allocations || alive.streams || alive.events || alive.graphs || alive.comms)
        fail_msg("[%s] left: %u allocations, %u streams, %u events, %u graphs, %u communicators",
                 test_context_text(), alive.allocations, alive.streams, alive.events, alive.graphs,
                 alive.comms);
}

static void over_nccl(uint32_t nranks, uint32_t timeout_ms,
                      void (*body)(test_rank *self, tamis_comm *local)) {
    plan p = {timeout_ms ? timeout_ms : RANKS_TIMEOUT_MS, body};
    test_context("P=%u", nranks);
    ranks_run(nranks, 0, run_over_nccl, &p);
    assert_no_leak();
}

/* -- what ranks ask for ----------------------------------------------------------------------- */

/* An operation on host memory, on the communicator's thread, as a reducer would ask for it. */
typedef struct ask {
    tam_job job; /* first */
    const void *send;
    size_t bytes;
    void *recv;
    float *values; /* else: a sum */
    size_t count;
} ask;

static tamis_status run_ask(tam_job *job, tam_link *link) {
    ask *a = (ask *)(void *)job;
    if (a->values)
        return link->transport->allreduce_sum(link->self, a->values, a->count, &link->call);
    return link->transport->allgather(link->self, a->send, a->bytes, a->recv, &link->call);
}

static tamis_status gather(tamis_comm *comm, const void *send, size_t bytes, void *recv,
                           uint64_t *wire_bytes) {
    ask a = {.job = {.run = run_ask}, .send = send, .bytes = bytes, .recv = recv};
    tamis_status status = tam_comm_run(comm, &a.job);
    *wire_bytes = a.job.wire_bytes;
    return status;
}

static tamis_status add_up(tamis_comm *comm, float *values, size_t count) {
    ask a = {.job = {.run = run_ask}, .values = values, .count = count};
    return tam_comm_run(comm, &a.job);
}

/* The same on every rank for the same `seed`. */
static unsigned char byte_of(uint32_t seed, size_t i) {
    return (unsigned char)((i * 2654435761u + seed * 40503u) >> 8);
}

static void fill(uint32_t seed, size_t bytes, void *out) {
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)out)[i] = byte_of(seed, i);
}

static bool is_filled(uint32_t seed, size_t bytes, const void *memory) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)memory)[i] != byte_of(seed, i))
            return false;
    return true;
}

/* -- the same as the local transport ---------------------------------------------------------- */

static void check_gather(test_rank *self, tamis_comm *local, size_t bytes) {
    unsigned char *send = malloc(bytes + 1), *recv = malloc(bytes * self->nranks + 1);
    uint64_t wire = 0, wire_local = 0;
    fill(self->id, bytes, send);
    memset(recv, 0x5a, bytes * self->nranks + 1);
    tamis_status status = gather(self->comm, send, bytes, recv, &wire);
    bool right = recv[bytes * self->nranks] == 0x5a;
    for (uint32_t r = 0; r < self->nranks; r++)
        right = right && is_filled(r, bytes, recv + r * bytes);
    tamis_status also = gather(local, send, bytes, recv, &wire_local);
    free(send);
    free(recv);
    RANK_OK(self, status);
    RANK_OK(self, also);
    RANK_CHECK(self, right, "all-gather of %zu bytes is wrong", bytes);
    RANK_CHECK(self, wire == wire_local, "%zu bytes: %llu on the wire, not %llu", bytes,
               (unsigned long long)wire, (unsigned long long)wire_local);
}

static void check_sum(test_rank *self, tamis_comm *local, size_t count) {
    float *ours = malloc((count + 1) * sizeof *ours), *theirs = malloc((count + 1) * sizeof *ours);
    for (size_t i = 0; i < count; i++) /* so that every order of addition has bits of its own */
        ours[i] = theirs[i] = (float)byte_of(self->id, i) / 3.0f * (i % 7 == 0 ? 1e4f : 1.0f);
    ours[count] = theirs[count] = -1.0f;
    tamis_status status = add_up(self->comm, ours, count), also = add_up(local, theirs, count);
    bool equal = memcmp(ours, theirs, (count + 1) * sizeof *ours) == 0;
    free(ours);
    free(theirs);
    RANK_OK(self, status);
    RANK_OK(self, also);
    RANK_CHECK(self, equal, "the sum of %zu values differs from the local one", count);
}

static void compare_with_local(test_rank *self, tamis_comm *local) {
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
    for (size_t i = 0; i < CROWDS; i++)
        over_nccl(crowds[i], 0, compare_with_local);
    fake_cuda_reset();
}

/* -- streams ---------------------------------------------------------------------------------- */

enum { SHARE = 600, ROUNDS = 12 };

typedef struct lane {
    cudaStream_t stream;
    unsigned char *memory; /* device: [3 * nranks * SHARE] */
    unsigned char *pinned; /* [ROUNDS][2 * nranks * SHARE] what came */
    unsigned char *given;  /* pinned: [nranks * SHARE] */
} lane;

static void open_lane(test_rank *self, lane *out) {
    size_t all = self->nranks * SHARE;
    RANK_CUDA(self, cudaStreamCreateWithFlags(&out->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&out->memory, 3 * all));
    RANK_CUDA(self, cudaMallocHost((void **)&out->pinned, 2 * all * ROUNDS));
    RANK_CUDA(self, cudaMallocHost((void **)&out->given, all));
    for (uint32_t r = 0; r < self->nranks; r++) /* share r is for rank r */
        fill(self->id * 16 + r, SHARE, out->given + r * SHARE);
}

static void close_lane(lane *l) {
    cudaStreamDestroy(l->stream);
    cudaFree(l->memory);
    cudaFreeHost(l->pinned);
    cudaFreeHost(l->given);
}

/* Gather in place, then all-to-all, and all of it to `out`. Nothing is waited for. */
static void enqueue_round(test_rank *self, const lane *l, unsigned char *out) {
    const tam_stream_transport *t = self->comm->transport->stream;
    size_t all = self->nranks * SHARE, own = self->id * SHARE;
    unsigned char *shares = l->memory + all, *came = l->memory + 2 * all;
    RANK_CUDA(self, cudaMemcpyAsync(l->memory + own, l->given + own, SHARE, cudaMemcpyHostToDevice,
                                    l->stream));
    RANK_CUDA(self, cudaMemcpyAsync(shares, l->given, all, cudaMemcpyHostToDevice, l->stream));
    RANK_OK(self, t->allgather(self->comm->self, l->memory + own, SHARE, l->memory, l->stream));
    RANK_OK(self, t->alltoall(self->comm->self, shares, SHARE, came, l->stream));
    RANK_CUDA(self, cudaMemcpyAsync(out, l->memory, all, cudaMemcpyDeviceToHost, l->stream));
    RANK_CUDA(self, cudaMemcpyAsync(out + all, came, all, cudaMemcpyDeviceToHost, l->stream));
}

static void check_round(test_rank *self, const unsigned char *out) {
    size_t all = self->nranks * SHARE;
    for (uint32_t r = 0; r < self->nranks; r++) {
        RANK_CHECK(self, is_filled(r * 16 + r, SHARE, out + r * SHARE),
                   "all-gather on a stream: what came from rank %u is wrong", r);
        RANK_CHECK(self, is_filled(r * 16 + self->id, SHARE, out + all + r * SHARE),
                   "all-to-all on a stream: what came from rank %u is wrong", r);
    }
}

static void run_streams(test_rank *self, tamis_comm *local) {
    lane l = {0};
    size_t all = self->nranks * SHARE;
    (void)local;
    open_lane(self, &l);
    for (int i = 0; i < ROUNDS; i++)
        enqueue_round(self, &l, l.pinned + (size_t)i * 2 * all);
    RANK_OK(self, self->comm->transport->stream->poll(self->comm->self));
    RANK_CUDA(self, cudaStreamSynchronize(l.stream));
    for (int i = 0; i < ROUNDS; i++)
        check_round(self, l.pinned + (size_t)i * 2 * all);
    close_lane(&l);
}

static void test_streams(void **state) {
    (void)state;
    fake_cuda_delay_us(2000);
    for (size_t i = 0; i < CROWDS; i++)
        over_nccl(crowds[i], 0, run_streams);
    fake_cuda_reset();
}

static void replay(test_rank *self, tamis_comm *local) {
    lane l = {0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    (void)local;
    open_lane(self, &l);
    RANK_CUDA(self, cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
    enqueue_round(self, &l, l.pinned);
    RANK_CUDA(self, cudaStreamEndCapture(l.stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < ROUNDS; i++) {
        memset(l.pinned, 0x5a, 2 * self->nranks * SHARE);
        RANK_CUDA(self, cudaGraphLaunch(exec, l.stream));
        RANK_CUDA(self, cudaStreamSynchronize(l.stream));
        check_round(self, l.pinned);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    close_lane(&l);
}

static void test_capture(void **state) {
    (void)state;
    for (size_t i = 0; i < CROWDS; i++)
        over_nccl(crowds[i], 0, replay);
}

/* The caller captures in the strictest mode while the library's thread is at work. */
static void capture_beside(test_rank *self, tamis_comm *local) {
    unsigned char mine[64], all[8 * 64];
    cudaGraph_t graph;
    cudaStream_t stream;
    ask a = {.job = {.run = run_ask}, .send = mine, .bytes = sizeof mine, .recv = all};
    (void)local;
    fill(self->id, sizeof mine, mine);
    RANK_CUDA(self, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    tam_comm_submit(self->comm, &a.job);
    RANK_OK(self, tam_comm_finish(self->comm, &a.job));
    RANK_CUDA(self, cudaStreamEndCapture(stream, &graph));
    for (uint32_t r = 0; r < self->nranks; r++)
        RANK_CHECK(self, is_filled(r, sizeof mine, all + r * sizeof mine), "rank %u is wrong", r);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

static void test_beside_a_capture(void **state) {
    (void)state;
    over_nccl(3, 0, capture_beside);
}

/* -- costs ------------------------------------------------------------------------------------ */

static void count_calls(test_rank *self, tamis_comm *local) {
    lane l = {0};
    unsigned char mine[200], all[4 * 200];
    float values[300] = {0};
    uint64_t wire;
    (void)local;
    open_lane(self, &l);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id == 0)
        fake_cuda_reset();
    uint64_t made = tam_alloc_made();
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    for (int i = 0; i < ROUNDS; i++) {
        fill(self->id, sizeof mine, mine);
        RANK_OK(self, gather(self->comm, mine, sizeof mine, all, &wire));
        RANK_OK(self, add_up(self->comm, values, 300));
    }
    for (int i = 0; i < ROUNDS; i++)
        enqueue_round(self, &l, l.pinned);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    RANK_CHECK(self, fake_cuda_calls("ncclAllGather") >= 3 * ROUNDS, "the fake counts nothing");
    RANK_CHECK(self, fake_cuda_blocking_calls() == 0, "%llu calls that may block",
               (unsigned long long)fake_cuda_blocking_calls());
    RANK_CHECK(self, fake_cuda_allocations() == 0, "%llu allocations of CUDA",
               (unsigned long long)fake_cuda_allocations());
    RANK_CHECK(self, tam_alloc_made() == made, "allocations on the host");
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    RANK_CUDA(self, cudaStreamSynchronize(l.stream));
    close_lane(&l);
}

static void test_no_allocation_no_wait(void **state) {
    (void)state;
    over_nccl(4, 0, count_calls);
}

/* -- trouble ---------------------------------------------------------------------------------- */

/* Rank 0 stays away. */
static void wait_in_vain(test_rank *self, tamis_comm *local) {
    unsigned char mine[64] = {0}, all[8 * 64];
    uint64_t wire, begin_ms = now_ms(), limit_ms = short_ms() + GRACE_MS * test_slowness();
    (void)local;
    if (self->id == 0)
        return;
    memset(all, 0x5a, sizeof all);
    RANK_STATUS(self, TAMIS_E_TIMEOUT, gather(self->comm, mine, sizeof mine, all, &wire));
    RANK_CHECK(self, now_ms() - begin_ms >= short_ms(), "gave up before its deadline");
    RANK_CHECK(self, now_ms() - begin_ms < limit_ms, "gave up after %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_CHECK(self, all[0] == 0x5a && all[sizeof all - 1] == 0x5a, "wrote in spite of it");
    RANK_CHECK(self, has_word(tamis_last_error(), "deadline"), "it says: %s", tamis_last_error());
    RANK_STATUS(self, TAMIS_E_TIMEOUT, gather(self->comm, mine, sizeof mine, all, &wire));
    /* and by itself it has ended what would keep the device busy */
    RANK_STATUS(self, TAMIS_E_ABORTED, self->comm->transport->stream->poll(self->comm->self));
}

static void test_silent_rank(void **state) {
    (void)state;
    over_nccl(2, short_ms(), wait_in_vain);
    over_nccl(8, short_ms(), wait_in_vain);
}

/* Kernels of a rank that stays away keep the stream busy until the communicator is given up. */
static void abort_stream(test_rank *self, tamis_comm *local) {
    lane l = {0};
    (void)local;
    open_lane(self, &l);
    if (self->id != 0) {
        const tam_transport *t = self->comm->transport;
        enqueue_round(self, &l, l.pinned);
        sleep_ms(50);
        RANK_OK(self, t->stream->poll(self->comm->self));
        RANK_CHECK(self, cudaStreamQuery(l.stream) == cudaErrorNotReady, "it ran without rank 0");
        RANK_OK(self, tamis_comm_abort(self->comm));
        uint64_t begin_ms = now_ms();
        while (cudaStreamQuery(l.stream) == cudaErrorNotReady)
            RANK_CHECK(self, now_ms() - begin_ms < 5000, "the stream does not run dry");
        RANK_STATUS(self, TAMIS_E_ABORTED, t->stream->poll(self->comm->self));
    }
    close_lane(&l);
}

static void test_abort_frees_streams(void **state) {
    (void)state;
    for (size_t i = 1; i < CROWDS; i++)
        over_nccl(crowds[i], 0, abort_stream);
}

static void *abort_soon(void *comm) {
    sleep_ms(100);
    tamis_comm_abort(comm);
    return NULL;
}

static void abort_from_outside(test_rank *self, tamis_comm *local) {
    unsigned char mine[8] = {0}, all[8 * 8];
    uint64_t wire, begin_ms = now_ms();
    pthread_t other;
    (void)local;
    if (self->id == 0)
        return;
    RANK_CHECK(self, pthread_create(&other, NULL, abort_soon, self->comm) == 0, "no thread");
    tamis_status status = gather(self->comm, mine, sizeof mine, all, &wire);
    pthread_join(other, NULL);
    RANK_STATUS(self, TAMIS_E_ABORTED, status);
    RANK_CHECK(self, now_ms() - begin_ms < 5000, "an abort took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
}

static void test_abort_wakes(void **state) {
    (void)state;
    over_nccl(3, 0, abort_from_outside);
}

/* One rank gives less than the others. */
static void disagree(test_rank *self, tamis_comm *local) {
    unsigned char mine[128] = {0}, all[8 * 128];
    uint64_t wire;
    (void)local;
    memset(all, 0x5a, sizeof all);
    tamis_status status = gather(self->comm, mine, self->id == 1 ? 64 : 128, all, &wire);
    RANK_STATUS(self, TAMIS_E_TRANSPORT, status);
    for (size_t i = 0; i < sizeof all; i++)
        RANK_CHECK(self, all[i] == 0x5a, "byte %zu was written in spite of it", i);
    RANK_CHECK(self, has_word(tamis_last_error(), "internal error"), "it says: %s",
               tamis_last_error());
}

static void test_sizes_that_differ(void **state) {
    (void)state;
    for (size_t i = 1; i < CROWDS; i++)
        over_nccl(crowds[i], 10 * short_ms(), disagree);
}

/* A call that the vendor refuses on one rank; the others meet their deadline. */
static void be_refused(test_rank *self, tamis_comm *local) {
    unsigned char mine[8] = {0}, all[8 * 8];
    uint64_t wire;
    (void)local;
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id == 1) {
        fake_cuda_fail("ncclAllGather", 1, ncclSystemError);
        RANK_STATUS(self, TAMIS_E_TRANSPORT, gather(self->comm, mine, sizeof mine, all, &wire));
        RANK_CHECK(self, has_word(tamis_last_error(), "system error"), "it says: %s",
                   tamis_last_error());
        RANK_CHECK(self, has_word(tamis_last_error(), "rank 1"), "it says: %s", tamis_last_error());
    }
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id != 1)
        RANK_STATUS(self, TAMIS_E_TIMEOUT, gather(self->comm, mine, sizeof mine, all, &wire));
}

static void test_refused_call(void **state) {
    (void)state;
    over_nccl(3, short_ms(), be_refused);
    fake_cuda_reset();
}

static void break_device(test_rank *self, tamis_comm *local) {
    unsigned char mine[8] = {0}, all[8 * 8];
    uint64_t wire;
    (void)local;
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (self->id == 1)
        fake_cuda_break(1, cudaErrorIllegalAddress);
    tamis_status expected = self->id == 1 ? TAMIS_E_DEVICE : TAMIS_E_TIMEOUT;
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    RANK_STATUS(self, expected, gather(self->comm, mine, sizeof mine, all, &wire));
}

static void test_broken_device(void **state) {
    plan p = {short_ms(), break_device};
    (void)state;
    test_context("a device that breaks");
    ranks_run(3, 0, run_over_nccl, &p); /* what lies on a broken device stays there */
    fake_cuda_reset();
}

/* -- creation --------------------------------------------------------------------------------- */

typedef struct creation {
    uint32_t timeout_ms;
    const char *function; /* fails on the rank that comes to its nth call */
    unsigned nth;
    int error;
    bool same_device, no_out;
    tamis_status status[RANKS_MOST];
    char sentence[RANKS_MOST][256];
} creation;

static void create_once(test_rank *self) {
    creation *c = self->shared;
    tamis_comm *comm = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = c->timeout_ms;
    cudaSetDevice(c->same_device ? 0 : (int)self->id);
    if (!rank_barrier(self))
        return;
    if (self->id == 0 && c->function)
        fake_cuda_fail(c->function, c->nth, c->error);
    if (!rank_barrier(self))
        return;
    self->where = "tamis_comm_create_nccl";
    tamis_status status =
        tamis_comm_create_nccl(self->comm, &config, c->no_out && self->id == 1 ? NULL : &comm);
    c->status[self->id] = status;
    memcpy(c->sentence[self->id], tamis_last_error(), 255);
    if (status == TAMIS_OK)
        tamis_comm_destroy(comm);
    else
        RANK_CHECK(self, comm == NULL, "an output was written in spite of the error");
    RANK_CHECK(self, tamis_comm_status(self->comm) == TAMIS_OK, "the bootstrap is lost");
}

/* Every rank must say the same, and say why. */
static void fail_to_create(uint32_t nranks, creation *c, tamis_status expected) {
    c->timeout_ms = short_ms();
    test_context("P=%u, call %u of %s fails", nranks, c->nth,
                 c->function ? c->function : "nothing");
    ranks_run(nranks, 0, create_once, c);
    for (uint32_t r = 0; r < nranks; r++) {
        if (c->status[r] != c->status[0] || c->status[r] == TAMIS_OK)
            fail_msg("[%s] rank %u: %s, rank 0: %s", test_context_text(), r,
                     tamis_status_name(c->status[r]), tamis_status_name(c->status[0]));
        if (expected != TAMIS_OK && c->status[r] != expected)
            fail_msg("[%s] rank %u: %s: %s", test_context_text(), r,
                     tamis_status_name(c->status[r]), c->sentence[r]);
        if (!strstr(c->sentence[r], "rank"))
            fail_msg("[%s] rank %u says: %s", test_context_text(), r, c->sentence[r]);
    }
    fake_cuda_reset();
    assert_no_leak();
}

static void test_creation_fails_on_one_rank(void **state) {
    static const struct {
        const char *function;
        int error;
        tamis_status status; /* OK: any */
    } faults[] = {
        {"cudaMalloc", cudaErrorMemoryAllocation, TAMIS_E_NOMEM},
        {"cudaMallocHost", cudaErrorMemoryAllocation, TAMIS_E_NOMEM},
        {"cudaStreamCreateWithFlags", cudaErrorUnknown, TAMIS_E_DEVICE},
        {"ncclCommInitRankConfig", ncclSystemError, TAMIS_E_TRANSPORT},
        {"ncclAllGather", ncclInternalError, TAMIS_E_TRANSPORT},
        {"ncclGroupEnd", ncclInternalError, TAMIS_E_TRANSPORT},
        {"ncclRecv", ncclInvalidArgument, TAMIS_E_TRANSPORT},
        {"ncclCommGetAsyncError", ncclInternalError, TAMIS_E_TRANSPORT},
        {"cudaMemcpyAsync", cudaErrorInvalidValue, TAMIS_E_DEVICE},
        {"cudaStreamQuery", cudaErrorUnknown, TAMIS_OK},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        creation c = {
            .function = faults[i].function, .nth = 1 + (unsigned)i % 2, .error = faults[i].error};
        fail_to_create(3, &c, faults[i].status);
    }
    creation id = {.function = "ncclGetUniqueId", .nth = 1, .error = ncclSystemError};
    fail_to_create(8, &id, TAMIS_E_TRANSPORT);
}

static void test_creation_refused(void **state) {
    creation c = {.no_out = true};
    (void)state;
    fail_to_create(4, &c, TAMIS_E_ARGUMENT);
    c = (creation){.same_device = true};
    fail_to_create(2, &c, TAMIS_E_TRANSPORT);
    assert_non_null(strstr(c.sentence[0], "duplicate GPU"));
    fake_cuda_devices(0);
    c = (creation){0};
    fail_to_create(3, &c, TAMIS_E_UNSUPPORTED);
    fake_nccl_version(21704);
    c = (creation){0};
    fail_to_create(3, &c, TAMIS_E_UNSUPPORTED);
    assert_non_null(strstr(c.sentence[0], "21704"));
    assert_int_equal(tamis_comm_create_nccl(NULL, NULL, NULL), TAMIS_E_ARGUMENT);
}

/* -- last: an abort that hangs leaves a thread behind ----------------------------------------- */

static void destroy_though_abort_hangs(test_rank *self) {
    tamis_comm *comm = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    unsigned char mine[8] = {0}, all[8 * 8];
    uint64_t wire;
    config.timeout_ms = short_ms();
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, &config, &comm));
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    fake_nccl_hang_abort(1);
    if (self->id > 0)
        RANK_STATUS(self, TAMIS_E_TIMEOUT, gather(comm, mine, sizeof mine, all, &wire));
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    uint64_t begin_ms = now_ms();
    tamis_comm_destroy(comm);
    RANK_CHECK(self, now_ms() - begin_ms < 9000, "tamis_comm_destroy took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
}

static void test_abort_that_hangs(void **state) {
    (void)state;
    test_context("an abort that hangs");
    ranks_run(2, 0, destroy_though_abort_hangs, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_local),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_beside_a_capture),
        cmocka_unit_test(test_no_allocation_no_wait),
        cmocka_unit_test(test_silent_rank),
        cmocka_unit_test(test_abort_frees_streams),
        cmocka_unit_test(test_abort_wakes),
        cmocka_unit_test(test_sizes_that_differ),
        cmocka_unit_test(test_refused_call),
        cmocka_unit_test(test_creation_fails_on_one_rank),
        cmocka_unit_test(test_creation_refused),
        cmocka_unit_test(test_broken_device),
        cmocka_unit_test(test_abort_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
