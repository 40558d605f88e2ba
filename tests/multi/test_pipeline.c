/* SPDX-License-Identifier: MIT
 *
 * Pipelines: ranks that describe them differently, marks out of order, and a budget that moves to
 * the stages that wait longest, exactly, on all ranks or on none.
 *
 * test: waits tsan
 */
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/pipeline.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { NSTAGES = 2, PER_STAGE = 2, NRANKS = NSTAGES * PER_STAGE, N = 10000 };

static uint32_t stage_of(const test_rank *self) {
    return self->id / PER_STAGE;
}

/* Stages of N and N / 2 at density 1 %: 150 entries, by length (bucket.h) 99 and 51. */
static const uint64_t even_entries[NSTAGES] = {99, 51};

static tamis_pipeline_config usual_config(const test_rank *self) {
    tamis_pipeline_config config = TAMIS_PIPELINE_CONFIG_INIT;
    config.stage = stage_of(self);
    config.nstages = NSTAGES;
    config.micro_batches = 4;
    config.length = config.stage == 0 ? N : N / 2;
    config.density = 0.01;
    return config;
}

/* -- handshake -------------------------------------------------------------------------------- */

struct difference {
    const char *words;         /* the message must hold one of these, separated by '|' */
    tamis_pipeline_config odd; /* what the last rank asks for, instead of {1, 2, 4, N / 2, 0.01} */
    tamis_status status;       /* on all ranks */
};

static void check_usable(test_rank *self) {
    tamis_pipeline_config config = usual_config(self);
    tamis_pipeline *pipeline = NULL;
    RANK_OK(self, tamis_comm_status(self->comm));
    RANK_OK(self, tamis_pipeline_create(self->comm, &config, &pipeline));
    tamis_pipeline_destroy(pipeline);
}

static void run_difference(test_rank *self) {
    const struct difference *difference = self->shared;
    bool odd = self->id == NRANKS - 1;
    tamis_pipeline_config config = odd ? difference->odd : usual_config(self);
    tamis_pipeline *pipeline = NULL;
    RANK_STATUS(self, difference->status, tamis_pipeline_create(self->comm, &config, &pipeline));
    RANK_CHECK(self, pipeline == NULL, "the output was written");
    const char *words = odd || difference->status == TAMIS_E_MISMATCH ? difference->words
                                                                      : "rank 3 could not create";
    RANK_CHECK(self, has_word(tamis_last_error(), words), "\"%s\" does not name %s",
               tamis_last_error(), words);
    check_usable(self);
}

#define SIZE sizeof(tamis_pipeline_config)

static const struct difference differences[] = {
    {"nstages differs: rank 0 has 2, rank 3 has 3", {SIZE, 1, 3, 4, N / 2, 0.01}, TAMIS_E_MISMATCH},
    {"micro_batches differs: rank 0 has 4, rank 3 has 5",
     {SIZE, 1, 2, 5, N / 2, 0.01},
     TAMIS_E_MISMATCH},
    {"density differs: rank 0 has 0.01, rank 3 has 0.0100001",
     {SIZE, 1, 2, 4, N / 2, 0.0100001},
     TAMIS_E_MISMATCH},
    {"length of stage 1 differs: rank 2 has 5000, rank 3 has 4000",
     {SIZE, 1, 2, 4, 4000, 0.01},
     TAMIS_E_MISMATCH},
    {"stage is 2", {SIZE, 2, 2, 4, N / 2, 0.01}, TAMIS_E_ARGUMENT},
    {"nstages is 0", {SIZE, 0, 0, 4, N / 2, 0.01}, TAMIS_E_ARGUMENT},
    {"nstages is 4294967295", {SIZE, 1, UINT32_MAX, 4, N / 2, 0.01}, TAMIS_E_ARGUMENT},
    {"micro_batches is 0", {SIZE, 1, 2, 0, N / 2, 0.01}, TAMIS_E_ARGUMENT},
    {"length is 0", {SIZE, 1, 2, 4, 0, 0.01}, TAMIS_E_ARGUMENT},
    {"length is 18446744073709551615", {SIZE, 1, 2, 4, UINT64_MAX, 0.01}, TAMIS_E_ARGUMENT},
    {"density is 0", {SIZE, 1, 2, 4, N / 2, 0.0}, TAMIS_E_ARGUMENT},
    {"density is 1.5", {SIZE, 1, 2, 4, N / 2, 1.5}, TAMIS_E_ARGUMENT},
    {"density is nan|density is -nan", {SIZE, 1, 2, 4, N / 2, NAN}, TAMIS_E_ARGUMENT},
    {"tamis_pipeline_config.size", {3, 1, 2, 4, N / 2, 0.01}, TAMIS_E_ARGUMENT},
};

