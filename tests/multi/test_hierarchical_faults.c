/* SPDX-License-Identifier: MIT
 *
 * Nodes of several ranks, one of which stays away, fails or damages what it sends or receives, in
 * every operation of a step: every rank returns by the deadline, no result is silently wrong, and
 * what was to be summed is still in the gradients or in the residuals.
 *
 * test: waits
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 500, NRANKS = 4, SIZE = 2, STEPS = 3, OPERATIONS_MOST = 60, SILENT_MS = 500 };

typedef struct injection {
    tam_fault fault;
    uint64_t nth;
    uint32_t argument, rank, timeout_ms;
    /* by the ranks */
    tamis_status created[NRANKS];
    tamis_status status[NRANKS][STEPS]; /* TAMIS_E_STATE: step not run */
    uint64_t hash[NRANKS][STEPS];
    uint64_t slowest_ms[NRANKS];
    float gradient[NRANKS][N]; /* after the last step run */
    float residual[NRANKS][N];
} injection;

static tamis_status create(test_rank *self, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.1;
    config.op = TAMIS_OP_SUM;
    config.ranks_per_node = SIZE;
    self->where = "tamis_reducer_create";
    return data_reducer(self->comm, N, &config, out);
}

static tamis_status step_once(test_rank *self, tamis_reducer *reducer, uint32_t number) {
    injection *all = self->shared;
    float *gradient = all->gradient[self->id];
    tamis_step step = data_step(gradient);
    uint64_t start_ms = now_ms();
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    self->where = "a step";
    tamis_status status = tamis_reducer_start(reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(reducer);
    uint64_t took_ms = now_ms() - start_ms;
    if (took_ms > all->slowest_ms[self->id])
        all->slowest_ms[self->id] = took_ms;
    all->hash[self->id][number] = data_hash(0, gradient, N * sizeof *gradient);
    return status;
}

static void run_injection(test_rank *self) {
    injection *all = self->shared;
    const float *residual = NULL;
    tamis_reducer *reducer = NULL;
    if (all->fault != TAM_FAULT_NONE && self->id == all->rank)
        RANK_OK(self, tam_faulty_install(self->comm, all->fault, all->nth, all->argument));
    for (uint32_t step = 0; step < STEPS; step++)
        all->status[self->id][step] = TAMIS_E_STATE;
    tamis_status status = all->created[self->id] = create(self, &reducer);
    for (uint32_t step = 0; status == TAMIS_OK && step < STEPS; step++)
        status = all->status[self->id][step] = step_once(self, reducer, step);
    memset(all->residual[self->id], 0, sizeof all->residual[0]);
    if (reducer) {
        RANK_OK(self, tamis_reducer_residual(reducer, &residual));
        RANK_CHECK(self, data_spread_residual(reducer, residual, all->residual[self->id]), "%s",
                   tamis_last_error());
    }
    if (status != TAMIS_OK && all->fault != TAM_FAULT_SILENT)
        tamis_comm_abort(self->comm);
    tamis_reducer_destroy(reducer);
}

static void inject(injection *all) {
    test_context("fault %d at operation %llu of rank %u, argument %u", all->fault,
                 (unsigned long long)all->nth, all->rank, all->argument);
    memset(all->slowest_ms, 0, sizeof all->slowest_ms);
    ranks_run(NRANKS, all->timeout_ms, run_injection, all);
    for (uint32_t r = 0; r < NRANKS; r++)
        if (all->slowest_ms[r] > all->timeout_ms + test_grace_ms())
            fail_msg("[%s] rank %u took %llu ms", test_context_text(), r,
                     (unsigned long long)all->slowest_ms[r]);
}

static bool all_fine(const injection *all) {
    for (uint32_t r = 0; r < NRANKS; r++)
        if (all->created[r] != TAMIS_OK || all->status[r][STEPS - 1] != TAMIS_OK)
            return false;
    return true;
}

static void run_good(injection *good) {
    *good = (injection){.timeout_ms = test_long_ms()};
    inject(good);
    assert_true(all_fine(good));
}

/* Every message has a checksum, so a result is right, or the step reports an error. */
static void check_not_silent(const injection *all, const injection *good) {
    for (uint32_t r = 0; r < NRANKS; r++)
        for (uint32_t step = 0; step < STEPS; step++)
            if (all->status[r][step] == TAMIS_OK && all->hash[r][step] != good->hash[r][step])
                fail_msg("[%s] rank %u, step %u: a wrong result and no word of it",
                         test_context_text(), r, step);
}

/* @return steps in which any rank has applied something */
static uint32_t steps_applied(const injection *all) {
    uint32_t most = 0;
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t r = 0; r < NRANKS; r++)
            most = all->status[r][step] == TAMIS_OK ? step + 1 : most;
    return most;
}

