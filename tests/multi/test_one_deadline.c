/* SPDX-License-Identifier: MIT
 *
 * Buckets share the deadline of a wait, and a job that was abandoned never commits.
 *
 * test: tsan
 */
#include "collectives/transport/comm.h"
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <tamis/overlap.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { LENGTH = 100, N = 2 * LENGTH, TIMEOUT_MS = 400, SECOND = 2 }; /* operations of a bucket */

/* Each bucket takes most of the time, one because of rank 0, one because of rank 1. */
static void be_slow_twice(test_rank *self) {
    tamis_reducer_config config = data_even_config(LENGTH);
    tamis_reducer *r = NULL;
    float grad[N];
    const tamis_step step = data_step(grad);
    uint32_t timeout_ms = test_stretch_ms(TIMEOUT_MS);
    RANK_OK(self, data_even_reducer(self->comm, 2, LENGTH, &config, &r));
    RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_DELAY, self->id == 0 ? 0 : SECOND,
                                     timeout_ms * 7 / 10));
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    test_deadline(self->comm, timeout_ms);
    RANK_OK(self, tamis_reducer_start(r, &step));
    tamis_status status = tamis_reducer_wait(r);
    RANK_CHECK(self, self->id == 1 || status == TAMIS_E_TIMEOUT, "the wait gives %s",
               tamis_status_name(status));
    tamis_reducer_destroy(r);
}

static void test_two_slow_buckets_have_one_deadline(void **state) {
    (void)state;
    test_context("two slow buckets");
    ranks_run(2, 0, be_slow_twice, NULL);
}

/* Rank 0 never marks its second segment ready and gives up; rank 1 waits for its values and has all
 * the time that there is. */
static void give_up(test_rank *self) {
    tamis_reducer_config config = data_even_config(LENGTH);
    tamis_reducer *r = NULL;
    float grad[N];
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_even_reducer(self->comm, 2, LENGTH, &config, &r));
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    test_deadline(self->comm, self->id == 0 ? 100 : test_long_ms());
    uint64_t begin_ms = now_ms();
    if (self->id == 0)
        RANK_OK(self, tamis_reducer_ready(r, 0, &step));
    else
        RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_STATUS(self, self->id == 0 ? TAMIS_E_TIMEOUT : TAMIS_E_ABORTED, tamis_reducer_wait(r));
    RANK_CHECK(self, now_ms() - begin_ms < test_long_ms() / 2, "rank 1 was not woken");
    tamis_reducer_destroy(r);
}

static void test_a_rank_that_gives_up_wakes_the_others(void **state) {
    (void)state;
    test_context("rank 0 gives up");
    ranks_run(2, 0, give_up, NULL);
}

static void test_what_was_abandoned_never_commits(void **state) {
    static const int states[] = {TAM_JOB_IDLE, TAM_JOB_QUEUED, TAM_JOB_ABANDONED, TAM_JOB_DONE};
    (void)state;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        tam_job job = {0};
        atomic_store(&job.state, states[i]);
        assert_false(tam_job_commit(&job));
        assert_int_equal(atomic_load(&job.state), states[i]);
    }
    tam_job job = {0};
    atomic_store(&job.state, TAM_JOB_RUNNING);
    assert_true(tam_job_commit(&job));
    assert_int_equal(atomic_load(&job.state), TAM_JOB_COMMITTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_slow_buckets_have_one_deadline),
        cmocka_unit_test(test_a_rank_that_gives_up_wakes_the_others),
        cmocka_unit_test(test_what_was_abandoned_never_commits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
