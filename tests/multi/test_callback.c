/* SPDX-License-Identifier: MIT
 *
 * The caller's own all-gather: the same bits as the local transport; its errors are passed on; its
 * data are not trusted: every byte is corrupted in turn, and no wrong result may pass silently.
 *
 * test: slow tsan
 */
#include "tests/support/data.h"
#include "tests/support/gather.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 60, STEPS = 3, LIMIT_MS = 5000, OPERATIONS_MOST = 64 };

/* A run of a few steps, and what the hook does to it. */
typedef struct run_case {
    gather *records; /* NULL over the local transport */
    const char *scheme;
    uint32_t bad_rank;
    uint64_t bad_op; /* UINT64_MAX: none */
    size_t bad_byte;
    tamis_status answer; /* what the bad operation returns; OK: it corrupts a byte */
    /* by the ranks */
    tamis_status created[RANKS_MOST], status[RANKS_MOST][STEPS];
    uint64_t hash[RANKS_MOST][STEPS];
    /* by the hook on rank 0 */
    size_t bytes[OPERATIONS_MOST];
    uint64_t operations, first_of_step[STEPS];
} run_case;

static tamis_status hook(void *context, uint32_t rank, uint64_t op, void *recv, size_t bytes) {
    run_case *run = context;
    if (rank == 0 && op < OPERATIONS_MOST) {
        run->bytes[op] = bytes;
        run->operations = op + 1;
    }
    if (rank != run->bad_rank || op != run->bad_op)
        return TAMIS_OK;
    if (run->answer == TAMIS_OK)
        ((unsigned char *)recv)[run->bad_byte % bytes] ^=
            (unsigned char)(1u << (run->bad_byte * 5 + op) % 8);
    return run->answer;
}

static tamis_status run_step(test_rank *self, tamis_reducer *reducer, uint32_t number) {
    run_case *run = self->shared;
    float gradient[N];
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    step.grad = gradient;
    if (self->id == 0)
        run->first_of_step[number] = run->operations;
    tamis_status status = tamis_reducer_start(reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(reducer);
    run->hash[self->id][number] = data_hash(0, gradient, sizeof gradient);
    return status;
}

static void run_all_steps(test_rank *self) {
    run_case *run = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    config.scheme = run->scheme;
    config.density = 0.15;
    self->where = "tamis_reducer_create";
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, &reducer);
    run->created[self->id] = status;
    for (uint32_t step = 0; step < STEPS; step++)
        run->status[self->id][step] = TAMIS_E_STATE; /* not made */
    self->where = "a step";
    for (uint32_t step = 0; status == TAMIS_OK && step < STEPS; step++)
        run->status[self->id][step] = status = run_step(self, reducer, step);
    /* later calls must return the communicator's status */
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        RANK_CHECK(self, tamis_comm_status(self->comm) == status,
                   "%s, but the communicator says %s", tamis_status_name(status),
                   tamis_status_name(tamis_comm_status(self->comm)));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    if (run->records)
        gather_leave(run->records);
}

static void run_over_callback(uint32_t nranks, run_case *run) {
    tamis_comm *comms[RANKS_MOST];
    test_context("%s P=%u over the callback, operation %lld, byte %zu on rank %u", run->scheme,
                 nranks, (long long)run->bad_op, run->bad_byte, run->bad_rank);
    run->records = gather_create(nranks, LIMIT_MS, hook, run);
    gather_comms(run->records, comms);
    ranks_run_on(comms, nranks, run_all_steps, run);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(run->records);
}

static run_case run_good(const char *scheme, uint32_t nranks) {
    run_case good = {.scheme = scheme, .bad_op = UINT64_MAX};
    run_over_callback(nranks, &good);
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(good.status[r][STEPS - 1], TAMIS_OK);
    return good;
}

/* -- the same bits ---------------------------------------------------------------------------- */

