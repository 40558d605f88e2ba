/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime: the fakes themselves. What they promise in fake.h, and that they
 * refuse what the vendor's libraries refuse.
 */
#include "tests/cuda/fake.h"
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3, COUNT = 50 };

#define CUDA(call) assert_int_equal(call, cudaSuccess)

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event(void) {
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static void *device_memory(size_t bytes) {
    void *memory;
    CUDA(cudaMalloc(&memory, bytes));
    return memory;
}

static int expect_nothing_left(void **state) {
    (void)state;
    fake_cuda_objects alive = fake_cuda_alive();
    fake_cuda_reset();
    return alive.allocations || alive.streams || alive.events || alive.graphs || alive.comms;
}

/* -- memory, streams, events ------------------------------------------------------------------ */

static void test_nothing_is_complete_before_its_time(void **state) {
    (void)state;
    cudaStream_t first = new_stream(), second = new_stream();
    cudaEvent_t event = new_event();
    unsigned char *device = device_memory(64), *pinned;
    CUDA(cudaMallocHost((void **)&pinned, 64));
    assert_int_equal(device[5], 0xAB);
    assert_int_equal(cudaEventQuery(event), cudaSuccess);

    fake_cuda_hold(1);
    CUDA(cudaMemsetAsync(device, 7, 64, first));
    CUDA(cudaEventRecord(event, first));
    CUDA(cudaStreamWaitEvent(second, event, 0));
    CUDA(cudaMemcpyAsync(pinned, device, 64, cudaMemcpyDeviceToHost, second));
    sleep_ms(5);
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(second), cudaErrorNotReady);
    assert_int_equal(fake_cuda_blocking_calls(), 2); /* the two allocations */
    fake_cuda_hold(0);
    CUDA(cudaStreamSynchronize(second));
    assert_int_equal(pinned[63], 7);
    assert_int_equal(fake_cuda_blocking_calls(), 3);
    assert_int_equal(fake_cuda_calls("cudaMemsetAsync"), 1);

    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(device));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(first));
    CUDA(cudaStreamDestroy(second));
}

static void test_memory_is_known_by_its_kind(void **state) {
    (void)state;
    struct cudaPointerAttributes about;
    int local = 0;
    CUDA(cudaSetDevice(3));
    char *device = device_memory(64);
    CUDA(cudaSetDevice(0));
    CUDA(cudaPointerGetAttributes(&about, device + 63));
    assert_int_equal(about.type, cudaMemoryTypeDevice);
    assert_int_equal(about.device, 3);
    CUDA(cudaPointerGetAttributes(&about, &local));
    assert_int_equal(about.type, cudaMemoryTypeUnregistered);

    cudaStream_t stream = new_stream();
    assert_int_equal(cudaMemsetAsync(device, 0, 65, stream), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(device, &local, 4, cudaMemcpyDeviceToDevice, stream),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(device), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    uint64_t before = fake_cuda_blocking_calls();
    CUDA(cudaMemcpyAsync(device, &local, 4, cudaMemcpyHostToDevice, stream));
    assert_int_equal(fake_cuda_blocking_calls(), before + 1); /* pageable */
    CUDA(cudaFree(device));
    assert_int_equal(cudaFree(device), cudaErrorInvalidValue);
    CUDA(cudaStreamDestroy(stream));
}

static void test_trouble_comes_when_it_is_ordered(void **state) {
    (void)state;
    void *memory = NULL;
    fake_cuda_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    CUDA(cudaMalloc(&memory, 8));
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
    CUDA(cudaFree(memory));
    fake_cuda_memory(1000);
    assert_int_equal(cudaMalloc(&memory, 1001), cudaErrorMemoryAllocation);

    cudaStream_t stream = new_stream();
    memory = device_memory(8);
    fake_cuda_fault(1, cudaErrorIllegalAddress);
    CUDA(cudaMemsetAsync(memory, 1, 8, stream));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaMemsetAsync(memory, 1, 8, stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress); /* it sticks */
    assert_int_equal(cudaFree(memory), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
    fake_cuda_reset();
    int count;
    fake_cuda_devices(0);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
}

/* -- capture ---------------------------------------------------------------------------------- */

static void add_one(void *context) {
    ++*(int *)context;
}

static void times_ten(void *context) {
    *(int *)context *= 10;
}

static void test_a_captured_fork_is_replayed(void **state) {
    (void)state;
    int number = 1;
    cudaStream_t origin = new_stream(), side = new_stream();
    cudaEvent_t fork = new_event(), back = new_event();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaLaunchHostFunc(origin, add_one, &number));
    CUDA(cudaEventRecord(fork, origin));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    CUDA(cudaLaunchHostFunc(side, times_ten, &number));
    CUDA(cudaEventRecord(back, side));
    CUDA(cudaStreamWaitEvent(origin, back, 0));
    CUDA(cudaLaunchHostFunc(origin, add_one, &number));
    CUDA(cudaStreamEndCapture(origin, &graph));
    sleep_ms(2);
    assert_int_equal(number, 1);

    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphLaunch(exec, origin));
    CUDA(cudaGraphLaunch(exec, origin));
    CUDA(cudaStreamSynchronize(origin));
    assert_int_equal(number, 221); /* ((1 + 1) * 10 + 1 + 1) * 10 + 1 */
    assert_int_equal(cudaEventQuery(fork), cudaErrorCapturedEvent);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(back));
    CUDA(cudaStreamDestroy(origin));
    CUDA(cudaStreamDestroy(side));
}

