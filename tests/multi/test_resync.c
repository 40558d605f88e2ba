/* SPDX-License-Identifier: MIT
 *
 * A step that only some ranks have applied: its last exchange failed on one rank after all others
 * had completed it. From the states saved then, the run must continue as if the step had failed
 * everywhere.
 */
#include "collectives/reducer/reducer.h"
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 600, ROW_ELEMENTS = 200, ROW = 5, BAD = 1, BEFORE = 3, AFTER = 3, OPERATIONS_MOST = 40 };

static const tamis_update adam = {
    sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 2.0, 0.0};
static const tamis_update momentum = {
    sizeof(tamis_update), TAMIS_UPDATE_MOMENTUM, 0.9, 0.99, 1e-8, 1.0, 0.0};

typedef struct resync_case {
    const char *scheme;
    uint32_t nranks, nodes;
    uint64_t bucket_length;
    bool rows, half; /* some segments have rows; values travel as bfloat16 */
    uint32_t bound;  /* rows that a rank lists */
    double forgets;
    const tamis_update *update;
    double gbit; /* exchange auto */
    tamis_op op;
    /* of a run */
    uint64_t nth;
    uint32_t delay_ms; /* until the bad rank sees the failure */
    bool everywhere;   /* all ranks fail */
    bool onward;       /* the others begin the next step before they see it */
    /* by the ranks */
    tamis_status status[RANKS_MOST];
    tamis_status next[RANKS_MOST]; /* of the start of the next step */
    uint64_t step[RANKS_MOST];     /* to which resync brought them */
    uint64_t hash[RANKS_MOST];
} resync_case;