static void what_differs_is_named_on_all_ranks(void **state) {
    (void)state;
    for (size_t d = 0; d < sizeof differences / sizeof differences[0]; d++) {
        struct difference difference = differences[d];
        test_context("%s", difference.words);
        ranks_run(NRANKS, 0, run_difference, &difference);
    }
}

static void run_empty_stage(test_rank *self) {
    tamis_pipeline_config config = usual_config(self);
    tamis_pipeline *pipeline = NULL;
    config.nstages = 3;
    config.stage = config.stage ? 2 : 0;
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_pipeline_create(self->comm, &config, &pipeline));
    RANK_CHECK(self, has_word(tamis_last_error(), "stage 1 of 3 has no rank"), "it says \"%s\"",
               tamis_last_error());
    check_usable(self);
}

static void a_stage_without_rank_is_refused(void **state) {
    (void)state;
    test_context("no rank in stage 1");
    ranks_run(NRANKS, 0, run_empty_stage, NULL);
}

static void run_other_call(test_rank *self) {
    tamis_pipeline_config config = usual_config(self);
    tamis_pipeline *pipeline = NULL, *second = NULL;
    RANK_OK(self, tamis_pipeline_create(self->comm, &config, &pipeline));
    if (self->id == 1) {
        RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_pipeline_create(self->comm, &config, &second));
    } else {
        RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_pipeline_balance(pipeline, NULL));
    }
    tamis_pipeline_destroy(pipeline);
    check_usable(self);
}

static void another_collective_call_is_noticed(void **state) {
    (void)state;
    test_context("rank 1 creates, the others balance");
    ranks_run(NRANKS, 0, run_other_call, NULL);
}

/* -- one rank alone --------------------------------------------------------------------------- */

