/* SPDX-License-Identifier: MIT
 *
 * Ranks that stay away, abort or fail: every rank returns by the deadline with a status, the
 * communicator stays lost, and what was accumulated is still there and can be saved.
 *
 * test: waits tsan
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/scratch.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 500, NRANKS = 3, TIMEOUT_MS = 400 };

static tamis_status create(test_rank *self, const char *scheme, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    config.scheme = scheme;
    config.density = 0.1;
    config.op = TAMIS_OP_SUM;
    self->where = "tamis_reducer_create";
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* One step with the data of `number`; the gradient is left in `gradient`. */
static tamis_status step_once(test_rank *self, tamis_reducer *reducer, uint32_t number,
                              float *gradient) {
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    step.grad = gradient;
    self->where = "tamis_reducer_start";
    tamis_status status = tamis_reducer_start(reducer, &step);
    if (status != TAMIS_OK)
        return status;
    self->where = "tamis_reducer_wait";
    return tamis_reducer_wait(reducer);
}

/* -- a rank stays away ------------------------------------------------------------------------ */

/* Every later call returns the same status and changes nothing. */
static void check_poisoned(test_rank *self, tamis_reducer *reducer, tamis_status cause) {
    float gradient[N], before[N];
    tamis_step step = TAMIS_STEP_INIT;
    tamis_reducer *another = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    data_fill(DATA_HEAVY, self->id, 9, N, gradient);
    memcpy(before, gradient, sizeof before);
    step.grad = gradient;
    test_deadline(self->comm, test_long_ms());
    uint64_t start_ms = now_ms();
    RANK_STATUS(self, cause, tamis_comm_status(self->comm));
    RANK_STATUS(self, cause, tamis_reducer_start(reducer, &step));
    RANK_CHECK(self, memcmp(before, gradient, sizeof before) == 0, "the gradient was changed");
    RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_result(reducer, &result)); /* there is none */
    RANK_STATUS(self, cause, create(self, "tamis", &another));
    RANK_CHECK(self, another == NULL, "an output was written");
    RANK_CHECK(self, now_ms() - start_ms < test_long_ms() / 2, "calls on a lost communicator wait");
}

/* The residual holds what was there before and the whole gradient of step `number`. */
static void check_accumulated(test_rank *self, tamis_reducer *reducer, const float *before,
                              uint32_t number) {
    float gradient[N];
    const float *residual = NULL;
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, residual[i] == before[i] + gradient[i],
                   "entry %zu: residual %g, before %g, gradient %g", i, (double)residual[i],
                   (double)before[i], (double)gradient[i]);
}

/* A run in which one rank stays away, and a run that continues from its files. */
typedef struct loss_case {
    const char *scheme;
    uint64_t residual_hash[NRANKS];
    double mass[NRANKS];
} loss_case;

/* What was saved on a lost communicator can be loaded on a new one. */
static void check_saved(test_rank *self, tamis_reducer *reducer) {
    char name[32], path[SCRATCH_PATH];
    loss_case *loss = self->shared;
    const float *residual = NULL;
    snprintf(name, sizeof name, "lost.%u", self->id);
    scratch_path(name, path);
    RANK_OK(self, tamis_reducer_save(reducer, path));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    loss->residual_hash[self->id] = data_hash(0, residual, N * sizeof(float));
}

static void run_away(test_rank *self) {
    float gradient[N], before[N];
    const float *residual = NULL;
    tamis_reducer *reducer = NULL;
    bool away = self->id == NRANKS - 1;
    RANK_OK(self, create(self, ((loss_case *)self->shared)->scheme, &reducer));
    RANK_OK(self, step_once(self, reducer, 0, gradient));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    memcpy(before, residual, sizeof before);
    rank_barrier(self);
    test_deadline(self->comm, test_stretch_ms(TIMEOUT_MS));
    uint64_t start_ms = now_ms();
    tamis_status status = away ? TAMIS_E_TIMEOUT : step_once(self, reducer, 1, gradient);
    uint64_t took_ms = now_ms() - start_ms;
    RANK_CHECK(self, status == TAMIS_E_TIMEOUT, "%s: %s", tamis_status_name(status),
               tamis_last_error());
    RANK_CHECK(self,
               away || (strstr(tamis_last_error(), "tamis_reducer_wait of step 1: waited ") &&
                        strstr(tamis_last_error(), " s for rank(s) 2")),
               "\"%s\" does not name call, step and rank", tamis_last_error());
    RANK_CHECK(self, took_ms < test_stretch_ms(TIMEOUT_MS) + test_grace_ms(), "it took %llu ms",
               (unsigned long long)took_ms);
    rank_barrier(self);
    if (away) { /* comes too late */
        status = step_once(self, reducer, 1, gradient);
        RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "the late rank got %s",
                   tamis_status_name(status));
    }
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, gradient[i] == 0, "gradient[%zu] is %g, not cleared", i,
                   (double)gradient[i]);
    check_accumulated(self, reducer, before, 1);
    check_poisoned(self, reducer, status);
    check_saved(self, reducer);
    tamis_reducer_destroy(reducer);
}

