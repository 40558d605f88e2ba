/* SPDX-License-Identifier: MIT
 *
 * Steps driven by the communicator's own thread, without MPI, so that sanitizers see them: ranks
 * are threads here, and each has a library thread beside it.
 *
 * test: waits tsan
 */
#include "collectives/reducer/reducer.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <tamis/overlap.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 6, LENGTH = 500, N = SEGMENTS * LENGTH, RANKS = 3, STEPS = 6 };

/* -- the local transport, on a thread --------------------------------------------------------- */

static tamis_status gather(void *self, const void *send, size_t bytes, void *recv, tam_call *call) {
    tamis_comm *inner = self;
    return inner->transport->allgather(inner->self, send, bytes, recv, call);
}

static tamis_status sum(void *self, float *values, size_t count, tam_call *call) {
    tamis_comm *inner = self;
    return inner->transport->allreduce_sum(inner->self, values, count, call);
}

static tamis_status to_all(void *self, const void *send, const size_t *send_at, void *recv,
                           const size_t *recv_at, tam_call *call) {
    tamis_comm *inner = self;
    return inner->transport->alltoall(inner->self, send, send_at, recv, recv_at, call);
}

static void give_up(void *self, tamis_status status, const char *cause) {
    tamis_comm *inner = self;
    inner->transport->abort(inner->self, status, cause);
}

static void close_inner(void *self, int clean) {
    (void)clean;
    tamis_comm_destroy(self);
}

static const tam_transport driven = {.name = "driven",
                                     .capabilities = TAM_CAP_THREADED,
                                     .allgather = gather,
                                     .allreduce_sum = sum,
                                     .alltoall = to_all,
                                     .abort = give_up,
                                     .close = close_inner};

static void run_driven(uint32_t nranks, uint32_t timeout_ms, rank_body body, void *shared) {
    tamis_comm *inner[RANKS], *comms[RANKS];
    tamis_comm_config limit = TAMIS_COMM_CONFIG_INIT;
    limit.timeout_ms = timeout_ms;
    assert_int_equal(tamis_comm_create_local(nranks, &limit, inner), TAMIS_OK);
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(tam_comm_open(&driven, inner[r], r, nranks, &limit, &comms[r]), TAMIS_OK);
    ranks_run_on(comms, nranks, body, shared);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
}

static tamis_status make(tamis_comm *comm, tamis_worker worker, uint64_t bucket_length,
                         tamis_reducer **out) {
    tamis_reducer_config config = data_even_config(bucket_length);
    config.worker = worker;
    return data_even_reducer(comm, SEGMENTS, LENGTH, &config, out);
}

/* -- three threads a rank --------------------------------------------------------------------- */

/* Every segment is a bucket. The marking thread is joined only at the end, not before the next step
 * begins. */
static void overlap(test_rank *self) {
    data_marks marks[STEPS] = {0};
    pthread_t threads[STEPS];
    tamis_reducer *r = NULL;
    float grad[N];
    RANK_OK(self, make(self->comm, *(tamis_worker *)self->shared, LENGTH, &r));
    for (uint32_t i = 0; i < STEPS; i++) {
        data_marks *b = &marks[i];
        *b = (data_marks){.reducer = r, .nsegments = SEGMENTS, .step = data_step(grad)};
        data_fill(DATA_HEAVY, self->id, i, N, grad);
        RANK_OK(self, tamis_reducer_ready(r, SEGMENTS - 1, &b->step));
        RANK_CHECK(self, pthread_create(&threads[i], NULL, data_mark_all, b) == 0, "no thread");
        RANK_OK(self, tamis_reducer_wait(r));
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        pthread_join(threads[i], NULL);
        RANK_OK(self, marks[i].status);
    }
    tamis_reducer_destroy(r);
}

static void test_threads_that_mark_wait_and_exchange(void **state) {
    static tamis_worker workers[] = {TAMIS_WORKER_CALLER, TAMIS_WORKER_THREAD};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        test_context("worker %d", workers[i]);
        run_driven(RANKS, 0, overlap, &workers[i]);
    }
}

/* -- a pass that takes longer than the caller waits ------------------------------------------- */

enum { SHORT_MS = 100, SLOW_MS = 900 };

static const tam_device *usual; /* the kernels; `slow`: the same with a slow pass */
static tam_device slow;

static atomic_bool begun;

static tamis_status accumulate_slowly(void *self, const tam_accumulate *job, tam_accumulated *out) {
    atomic_store(&begun, true);
    sleep_ms(SLOW_MS);
    return usual->accumulate(self, job, out);
}

/* The library must not touch memory that belongs to the caller again. */
static void outlast(test_rank *self) {
    tamis_reducer *r = NULL;
    float grad[N], seen[N];
    RANK_OK(self, make(self->comm, TAMIS_WORKER_THREAD, 0, &r));
    test_deadline(self->comm, SHORT_MS);
    usual = r->device;
    slow = *usual;
    slow.accumulate = accumulate_slowly;
    r->device = r->buckets[0].view.device = &slow;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    while (!atomic_load(&begun))
        sleep_ms(1);
    RANK_OK(self, tamis_reducer_wait(r)); /* lets a pass that has begun end */
    memcpy(seen, grad, sizeof seen);
    sleep_ms(2 * SLOW_MS);
    RANK_CHECK(self, memcmp(seen, grad, sizeof seen) == 0, "a gradient changed after wait");
    tamis_reducer_destroy(r);
}

static void test_no_gradient_is_touched_after_wait(void **state) {
    (void)state;
    test_context("a slow pass");
    run_driven(1, 0, outlast, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_that_mark_wait_and_exchange),
        cmocka_unit_test(test_no_gradient_is_touched_after_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
