/* SPDX-License-Identifier: MIT
 *
 * Memory that is short once reducers exist: no step notices, not even one that fails; states are
 * saved, loaded and resynced or say NOMEM and change nothing, each allocation in turn, also after
 * the communicator was lost.
 *
 * test: tsan
 */
#include "lib/base/base.h"
#include "tests/faults/attempt.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3, N = 600, MOST = 50 };

typedef struct scarce {
    const fault_config *config;
    long budget;
    tamis_status status[RANKS]; /* of a resync */
} scarce;

static tamis_status create(test_rank *self, tamis_reducer **out) {
    const scarce *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = c->config->scheme;
    config.value_codec = c->config->value_codec;
    config.bucket_length = c->config->bucket_length;
    config.density = 0.1;
    return data_reducer(self->comm, N, &config, out);
}

static tamis_status step_once(test_rank *self, tamis_reducer *reducer, uint32_t number) {
    float gradient[N];
    tamis_step step = data_step(gradient);
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

/* The budget is that of the whole process. */
static void all_with_budget(test_rank *self, long budget) {
    rank_barrier(self);
    if (self->id == 0)
        tam_alloc_budget(budget);
    rank_barrier(self);
}

static uint64_t residual_hash(tamis_reducer *reducer) {
    const float *residual = NULL;
    if (tamis_reducer_residual(reducer, &residual) != TAMIS_OK || !residual)
        return 0;
    return data_hash(0, residual, N * sizeof *residual);
}

/* -- steps ------------------------------------------------------------------------------------ */

static void run_without_memory(test_rank *self) {
    tamis_reducer *reducer = NULL;
    RANK_OK(self, create(self, &reducer));
    all_with_budget(self, 0);
    for (uint32_t number = 0; number < 5; number++)
        RANK_OK(self, step_once(self, reducer, number));
    rank_barrier(self);
    if (self->id == 1)
        tamis_comm_abort(self->comm);
    tamis_status status = step_once(self, reducer, 5);
    RANK_CHECK(self, status == TAMIS_E_ABORTED, "%s: %s", tamis_status_name(status),
               tamis_last_error());
    all_with_budget(self, -1);
    tamis_reducer_destroy(reducer);
}

static void no_step_needs_memory(void **state) {
    (void)state;
    scarce c = {0};
    for (size_t i = 0; (c.config = fault_config_at(i)); i++) {
        test_context("%s, steps without memory", c.config->name);
        ranks_run(RANKS, 0, run_without_memory, &c);
    }
    tam_alloc_budget(-1);
}

/* -- states ----------------------------------------------------------------------------------- */

typedef enum call { SAVE, LOAD, SAVE_CONTROL, LOAD_MEMORY, CALLS } call;

typedef struct states {
    tamis_reducer *reducer;
    char path[SCRATCH_PATH];
    void *control;
    size_t bytes;
    float residual[N];
    bool has_residual;
} states;

static tamis_status make_call(states *s, call what) {
    switch (what) {
    case SAVE:
        return tamis_reducer_save(s->reducer, s->path);
    case LOAD:
        return tamis_reducer_load(s->reducer, s->path);
    case SAVE_CONTROL:
        return tamis_reducer_save_control(s->reducer, s->control, s->bytes);
    default:
        return tamis_reducer_load_memory(s->reducer, s->control, s->bytes,
                                         s->has_residual ? s->residual : NULL);
    }
}

/* Each allocation fails in turn, until there is enough. By one rank at a time, as the budget is for
 * all. */
static void check_call(test_rank *self, states *s, call what) {
    uint64_t hash = residual_hash(s->reducer), live = tam_alloc_live();
    tamis_status status = TAMIS_E_NOMEM;
    for (long budget = 0; status == TAMIS_E_NOMEM && budget < MOST; budget++) {
        tam_alloc_budget(budget);
        status = make_call(s, what);
        tam_alloc_budget(-1);
        RANK_CHECK(self, status == TAMIS_OK || has_word(tamis_last_error(), "memory"), "\"%s\"",
                   tamis_last_error());
        RANK_CHECK(self, tam_alloc_live() == live, "something was not freed");
        RANK_CHECK(self, residual_hash(s->reducer) == hash, "the residual is another one");
    }
    RANK_CHECK(self, status == TAMIS_OK, "%s: %s", tamis_status_name(status), tamis_last_error());
}

static void check_calls(test_rank *self, states *s) {
    s->has_residual = residual_hash(s->reducer) != 0;
    RANK_OK(self, tamis_reducer_control_bytes(s->reducer, &s->bytes));
    s->control = calloc(1, s->bytes);
    if (s->has_residual)
        RANK_OK(self, tamis_reducer_save_residual(s->reducer, s->residual));
    for (int what = 0; what < CALLS && !self->failure[0]; what++)
        check_call(self, s, (call)what);
    free(s->control);
}

static void run_states(test_rank *self) {
    char name[32];
    states s = {0};
    snprintf(name, sizeof name, "rank%u", self->id);
    scratch_path(name, s.path);
    RANK_OK(self, create(self, &s.reducer));
    for (uint32_t number = 0; number < 3; number++)
        RANK_OK(self, step_once(self, s.reducer, number));
    for (int lost = 0; lost < 2; lost++) {
        for (uint32_t turn = 0; turn < RANKS; turn++) {
            rank_barrier(self);
            if (turn == self->id)
                check_calls(self, &s);
        }
        rank_barrier(self);
        if (self->id == 0)
            tamis_comm_abort(self->comm);
        tamis_status status = step_once(self, s.reducer, 3);
        RANK_CHECK(self, status == TAMIS_E_ABORTED, "%s", tamis_status_name(status));
    }
    tamis_reducer_destroy(s.reducer);
}

static void states_need_memory_and_say_so(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("first", path);
    scarce c = {0};
    for (size_t i = 0; (c.config = fault_config_at(i)); i++) {
        test_context("%s, states with little memory", c.config->name);
        ranks_run(RANKS, 0, run_states, &c);
    }
    tam_alloc_budget(-1);
}

/* -- resync ----------------------------------------------------------------------------------- */

static void run_resync(test_rank *self) {
    scarce *c = self->shared;
    uint64_t step = 99;
    tamis_reducer *reducer = NULL;
    RANK_OK(self, create(self, &reducer));
    RANK_OK(self, step_once(self, reducer, 0));
    uint64_t hash = residual_hash(reducer);
    all_with_budget(self, c->budget);
    c->status[self->id] = tamis_reducer_resync(reducer, &step);
    all_with_budget(self, -1);
    if (c->status[self->id] != TAMIS_OK) {
        RANK_CHECK(self, step == 99, "an output was written");
        RANK_CHECK(self, residual_hash(reducer) == hash, "the residual is another one");
        RANK_OK(self, tamis_reducer_resync(reducer, &step));
    }
    RANK_CHECK(self, step == 1, "step %llu", (unsigned long long)step);
    RANK_OK(self, step_once(self, reducer, 1));
    tamis_reducer_destroy(reducer);
}

/* All ranks get NOMEM, whichever of them lacks memory, and can try again. */
static void a_resync_without_memory_changes_nothing(void **state) {
    (void)state;
    scarce c = {0};
    for (size_t i = 0; (c.config = fault_config_at(i)); i++) {
        c.status[0] = TAMIS_E_NOMEM;
        for (c.budget = 0; c.status[0] != TAMIS_OK; c.budget++) {
            assert_true(c.budget < MOST);
            test_context("%s, resync with %ld allocations", c.config->name, c.budget);
            ranks_run(RANKS, 0, run_resync, &c);
            for (uint32_t r = 0; r < RANKS; r++) {
                bool same = c.status[r] == c.status[0];
                if (!same || (c.status[r] != TAMIS_OK && c.status[r] != TAMIS_E_NOMEM))
                    fail_msg("[%s] rank %u: %s", test_context_text(), r,
                             tamis_status_name(c.status[r]));
            }
        }
        assert_true(c.budget > 1);
    }
    tam_alloc_budget(-1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_needs_memory),
        cmocka_unit_test(states_need_memory_and_say_so),
        cmocka_unit_test(a_resync_without_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
