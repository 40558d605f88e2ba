/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime: the transport over NCCL in trouble. Ranks that fail, stay silent or
 * disagree, aborts that hang, communicators that cannot be made; nothing leaks.
 *
 * test: waits release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/over_nccl.h"
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/nccl.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* -- trouble ---------------------------------------------------------------------------------- */

/* Rank 0 stays away. */
static void wait_and_time_out(test_rank *self) {
    unsigned char mine[64] = {0}, all[8 * 64];
    uint64_t wire, begin_ms = now_ms(), limit_ms = over_short_ms() + test_grace_ms();
    if (self->id == 0)
        return;
    memset(all, 0x5a, sizeof all);
    RANK_STATUS(self, TAMIS_E_TIMEOUT, over_gather(self->comm, mine, sizeof mine, all, &wire));
    RANK_CHECK(self, now_ms() - begin_ms >= over_short_ms(), "gave up before its deadline");
    RANK_CHECK(self, now_ms() - begin_ms < limit_ms, "gave up after %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_CHECK(self, all[0] == 0x5a && all[sizeof all - 1] == 0x5a, "wrote in spite of it");
    RANK_SAYS(self, "waited");
    RANK_STATUS(self, TAMIS_E_TIMEOUT, over_gather(self->comm, mine, sizeof mine, all, &wire));
    /* and by itself it has ended what would keep the device busy */
    RANK_STATUS(self, TAMIS_E_ABORTED, self->comm->transport->stream->poll(self->comm->self));
}

static void test_silent_rank(void **state) {
    (void)state;
    over_nccl(2, over_short_ms(), wait_and_time_out);
    over_nccl(8, over_short_ms(), wait_and_time_out);
}

/* Kernels of a rank that stays away keep the stream busy until the communicator is given up. */
static void abort_stream(test_rank *self) {
    over_stream l = {0};
    over_stream_open(self, &l);
    if (self->id != 0) {
        const tam_transport *t = self->comm->transport;
        over_enqueue(self, &l, l.pinned);
        sleep_ms(50);
        RANK_OK(self, t->stream->poll(self->comm->self));
        RANK_CHECK(self, cudaStreamQuery(l.stream) == cudaErrorNotReady, "it ran without rank 0");
        RANK_OK(self, tamis_comm_abort(self->comm));
        uint64_t begin_ms = now_ms();
        while (cudaStreamQuery(l.stream) == cudaErrorNotReady)
            RANK_CHECK(self, now_ms() - begin_ms < test_grace_ms(), "the stream does not run dry");
        RANK_STATUS(self, TAMIS_E_ABORTED, t->stream->poll(self->comm->self));
    }
    over_stream_close(&l);
}

static void test_abort_frees_streams(void **state) {
    (void)state;
    over_nccl_crowds(2, 0, abort_stream);
}

static void *abort_soon(void *comm) {
    sleep_ms(100);
    tamis_comm_abort(comm);
    return NULL;
}

static void abort_from_outside(test_rank *self) {
    uint64_t begin_ms = now_ms();
    pthread_t other;
    if (self->id == 0)
        return;
    RANK_CHECK(self, pthread_create(&other, NULL, abort_soon, self->comm) == 0, "no thread");
    tamis_status status = over_touch(self->comm);
    pthread_join(other, NULL);
    RANK_STATUS(self, TAMIS_E_ABORTED, status);
    RANK_CHECK(self, now_ms() - begin_ms < test_grace_ms(), "an abort took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
}

static void test_abort_wakes(void **state) {
    (void)state;
    over_nccl(3, 0, abort_from_outside);
}

/* One rank gives less than the others. */
static void disagree(test_rank *self) {
    unsigned char mine[128] = {0}, all[8 * 128];
    uint64_t wire;
    memset(all, 0x5a, sizeof all);
    tamis_status status = over_gather(self->comm, mine, self->id == 1 ? 64 : 128, all, &wire);
    RANK_STATUS(self, TAMIS_E_TRANSPORT, status);
    for (size_t i = 0; i < sizeof all; i++)
        RANK_CHECK(self, all[i] == 0x5a, "byte %zu was written in spite of it", i);
    RANK_SAYS(self, "internal error");
}

static void test_sizes_that_differ(void **state) {
    (void)state;
    over_nccl_crowds(2, 10 * over_short_ms(), disagree);
}

/* -- a bit that is flipped on the way --------------------------------------------------------- */

enum { FLIPPED = 300, FLIPPER = 1, HIT = 0 }; /* floats; from this rank; only to that one */

typedef struct flip {
    bool sums, all; /* else a gather; to all ranks, else to HIT */
    size_t bit;
} flip;

static flip flipped;

/* The operation cannot begin without rank 0, which arms the fault. */
static void get_damaged(test_rank *self) {
    float values[FLIPPED], came[8 * FLIPPED];
    uint64_t wire;
    for (size_t i = 0; i < FLIPPED; i++)
        values[i] = (float)(i + self->id);
    if (self->id == 0)
        fake_nccl_flip(FLIPPER, flipped.all ? -1 : HIT, flipped.bit);
    tamis_status status = flipped.sums
                              ? over_sum(self->comm, values, FLIPPED)
                              : over_gather(self->comm, values, sizeof values, came, &wire);
    if (!flipped.all && self->id != HIT) {
        RANK_OK(self, status);
        return;
    }
    RANK_STATUS(self, TAMIS_E_PROTOCOL, status);
    RANK_SAYS(self, "from rank 1 was damaged on the way");
    RANK_STATUS(self, TAMIS_E_PROTOCOL, over_touch(self->comm)); /* it is lost */
}

/* A bit of the first, a middle and the last value, and of the hash. */
static void test_flipped_bit(void **state) {
    const size_t after = FLIPPED * sizeof(float) * 8;
    const size_t bits[] = {0, 31, 150 * 32 + 3, after - 1, after, after + 29, after + 63};
    (void)state;
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
        for (int how = 0; how < 4; how++) {
            flipped = (flip){.sums = how & 1, .all = how & 2, .bit = bits[i]};
            over_nccl(i % 2 ? 2 : 3, 0, get_damaged);
        }
}

/* A call that the vendor refuses on one rank; the others reach their deadline. */
static void be_refused(test_rank *self) {
    RANK_BARRIER(self);
    if (self->id == 1) {
        fake_cuda_fail("ncclAllGather", 1, ncclSystemError);
        RANK_STATUS(self, TAMIS_E_TRANSPORT, over_touch(self->comm));
        RANK_SAYS(self, "system error");
        RANK_SAYS(self, "rank 1");
    }
    RANK_BARRIER(self);
    if (self->id != 1)
        RANK_STATUS(self, TAMIS_E_TIMEOUT, over_touch(self->comm));
}

static void test_refused_call(void **state) {
    (void)state;
    over_nccl(3, over_short_ms(), be_refused);
    fake_cuda_reset();
}

static void break_device(test_rank *self) {
    RANK_BARRIER(self);
    if (self->id == 1)
        fake_cuda_break(1, cudaErrorIllegalAddress);
    tamis_status expected = self->id == 1 ? TAMIS_E_DEVICE : TAMIS_E_TIMEOUT;
    RANK_BARRIER(self);
    RANK_STATUS(self, expected, over_touch(self->comm));
}

static void test_broken_device(void **state) {
    (void)state;
    over_nccl_leaving(3, over_short_ms(), break_device); /* what lies there stays there */
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
    c->timeout_ms = over_short_ms();
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
    over_assert_no_leak();
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
    config.timeout_ms = over_short_ms();
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, &config, &comm));
    RANK_BARRIER(self);
    fake_nccl_hang_abort(1);
    if (self->id > 0)
        RANK_STATUS(self, TAMIS_E_TIMEOUT, over_touch(comm));
    RANK_BARRIER(self);
    uint64_t begin_ms = now_ms();
    tamis_comm_destroy(comm);
    RANK_CHECK(self, now_ms() - begin_ms < 5000 + test_grace_ms(),
               "tamis_comm_destroy took %llu ms", (unsigned long long)(now_ms() - begin_ms));
}

static void test_abort_that_hangs(void **state) {
    (void)state;
    test_context("an abort that hangs");
    ranks_run(2, 0, destroy_though_abort_hangs, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_rank),
        cmocka_unit_test(test_abort_frees_streams),
        cmocka_unit_test(test_abort_wakes),
        cmocka_unit_test(test_sizes_that_differ),
        cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_refused_call),
        cmocka_unit_test(test_creation_fails_on_one_rank),
        cmocka_unit_test(test_creation_refused),
        cmocka_unit_test(test_broken_device),
        cmocka_unit_test(test_abort_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
