/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime: communicators over NCCL of the ranks that are left. Who is among
 * them, what is refused and whether that harms, ranks that never come, calls of NCCL that fail or
 * hang. The ranks are threads; one that is dead makes no more calls until the others have ended.
 *
 * test: waits tsan release
 */
#include "lib/base/base.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/over_nccl.h"
#include <nccl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/nccl.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { MOST = 8, LIVES = 2 };

typedef struct shrink_case {
    uint32_t nranks;
    uint32_t dead[LIVES]; /* a bit for each rank, numbered as at first, that goes then */
    bool healthy;         /* nothing has failed before */
    bool capture;         /* steps are captured */
    const char *function; /* fails on one of the ranks */
    int error;
    tamis_status expected[MOST]; /* of the first shrink */
    atomic_uint done;            /* ranks that have ended */
} shrink_case;

static bool in(uint32_t mask, uint32_t rank) {
    return mask >> rank & 1;
}

/* The ranks of a communicator of those in `before`, without those in `dead`. */
static tamis_status shrink(tamis_comm *comm, uint32_t before, uint32_t dead, tamis_comm **out) {
    uint32_t list[MOST], count = 0, place = 0;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    for (uint32_t r = 0; r < MOST; r++) {
        if (!in(before, r))
            continue;
        if (!in(dead, r))
            list[count++] = place;
        place++;
    }
    how.ranks = list;
    how.nranks = count;
    return tamis_comm_shrink(comm, &how, out);
}

static void connect(test_rank *self, tamis_comm **out) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, &config, out));
}

static uint32_t dead_of(const shrink_case *c) {
    return c->dead[0] | c->dead[1];
}

/* The dead stay until those that are left have ended. */
static void end(test_rank *self, tamis_comm *comm) {
    shrink_case *c = self->shared;
    uint32_t left = c->nranks - (uint32_t)__builtin_popcount(dead_of(c));
    if (!in(dead_of(c), self->id))
        atomic_fetch_add(&c->done, 1);
    while (in(dead_of(c), self->id) && atomic_load(&c->done) < left)
        sleep_ms(1);
    tamis_comm_destroy(comm);
}

static void run_case(shrink_case *c, rank_body body) {
    uint64_t live = tam_alloc_live();
    test_context("P=%u, dead %x, then %x, healthy %d, %s fails", c->nranks, c->dead[0], c->dead[1],
                 c->healthy, c->function ? c->function : "nothing");
    ranks_run(c->nranks, 0, body, c);
    over_assert_no_leak();
    assert_true(test_freed(live));
    fake_cuda_reset();
}

/* -- who goes on ------------------------------------------------------------------------------ */

/* The communicator has these ranks in their order, and works. */
static void check_smaller(test_rank *self, tamis_comm *comm, uint32_t before, uint32_t dead) {
    uint32_t place = 0, count = 0;
    for (uint32_t r = 0; r < MOST; r++) {
        if (!in(before, r))
            continue;
        if (!in(dead, r)) {
            RANK_CHECK(self, tamis_comm_rank_before(comm, count) == place, "rank %u was %u", count,
                       tamis_comm_rank_before(comm, count));
            RANK_CHECK(self, r != self->id || tamis_comm_rank(comm) == count, "it is rank %u",
                       tamis_comm_rank(comm));
            count++;
        }
        place++;
    }
    RANK_CHECK(self, tamis_comm_nranks(comm) == count, "%u ranks", tamis_comm_nranks(comm));
    RANK_CHECK(self, strcmp(tamis_comm_transport(comm), "nccl") == 0, "another transport");
    RANK_OK(self, tamis_comm_check_equal(comm, "equal", 5));
    RANK_STATUS(self, count > 1 ? TAMIS_E_MISMATCH : TAMIS_OK,
                tamis_comm_check_equal(comm, &self->id, sizeof self->id));
}

