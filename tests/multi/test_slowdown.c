/* SPDX-License-Identifier: MIT
 *
 * config.slowdown: a density that follows what steps wait.
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <tamis/elastic.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SMALL = 3000 };

typedef struct time_case {
    double slowdown;
    uint32_t steps, computing_ms;
    bool early; /* another thread waits while this one computes */
    bool falls;
} time_case;

static void *wait_for(void *reducer) {
    return (void *)(intptr_t)tamis_reducer_wait(reducer);
}

/* Segment 0 is ready at once, so that there is a step to wait for. */
static void step_timed(test_rank *self, tamis_reducer *reducer, const time_case *c,
                       const tamis_step *step) {
    pthread_t waiter;
    void *status = NULL;
    RANK_OK(self, tamis_reducer_ready(reducer, 0, step));
    if (c->early)
        RANK_CHECK(self, pthread_create(&waiter, NULL, wait_for, reducer) == 0, "no thread");
    sleep_ms(c->computing_ms);
    RANK_OK(self, tamis_reducer_ready(reducer, 1, step));
    if (c->early)
        pthread_join(waiter, &status);
    else
        status = wait_for(reducer);
    RANK_CHECK(self, !status, "status %d", (int)(intptr_t)status);
}

/* Before a step, its density is known. */
static void run_timed(test_rank *self) {
    const time_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer *reducer = NULL;
    tamis_stats s = TAMIS_STATS_INIT;
    float gradient[SMALL];
    const tamis_step step = data_step(gradient);

    config.slowdown = c->slowdown;
    config.update = &update;
    config.bucket_length = SMALL / 2;
    RANK_OK(self, data_even_reducer(self->comm, 2, SMALL / 2, &config, &reducer));
    for (uint32_t number = 0; number < c->steps; number++) {
        uint64_t entries = (uint64_t)(tamis_reducer_density(reducer) * SMALL);
        data_fill_real(self->id, number, SMALL, gradient);
        step_timed(self, reducer, c, &step);
        RANK_OK(self, tamis_reducer_stats(reducer, &s));
        RANK_CHECK(self, s.target == entries, "step %u: %llu entries, not %llu", number,
                   (unsigned long long)s.target, (unsigned long long)entries);
        RANK_CHECK(self, s.target >= 0.08 * SMALL - 1 && s.target <= 0.3 * SMALL,
                   "step %u: %llu entries", number, (unsigned long long)s.target);
        if (number == 42) /* the first window ends with 41: two steps know no times */
            RANK_CHECK(self, (s.target < 0.3 * SMALL - 1) == c->falls, "%llu entries after it",
                       (unsigned long long)s.target);
    }
    RANK_OK(self, tamis_reducer_set_density(reducer, 0.1));
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_stats(reducer, &s));
    RANK_CHECK(self, s.target == SMALL / 10, "%llu entries", (unsigned long long)s.target);
    RANK_CHECK(self, tamis_reducer_density(reducer) == 0.1, "%g", tamis_reducer_density(reducer));
    tamis_reducer_destroy(reducer);
}

/* A rank that computes nothing waits for most of each step; ten times its computing is long, also
 * where it is computed while another thread waits. */