static void record_order(void *context) {
    int *counter = context;
    ++*counter;
}

/* Two branches without an edge between them come in either order. */
static void test_missing_edges_show(void **state) {
    (void)state;
    int number = 0, seen[2] = {0, 0};
    cudaStream_t origin = new_stream(), side = new_stream();
    cudaEvent_t fork = new_event(), back = new_event();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(fork, origin));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    CUDA(cudaLaunchHostFunc(side, times_ten, &number));
    CUDA(cudaEventRecord(back, side));
    CUDA(cudaLaunchHostFunc(origin, record_order, &number));
    CUDA(cudaStreamWaitEvent(origin, back, 0));
    CUDA(cudaStreamEndCapture(origin, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 40; i++) {
        number = 0;
        CUDA(cudaGraphLaunch(exec, origin));
        CUDA(cudaStreamSynchronize(origin));
        seen[number == 10]++;
    }
    assert_true(seen[0] > 0 && seen[1] > 0);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(back));
    CUDA(cudaStreamDestroy(origin));
    CUDA(cudaStreamDestroy(side));
}

static cudaError_t spoil(int how, cudaStream_t origin, cudaStream_t side, cudaEvent_t event) {
    void *memory;
    switch (how) {
    case 0:
        return cudaMalloc(&memory, 8);
    case 1:
        return cudaStreamQuery(origin);
    case 2:
        return cudaStreamSynchronize(side);
    case 3:
        return cudaStreamWaitEvent(origin, event, 0); /* recorded outside */
    default:
        return cudaSuccess;
    }
}

static void test_what_a_capture_forbids_spoils_it(void **state) {
    (void)state;
    cudaStream_t origin = new_stream(), side = new_stream();
    cudaEvent_t event = new_event();
    CUDA(cudaEventRecord(event, side));
    for (int how = 0; how < 4; how++) {
        cudaGraph_t graph;
        CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
        assert_int_not_equal(spoil(how, origin, side, event), cudaSuccess);
        assert_int_equal(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
    }
    /* A branch that does not come back. */
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(event, origin));
    CUDA(cudaStreamWaitEvent(side, event, 0));
    CUDA(cudaLaunchHostFunc(side, add_one, &graph));
    assert_int_equal(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnjoined);
    /* Who asks for less care may ask. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CUDA(cudaStreamSynchronize(side));
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CUDA(cudaStreamEndCapture(origin, &graph));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(origin));
    CUDA(cudaStreamDestroy(side));
}

/* -- NCCL ------------------------------------------------------------------------------------- */

typedef struct rank {
    int id;
    ncclUniqueId group;
    void (*body)(struct rank *self);
    ncclComm_t comm;
    cudaStream_t stream;
    int *memory; /* device: [RANKS * COUNT] */
    bool failed;
    pthread_t thread;
} rank;

/* cmocka's own belong to the main thread. */
#define EXPECT(self, condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d, line %d: %s\n", (self)->id, __LINE__, #condition);           \
            (self)->failed = true;                                                                 \
        }                                                                                          \
    } while (0)