/* If all ranks failed in one step: what its gradients held and the residual before is still there,
 * in the gradient of a rank or in the residual of its node. Rank 0's results of the steps before
 * are those of the good run. */
static void check_nothing_lost(const injection *all, const float before[NRANKS][N]) {
    uint32_t failed = steps_applied(all);
    float gradient[N];
    for (uint32_t r = 0; r < NRANKS; r++)
        if (failed == STEPS || all->status[r][failed] == TAMIS_OK ||
            (failed > 0 && all->status[r][failed - 1] != TAMIS_OK))
            return; /* some ranks are ahead: all share only an earlier state */
    for (uint32_t node = 0; node < NRANKS / SIZE; node++)
        for (size_t i = 0; i < N; i++) {
            double owed = 0, held = 0;
            bool summed =
                true; /* every gradient of the node is cleared, or the entry is not held */
            for (uint32_t r = node * SIZE; r < (node + 1) * SIZE; r++) {
                data_fill(DATA_HEAVY, r, failed, N, gradient);
                owed += (double)gradient[i] + (double)before[r][i];
                held += (double)all->residual[r][i];
                summed = summed && memcmp(all->gradient[r], gradient, sizeof gradient) != 0;
            }
            if (summed && owed != held)
                fail_msg("[%s] node %u, entry %zu: owed %g, residuals hold %g", test_context_text(),
                         node, i, owed, held);
            i += 6; /* some are enough */
        }
}

/* Injects into operation 0, 1, 2, ... until there is none with that number. @return how many */
static uint64_t sweep(tam_fault fault, uint32_t argument, const injection *good) {
    static injection all;
    uint32_t stride = fault == TAM_FAULT_SILENT ? test_stride(3) : 1; /* each takes its deadline */
    for (uint64_t nth = 0; nth < OPERATIONS_MOST; nth += stride) {
        all = (injection){.fault = fault, .nth = nth, .argument = argument};
        all.rank = (uint32_t)(nth * 7 % NRANKS);
        all.timeout_ms = fault == TAM_FAULT_SILENT ? test_stretch_ms(SILENT_MS) : test_long_ms();
        inject(&all);
        if (all_fine(&all))
            return nth;
        check_not_silent(&all, good);
        if (steps_applied(&all) == 0 && all.created[0] == TAMIS_OK) {
            static const float nothing[NRANKS][N];
            check_nothing_lost(&all, nothing);
        }
    }
    fail_msg("more than %d operations", OPERATIONS_MOST);
    return 0;
}

static void test_an_error_in_any_operation_loses_nothing(void **state) {
    static injection good;
    (void)state;
    run_good(&good);
    assert_true(sweep(TAM_FAULT_ERROR, 0, &good) > 6 * STEPS); /* as docs/exchange.md has it */
}

static void test_silence_in_any_operation_is_a_timeout(void **state) {
    static injection good;
    (void)state;
    run_good(&good);
    assert_true(sweep(TAM_FAULT_SILENT, 0, &good) > 6 * STEPS);
}

/* The receiver refuses it, or the damage hit only padding; no rank ends such a step with another
 * result. */