static void test_density_falls_where_steps_wait(void **state) {
    static time_case cases[] = {
        {0.001, 300, 0, false, true}, {10.0, 60, 5, false, false}, {10.0, 60, 5, true, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_context("slowdown %g, early %d", cases[i].slowdown, cases[i].early);
        ranks_run(3, 0, run_timed, &cases[i]);
    }
}

/* Each of 40 buckets needs an entry: a density that would be half of 0.019 is 0.01. */
static void run_least(test_rank *self) {
    enum { BUCKETS = 40, EACH = 100 };
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float gradient[BUCKETS * EACH];
    const tamis_step step = data_step(gradient);
    config.slowdown = 0.001;
    config.density = 0.019;
    config.bucket_length = EACH;
    RANK_OK(self, data_even_reducer(self->comm, BUCKETS, EACH, &config, &reducer));
    for (uint32_t number = 0; number < 43; number++) {
        data_fill_real(self->id, number, BUCKETS * EACH, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
    }
    RANK_CHECK(self, tamis_reducer_density(reducer) == 0.01, "%g", tamis_reducer_density(reducer));
    tamis_reducer_destroy(reducer);
}

static void test_each_bucket_keeps_an_entry(void **state) {
    (void)state;
    ranks_run(2, 0, run_least, NULL);
}

/* A slow rank in the step that ends a window; elsewhere nobody waits for it. */
static void run_stalled(test_rank *self) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer *reducer = NULL;
    float gradient[SMALL];
    const tamis_step step = data_step(gradient);
    config.slowdown = 0.001;
    config.update = &update;
    RANK_OK(self, data_reducer(self->comm, SMALL, &config, &reducer));
    for (uint32_t number = 0; number < 42; number++) {
        data_fill_real(self->id, number, SMALL, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        if (self->id == 2 && number >= 38)
            sleep_ms(50); /* the others have ended their step */
    }
    tamis_reducer_destroy(reducer);
}

static void test_no_step_waits_for_a_decision(void **state) {
    (void)state;
    ranks_run(3, 0, run_stalled, NULL);
}

/* Two reducers, begun in one order on all ranks, and waited for in another on each. */
static void run_two(test_rank *self) {
    tamis_reducer *reducers[2] = {NULL};
    tamis_update update = TAMIS_UPDATE_INIT;
    float gradients[2][SMALL];
    for (int i = 0; i < 2; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        config.slowdown = i ? 0.0 : 0.05;
        config.update = &update;
        RANK_OK(self, data_reducer(self->comm, SMALL, &config, &reducers[i]));
    }
    for (uint32_t number = 0; number < 100; number++) {
        const tamis_step steps[2] = {data_step(gradients[0]), data_step(gradients[1])};
        for (uint32_t i = 0; i < 2; i++)
            data_fill_real(self->id, 2 * number + i, SMALL, gradients[i]);
        RANK_OK(self, tamis_reducer_start(reducers[0], &steps[0]));
        if (self->id == 1)
            RANK_OK(self, tamis_reducer_wait(reducers[0]));
        RANK_OK(self, tamis_reducer_start(reducers[1], &steps[1]));
        if (self->id != 1)
            RANK_OK(self, tamis_reducer_wait(reducers[0]));
        RANK_OK(self, tamis_reducer_wait(reducers[1]));
    }
    for (int i = 0; i < 2; i++)
        tamis_reducer_destroy(reducers[i]);
}

static void test_waits_come_in_any_order(void **state) {
    (void)state;
    ranks_run(2, 0, run_two, NULL);
}

/* A state has what was learned, and the bound that the caller gave. */
static void run_saved(test_rank *self) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer *one = NULL, *other = NULL;
    tamis_stats s = TAMIS_STATS_INIT;
    char name[32], path[SCRATCH_PATH];
    float gradient[SMALL];
    const tamis_step step = data_step(gradient);
    snprintf(name, sizeof name, "slowdown.%u", self->id);
    scratch_path(name, path);
    config.slowdown = 10.0;
    config.update = &update;
    RANK_OK(self, data_reducer(self->comm, SMALL, &config, &one));
    RANK_OK(self, tamis_reducer_set_density(one, 0.05));
    RANK_OK(self, tamis_reducer_save(one, path));
    RANK_OK(self, data_reducer(self->comm, SMALL, &config, &other));
    RANK_OK(self, tamis_reducer_load(other, path));
    RANK_CHECK(self, tamis_reducer_density(other) == 0.05, "%g", tamis_reducer_density(other));
    for (uint32_t number = 0; number < 130; number++) {
        data_fill_real(self->id, number, SMALL, gradient);
        sleep_ms(1);
        RANK_OK(self, tamis_reducer_start(other, &step));
        RANK_OK(self, tamis_reducer_wait(other));
        RANK_OK(self, tamis_reducer_stats(other, &s));
        RANK_CHECK(self, s.target <= SMALL / 20, "%llu entries", (unsigned long long)s.target);
    }
    tamis_reducer_destroy(one);
    tamis_reducer_destroy(other);
}

static void test_a_loaded_reducer_keeps_to_its_bound(void **state) {
    (void)state;
    ranks_run(2, 0, run_saved, NULL);
}

/* The step that ends a window fails on rank 1 alone. The others have another density by then, which
 * they roll back. Two steps later the window ends again. */
static void run_rolled_back(test_rank *self) {
    enum { ENDS = 41, LAST_OPERATION = 2 };
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_migration moved = TAMIS_MIGRATION_INIT;
    tamis_reducer *reducer = NULL, *migrated = NULL;
    tamis_stats s = TAMIS_STATS_INIT;
    tamis_comm *smaller = NULL;
    float gradient[SMALL];
    const tamis_step step = data_step(gradient);
    config.slowdown = 0.001;
    config.update = &update;
    RANK_OK(self, data_reducer(self->comm, SMALL, &config, &reducer));
    for (uint32_t number = 0; number <= ENDS; number++) {
        bool fails = number == ENDS && self->id == 1;
        data_fill_real(self->id, number, SMALL, gradient);
        if (fails)
            RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_LATE, LAST_OPERATION, 20));
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        tamis_status status = tamis_reducer_wait(reducer);
        RANK_CHECK(self, (status == TAMIS_OK) == !fails, "step %u: %d", number, (int)status);
    }
    RANK_OK(self, tamis_comm_abort(self->comm));
    RANK_OK(self, tamis_comm_shrink(self->comm, NULL, &smaller));
    RANK_OK(self, tamis_reducer_migrate(reducer, smaller, &moved, &migrated));
    RANK_CHECK(self, moved.step == ENDS, "step %llu", (unsigned long long)moved.step);
    for (uint32_t number = ENDS; number < ENDS + 4; number++) {
        data_fill_real(self->id, number, SMALL, gradient);
        RANK_OK(self, tamis_reducer_start(migrated, &step));
        RANK_OK(self, tamis_reducer_wait(migrated));
        RANK_OK(self, tamis_reducer_stats(migrated, &s));
        RANK_CHECK(self, number != ENDS || s.target == 3 * SMALL / 10, "%llu entries",
                   (unsigned long long)s.target);
    }
    RANK_CHECK(self, s.target < 3 * SMALL / 10, "%llu entries", (unsigned long long)s.target);
    tamis_reducer_destroy(migrated);
    tamis_comm_destroy(smaller);
    tamis_reducer_destroy(reducer);
}