static double sum_of(const float *x) {
    double sum = 0;
    for (size_t i = 0; i < N; i++)
        sum += (double)x[i];
    return sum;
}

/* New communicators, the saved files: a step moves mass from residuals into the result. */
static void run_resumed(test_rank *self) {
    char name[32], path[SCRATCH_PATH];
    float gradient[N];
    const float *residual = NULL;
    loss_case *loss = self->shared;
    tamis_reducer *reducer = NULL;
    snprintf(name, sizeof name, "lost.%u", self->id);
    RANK_OK(self, create(self, loss->scheme, &reducer));
    RANK_OK(self, tamis_reducer_load(reducer, scratch_path(name, path)));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_CHECK(self, data_hash(0, residual, N * sizeof(float)) == loss->residual_hash[self->id],
               "the residual is not the one that was saved");
    data_fill(DATA_HEAVY, self->id, 2, N, gradient);
    double mass = -sum_of(residual) - sum_of(gradient);
    RANK_OK(self, step_once(self, reducer, 2, gradient));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    mass += sum_of(residual);
    loss->mass[self->id] = mass + (self->id == 0 ? sum_of(gradient) : 0);
    tamis_reducer_destroy(reducer);
}

static void test_a_silent_rank_is_a_timeout_and_nothing_is_lost(void **state) {
    char path[SCRATCH_PATH];
    scheme_case scheme;
    (void)state;
    scratch_path("first", path);
    for (size_t s = 0; scheme_preset(s, &scheme); s++) {
        if (scheme.dense) /* keeps no residual */
            continue;
        loss_case loss = {.scheme = scheme.name};
        test_context("%s, rank 2 stays away", scheme.name);
        ranks_run(NRANKS, 0, run_away, &loss);
        test_context("%s, resumed", scheme.name);
        ranks_run(NRANKS, 0, run_resumed, &loss);
        double lost = loss.mass[0] + loss.mass[1] + loss.mass[2];
        if (lost != 0)
            fail_msg("[%s] %g was lost", test_context_text(), lost);
    }
}

static void run_absent_at_create(test_rank *self) {
    tamis_reducer *reducer = NULL;
    uint64_t start_ms = now_ms();
    if (self->id == 0) {
        rank_barrier(self);
        return;
    }
    RANK_STATUS(self, TAMIS_E_TIMEOUT, create(self, "tamis", &reducer));
    RANK_CHECK(self, strstr(tamis_last_error(), "tamis_reducer_create: waited "), "\"%s\"",
               tamis_last_error());
    uint64_t took_ms = now_ms() - start_ms;
    RANK_CHECK(self, took_ms < test_stretch_ms(TIMEOUT_MS) + test_grace_ms(), "it took %llu ms",
               (unsigned long long)took_ms);
    RANK_CHECK(self, reducer == NULL, "an output was written");
    rank_barrier(self);
}

static void test_a_rank_that_never_creates_is_a_timeout(void **state) {
    (void)state;
    test_context("rank 0 never creates");
    ranks_run(NRANKS, test_stretch_ms(TIMEOUT_MS), run_absent_at_create, NULL);
}

static void run_destroy_while_others_wait(test_rank *self) {
    float gradient[N];
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    RANK_OK(self, create(self, "tamis", &reducer));
    data_fill(DATA_HEAVY, self->id, 0, N, gradient);
    step.grad = gradient;
    test_deadline(self->comm, test_stretch_ms(TIMEOUT_MS));
    if (self->id != 1)
        RANK_OK(self, tamis_reducer_start(reducer, &step));
    uint64_t start_ms = now_ms();
    tamis_reducer_destroy(reducer); /* waits for an exchange that cannot come */
    RANK_CHECK(self, now_ms() - start_ms < test_stretch_ms(TIMEOUT_MS) + test_grace_ms(),
               "destroy took %llu ms", (unsigned long long)(now_ms() - start_ms));
    rank_barrier(self);
}

static void test_destroy_gives_up_at_the_deadline(void **state) {
    (void)state;
    test_context("destroy between start and wait");
    ranks_run(NRANKS, 0, run_destroy_while_others_wait, NULL);
}

/* -- abort ------------------------------------------------------------------------------------ */

static void *abort_soon(void *comm) {
    sleep_ms(30);
    tamis_comm_abort(comm);
    return NULL;
}