/* What NCCL says when it is no longer busy. */
static ncclResult_t settle(const rank *self) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress)
        if (ncclCommGetAsyncError(self->comm, &state) != ncclSuccess)
            return ncclInternalError;
    return state;
}

static bool is_done(const rank *self, long within_ms) {
    cudaError_t state = cudaErrorNotReady;
    for (long ms = 0; ms < within_ms && state == cudaErrorNotReady; ms++) {
        sleep_ms(1);
        state = cudaStreamQuery(self->stream);
    }
    return state == cudaSuccess;
}

static void *run_rank(void *arg) {
    rank *self = arg;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT(self, cudaSetDevice(self->id) == cudaSuccess);
    EXPECT(self, cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking) == cudaSuccess);
    EXPECT(self, cudaMalloc((void **)&self->memory, RANKS * COUNT * sizeof(int)) == cudaSuccess);
    EXPECT(self, ncclCommInitRankConfig(&self->comm, RANKS, self->group, self->id, &config) ==
                     ncclInProgress);
    EXPECT(self, settle(self) == ncclSuccess);
    self->body(self);
    EXPECT(self, cudaStreamSynchronize(self->stream) == cudaSuccess);
    EXPECT(self, cudaFree(self->memory) == cudaSuccess);
    EXPECT(self, cudaStreamDestroy(self->stream) == cudaSuccess);
    return NULL;
}

static void run_ranks(void (*body)(rank *self)) {
    rank ranks[RANKS];
    ncclUniqueId group;
    assert_int_equal(ncclGetUniqueId(&group), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (rank){.id = r, .group = group, .body = body};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    bool failed = false;
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        failed |= ranks[r].failed;
    }
    assert_false(failed);
}

static void end(rank *self) {
    EXPECT(self, ncclCommFinalize(self->comm) == ncclInProgress);
    EXPECT(self, settle(self) == ncclSuccess);
    EXPECT(self, ncclCommDestroy(self->comm) == ncclSuccess);
}

/* Every rank sets its own block to rank + 1 and gathers in place. */
static ncclResult_t gather(rank *self, size_t count) {
    int *own = self->memory + (size_t)self->id * count;
    EXPECT(self,
           cudaMemsetAsync(own, self->id + 1, count * sizeof *own, self->stream) == cudaSuccess);
    return ncclAllGather(own, self->memory, count, ncclInt32, self->comm, self->stream);
}

static void check_gathered(rank *self) {
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++)
            EXPECT(self, self->memory[r * COUNT + i] == 0x01010101 * (r + 1));
}

static void use_all(rank *self) {
    int device;
    EXPECT(self, gather(self, COUNT) == ncclInProgress);
    EXPECT(self, gather(self, COUNT) == ncclInvalidUsage); /* not polled */
    EXPECT(self, settle(self) == ncclSuccess);
    EXPECT(self, is_done(self, 5000));
    check_gathered(self);

    int right = (self->id + 1) % RANKS, left = (self->id + RANKS - 1) % RANKS;
    EXPECT(self, ncclGroupStart() == ncclSuccess);
    EXPECT(self, ncclSend(self->memory + self->id * COUNT, COUNT, ncclInt32, right, self->comm,
                          self->stream) == ncclSuccess);
    EXPECT(self, ncclRecv(self->memory + right * COUNT, COUNT, ncclInt32, left, self->comm,
                          self->stream) == ncclSuccess);
    EXPECT(self, ncclGroupEnd() == ncclInProgress);
    EXPECT(self, settle(self) == ncclSuccess);
    EXPECT(self, is_done(self, 5000));
    EXPECT(self, self->memory[right * COUNT] == 0x01010101 * (left + 1));

    EXPECT(self, ncclAllGather(self->memory + 1, self->memory, COUNT, ncclInt32, self->comm,
                               self->stream) == ncclInvalidArgument); /* overlaps */
    EXPECT(self, ncclAllGather(&device, self->memory, 1, ncclInt32, self->comm, self->stream) ==
                     ncclInvalidArgument); /* host memory */
    end(self);
}

static void test_collectives_give_what_they_should(void **state) {
    (void)state;
    run_ranks(use_all);
}