static void test_a_decision_is_rolled_back_with_its_step(void **state) {
    (void)state;
    ranks_run(3, 0, run_rolled_back, NULL);
}

static void test_what_carries_no_times_is_refused(void **state) {
    static const struct {
        const char *scheme;
        uint32_t ranks_per_node;
    } rows[] = {{"dense", 0}, {"quantized", 0}, {"topk", 0}, {"deft", 0}, {NULL, 2}};
    tamis_comm *comm;
    (void)state;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        tamis_reducer *reducer = NULL;
        config.scheme = rows[i].scheme;
        config.ranks_per_node = rows[i].ranks_per_node;
        config.slowdown = 0.05;
        test_context("row %zu", i);
        assert_int_equal(data_reducer(comm, SMALL, &config, &reducer), TAMIS_E_UNSUPPORTED);
        assert_true(has_word(tamis_last_error(), "slowdown"));
    }
    tamis_comm_destroy(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_density_falls_where_steps_wait),
        cmocka_unit_test(test_each_bucket_keeps_an_entry),
        cmocka_unit_test(test_no_step_waits_for_a_decision),
        cmocka_unit_test(test_waits_come_in_any_order),
        cmocka_unit_test(test_a_loaded_reducer_keeps_to_its_bound),
        cmocka_unit_test(test_a_decision_is_rolled_back_with_its_step),
        cmocka_unit_test(test_what_carries_no_times_is_refused),
    };
    return cmocka_run_group_tests_name("slowdown", tests, NULL, NULL);
}