static void test_callback_gives_the_same_bits_as_local(void **state) {
    static const uint32_t nranks_of[] = {1, 2, 3, 5, 8};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < 5; p++) {
            run_case local = {.scheme = scheme.name, .bad_op = UINT64_MAX};
            run_case callback = run_good(scheme.name, nranks_of[p]);
            ranks_run(nranks_of[p], 0, run_all_steps, &local);
            assert_memory_equal(local.hash, callback.hash, sizeof local.hash);
            assert_memory_equal(local.status, callback.status, sizeof local.status);
        }
}

/* -- errors of the callback ------------------------------------------------------------------- */

/* The rank whose callback failed reports its status. A status that does not lose the communicator,
 * or is unknown, is invalid there and counts as TRANSPORT. */
static void check_answer(const run_case *run, tamis_status expected) {
    uint32_t r = run->bad_rank;
    tamis_status got = run->created[r];
    for (uint32_t step = 0; got == TAMIS_OK && step < STEPS; step++)
        got = run->status[r][step];
    if (got != expected)
        fail_msg("[%s] %s, not %s", test_context_text(), tamis_status_name(got),
                 tamis_status_name(expected));
}

static void test_errors_of_the_callback_are_passed_on(void **state) {
    static const struct {
        int answer;
        tamis_status expected;
    } answers[] = {
        {TAMIS_E_TRANSPORT, TAMIS_E_TRANSPORT}, {TAMIS_E_TIMEOUT, TAMIS_E_TIMEOUT},
        {TAMIS_E_ABORTED, TAMIS_E_ABORTED},     {TAMIS_E_ARGUMENT, TAMIS_E_TRANSPORT},
        {TAMIS_E_NONFINITE, TAMIS_E_TRANSPORT},
    };
    run_case good = run_good("tamis", 2);
    (void)state;
    for (size_t a = 0; a < sizeof answers / sizeof answers[0]; a++)
        for (uint64_t op = 0; op < good.operations; op++) {
            run_case run = {.scheme = "tamis", .bad_op = op, .bad_rank = (uint32_t)op % 2};
            run.answer = (tamis_status)answers[a].answer;
            run_over_callback(2, &run);
            check_answer(&run, answers[a].expected);
        }
}

/* -- every byte that a rank receives ---------------------------------------------------------- */

/* A rank must notice in the next step at the latest. */
static void check_not_silent(const run_case *run, const run_case *good, uint32_t nranks) {
    for (uint32_t r = 0; r < nranks; r++)
        for (uint32_t step = 0; step < STEPS; step++) {
            if (run->status[r][step] != TAMIS_OK || run->hash[r][step] == good->hash[r][step])
                continue;
            if (step + 1 == STEPS || run->status[r][step + 1] == TAMIS_OK)
                fail_msg("[%s] rank %u, step %u: a wrong result and no word of it",
                         test_context_text(), r, step);
        }
}

static void spoil_every_byte(const char *scheme, uint32_t nranks) {
    run_case good = run_good(scheme, nranks);
    size_t stride = test_slowness() > 1 ? 11 : 1; /* sanitizers check code paths, not bytes */
    assert_true(good.operations <= OPERATIONS_MOST);
    for (uint64_t op = 0; op < good.first_of_step[STEPS - 1]; op++)
        for (size_t byte = 0; byte < good.bytes[op]; byte += stride) {
            run_case run = {.scheme = scheme, .bad_op = op, .bad_byte = byte};
            run.bad_rank = (uint32_t)(byte % nranks);
            run_over_callback(nranks, &run);
            check_not_silent(&run, &good, nranks);
        }
}

static void test_no_spoilt_byte_gives_a_silent_wrong_result(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        if (!scheme.dense)
            spoil_every_byte(scheme.name, 2);
}

static void test_no_spoilt_byte_gives_a_silent_wrong_result_with_pairs(void **state) {
    (void)state;
    spoil_every_byte("cyclic+norm+predict+pairs", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_callback_gives_the_same_bits_as_local),
        cmocka_unit_test(test_errors_of_the_callback_are_passed_on),
        cmocka_unit_test(test_no_spoilt_byte_gives_a_silent_wrong_result),
        cmocka_unit_test(test_no_spoilt_byte_gives_a_silent_wrong_result_with_pairs),
    };
    return cmocka_run_group_tests_name("callback", tests, NULL, NULL);
}