/* A step of the others that misses a rank. */
static void notice(test_rank *self, tamis_comm *comm) {
    test_deadline(comm, 50);
    RANK_STATUS(self, TAMIS_E_TIMEOUT, over_touch(comm));
    test_deadline(comm, test_long_ms());
}

static void go_on(test_rank *self) {
    shrink_case *c = self->shared;
    tamis_comm *comm = NULL;
    uint32_t before = (1u << c->nranks) - 1;
    connect(self, &comm);
    for (int n = 0; n < LIVES && !in(c->dead[n], self->id) && !self->failure[0]; n++) {
        tamis_comm *smaller = NULL;
        if (c->dead[n] == 0 && n > 0)
            break;
        if (!c->healthy)
            notice(self, comm);
        RANK_OK(self, shrink(comm, before, c->dead[n], &smaller));
        RANK_CHECK(self, tamis_comm_status(comm) != TAMIS_OK, "the old one is not lost");
        RANK_CHECK(self, smaller->timeout_ns == comm->timeout_ns, "another timeout");
        check_smaller(self, smaller, before, c->dead[n]);
        RANK_STATUS(self, TAMIS_E_STATE, shrink(comm, before, c->dead[n], &smaller));
        tamis_comm_destroy(comm);
        comm = smaller;
        before &= ~c->dead[n];
    }
    end(self, comm);
}

static void those_that_are_left_go_on(void **state) {
    static const struct {
        uint32_t nranks, dead;
    } cases[] = {{1, 0}, {2, 2}, {2, 1}, {3, 2}, {4, 1}, {4, 8}, {4, 6}, {8, 0xf0}, {8, 0x81}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int healthy = cases[i].dead == 0; healthy < 2; healthy++) {
            shrink_case c = {
                .nranks = cases[i].nranks, .dead = {cases[i].dead}, .healthy = healthy};
            fake_cuda_delay_us(300);
            run_case(&c, go_on);
        }
}

/* As after a failure that no rank died of. */
static void all_may_go_on(void **state) {
    (void)state;
    shrink_case c = {.nranks = 4, .healthy = true};
    run_case(&c, go_on);
}

static void twice_in_a_run(void **state) {
    (void)state;
    shrink_case c = {.nranks = 4, .dead = {2, 8}};
    run_case(&c, go_on);
    c = (shrink_case){.nranks = 8, .dead = {0x11, 0xc0}, .healthy = true};
    run_case(&c, go_on);
}

/* -- what is refused, without harm ------------------------------------------------------------ */

static void give_wrong_lists(test_rank *self) {
    const shrink_case *c = self->shared;
    tamis_comm *comm = NULL, *smaller = NULL;
    uint32_t downwards[] = {1, 0}, far[] = {0, 1, 7}, other[] = {1 - self->id % 2};
    const tamis_shrink wrong[] = {{sizeof wrong[0], NULL, 0, NULL},
                                  {sizeof wrong[0], downwards, 2, NULL},
                                  {sizeof wrong[0], far, 3, NULL},
                                  {sizeof wrong[0], other, 1, NULL}};
    connect(self, &comm);
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(comm, NULL, &smaller));
    RANK_SAYS(self, "cannot find out");
    RANK_SAYS(self, "tamis_comm_create_nccl");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(comm, &wrong[i], &smaller));
    RANK_CHECK(self, !smaller, "an output in spite of the error");
    RANK_OK(self, tamis_comm_check_equal(comm, "unharmed", 8));
    RANK_CHECK(self, c->nranks == 2, "as the lists want it");
    end(self, comm);
}

static void wrong_lists_do_no_harm(void **state) {
    (void)state;
    shrink_case c = {.nranks = 2};
    run_case(&c, give_wrong_lists);
}