static void replay(rank *self) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    EXPECT(self,
           cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    EXPECT(self, gather(self, COUNT) == ncclInProgress);
    EXPECT(self, settle(self) == ncclSuccess);
    EXPECT(self, cudaStreamEndCapture(self->stream, &graph) == cudaSuccess);
    EXPECT(self, cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int i = 0; i < 3; i++) {
        EXPECT(self, cudaMemsetAsync(self->memory, 0, RANKS * COUNT * sizeof(int), self->stream) ==
                         cudaSuccess);
        EXPECT(self, cudaGraphLaunch(exec, self->stream) == cudaSuccess);
        EXPECT(self, is_done(self, 5000));
        check_gathered(self);
    }
    EXPECT(self, cudaGraphExecDestroy(exec) == cudaSuccess);
    EXPECT(self, cudaGraphDestroy(graph) == cudaSuccess);
    end(self);
}

static void test_captured_collectives_are_replayed(void **state) {
    (void)state;
    run_ranks(replay);
}

/* One rank gathers less: an error of all, and busy until they abort. */
static void differ(rank *self) {
    ncclResult_t state = ncclSuccess;
    EXPECT(self, gather(self, self->id == 1 ? COUNT - 1 : COUNT) == ncclInProgress);
    EXPECT(self, settle(self) != ncclInProgress);
    for (int ms = 0; ms < 5000 && state == ncclSuccess; ms++) {
        sleep_ms(1);
        EXPECT(self, ncclCommGetAsyncError(self->comm, &state) == ncclSuccess);
    }
    EXPECT(self, state == ncclInternalError);
    EXPECT(self, !is_done(self, 30));
    EXPECT(self, ncclCommAbort(self->comm) == ncclSuccess);
    EXPECT(self, is_done(self, 5000));
}

static void test_ranks_that_differ_get_an_error_and_stay_busy(void **state) {
    (void)state;
    run_ranks(differ);
}

/* One rank never comes: the others are busy, without an error, until they abort. */
static void stay_away(rank *self) {
    ncclResult_t state;
    if (self->id != 1) {
        EXPECT(self, gather(self, COUNT) == ncclInProgress);
        EXPECT(self, settle(self) == ncclSuccess);
        EXPECT(self, !is_done(self, 30));
        EXPECT(self,
               ncclCommGetAsyncError(self->comm, &state) == ncclSuccess && state == ncclSuccess);
    }
    EXPECT(self, ncclCommAbort(self->comm) == ncclSuccess);
    EXPECT(self, is_done(self, 5000));
}

static void test_a_rank_that_stays_away_keeps_the_others_busy(void **state) {
    (void)state;
    run_ranks(stay_away);
}

static void *abort_one(void *comm) {
    return ncclCommAbort(comm) == ncclSuccess ? comm : NULL;
}

static void test_an_abort_can_hang(void **state) {
    (void)state;
    ncclUniqueId group;
    ncclComm_t comm;
    pthread_t thread;
    void *ended = NULL;
    assert_int_equal(ncclGetUniqueId(&group), ncclSuccess);
    assert_int_equal(ncclCommInitRankConfig(&comm, 1, group, 0, NULL), ncclSuccess);
    fake_nccl_hang_abort(1);
    assert_int_equal(pthread_create(&thread, NULL, abort_one, comm), 0);
    sleep_ms(50);
    assert_int_equal(fake_nccl_comms(), 1);
    fake_nccl_hang_abort(0);
    assert_int_equal(pthread_join(thread, &ended), 0);
    assert_ptr_equal(ended, comm);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, expect_nothing_left)
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_is_complete_before_its_time),
        TEST(test_memory_is_known_by_its_kind),
        TEST(test_trouble_comes_when_it_is_ordered),
        TEST(test_a_captured_fork_is_replayed),
        TEST(test_missing_edges_show),
        TEST(test_what_a_capture_forbids_spoils_it),
        TEST(test_collectives_give_what_they_should),
        TEST(test_captured_collectives_are_replayed),
        TEST(test_ranks_that_differ_get_an_error_and_stay_busy),
        TEST(test_a_rank_that_stays_away_keeps_the_others_busy),
        TEST(test_an_abort_can_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
