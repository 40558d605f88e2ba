/* SPDX-License-Identifier: MIT
 *
 * The caller's messages when they do what they must not, or nothing: one rank of two, alone.
 *
 * test: tsan
 */
#include "tests/support/data.h"
#include "tests/support/loopback.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

typedef struct network {
    tamis_status posts, tests;
    uint32_t count, ticket; /* what test reports */
} network;

static tamis_status post(void *context, const tamis_message *message) {
    const network *n = context;
    (void)message;
    return n->posts;
}

static tamis_status test(void *context, uint32_t tickets[TAMIS_TICKETS],
                         size_t bytes[TAMIS_TICKETS], uint32_t *count) {
    const network *n = context;
    tickets[0] = n->ticket;
    bytes[0] = 0;
    *count = n->count;
    return n->tests;
}

static void cancel(void *context, uint32_t ticket) {
    (void)context, (void)ticket;
}

static tamis_comm *open_network(network *n) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    callbacks.nranks = 2;
    callbacks.context = n;
    callbacks.post = post;
    callbacks.test = test;
    callbacks.cancel = cancel;
    config.timeout_ms = test_long_ms();
    assert_int_equal(tamis_comm_create_callback(&callbacks, &config, &comm), TAMIS_OK);
    return comm;
}

static void check(network n, tamis_status expected, const char *words) {
    tamis_comm *comm = open_network(&n);
    int data = 7;
    assert_int_equal(tamis_comm_check_equal(comm, &data, sizeof data), expected);
    assert_non_null(strstr(tamis_last_error(), words));
    assert_int_equal(tamis_comm_status(comm), expected);
    tamis_comm_destroy(comm);
}

/* What a network cannot fail with, or what is no status, would lose nothing. */
static void test_a_status_of_no_network_is_a_failure_of_the_transport(void **state) {
    (void)state;
    check((network){.posts = TAMIS_E_ARGUMENT}, TAMIS_E_TRANSPORT, "the post callback");
    check((network){.posts = TAMIS_E_NONFINITE}, TAMIS_E_TRANSPORT, "the post callback");
    check((network){.tests = (tamis_status)77}, TAMIS_E_TRANSPORT, "the test callback");
    check((network){.tests = TAMIS_E_ABORTED}, TAMIS_E_ABORTED, "the test callback");
}

static void test_a_ticket_that_there_is_not_is_refused(void **state) {
    (void)state;
    check((network){.count = 1, .ticket = TAMIS_TICKETS}, TAMIS_E_TRANSPORT, "names ticket");
    check((network){.count = 1, .ticket = UINT32_MAX}, TAMIS_E_TRANSPORT, "names ticket");
}

/* What rank 1 gives is what rank 0 gives, with a bit of it flipped. */
static tamis_status gather_damaged(void *context, const void *send, void *recv, size_t bytes) {
    (void)context;
    memcpy(recv, send, bytes);
    memcpy((char *)recv + bytes, send, bytes);
    ((unsigned char *)recv)[bytes + bytes / 2] ^= 4;
    return TAMIS_OK;
}

static void test_a_damaged_all_gather_is_refused(void **state) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm *comm = NULL;
    int data = 7;
    (void)state;
    callbacks.nranks = 2;
    callbacks.allgather = gather_damaged;
    assert_int_equal(tamis_comm_create_callback(&callbacks, NULL, &comm), TAMIS_OK);
    assert_int_equal(tamis_comm_check_equal(comm, &data, sizeof data), TAMIS_E_PROTOCOL);
    assert_non_null(strstr(tamis_last_error(), "brought from rank 1 was damaged on the way"));
    tamis_comm_destroy(comm);
}

static void *abort_soon(void *comm) {
    sleep_ms(100);
    return tamis_comm_abort(comm) == TAMIS_OK ? comm : NULL;
}

static void test_an_abort_ends_a_wait_before_its_deadline(void **state) {
    network n = {.posts = TAMIS_OK};
    tamis_comm *comm = open_network(&n);
    pthread_t thread;
    int data = 7;
    (void)state;
    uint64_t begin_ms = now_ms();
    assert_int_equal(pthread_create(&thread, NULL, abort_soon, comm), 0);
    assert_int_equal(tamis_comm_check_equal(comm, &data, sizeof data), TAMIS_E_ABORTED);
    assert_true(now_ms() - begin_ms < test_long_ms() / 2);
    pthread_join(thread, NULL);
    tamis_comm_destroy(comm);
}

/* -- what ranks tell each other beside a sum -------------------------------------------------- */

enum { N = 64, RANKS = 5 };

/* A bucket that is summed whole: the count of what a micro-batch dropped comes with the sum. */
static void drop_early(test_rank *self) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer *r = NULL;
    float grad[N] = {0};
    const tamis_step step = data_step(grad);
    config.scheme = "auto";
    config.density = 0.5;
    config.link_latency_us = 1e5;
    config.link_gbit = 1e6;
    config.nonfinite = TAMIS_NONFINITE_DROP;
    RANK_OK(self, data_reducer(self->comm, N, &config, &r));
    for (uint32_t i = 0; i <= self->id; i++)
        grad[i] = NAN;
    RANK_OK(self, tamis_reducer_accumulate(r, &step));
    for (uint32_t i = 0; i < N; i++)
        grad[i] = (float)(self->id + 1);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.nonfinite == RANKS * (RANKS + 1) / 2, "%llu entries were dropped",
               (unsigned long long)stats.nonfinite);
    for (uint32_t i = 0; i < N; i++)
        RANK_CHECK(self, grad[i] == 3.0f, "the mean of 1 to 5 is %g", (double)grad[i]);
    tamis_reducer_destroy(r);
}

static void test_what_all_ranks_dropped_is_counted_once(void **state) {
    tamis_comm *comms[RANKS];
    loopback *m = loopback_create(RANKS, 0);
    (void)state;
    loopback_comms(m, comms);
    ranks_run_on(comms, RANKS, drop_early, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        tamis_comm_destroy(comms[r]);
    loopback_destroy(m);
    test_context("over shared memory");
    ranks_run(RANKS, 0, drop_early, NULL);
}

int main(void) {
    setenv("TAMIS_PLAN", "2x2x2", 1); /* of five ranks, of which three have two virtual ranks */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_status_of_no_network_is_a_failure_of_the_transport),
        cmocka_unit_test(test_a_ticket_that_there_is_not_is_refused),
        cmocka_unit_test(test_a_damaged_all_gather_is_refused),
        cmocka_unit_test(test_an_abort_ends_a_wait_before_its_deadline),
        cmocka_unit_test(test_what_all_ranks_dropped_is_counted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
