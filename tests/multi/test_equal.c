/* SPDX-License-Identifier: MIT
 *
 * tamis_comm_check_equal: ranks that differ are named on all ranks, nothing is lost, and it is not
 * confused with other collective calls.
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { BYTES = 4096 };

/* Which of several values each rank has; a capital letter means half the length. */
struct scene {
    const char *values;
    const char *sentence; /* NULL: they are equal */
};

static const struct scene scenes[] = {
    {"a", NULL},
    {"aaaaa", NULL},
    {"AAA", NULL},
    {"aab", "tamis_comm_check_equal: rank(s) 2 differ from the other 2"},
    {"baa", "tamis_comm_check_equal: rank(s) 0 differ from the other 2"},
    {"abacaa", "tamis_comm_check_equal: rank(s) 1 3 differ from the other 4"},
    {"bcaaa", "tamis_comm_check_equal: rank(s) 0 1 differ from the other 3"},
    {"ab", "tamis_comm_check_equal: rank(s) 1 differ from rank 0 (no value has a majority)"},
    {"aabb", "tamis_comm_check_equal: rank(s) 2 3 differ from rank 0 (no value has a majority)"},
    {"abc", "tamis_comm_check_equal: rank(s) 1 2 differ from rank 0 (no value has a majority)"},
    {"aaA",
     "tamis_comm_check_equal: rank(s) 2 differ from the other 2; rank 2 gave 2048 bytes, they gave "
     "4096"},
    {"abbbbbbbbbbbbbb", "tamis_comm_check_equal: rank(s) 0 differ from the other 14"},
    {"abcdefghijkl",
     "tamis_comm_check_equal: rank(s) 1 2 3 4 5 6 7 8 and 3 more differ from rank 0 (no "
     "value has a majority)"},
};

static void run_scene(test_rank *self) {
    const struct scene *scene = self->shared;
    char letter = scene->values[self->id];
    unsigned char data[BYTES];
    bool half = letter < 'a';
    memset(data, 1, sizeof data);
    data[BYTES / 2 - 1] = (unsigned char)(letter | ('a' ^ 'A'));
    RANK_STATUS(self, scene->sentence ? TAMIS_E_MISMATCH : TAMIS_OK,
                tamis_comm_check_equal(self->comm, data, half ? BYTES / 2 : BYTES));
    if (scene->sentence)
        RANK_CHECK(self, strcmp(tamis_last_error(), scene->sentence) == 0, "\"%s\", not \"%s\"",
                   tamis_last_error(), scene->sentence);
    RANK_OK(self, tamis_comm_check_equal(self->comm, "all equal", 9)); /* nothing is lost */
}

static void ranks_that_differ_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        struct scene scene = scenes[i];
        test_context("values %s", scene.values);
        ranks_run((uint32_t)strlen(scene.values), 0, run_scene, &scene);
    }
}

static void check_usable(test_rank *self) {
    enum { N = 200 };
    float gradient[N];
    tamis_segment segment = {"all", N};
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, self->id, 0, N, gradient);
    step.grad = gradient;
    RANK_OK(self, tamis_layout_create(&segment, 1, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, NULL, &reducer));
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_comm_check_equal(self->comm, gradient, sizeof gradient));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void run_null(test_rank *self) {
    int x = 0;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_check_equal(NULL, &x, sizeof x));
    RANK_OK(self, tamis_comm_check_equal(self->comm, NULL, 0));
    RANK_OK(self, tamis_comm_check_equal(self->comm, self->id ? &x : NULL, 0));
    RANK_STATUS(self, TAMIS_E_ARGUMENT,
                tamis_comm_check_equal(self->comm, self->id == 1 ? NULL : &x, sizeof x));
    RANK_CHECK(self, strstr(tamis_last_error(), "rank 1"), "\"%s\"", tamis_last_error());
    check_usable(self);
}

static void null_is_nothing_or_wrong_on_all_ranks(void **state) {
    (void)state;
    test_context("NULL");
    ranks_run(3, 0, run_null, NULL);
}

static void run_other_call(test_rank *self) {
    tamis_segment segment = {"all", 100};
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    const char *sentence = "rank 0 is in tamis_comm_check_equal, rank 1 in tamis_reducer_create";
    RANK_OK(self, tamis_layout_create(&segment, 1, &layout));
    if (self->id == 1)
        RANK_STATUS(self, TAMIS_E_MISMATCH,
                    tamis_reducer_create(self->comm, layout, NULL, &reducer));
    else
        RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_comm_check_equal(self->comm, layout, 0));
    RANK_CHECK(self, strstr(tamis_last_error(), sentence), "\"%s\"", tamis_last_error());
    tamis_layout_destroy(layout);
    check_usable(self);
}