static void test_a_damaged_bit_is_never_a_wrong_result(void **state) {
    enum { BITS = 24 };
    static injection good, all;
    uint32_t refused = 0, made = 0;
    (void)state;
    run_good(&good);
    uint64_t operations = sweep(TAM_FAULT_ERROR, 0, &good);
    for (uint64_t nth = 0; nth < operations; nth++)
        for (uint32_t bit = 0; bit < BITS; bit++) {
            if (!test_drawn(5))
                continue;
            made++;
            all = (injection){.fault = bit % 2 ? TAM_FAULT_FLIP : TAM_FAULT_SPOIL, .nth = nth};
            all.timeout_ms = test_long_ms();
            all.argument = (uint32_t)data_mix(nth * BITS + bit) & 0xffffff;
            all.rank = bit / 2 % NRANKS;
            inject(&all);
            check_not_silent(&all, &good);
            refused += !all_fine(&all);
        }
    assert_true(refused > made / 2);
}

/* -- a rank that dies between steps ----------------------------------------------------------- */

static void run_away(test_rank *self) {
    injection *all = self->shared;
    tamis_reducer *reducer = NULL;
    bool away = self->id == NRANKS - 1;
    RANK_OK(self, create(self, &reducer));
    RANK_OK(self, step_once(self, reducer, 0));
    rank_barrier(self);
    test_deadline(self->comm, all->timeout_ms);
    if (!away) {
        RANK_STATUS(self, TAMIS_E_TIMEOUT, step_once(self, reducer, 1));
        RANK_CHECK(self, strstr(tamis_last_error(), "3"), "\"%s\" does not name rank 3",
                   tamis_last_error());
        RANK_CHECK(self, all->slowest_ms[self->id] < all->timeout_ms + test_grace_ms(),
                   "it took %llu ms", (unsigned long long)all->slowest_ms[self->id]);
    }
    rank_barrier(self);
    tamis_reducer_destroy(reducer);
}

static void test_a_rank_that_stays_away_is_a_timeout_and_its_nodes_gradients_stay(void **state) {
    static injection all;
    float gradient[N];
    (void)state;
    all = (injection){.timeout_ms = test_stretch_ms(400)};
    test_context("rank 3 stays away");
    ranks_run(NRANKS, 0, run_away, &all);
    data_fill(DATA_HEAVY, 2, 1, N, gradient); /* no sum was made: it is unchanged */
    assert_memory_equal(all.gradient[2], gradient, sizeof gradient);
}

/* -- a rank at another step ------------------------------------------------------------------- */

/* Rank 1 loads what it saved a step before: its node refuses to sum what belongs to other steps. */
static void run_behind(test_rank *self) {
    tamis_reducer *reducer = NULL;
    float saved[N];
    size_t bytes = 0;
    RANK_OK(self, create(self, &reducer));
    RANK_OK(self, step_once(self, reducer, 0));
    RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
    void *control = malloc(bytes);
    RANK_CHECK(self, control, "no memory");
    RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(reducer, saved));
    RANK_OK(self, step_once(self, reducer, 1));
    if (self->id == 1)
        RANK_OK(self, tamis_reducer_load_memory(reducer, control, bytes, saved));
    free(control);
    tamis_status status = step_once(self, reducer, 2);
    RANK_CHECK(self, status != TAMIS_OK, "a step of ranks at different steps succeeded");
    RANK_CHECK(
        self, self->id > 1 || strstr(tamis_last_error(), "was refused: it belongs to another step"),
        "it says: %s", tamis_last_error());
    tamis_comm_abort(self->comm);
    tamis_reducer_destroy(reducer);
}

static void test_gradients_of_another_step_are_refused_in_their_node(void **state) {
    static injection all;
    (void)state;
    test_context("rank 1 is a step behind");
    all = (injection){0};
    ranks_run(NRANKS, 0, run_behind, &all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_error_in_any_operation_loses_nothing),
        cmocka_unit_test(test_silence_in_any_operation_is_a_timeout),
        cmocka_unit_test(test_a_damaged_bit_is_never_a_wrong_result),
        cmocka_unit_test(test_a_rank_that_stays_away_is_a_timeout_and_its_nodes_gradients_stay),
        cmocka_unit_test(test_gradients_of_another_step_are_refused_in_their_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
