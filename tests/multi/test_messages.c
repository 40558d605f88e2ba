/* SPDX-License-Identifier: MIT
 *
 * Over the caller's own messages, in stages, and over an all-gather alone: the same bits as over
 * shared memory, for every preset and other options, of results and residuals; the bytes that
 * statistics tell; and no damaged message passes.
 */
#include "tests/support/data.h"
#include "tests/support/gather.h"
#include "tests/support/loopback.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 1700, STEPS = 2 };

typedef struct run_case {
    const char *scheme;
    tamis_value_codec value_codec;
    tamis_status status[RANKS_MOST];
    uint64_t hash[RANKS_MOST], wire_bytes[RANKS_MOST];
} run_case;

static tamis_status run_steps(test_rank *self, tamis_reducer *reducer) {
    run_case *run = self->shared;
    float gradient[N];
    tamis_stats stats = TAMIS_STATS_INIT;
    for (uint32_t number = 0; number < STEPS; number++) {
        tamis_step step = data_step(gradient);
        data_fill_real(self->id, number, N, gradient);
        tamis_status status = tamis_reducer_start(reducer, &step);
        if (status == TAMIS_OK)
            status = tamis_reducer_wait(reducer);
        if (status == TAMIS_OK)
            status = tamis_reducer_stats(reducer, &stats);
        if (status != TAMIS_OK)
            return status;
        run->hash[self->id] = data_hash(run->hash[self->id], gradient, sizeof gradient);
        run->wire_bytes[self->id] += stats.wire_bytes;
    }
    const float *residual = NULL;
    tamis_status status = tamis_reducer_residual(reducer, &residual);
    if (residual) /* dense has none */
        run->hash[self->id] = data_hash(run->hash[self->id], residual, sizeof gradient);
    return status;
}

static void run_rank(test_rank *self) {
    run_case *run = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = run->scheme;
    config.density = 0.1;
    config.value_codec = run->value_codec;
    self->where = "the steps";
    tamis_status status = data_reducer(self->comm, N, &config, &reducer);
    if (status == TAMIS_OK)
        status = run_steps(self, reducer);
    run->status[self->id] = status;
    tamis_reducer_destroy(reducer);
}

/* -> messages that came */
static uint64_t run_over_loopback(uint32_t nranks, uint64_t flip, run_case *run) {
    tamis_comm *comms[RANKS_MOST];
    uint64_t bytes;
    loopback *m = loopback_create(nranks, flip);
    loopback_comms(m, comms);
    ranks_run_on(comms, nranks, run_rank, run);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    uint64_t count = loopback_count(m, &bytes);
    loopback_destroy(m);
    return count;
}

static void run_over_gathers(uint32_t nranks, run_case *run) {
    tamis_comm *comms[RANKS_MOST];
    gather *board = gather_create(nranks, 60000, NULL, NULL);
    gather_comms(board, comms);
    ranks_run_on(comms, nranks, run_rank, run);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(board);
}

static void compare(const run_case *local, const run_case *other, const char *over,
                    uint32_t nranks) {
    for (uint32_t r = 0; r < nranks; r++) {
        if (other->status[r] != local->status[r] || other->hash[r] != local->hash[r])
            fail_msg("[%s] rank %u: over %s %s, %016llx; over shared memory %s, %016llx",
                     test_context_text(), r, over, tamis_status_name(other->status[r]),
                     (unsigned long long)other->hash[r], tamis_status_name(local->status[r]),
                     (unsigned long long)local->hash[r]);
    }
}

static void compare_with_local(const char *scheme, tamis_value_codec type, uint32_t nranks) {
    run_case local = {.scheme = scheme, .value_codec = type}, staged = local, gathered = local;
    test_context("%s, value codec %d, P=%u", scheme, (int)type, nranks);
    ranks_run(nranks, 0, run_rank, &local);
    run_over_loopback(nranks, 0, &staged);
    compare(&local, &staged, "messages", nranks);
    if (nranks > 9)
        return;
    run_over_gathers(nranks, &gathered);
    compare(&local, &gathered, "all-gathers", nranks);
}

static void stages_give_the_bits_of_shared_memory(void **state) {
    static const uint32_t sizes[] = {1, 2, 3, 5, 8, 9, 12, 16, 23, 32};
    scheme_case scheme;
    (void)state;
    for (size_t p = 0; p < sizeof sizes / sizeof sizes[0]; p++) {
        for (size_t s = 0; scheme_preset(s, &scheme); s++) {
            if (test_drawn(7))
                compare_with_local(scheme.name, TAMIS_VALUE_AUTO, sizes[p]);
        }
        compare_with_local("tamis", TAMIS_VALUE_FP4, sizes[p]);
        compare_with_local("tamis", TAMIS_VALUE_BFLOAT16, sizes[p]);
        compare_with_local("quantized", TAMIS_VALUE_FP2, sizes[p]);
    }
}

/* Each message in turn, of which some byte is damaged: all ranks fail in that step. */
static void a_damaged_message_never_passes(void **state) {
    enum { P = 9 };
    (void)state;
    run_case good = {.scheme = "tamis"};
    uint64_t count = run_over_loopback(P, 0, &good);
    uint64_t stride = 1 + count / (test_stride(2) > 1 ? 6 : 12);
    for (uint64_t flip = 1; flip <= count; flip += stride) {
        run_case bad = {.scheme = "tamis"};
        bool failed = false;
        test_context("message %llu of %llu", (unsigned long long)flip, (unsigned long long)count);
        run_over_loopback(P, flip, &bad);
        for (uint32_t r = 0; r < P; r++) {
            failed = failed || bad.status[r] != TAMIS_OK;
            if (bad.status[r] == TAMIS_OK && bad.hash[r] != good.hash[r])
                fail_msg("[%s] rank %u: another result", test_context_text(), r);
        }
        if (!failed)
            fail_msg("[%s] nobody noticed", test_context_text());
    }
}

static void functions_go_together(void **state) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm *comm = NULL;
    (void)state;
    callbacks.nranks = 2;
    callbacks.cancel = (void (*)(void *, uint32_t))abort;
    assert_int_equal(tamis_comm_create_callback(&callbacks, NULL, &comm), TAMIS_E_ARGUMENT);
    assert_non_null(strstr(tamis_last_error(), "go together"));
    assert_null(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_bits_of_shared_memory),
        cmocka_unit_test(a_damaged_message_never_passes),
        cmocka_unit_test(functions_go_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