/* Another thread of rank 0's process aborts its communicator while ranks 0 and 1 wait. */
static void run_abort(test_rank *self) {
    float gradient[N];
    tamis_reducer *reducer = NULL;
    pthread_t thread;
    RANK_OK(self, create(self, "tamis", &reducer));
    if (self->id == 2) {
        rank_barrier(self);
    } else {
        uint64_t start_ms = now_ms();
        if (self->id == 0 && pthread_create(&thread, NULL, abort_soon, self->comm) != 0)
            RANK_CHECK(self, false, "no thread");
        RANK_STATUS(self, TAMIS_E_ABORTED, step_once(self, reducer, 0, gradient));
        RANK_CHECK(self, now_ms() - start_ms < test_long_ms() / 2, "it took %llu ms",
                   (unsigned long long)(now_ms() - start_ms));
        if (self->id == 0)
            pthread_join(thread, NULL);
        check_poisoned(self, reducer, TAMIS_E_ABORTED);
        rank_barrier(self);
    }
    tamis_reducer_destroy(reducer);
}

static void test_abort_wakes_ranks_that_wait(void **state) {
    (void)state;
    test_context("abort from another thread");
    ranks_run(NRANKS, 0, run_abort, NULL);
}

static void *abort_at_some_moment(void *argument) {
    test_rank *self = argument;
    usleep((useconds_t)(*(const uint64_t *)self->shared % 400));
    tamis_comm_abort(self->comm);
    return NULL;
}

/* Steps until the communicator is lost; then everything is freed at once, but not what others may
 * still read. Sanitizers check this. */
static void run_surprise(test_rank *self) {
    float gradient[N];
    tamis_reducer *reducer = NULL;
    pthread_t thread;
    tamis_status status = TAMIS_OK;
    RANK_OK(self, create(self, "tamis", &reducer));
    rank_barrier(self);
    if (self->id == 1 && pthread_create(&thread, NULL, abort_at_some_moment, self) != 0)
        RANK_CHECK(self, false, "no thread");
    for (uint32_t number = 0; status == TAMIS_OK && number < 100000; number++)
        status = step_once(self, reducer, number % 8, gradient);
    RANK_CHECK(self, status == TAMIS_E_ABORTED, "%s: %s", tamis_status_name(status),
               tamis_last_error());
    tamis_reducer_destroy(reducer);
    if (self->id == 1)
        pthread_join(thread, NULL);
}

static void test_abort_at_any_moment_is_clean(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        uint64_t seed = data_mix(round);
        test_context("abort at some moment, round %llu", (unsigned long long)round);
        ranks_run(NRANKS, 0, run_surprise, &seed);
    }
}

/* -- a fault in every operation --------------------------------------------------------------- */

enum { STEPS = 3, OPERATIONS_MOST = 60, SILENT_MS = 500 };

typedef struct injection {
    const char *scheme;
    tam_fault fault;
    uint64_t nth;
    uint32_t argument, rank;
    uint32_t timeout_ms;
    /* by the ranks */
    tamis_status created[NRANKS];
    tamis_status status[NRANKS][STEPS]; /* TAMIS_E_STATE: step not run */
    uint64_t hash[NRANKS][STEPS];
    uint64_t slowest_ms[NRANKS];
    bool residual_finite[NRANKS];
} injection;

static void record_time(injection *all, uint32_t r, uint64_t start_ms) {
    uint64_t took_ms = now_ms() - start_ms;
    if (took_ms > all->slowest_ms[r])
        all->slowest_ms[r] = took_ms;
}

static void run_injection(test_rank *self) {
    injection *all = self->shared;
    float gradient[N];
    tamis_reducer *reducer = NULL;
    if (all->fault != TAM_FAULT_NONE && self->id == all->rank)
        RANK_OK(self, tam_faulty_install(self->comm, all->fault, all->nth, all->argument));
    for (uint32_t step = 0; step < STEPS; step++)
        all->status[self->id][step] = TAMIS_E_STATE;
    uint64_t start_ms = now_ms();
    all->created[self->id] = create(self, all->scheme, &reducer);
    record_time(all, self->id, start_ms);
    tamis_status status = all->created[self->id];
    for (uint32_t step = 0; status == TAMIS_OK && step < STEPS; step++) {
        start_ms = now_ms();
        status = step_once(self, reducer, step, gradient);
        record_time(all, self->id, start_ms);
        all->status[self->id][step] = status;
        all->hash[self->id][step] = data_hash(0, gradient, sizeof gradient);
    }
    /* The others detect silence only by their deadline. */
    if (status != TAMIS_OK && all->fault != TAM_FAULT_SILENT)
        tamis_comm_abort(self->comm);
    tamis_reducer_destroy(reducer);
}