static void another_collective_call_is_named(void **state) {
    (void)state;
    test_context("rank 1 makes a reducer, the others check");
    ranks_run(3, 0, run_other_call, NULL);
}

static void run_poisoned(test_rank *self) {
    if (self->id == 0)
        RANK_OK(self, tamis_comm_abort(self->comm));
    RANK_STATUS(self, TAMIS_E_ABORTED, tamis_comm_check_equal(self->comm, "x", 1));
    RANK_STATUS(self, TAMIS_E_ABORTED, tamis_comm_check_equal(self->comm, "x", 1));
}

static void a_lost_communicator_says_so(void **state) {
    (void)state;
    test_context("aborted");
    ranks_run(3, 0, run_poisoned, NULL);
}

static void run_late(test_rank *self) {
    if (self->id == 2) {
        sleep_ms(3 * test_short_ms());
        return;
    }
    RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_comm_check_equal(self->comm, "x", 1));
    RANK_CHECK(self, strstr(tamis_last_error(), "2"), "\"%s\"", tamis_last_error());
}

static void a_rank_that_does_not_come_is_waited_for_until_the_deadline(void **state) {
    (void)state;
    test_context("rank 2 does not come");
    ranks_run(3, test_short_ms(), run_late, NULL);
}

static void run_why(test_rank *self) {
    const bool own = self->id == 1;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_check_equal(self->comm, own ? NULL : "data", 4));
    RANK_CHECK(self, !own == !strstr(tamis_last_error(), "gives NULL"), "\"%s\"",
               tamis_last_error());
}

static void who_fails_says_why_and_the_others_who(void **state) {
    (void)state;
    test_context("rank 1 gives NULL");
    ranks_run(3, 0, run_why, NULL);
}

/* What a rank in a step has sent may be anything, and need not end. */
static void run_garbage(test_rank *self) {
    enum { NAME_AT = 8 * 8 }; /* bits: behind the status */
    if (self->id == 1)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_SPOIL, 0, NAME_AT));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_comm_check_equal(self->comm, "x", 1));
    RANK_CHECK(self, strstr(tamis_last_error(), "rank 1 makes another call (a step?)"), "\"%s\"",
               tamis_last_error());
}

static void a_record_that_is_none_is_a_step(void **state) {
    (void)state;
    test_context("rank 1 shows something else");
    ranks_run(3, 0, run_garbage, NULL);
}

/* -- what it costs ---------------------------------------------------------------------------- */

enum { COST_N = 1000000, COST_STEPS = 10, COST_EVERY = 100 };

typedef struct costs {
    double step_s, check_s; /* of processor time, the least of all */
} costs;

static double processor_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_costs(test_rank *self) {
    costs *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    float *grad = malloc(COST_N * sizeof *grad);
    RANK_CHECK(self, grad, "no memory");
    RANK_OK(self, data_reducer(self->comm, COST_N, &config, &r));
    for (uint32_t i = 0; i < COST_STEPS; i++) {
        data_fill_real(self->id, i, COST_N, grad);
        const tamis_step step = data_step(grad);
        double at = processor_s();
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        double step_s = processor_s() - at;
        at = processor_s();
        RANK_OK(self, tamis_comm_check_equal(self->comm, grad, COST_N * sizeof *grad));
        double check_s = processor_s() - at;
        if (self->id == 0) {
            c->step_s = i == 0 || step_s < c->step_s ? step_s : c->step_s;
            c->check_s = i == 0 || check_s < c->check_s ? check_s : c->check_s;
        }
    }
    tamis_reducer_destroy(r);
    free(grad);
}

/* A check of parameters every hundred steps: less than a hundredth of the exchanges alone. */
static void a_check_now_and_then_is_cheap(void **state) {
    costs c = {0};
    (void)state;
    test_context("the cost of a check");
    ranks_run(4, 0, run_costs, &c);
    double share = c.check_s / c.step_s / COST_EVERY;
    printf(
        "%d elements: a step %.2f ms of processor time, a check %.2f ms, %.2f %% of the steps if "
        "made every %d\n",
        COST_N, 1e3 * c.step_s, 1e3 * c.check_s, 1e2 * share, COST_EVERY);
    if (!TEST_SANITIZED)
        assert_true(share < 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(null_is_nothing_or_wrong_on_all_ranks),
        cmocka_unit_test(another_collective_call_is_named),
        cmocka_unit_test(who_fails_says_why_and_the_others_who),
        cmocka_unit_test(a_record_that_is_none_is_a_step),
        cmocka_unit_test(a_lost_communicator_says_so),
        cmocka_unit_test(a_rank_that_does_not_come_is_waited_for_until_the_deadline),
        cmocka_unit_test(a_check_now_and_then_is_cheap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