#define EXPECT(expected, words, call)                                                              \
    do {                                                                                           \
        tamis_status got_ = (call);                                                                \
        if (got_ != (expected) || !has_word(tamis_last_error(), words))                            \
            fail_msg("%s: %s (%s)", #call, tamis_status_name(got_), tamis_last_error());           \
    } while (0)

static tamis_pipeline *create_alone(tamis_comm *comm, uint64_t length) {
    tamis_pipeline_config config = TAMIS_PIPELINE_CONFIG_INIT;
    tamis_pipeline *pipeline = NULL;
    config.length = length;
    assert_int_equal(tamis_pipeline_create(comm, &config, &pipeline), TAMIS_OK);
    return pipeline;
}

static void wrong_arguments_are_named_and_do_nothing(void **state) {
    (void)state;
    tamis_comm *comm;
    tamis_pipeline_config config = TAMIS_PIPELINE_CONFIG_INIT;
    tamis_stage stage = TAMIS_STAGE_INIT;
    tamis_pipeline *pipeline = NULL;
    config.length = N;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    EXPECT(TAMIS_E_ARGUMENT, "world", tamis_pipeline_create(NULL, &config, &pipeline));
    EXPECT(TAMIS_E_ARGUMENT, "config", tamis_pipeline_create(comm, NULL, &pipeline));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_pipeline_create(comm, &config, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "NULL", tamis_pipeline_mark(NULL, TAMIS_MARK_INPUT));
    EXPECT(TAMIS_E_ARGUMENT, "NULL", tamis_pipeline_balance(NULL, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "pipeline", tamis_pipeline_stage_at(NULL, 0, &stage));
    pipeline = create_alone(comm, N);
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_pipeline_stage_at(pipeline, 0, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "stage 1 is out of range: there are 1",
           tamis_pipeline_stage_at(pipeline, 1, &stage));
    stage.size = 8;
    EXPECT(TAMIS_E_ARGUMENT, "tamis_stage", tamis_pipeline_stage_at(pipeline, 0, &stage));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_pipeline_balance(pipeline, NULL));
    tamis_pipeline_destroy(pipeline);
    tamis_pipeline_destroy(NULL);
    tamis_comm_destroy(comm);
}

static void marks_out_of_turn_are_refused(void **state) {
    (void)state;
    tamis_comm *comm;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    tamis_pipeline *pipeline = create_alone(comm, N);
    EXPECT(TAMIS_E_ARGUMENT, "2 is not a mark", tamis_pipeline_mark(pipeline, (tamis_mark)2));
    for (int i = 0; i < 3; i++) {
        EXPECT(TAMIS_E_STATE, "INPUT", tamis_pipeline_mark(pipeline, TAMIS_MARK_BACKWARD));
        assert_int_equal(tamis_pipeline_mark(pipeline, TAMIS_MARK_INPUT), TAMIS_OK);
        EXPECT(TAMIS_E_STATE, "BACKWARD", tamis_pipeline_mark(pipeline, TAMIS_MARK_INPUT));
        assert_int_equal(tamis_pipeline_mark(pipeline, TAMIS_MARK_BACKWARD), TAMIS_OK);
    }
    tamis_pipeline_destroy(pipeline);
    tamis_comm_destroy(comm);
}

static void a_pipeline_without_memory_leaks_nothing(void **state) {
    (void)state;
    tamis_comm *comm;
    tamis_pipeline_config config = TAMIS_PIPELINE_CONFIG_INIT;
    tamis_pipeline *pipeline = NULL;
    config.length = N;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    uint64_t live = tam_alloc_live();
    long budget = 0;
    for (; budget < 100; budget++) {
        tam_alloc_budget(budget);
        tamis_status status = tamis_pipeline_create(comm, &config, &pipeline);
        tam_alloc_budget(-1);
        if (status == TAMIS_OK)
            break;
        assert_int_equal(status, TAMIS_E_NOMEM);
        assert_int_equal(tam_alloc_live(), live);
    }
    assert_in_range(budget, 2, 99);
    tamis_pipeline_destroy(pipeline);
    assert_int_equal(tam_alloc_live(), live);
    tamis_comm_destroy(comm);
}

/* -- steps ------------------------------------------------------------------------------------ */

/* What a rank does in its steps. */
struct plan {
    tamis_comm *groups[NRANKS]; /* communicator of the stage of each world rank */
    uint32_t window_ms[NSTAGES];
    uint32_t busy_ms[NRANKS];
    tamis_stage stages[NRANKS][NSTAGES]; /* as each rank sees them */
    const char *scheme[NSTAGES];
};

struct worker {
    test_rank *self;
    struct plan *plan;
    tamis_pipeline *pipeline;
    tamis_reducer *reducer;
    tamis_stage own;
    float gradient[N];
};

static void open_worker(test_rank *self, struct worker *w) {
    tamis_pipeline_config config = usual_config(self);
    tamis_reducer_config how = TAMIS_REDUCER_CONFIG_INIT;
    tamis_segment segment = {"all", config.length};
    tamis_layout *layout;
    *w = (struct worker){.self = self, .plan = self->shared, .own = TAMIS_STAGE_INIT};
    RANK_OK(self, tamis_pipeline_create(self->comm, &config, &w->pipeline));
    RANK_OK(self, tamis_pipeline_stage_at(w->pipeline, config.stage, &w->own));
    RANK_OK(self, tamis_layout_create(&segment, 1, &layout));
    how.scheme = w->plan->scheme[config.stage];
    how.density = w->own.density;
    how.density_max = w->own.density_max;
    tamis_status status =
        tamis_reducer_create(w->plan->groups[self->id], layout, &how, &w->reducer);
    tamis_layout_destroy(layout);
    RANK_OK(self, status);
}

static void close_worker(struct worker *w) {
    tamis_reducer_destroy(w->reducer);
    tamis_pipeline_destroy(w->pipeline);
}

static void run_step(struct worker *w) {
    test_rank *self = w->self;
    tamis_step step = TAMIS_STEP_INIT;
    RANK_OK(self, tamis_pipeline_mark(w->pipeline, TAMIS_MARK_INPUT));
    sleep_ms(w->plan->busy_ms[self->id]);
    data_fill(DATA_HEAVY, self->id, 0, w->own.length, w->gradient);
    RANK_OK(self, tamis_pipeline_mark(w->pipeline, TAMIS_MARK_BACKWARD));
    step.grad = w->gradient;
    RANK_OK(self, tamis_reducer_start(w->reducer, &step));
    RANK_OK(self, tamis_reducer_wait(w->reducer));
    sleep_ms(w->plan->window_ms[stage_of(self)]);
}

static void run_steps(struct worker *w, uint32_t count) {
    for (uint32_t i = 0; i < count && !w->self->failure[0]; i++)
        run_step(w);
}

static void look(struct worker *w) {
    tamis_stage *seen = w->plan->stages[w->self->id];
    for (uint32_t s = 0; s < NSTAGES; s++) {
        seen[s] = (tamis_stage)TAMIS_STAGE_INIT;
        RANK_OK(w->self, tamis_pipeline_stage_at(w->pipeline, s, &seen[s]));
    }
}

static uint64_t entries(const tamis_stage *stage) {
    return (uint64_t)floor(stage->density * (double)stage->length);
}

static bool same_stage(const tamis_stage *a, const tamis_stage *b) {
    return a->nranks == b->nranks && a->length == b->length && a->density == b->density &&
           a->density_max == b->density_max && a->window_s == b->window_s &&
           a->busy_s == b->busy_s && a->exchange_s == b->exchange_s &&
           a->straggler == b->straggler && a->straggler_s == b->straggler_s;
}

/* All ranks see the same, the budget is kept to the last entry, and reducers send their budget. */
static void check_stages(struct worker *w) {
    test_rank *self = w->self;
    const tamis_stage *seen = w->plan->stages[self->id];
    tamis_stats stats = TAMIS_STATS_INIT;
    look(w);
    if (!rank_barrier(self))
        return;
    RANK_CHECK(self, entries(&seen[0]) + entries(&seen[1]) == 150, "%llu + %llu entries",
               (unsigned long long)entries(&seen[0]), (unsigned long long)entries(&seen[1]));
    for (uint32_t s = 0; s < NSTAGES; s++) {
        uint64_t even = even_entries[s];
        RANK_CHECK(self, same_stage(&seen[s], &w->plan->stages[0][s]),
                   "it sees another stage %u than rank 0", s);
        RANK_CHECK(self, 2 * entries(&seen[s]) >= even && entries(&seen[s]) <= 2 * even,
                   "stage %u has %llu entries", s, (unsigned long long)entries(&seen[s]));
        RANK_CHECK(self, seen[s].density <= seen[s].density_max, "more than the most");
        RANK_CHECK(self, seen[s].nranks == PER_STAGE, "%u ranks", seen[s].nranks);
    }
    run_step(w);
    RANK_OK(self, tamis_reducer_stats(w->reducer, &stats));
    RANK_CHECK(self, stats.target == entries(&seen[stage_of(self)]), "its reducer sends %llu",
               (unsigned long long)stats.target);
    rank_barrier(self); /* before any rank checks again */
}

/* Ranks balance between two barriers, and nothing is allocated meanwhile. */
static void balance(struct worker *w) {
    test_rank *self = w->self;
    rank_barrier(self);
    uint64_t before = tam_alloc_made();
    rank_barrier(self);
    RANK_OK(self, tamis_pipeline_balance(w->pipeline, w->reducer));
    rank_barrier(self);
    RANK_CHECK(self, tam_alloc_made() == before, "a balance allocates");
    rank_barrier(self);
}

static void run_plan(struct plan *p, rank_body body) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    for (uint32_t s = 0; s < NSTAGES; s++)
        assert_int_equal(tamis_comm_create_local(PER_STAGE, &config, &p->groups[s * PER_STAGE]),
                         TAMIS_OK);
    ranks_run(NRANKS, config.timeout_ms, body, p);
    for (uint32_t r = 0; r < NRANKS; r++)
        tamis_comm_destroy(p->groups[r]);
}