static void ask_an_old_nccl(test_rank *self) {
    tamis_comm *comm = NULL, *smaller = NULL;
    connect(self, &comm);
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, shrink(comm, 3, 2 - 2 * self->id, &smaller));
    RANK_SAYS(self, "came with 2.28");
    RANK_SAYS(self, "tamis_comm_create_nccl");
    RANK_CHECK(self, !smaller, "an output in spite of the error");
    RANK_OK(self, tamis_comm_check_equal(comm, "unharmed", 8));
    end(self, comm);
}

static void an_old_nccl_is_named(void **state) {
    (void)state;
    shrink_case c = {.nranks = 2};
    fake_nccl_version(22703);
    run_case(&c, ask_an_old_nccl);
}

/* What graphs launch after a revocation would wait for ever, so it is an abort, and final. */
static void shrink_captured(test_rank *self) {
    tamis_comm *comm = NULL, *smaller = NULL;
    over_stream l = {0};
    cudaGraph_t graph;
    connect(self, &comm);
    tamis_comm *local = self->comm;
    self->comm = comm;
    over_stream_open(self, &l);
    RANK_CUDA(self, cudaStreamBeginCapture(l.stream, cudaStreamCaptureModeThreadLocal));
    over_enqueue(self, &l, l.pinned);
    RANK_CUDA(self, cudaStreamEndCapture(l.stream, &graph));
    cudaGraphDestroy(graph);
    over_stream_close(&l);
    self->comm = local;
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, shrink(comm, 3, 2 - 2 * self->id, &smaller));
    RANK_SAYS(self, "TAMIS_GRAPHS=off");
    RANK_OK(self, tamis_comm_check_equal(comm, "unharmed", 8));
    RANK_BARRIER(self);
    RANK_OK(self, tamis_comm_abort(comm));
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, shrink(comm, 3, 2 - 2 * self->id, &smaller));
    while (fake_cuda_calls("ncclCommAbort") + fake_cuda_calls("ncclCommRevoke") < self->nranks)
        sleep_ms(1); /* other threads call them */
    RANK_CHECK(self, fake_cuda_calls("ncclCommRevoke") == 0, "it was revoked");
    end(self, comm);
}

static void captured_steps_are_aborted(void **state) {
    (void)state;
    shrink_case c = {.nranks = 2};
    run_case(&c, shrink_captured);
}

/* -- who never comes, and what fails ---------------------------------------------------------- */