static tamis_status make(tamis_comm *comm, const resync_case *c, tamis_reducer **out) {
    static const tamis_segment segments[] = {
        {"a", 150}, {"words", ROW_ELEMENTS}, {"b", N - 150 - ROW_ELEMENTS}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.density = 0.05;
    config.op = c->op;
    config.rows_capacity = c->bound;
    config.bucket_length = c->bucket_length;
    config.value_codec = c->half ? TAMIS_VALUE_BFLOAT16 : TAMIS_VALUE_FLOAT32;
    config.ranks_per_node = c->nodes;
    config.residual_decay = 1.0 - c->forgets;
    config.update = c->update;
    config.link_latency_us = c->gbit > 0.0 ? 1.0 : 0.0;
    config.link_gbit = c->gbit;
    tamis_status status = tamis_layout_create(segments, 3, &layout);
    if (status == TAMIS_OK && c->rows)
        status = tamis_layout_set_rows(layout, 1, ROW);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void fill(const resync_case *c, uint32_t rank, uint32_t number, float *grad) {
    data_fill_real(rank, number, N, grad);
    for (size_t i = 0; c->rows && i < ROW_ELEMENTS; i++)
        if ((i / ROW + rank + number) % 4 != 0)
            grad[150 + i] = 0.0f;
}

/* The gradient is gone as it came. */
static tamis_status one_step(const resync_case *c, tamis_reducer *reducer, uint32_t rank,
                             uint32_t number, float *grad) {
    const tamis_step step = data_step(grad);
    fill(c, rank, number, grad);
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

static const char *path_of(uint32_t rank, char path[SCRATCH_PATH]) {
    char name[32];
    snprintf(name, sizeof name, "resync-%u", rank);
    return scratch_path(name, path);
}

/* Some steps, the one that fails, and perhaps the next; then all ranks save. */
static void run_until(test_rank *self) {
    resync_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    float grad[N];
    const tamis_step step = data_step(grad);
    char path[SCRATCH_PATH];
    RANK_OK(self, make(self->comm, c, &reducer));
    for (uint32_t number = 0; number < BEFORE; number++)
        RANK_OK(self, one_step(c, reducer, self->id, number, grad));
    if (self->id == BAD || c->everywhere)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_LATE, c->nth, c->delay_ms));
    self->where = "the step that fails";
    c->status[self->id] = one_step(c, reducer, self->id, BEFORE, grad);
    c->next[self->id] = TAMIS_E_STATE;
    if (c->status[self->id] != TAMIS_OK)
        tamis_comm_abort(self->comm); /* so that no rank waits */
    if (c->onward && c->status[self->id] == TAMIS_OK) {
        fill(c, self->id, BEFORE + 1, grad);
        c->next[self->id] = tamis_reducer_start(reducer, &step);
        if (c->next[self->id] == TAMIS_OK && tamis_reducer_wait(reducer) != TAMIS_OK)
            self->where = "after a failed step";
    }
    RANK_OK(self, tamis_reducer_save(reducer, path_of(self->id, path)));
    tamis_reducer_destroy(reducer);
}

/* Load, resync, continue. */
static void run_on(test_rank *self) {
    resync_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    const float *residual = NULL;
    float grad[N];
    uint64_t hash = 0;
    const tamis_step step = data_step(grad);
    char path[SCRATCH_PATH];
    RANK_OK(self, make(self->comm, c, &reducer));
    RANK_OK(self, tamis_reducer_load(reducer, path_of(self->id, path)));
    RANK_OK(self, tamis_reducer_resync(reducer, &c->step[self->id]));
    if (c->onward && c->everywhere && self->id != BAD) { /* what the others began then, now */
        fill(c, self->id, BEFORE + 1, grad);
        RANK_OK(self, tamis_reducer_accumulate(reducer, &step));
    }
    for (uint32_t number = 0; number < AFTER; number++) {
        RANK_OK(self, one_step(c, reducer, self->id, BEFORE + 2 + number, grad));
        hash = data_hash(hash, grad, sizeof grad);
    }
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    if (residual)
        hash = data_hash(hash, residual, data_held(reducer) * sizeof *residual);
    c->hash[self->id] = hash;
    tamis_reducer_destroy(reducer);
}

static uint32_t count_applied(const resync_case *c) {
    uint32_t applied = 0;
    for (uint32_t r = 0; r < c->nranks; r++)
        applied += c->status[r] == TAMIS_OK && (!c->onward || c->next[r] == TAMIS_OK);
    return applied;
}

static void run_both(resync_case *c) {
    test_context("%s P=%u G=%u, buckets of %llu, rows %d, half %d, update %d, operation %llu %s%s",
                 c->scheme, c->nranks, c->nodes, (unsigned long long)c->bucket_length, c->rows,
                 c->half, c->update ? (int)c->update->rule : -1, (unsigned long long)c->nth,
                 c->everywhere ? "everywhere" : "of one rank", c->onward ? ", onward" : "");
    ranks_run(c->nranks, 0, run_until, c);
    ranks_run(c->nranks, 0, run_on, c);
}

/* Whichever ranks applied the step, the run must continue as if none did. @return how many did */
static uint32_t compare(const resync_case *what, uint64_t nth, uint32_t delay_ms) {
    resync_case all = *what, one = *what;
    all.nth = one.nth = nth;
    all.everywhere = true;
    one.delay_ms = delay_ms;
    run_both(&one);
    uint32_t applied = count_applied(&one);
    if (one.onward && applied < one.nranks - 1)
        return 0; /* not the intended case: the fault came too early */
    if (applied == one.nranks)
        return applied;
    if (applied == 0 && one.nodes > 1)
        return 0; /* each node's sum is accumulated by the rank that holds it */
    run_both(&all);
    for (uint32_t r = 0; r < what->nranks; r++) {
        if (one.step[r] != BEFORE || all.step[r] != BEFORE)
            fail_msg("[%s] rank %u agreed with the others on step %llu", test_context_text(), r,
                     (unsigned long long)one.step[r]);
        if (one.hash[r] != all.hash[r])
            fail_msg("[%s] rank %u goes on with other bits, %u ranks had applied the step",
                     test_context_text(), r, applied);
    }
    return applied;
}

/* Each operation of the step fails in turn; the last one on a rank that sees the failure only after
 * the others have applied the step, however busy the machine is. */
static void check_case(const resync_case *what) {
    uint64_t last = 0;
    resync_case plain = *what;
    plain.onward = false;
    while (last < OPERATIONS_MOST && compare(&plain, last, 0) < what->nranks)
        last++;
    assert_true(last > 0 && last < OPERATIONS_MOST);
    for (uint32_t delay_ms = 20; compare(what, last - 1, delay_ms) < what->nranks - 1;
         delay_ms *= 10)
        assert_true(delay_ms < 20000);
}

static void runs_go_on_as_if_the_step_had_failed_everywhere(void **state) {
    static const resync_case cases[] = {
        {.scheme = "tamis", .nranks = 3},
        {.scheme = "tamis", .nranks = 3, .bucket_length = 100},
        {.scheme = "tamis", .nranks = 3, .half = true},
        {.scheme = "tamis", .nranks = 3, .forgets = 0.25},
        {.scheme = "tamis", .nranks = 3, .rows = true},
        {.scheme = "tamis", .nranks = 3, .rows = true, .bound = 4},
        {.scheme = "tamis", .nranks = 4, .nodes = 2},
        {.scheme = "tamis", .nranks = 3, .update = &adam},
        {.scheme = "tamis", .nranks = 3, .update = &momentum},
        {.scheme = "topk", .nranks = 3},
        {.scheme = "exdyna", .nranks = 3},
        {.scheme = "oktopk", .nranks = 3},
        {.scheme = "deft", .nranks = 3},
        {.scheme = "sage", .nranks = 3},
        {.scheme = "micro", .nranks = 2},
        {.scheme = "cltk", .nranks = 3},
        {.scheme = "all+global+exact+pairs", .nranks = 3},
        {.scheme = "cyclic+norm+predict+pairs", .nranks = 3, .half = true},
        {.scheme = "auto", .nranks = 3, .bucket_length = 100, .gbit = 1.0},
        {.scheme = "dense", .nranks = 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (test_drawn(3))
            check_case(&cases[i]);
}

/* What the next step added stays in the residual, like a micro-batch. */
static void what_was_added_since_stays(void **state) {
    static const resync_case cases[] = {
        {.scheme = "tamis", .nranks = 3, .onward = true},
        {.scheme = "tamis", .nranks = 3, .onward = true, .bucket_length = 100},
        {.scheme = "all+global+exact+pairs", .nranks = 3, .onward = true},
        {.scheme = "topk", .nranks = 3, .onward = true},
        {.scheme = "oktopk", .nranks = 2, .onward = true},
        {.scheme = "tamis", .nranks = 3, .onward = true, .rows = true},
        {.scheme = "tamis", .nranks = 3, .onward = true, .rows = true, .bound = 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_case(&cases[i]);
}

/* -- steps that cannot be rolled back --------------------------------------------------------- */

typedef struct refusal {
    const char *scheme, *words;
    uint32_t more; /* steps that rank 0 is ahead */
    bool alone;    /* only its control part was loaded */
    bool other;    /* it calls resync on another reducer */
    bool unmet;    /* no rank calls resync: the next step reports it */
    bool surges;   /* its last step had more entries than a state has room for */
    tamis_status status;
} refusal;

static void run_refused(test_rank *self) {
    const refusal *c = self->shared;
    const resync_case usual = {.scheme = c->scheme, .nranks = 2};
    tamis_reducer *reducer = NULL, *second = NULL;
    uint64_t step = 77;
    size_t bytes = 0;
    float grad[N];
    char path[SCRATCH_PATH];
    RANK_OK(self, make(self->comm, &usual, &reducer));
    RANK_OK(self, make(self->comm, &usual, &second));
    RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
    if (c->surges)
        reducer->buckets[0].rollback_capacity = 2;
    void *control = malloc(bytes);
    for (uint32_t number = 0; number < BEFORE + c->more; number++) {
        RANK_OK(self, one_step(&usual, reducer, self->id, number, grad));
        if (number + 1 == BEFORE && self->id > 0)
            RANK_OK(self, tamis_reducer_save(reducer, path_of(self->id, path)));
    }
    RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
    if (c->alone && self->id == 0)
        RANK_OK(self, tamis_reducer_load_memory(reducer, control, bytes, NULL));
    if (c->surges && self->id == 0)
        RANK_OK(self, tamis_reducer_save(reducer, path_of(self->id, path)));
    if (c->surges || self->id > 0)
        RANK_OK(self, tamis_reducer_load(reducer, path_of(self->id, path)));
    free(control);
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_resync(NULL, &step));
    RANK_STATUS(self, c->status,
                c->unmet
                    ? one_step(&usual, reducer, self->id, BEFORE, grad)
                    : tamis_reducer_resync(c->other && self->id == 0 ? second : reducer, &step));
    RANK_CHECK(self, has_word(tamis_last_error(), c->words), "\"%s\" does not say %s",
               tamis_last_error(), c->words);
    RANK_CHECK(self, step == 77, "step was written");
    tamis_reducer_destroy(reducer);
    tamis_reducer_destroy(second);
}

static void what_cannot_be_taken_back_is_refused_on_all_ranks(void **state) {
    static refusal cases[] = {
        {"tamis", "more than one apart", 2, false, false, false, false, TAMIS_E_MISMATCH},
        {"dense", "more than one apart", 3, false, false, false, false, TAMIS_E_MISMATCH},
        {"tamis", "cannot go back one", 1, true, false, false, false, TAMIS_E_UNSUPPORTED},
        {"tamis", "another reducer", 1, false, true, false, false, TAMIS_E_MISMATCH},
        {"tamis", "tamis_reducer_resync", 1, false, false, true, false, TAMIS_E_PROTOCOL},
        {"tamis", "more entries", 1, false, false, false, true, TAMIS_E_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_context("%s, %u steps apart: %s", cases[i].scheme, cases[i].more, cases[i].words);
        ranks_run(2, 0, run_refused, &cases[i]);
    }
}

/* -- from memory, and twice ------------------------------------------------------------------- */

static void run_from_memory(test_rank *self) {
    const resync_case usual = {.scheme = "tamis", .nranks = 2};
    tamis_reducer *reducer = NULL, *other = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    uint64_t step = 77;
    size_t bytes = 0;
    float grad[N], residual[N], before[N];
    const float *after = NULL;
    RANK_OK(self, make(self->comm, &usual, &reducer));
    RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
    void *control = malloc(bytes);
    for (uint32_t number = 0; number < BEFORE; number++)
        RANK_OK(self, one_step(&usual, reducer, self->id, number, grad));
    RANK_OK(self, tamis_reducer_save_residual(reducer, before));
    if (self->id == 1) { /* rank 1 never applies the step that follows */
        RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
        memcpy(residual, before, sizeof residual);
    }
    fill(&usual, self->id, BEFORE, grad);
    for (size_t i = 0; i < N; i++)
        before[i] += grad[i];
    RANK_OK(self, one_step(&usual, reducer, self->id, BEFORE, grad));
    if (self->id == 0) {
        RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
        RANK_OK(self, tamis_reducer_save_residual(reducer, residual));
    }
    RANK_OK(self, make(self->comm, &usual, &other));
    RANK_OK(self, tamis_reducer_load_memory(other, control, bytes, residual));
    for (int again = 0; again < 2; again++) {
        RANK_OK(self, tamis_reducer_resync(other, &step));
        RANK_CHECK(self, step == BEFORE, "step %llu", (unsigned long long)step);
    }
    RANK_OK(self, tamis_reducer_stats(other, &stats));
    RANK_CHECK(self, stats.steps == BEFORE, "%llu steps", (unsigned long long)stats.steps);
    RANK_OK(self, tamis_reducer_residual(other, &after));
    RANK_CHECK(self, self->id > 0 || memcmp(after, before, sizeof before) == 0,
               "the residual is not what it was before the step was applied");
    RANK_OK(self, one_step(&usual, other, self->id, BEFORE + 1, grad));
    free(control);
    tamis_reducer_destroy(reducer);
    tamis_reducer_destroy(other);
}

static void states_in_memory_can_be_rolled_back_too(void **state) {
    (void)state;
    test_context("memory");
    ranks_run(2, 0, run_from_memory, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_go_on_as_if_the_step_had_failed_everywhere),
        cmocka_unit_test(what_was_added_since_stays),
        cmocka_unit_test(what_cannot_be_taken_back_is_refused_on_all_ranks),
        cmocka_unit_test(states_in_memory_can_be_rolled_back_too),
    };
    return cmocka_run_group_tests_name("resync", tests, NULL, NULL);
}