static void run_few_steps(test_rank *self) {
    struct worker w;
    open_worker(self, &w);
    const tamis_stage *seen = w.plan->stages[self->id];
    run_steps(&w, 3); /* three times busy, two windows */
    for (int i = 0; i < 2; i++) {
        RANK_OK(self, tamis_pipeline_balance(w.pipeline, w.reducer));
        check_stages(&w); /* a step, but its window was spent in the balance */
        RANK_CHECK(self, entries(&seen[0]) == even_entries[0], "they are not even");
        RANK_CHECK(self, seen[1].window_s == 0.0 && seen[1].straggler == UINT32_MAX,
                   "something was learned");
    }
    run_steps(&w, 1); /* the third window */
    RANK_OK(self, tamis_pipeline_balance(w.pipeline, w.reducer));
    check_stages(&w);
    RANK_CHECK(self, seen[1].window_s > 0.0, "nothing was learned");
    close_worker(&w);
}

static void with_too_few_steps_densities_stay_even(void **state) {
    (void)state;
    struct plan plan = {.window_ms = {1, 30}};
    test_context("three steps, then more");
    run_plan(&plan, run_few_steps);
}

/* On a busy machine times may mislead once, but not five times. */
static void run_windows(test_rank *self) {
    struct worker w;
    open_worker(self, &w);
    const tamis_stage *seen = w.plan->stages[self->id];
    for (int round = 0; round < 5; round++) {
        run_steps(&w, 4);
        balance(&w);
        check_stages(&w);
        if (self->failure[0] || entries(&seen[1]) > even_entries[1])
            break;
    }
    RANK_CHECK(
        self, entries(&seen[1]) > even_entries[1],
        "windows of %g and %g s, exchanges of %g and %g s, but the stages have %llu and %llu",
        seen[0].window_s, seen[1].window_s, seen[0].exchange_s, seen[1].exchange_s,
        (unsigned long long)entries(&seen[0]), (unsigned long long)entries(&seen[1]));
    RANK_CHECK(self, seen[1].window_s > 0.04, "a window of %g s", seen[1].window_s);
    close_worker(&w);
}