static void inject(injection *all) {
    test_context("%s: fault %d at operation %llu of rank %u, argument %u", all->scheme, all->fault,
                 (unsigned long long)all->nth, all->rank, all->argument);
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

/* A wrong result is excused only if the same rank reports the loss in the next step; faults are
 * therefore not injected into the last step. */
static void check_not_silent(const injection *all, const injection *good) {
    for (uint32_t r = 0; r < NRANKS; r++)
        for (uint32_t step = 0; step < STEPS; step++) {
            if (all->status[r][step] != TAMIS_OK || all->hash[r][step] == good->hash[r][step])
                continue;
            if (step + 1 == STEPS || all->status[r][step + 1] == TAMIS_OK)
                fail_msg("[%s] rank %u, step %u: a wrong result and no word of it",
                         test_context_text(), r, step);
        }
}

static injection run_good(const char *scheme) {
    injection good = {.scheme = scheme, .timeout_ms = test_long_ms()};
    inject(&good);
    assert_true(all_fine(&good));
    return good;
}

/* Injects into operation 0, 1, 2, ... until there is none with that number.
 * @return the number of operations of a run */
static uint64_t sweep(const char *scheme, tam_fault fault, uint32_t argument,
                      const injection *good) {
    uint32_t stride = fault == TAM_FAULT_SILENT ? test_stride(4) : 1; /* each takes its deadline */
    for (uint64_t nth = 0; nth < OPERATIONS_MOST; nth += stride) {
        injection all = {.scheme = scheme, .fault = fault, .nth = nth, .argument = argument};
        all.rank = (uint32_t)(nth % NRANKS);
        all.timeout_ms = fault == TAM_FAULT_SILENT ? test_stretch_ms(SILENT_MS) : test_long_ms();
        inject(&all);
        if (all_fine(&all))
            return nth;
        check_not_silent(&all, good);
        for (uint32_t r = 0; r < NRANKS; r++) /* no rank may ignore its fault */
            if (all.created[r] == TAMIS_OK && all.status[r][STEPS - 1] == TAMIS_OK && r == all.rank)
                fail_msg("[%s] the faulty rank %u saw no fault", test_context_text(), r);
    }
    fail_msg("[%s] more than %d operations", scheme, OPERATIONS_MOST);
    return 0;
}

static void test_an_error_in_any_operation_is_reported(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++) {
        injection good = run_good(scheme.name);
        assert_true(sweep(scheme.name, TAM_FAULT_ERROR, 0, &good) > STEPS);
    }
}

static void test_silence_in_any_operation_is_a_timeout(void **state) {
    injection good = run_good("tamis");
    (void)state;
    assert_true(sweep("tamis", TAM_FAULT_SILENT, 0, &good) > STEPS);
}

static void test_a_delay_changes_nothing(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++) {
        injection good = run_good(scheme.name);
        for (uint64_t nth = 0; nth < 12; nth++) {
            injection all = good;
            all.fault = TAM_FAULT_DELAY;
            all.nth = nth;
            all.rank = (uint32_t)(nth % NRANKS);
            all.argument = 3;
            inject(&all);
            assert_true(all_fine(&all));
            check_not_silent(&all, &good);
        }
    }
}

static void test_a_flipped_bit_is_never_a_silent_wrong_result(void **state) {
    enum { BITS = 40, LAST_STEP_OPERATIONS = 4 };
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++) {
        injection good = run_good(scheme.name);
        uint64_t operations = sweep(scheme.name, TAM_FAULT_ERROR, 0, &good);
        for (uint64_t nth = 0; nth + LAST_STEP_OPERATIONS < operations; nth++)
            for (uint32_t bit = 0; bit < BITS; bit += test_stride(4)) {
                injection all = {.scheme = scheme.name, .fault = TAM_FAULT_FLIP, .nth = nth};
                all.timeout_ms = test_long_ms();
                all.argument = (uint32_t)data_mix(nth * BITS + bit) & 0xffffff;
                all.rank = bit % NRANKS;
                inject(&all);
                check_not_silent(&all, &good);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_silent_rank_is_a_timeout_and_nothing_is_lost),
        cmocka_unit_test(test_a_rank_that_never_creates_is_a_timeout),
        cmocka_unit_test(test_destroy_gives_up_at_the_deadline),
        cmocka_unit_test(test_abort_wakes_ranks_that_wait),
        cmocka_unit_test(test_abort_at_any_moment_is_clean),
        cmocka_unit_test(test_an_error_in_any_operation_is_reported),
        cmocka_unit_test(test_silence_in_any_operation_is_a_timeout),
        cmocka_unit_test(test_a_delay_changes_nothing),
        cmocka_unit_test(test_a_flipped_bit_is_never_a_silent_wrong_result),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
