/* SPDX-License-Identifier: MIT
 *
 * Runs of any length from every rank to every rank: over the local transport, and over transports
 * that can only gather, whose chunks are shorter than the longest run here.
 */
#include "collectives/transport/comm.h"
#include "collectives/transport/sum.h"
#include "lib/base/base.h"
#include "tests/support/gather.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

typedef struct runs_case {
    size_t unit;
    uint32_t liar; /* this rank sends the next one a byte more than it says; UINT32_MAX: none */
    bool exact;    /* only the needed bytes travel */
} runs_case;

/* Some runs are empty, and some ranks send much more than others. */
static size_t length_of(const runs_case *c, uint32_t from, uint32_t to) {
    return (from * 3 + to * to) % 4 * c->unit * (from == 1 ? 5 : 1);
}

static unsigned char byte_of(uint32_t from, uint32_t to, size_t i) {
    return (unsigned char)(i * 7 + i / 251 + from * 16 + to);
}

static bool right_bytes(const test_rank *self, const unsigned char *recv, const size_t *recv_at) {
    size_t wrong = 0;
    for (uint32_t r = 0; r < self->nranks; r++)
        for (size_t i = recv_at[r]; i < recv_at[r + 1]; i++)
            wrong += recv[i] != byte_of(r, self->id, i - recv_at[r]);
    return wrong == 0 && recv[recv_at[self->nranks]] == 171;
}

static void send_runs(test_rank *self) {
    const runs_case *c = self->shared;
    size_t send_at[RANKS_MOST + 1] = {0}, recv_at[RANKS_MOST + 1] = {0};
    tam_call call = {.deadline_ns = tam_clock_ns() + self->comm->timeout_ns,
                     .poison = &self->comm->poison};
    for (uint32_t r = 0; r < self->nranks; r++) {
        bool more = self->id == c->liar && r == (c->liar + 1) % self->nranks;
        send_at[r + 1] = send_at[r] + length_of(c, self->id, r) + more;
        recv_at[r + 1] = recv_at[r] + length_of(c, r, self->id);
    }
    unsigned char *send = calloc(send_at[self->nranks] + 1, 1);
    unsigned char *recv = calloc(recv_at[self->nranks] + 1, 1);
    for (uint32_t r = 0; r < self->nranks; r++)
        for (size_t i = send_at[r]; i < send_at[r + 1]; i++)
            send[i] = byte_of(self->id, r, i - send_at[r]);
    recv[recv_at[self->nranks]] = 171;
    tamis_status status =
        self->comm->transport->alltoall(self->comm->self, send, send_at, recv, recv_at, &call);
    bool right = status == TAMIS_OK && right_bytes(self, recv, recv_at);
    free(send);
    free(recv);
    bool lied_to = c->liar < self->nranks && self->id == (c->liar + 1) % self->nranks;
    RANK_CHECK(self, status == (lied_to ? TAMIS_E_PROTOCOL : TAMIS_OK), "status %s: %s",
               tamis_status_name(status), tamis_last_error());
    RANK_CHECK(self, lied_to || right, "runs of %zu bytes came wrong", c->unit);
    size_t own = send_at[self->id + 1] - send_at[self->id];
    RANK_CHECK(self, !c->exact || call.wire_bytes == send_at[self->nranks] - own,
               "%llu bytes were counted", (unsigned long long)call.wire_bytes);
}

static void run_over_callback(uint32_t nranks, runs_case *c) {
    tamis_comm *comms[RANKS_MOST];
    gather *records = gather_create(nranks, 20000, NULL, NULL);
    gather_comms(records, comms);
    ranks_run_on(comms, nranks, send_runs, c);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(records);
}

static void test_every_run_arrives_where_it_is_meant_to(void **state) {
    static const uint32_t nranks_of[] = {1, 2, 3, 5, 8};
    static const size_t units[] = {0, 1, 8, 1001, 100003};
    (void)state;
    for (size_t p = 0; p < 5; p++)
        for (size_t u = 0; u < 5; u++) {
            runs_case c = {.unit = units[u], .liar = UINT32_MAX, .exact = true};
            test_context("P=%u, unit %zu", nranks_of[p], units[u]);
            ranks_run(nranks_of[p], 0, send_runs, &c);
            c.exact = false;
            run_over_callback(nranks_of[p], &c);
        }
}

static void test_a_run_of_another_length_than_said_is_refused(void **state) {
    runs_case c = {.unit = 10, .liar = 1, .exact = false};
    (void)state;
    test_context("rank 1 says less than it sends to rank 2");
    ranks_run(3, 0, send_runs, &c);
}

/* Rank 1 of two sends rank 0 five bytes, of which four are expected. */
static tamis_status lie(void *self, const void *send, size_t bytes, const void **out,
                        tam_call *call) {
    static size_t tables[2][3] = {{0}, {0, 5, 9}};
    (void)self, (void)call;
    memcpy(tables[0], send, bytes);
    *out = tables;
    return TAMIS_OK;
}

static void test_a_table_of_other_lengths_than_said_is_refused(void **state) {
    const size_t send_at[] = {0, 0, 4}, recv_at[] = {0, 0, 4};
    unsigned char send[4] = {0}, recv[8];
    tam_alltoall_scratch scratch;
    tam_call call = {0};
    (void)state;
    assert_true(tam_alltoall_scratch_open(2, 1024, &scratch));
    assert_int_equal(
        tam_alltoall_by_gather(lie, NULL, 0, 2, &scratch, send, send_at, recv, recv_at, &call),
        TAMIS_E_PROTOCOL);
    tam_alltoall_scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_run_arrives_where_it_is_meant_to),
        cmocka_unit_test(test_a_run_of_another_length_than_said_is_refused),
        cmocka_unit_test(test_a_table_of_other_lengths_than_said_is_refused),
    };
    return cmocka_run_group_tests_name("alltoall", tests, NULL, NULL);
}