static void a_longer_window_gets_more_of_the_budget(void **state) {
    (void)state;
    struct plan plan = {.window_ms = {1, 50}};
    test_context("windows of 1 and 50 ms");
    run_plan(&plan, run_windows);
}

static void run_straggler(test_rank *self) {
    struct worker w;
    open_worker(self, &w);
    const tamis_stage *slow = &w.plan->stages[self->id][1];
    for (int round = 0; round < 5; round++) {
        run_steps(&w, 4);
        RANK_OK(self, tamis_pipeline_balance(w.pipeline, w.reducer));
        check_stages(&w);
        if (self->failure[0] || (slow->straggler == 3 && slow->straggler_s > 0.005))
            break;
    }
    RANK_CHECK(self, slow->straggler == 3, "the straggler is rank %u", slow->straggler);
    RANK_CHECK(self, slow->straggler_s > 0.005 && slow->busy_s > 0.02,
               "%g s more than the mean of %g s", slow->straggler_s, slow->busy_s);
    close_worker(&w);
}

static void the_straggler_is_found(void **state) {
    (void)state;
    struct plan plan = {.window_ms = {1, 2}, .busy_ms = {1, 1, 1, 50}};
    test_context("rank 3 is slow");
    run_plan(&plan, run_straggler);
}

/* -- failures of a balance -------------------------------------------------------------------- */