/* @return the status of a shrink whose deadline passes, which it keeps */
static void be_late(test_rank *self, tamis_comm *comm, uint32_t dead) {
    tamis_comm *smaller = NULL;
    uint64_t begin_ms = now_ms();
    test_deadline(comm, over_short_ms());
    RANK_STATUS(self, TAMIS_E_TIMEOUT, shrink(comm, (1u << self->nranks) - 1, dead, &smaller));
    RANK_CHECK(self, now_ms() - begin_ms >= over_short_ms(), "gave up before its deadline");
    RANK_CHECK(self, now_ms() - begin_ms < over_short_ms() + test_grace_ms(), "took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_SAYS(self, "by the deadline");
    RANK_CHECK(self, !smaller && tamis_comm_status(comm) != TAMIS_OK, "it is not lost");
    RANK_STATUS(self, TAMIS_E_STATE, shrink(comm, (1u << self->nranks) - 1, dead, &smaller));
}

static void wait_for_one_more(test_rank *self) {
    tamis_comm *comm = NULL;
    connect(self, &comm);
    if (!in(dead_of(self->shared), self->id)) {
        notice(self, comm);
        be_late(self, comm, 1); /* rank 1 is dead, too */
    }
    end(self, comm);
}

static void a_rank_that_never_comes_is_a_timeout(void **state) {
    (void)state;
    shrink_case c = {.nranks = 4, .dead = {3}};
    run_case(&c, wait_for_one_more);
}

/* Each waits for ranks that the other leaves out. */
static void differ(test_rank *self) {
    tamis_comm *comm = NULL;
    connect(self, &comm);
    if (!in(dead_of(self->shared), self->id))
        be_late(self, comm, self->id == 0 ? 8 : 12);
    end(self, comm);
}

static void lists_that_differ_are_a_timeout(void **state) {
    (void)state;
    shrink_case c = {.nranks = 4, .dead = {12}};
    run_case(&c, differ);
}

/* The rank whose call fails says so; the others wait for it. */
static void fail_on_one(test_rank *self) {
    shrink_case *c = self->shared;
    tamis_comm *comm = NULL, *smaller = NULL;
    connect(self, &comm);
    if (in(c->dead[0], self->id)) {
        RANK_BARRIER(self);
        RANK_BARRIER(self);
        end(self, comm);
        return;
    }
    test_deadline(comm, over_short_ms());
    RANK_BARRIER(self);
    if (self->id == 0) {
        fake_cuda_fail(c->function, 1, c->error);
        RANK_STATUS(self, c->expected[0], shrink(comm, 15, 8, &smaller));
        RANK_SAYS(self, "rank 0");
    }
    RANK_BARRIER(self);
    if (self->id != 0)
        RANK_STATUS(self, TAMIS_E_TIMEOUT, shrink(comm, 15, 8, &smaller));
    RANK_CHECK(self, !smaller && tamis_comm_status(comm) != TAMIS_OK, "it is not lost");
    end(self, comm);
}

static void what_fails_leaves_nothing(void **state) {
    static const struct {
        const char *function;
        int error;
        tamis_status status;
    } faults[] = {
        {"ncclCommRevoke", ncclInternalError, TAMIS_E_TRANSPORT},
        {"ncclCommShrink", ncclRemoteError, TAMIS_E_TRANSPORT},
        {"ncclCommGetAsyncError", ncclSystemError, TAMIS_E_TRANSPORT},
        {"cudaMalloc", cudaErrorMemoryAllocation, TAMIS_E_NOMEM},
        {"cudaMallocHost", cudaErrorMemoryAllocation, TAMIS_E_NOMEM},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        shrink_case c = {.nranks = 4,
                         .dead = {8},
                         .function = faults[i].function,
                         .error = faults[i].error,
                         .expected = {faults[i].status}};
        run_case(&c, fail_on_one);
    }
}

/* -- last: what hangs leaves a thread behind -------------------------------------------------- */

static void shrink_though_nccl_hangs(test_rank *self) {
    tamis_comm *comm = NULL;
    connect(self, &comm);
    RANK_BARRIER(self);
    fake_nccl_hang_abort(1);
    uint64_t begin_ms = now_ms();
    tamis_comm *smaller = NULL;
    test_deadline(comm, over_short_ms());
    RANK_STATUS(self, TAMIS_E_TIMEOUT, shrink(comm, 3, 2 - 2 * self->id, &smaller));
    RANK_CHECK(self, now_ms() - begin_ms < over_short_ms() + test_grace_ms(), "took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_BARRIER(self);
    begin_ms = now_ms();
    tamis_comm_destroy(comm);
    RANK_CHECK(self, now_ms() - begin_ms < 5000 + test_grace_ms(), "destroying took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
}

static void a_revocation_that_hangs_is_a_timeout(void **state) {
    (void)state;
    test_context("a revocation that hangs");
    ranks_run(2, 0, shrink_though_nccl_hangs, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_are_left_go_on),
        cmocka_unit_test(all_may_go_on),
        cmocka_unit_test(twice_in_a_run),
        cmocka_unit_test(wrong_lists_do_no_harm),
        cmocka_unit_test(an_old_nccl_is_named),
        cmocka_unit_test(captured_steps_are_aborted),
        cmocka_unit_test(a_rank_that_never_comes_is_a_timeout),
        cmocka_unit_test(lists_that_differ_are_a_timeout),
        cmocka_unit_test(what_fails_leaves_nothing),
        cmocka_unit_test(a_revocation_that_hangs_is_a_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