static void run_unsupported(test_rank *self) {
    struct worker w;
    open_worker(self, &w);
    run_steps(&w, 4);
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_pipeline_balance(w.pipeline, w.reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "dense|rank 2 could not"), "it says \"%s\"",
               tamis_last_error());
    if (stage_of(self) == 0) { /* the others continue as before */
        tamis_stats stats = TAMIS_STATS_INIT;
        run_step(&w);
        RANK_OK(self, tamis_reducer_stats(w.reducer, &stats));
        RANK_CHECK(self, stats.target == even_entries[0], "its reducer sends %llu",
                   (unsigned long long)stats.target);
    }
    look(&w);
    RANK_CHECK(self, entries(&w.plan->stages[self->id][0]) == even_entries[0],
               "the density has changed");
    close_worker(&w);
}

static void where_one_density_cannot_change_none_does(void **state) {
    (void)state;
    struct plan plan = {.window_ms = {1, 30}, .scheme = {"tamis", "dense"}};
    test_context("stage 1 is dense");
    run_plan(&plan, run_unsupported);
}

static void run_out_of_turn(test_rank *self) {
    struct worker w;
    open_worker(self, &w);
    run_steps(&w, 1);
    if (self->id == 2)
        RANK_OK(self, tamis_pipeline_mark(w.pipeline, TAMIS_MARK_INPUT));
    RANK_STATUS(self, TAMIS_E_STATE, tamis_pipeline_balance(w.pipeline, w.reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "BACKWARD|rank 2 could not balance"),
               "it says \"%s\"", tamis_last_error());
    if (self->id == 2)
        RANK_OK(self, tamis_pipeline_mark(w.pipeline, TAMIS_MARK_BACKWARD));
    RANK_OK(self, tamis_pipeline_balance(w.pipeline, w.reducer));
    close_worker(&w);
}

static void a_balance_amid_a_step_is_refused_on_all_ranks(void **state) {
    (void)state;
    struct plan plan = {.window_ms = {1, 1}};
    test_context("rank 2 is amid a step");
    run_plan(&plan, run_out_of_turn);
}

static void run_absent(test_rank *self) {
    struct worker w;
    open_worker(self, &w);
    run_steps(&w, 1);
    rank_barrier(self);
    test_deadline(self->comm, test_short_ms());
    uint64_t before = now_ms();
    if (self->id != 1) {
        RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_pipeline_balance(w.pipeline, w.reducer));
        RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_pipeline_balance(w.pipeline, w.reducer));
        RANK_CHECK(self, now_ms() - before < test_short_ms() + test_grace_ms(), "it took %llu ms",
                   (unsigned long long)(now_ms() - before));
    }
    close_worker(&w);
}

static void an_absent_rank_is_not_waited_for_for_ever(void **state) {
    (void)state;
    struct plan plan = {0};
    test_context("rank 1 does not balance");
    run_plan(&plan, run_absent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_differs_is_named_on_all_ranks),
        cmocka_unit_test(a_stage_without_rank_is_refused),
        cmocka_unit_test(another_collective_call_is_noticed),
        cmocka_unit_test(wrong_arguments_are_named_and_do_nothing),
        cmocka_unit_test(marks_out_of_turn_are_refused),
        cmocka_unit_test(a_pipeline_without_memory_leaks_nothing),
        cmocka_unit_test(with_too_few_steps_densities_stay_even),
        cmocka_unit_test(a_longer_window_gets_more_of_the_budget),
        cmocka_unit_test(the_straggler_is_found),
        cmocka_unit_test(where_one_density_cannot_change_none_does),
        cmocka_unit_test(a_balance_amid_a_step_is_refused_on_all_ranks),
        cmocka_unit_test(an_absent_rank_is_not_waited_for_for_ever),
    };
    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
