/* SPDX-License-Identifier: MIT
 *
 * States in memory: both parts restore a run bit for bit; damaged or foreign parts, or parts of
 * different moments, are refused and change nothing; a residual alone may come from anywhere.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 700, STEPS = 8, SAVED_AFTER = 3, SMALL = 12 };

typedef struct memory_state {
    unsigned char *control; /* at an odd address on purpose */
    size_t bytes;
    float residual[N];
    void *memory;
} memory_state;

static tamis_status take_state(tamis_reducer *reducer, memory_state *out) {
    tamis_status status = tamis_reducer_control_bytes(reducer, &out->bytes);
    if (status != TAMIS_OK)
        return status;
    out->memory = malloc(out->bytes + 1);
    out->control = (unsigned char *)out->memory + 1;
    status = tamis_reducer_save_control(reducer, out->control, out->bytes);
    if (status != TAMIS_OK)
        return status;
    status = tamis_reducer_save_residual(reducer, out->residual);
    return status == TAMIS_E_UNSUPPORTED ? TAMIS_OK : status; /* dense has none */
}

static tamis_status give_state(tamis_reducer *reducer, const memory_state *state) {
    const float *residual = NULL;
    tamis_status status = tamis_reducer_residual(reducer, &residual);
    if (status != TAMIS_OK)
        return status;
    return tamis_reducer_load_memory(reducer, state->control, state->bytes,
                                     residual ? state->residual : NULL);
}

static tamis_status make_from(tamis_comm *comm, const char *scheme, size_t n,
                              uint64_t bucket_length, double threshold, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = scheme;
    config.density = 0.05;
    config.block = 32; /* so that parts have blocks that can move */
    config.threshold = threshold;
    config.bucket_length = bucket_length;
    return data_reducer(comm, n, &config, out);
}

static tamis_status make(tamis_comm *comm, const char *scheme, size_t n, uint64_t bucket_length,
                         tamis_reducer **out) {
    return make_from(comm, scheme, n, bucket_length, 60.0, out); /* with counts that differ */
}

/* One step; hash of the result and of the residual. */
static tamis_status step_once(tamis_reducer *reducer, uint32_t rank, uint32_t number, size_t n,
                              uint64_t *out_hash) {
    float gradient[N];
    const float *residual = NULL;
    data_fill(DATA_HEAVY, rank, number, n, gradient);
    tamis_step step = data_step(gradient);
    tamis_status status = tamis_reducer_start(reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(reducer);
    if (status == TAMIS_OK)
        status = tamis_reducer_residual(reducer, &residual);
    *out_hash = data_hash(0, gradient, n * sizeof(float));
    if (residual)
        *out_hash = data_hash(*out_hash, residual, n * sizeof(float));
    return status;
}

/* -- resume ----------------------------------------------------------------------------------- */

typedef struct resume_case {
    const char *scheme;
    uint64_t bucket_length;
} resume_case;

static void run_and_resume(test_rank *self) {
    const resume_case *now = self->shared;
    uint64_t expected[STEPS], got;
    memory_state state = {0};
    tamis_reducer *whole = NULL, *resumed = NULL;
    RANK_OK(self, make(self->comm, now->scheme, N, now->bucket_length, &whole));
    for (uint32_t number = 0; number < STEPS; number++) {
        RANK_OK(self, step_once(whole, self->id, number, N, &expected[number]));
        if (number + 1 == SAVED_AFTER)
            RANK_OK(self, take_state(whole, &state));
    }
    RANK_OK(self, make(self->comm, now->scheme, N, now->bucket_length, &resumed));
    for (int round = 0; round < 2; round++) { /* a new reducer, then going back in it */
        RANK_OK(self, give_state(resumed, &state));
        for (uint32_t number = SAVED_AFTER; number < STEPS; number++) {
            RANK_OK(self, step_once(resumed, self->id, number, N, &got));
            RANK_CHECK(self, got == expected[number], "step %u differs from the whole run", number);
        }
    }
    free(state.memory);
    tamis_reducer_destroy(resumed);
    tamis_reducer_destroy(whole);
}

static void test_a_run_resumed_from_memory_is_bit_identical(void **state) {
    static const uint32_t nranks_of[] = {1, 3};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < 2; p++)
            for (uint64_t length = 0; length <= 200; length += 200) {
                resume_case now = {scheme.name, length};
                test_context("%s P=%u, buckets of %u", scheme.name, nranks_of[p], (unsigned)length);
                ranks_run(nranks_of[p], 0, run_and_resume, &now);
            }
}

/* -- one rank --------------------------------------------------------------------------------- */

typedef struct solo {
    tamis_comm *comm;
    tamis_reducer *reducer;
    memory_state state; /* after three steps */
} solo;

static solo solo_open(const char *scheme) {
    solo one = {0};
    uint64_t hash;
    assert_int_equal(tamis_comm_create_local(1, NULL, &one.comm), TAMIS_OK);
    assert_int_equal(make(one.comm, scheme, SMALL, 0, &one.reducer), TAMIS_OK);
    for (uint32_t number = 0; number < 3; number++)
        assert_int_equal(step_once(one.reducer, 0, number, SMALL, &hash), TAMIS_OK);
    assert_int_equal(take_state(one.reducer, &one.state), TAMIS_OK);
    return one;
}

static void solo_close(solo *one) {
    free(one->state.memory);
    tamis_reducer_destroy(one->reducer);
    tamis_comm_destroy(one->comm);
}

/* @return the state as it is now, to compare */
static uint64_t solo_hash(const solo *one) {
    memory_state now = {0};
    assert_int_equal(take_state(one->reducer, &now), TAMIS_OK);
    uint64_t hash =
        data_hash(data_hash(0, now.control, now.bytes), now.residual, SMALL * sizeof(float));
    free(now.memory);
    return hash;
}

static void expect_refused(const solo *one, const memory_state *damaged, const char *words) {
    uint64_t before = solo_hash(one);
    tamis_status status = tamis_reducer_load_memory(one->reducer, damaged->control, damaged->bytes,
                                                    damaged->residual);
    if (status != TAMIS_E_FORMAT || !has_word(tamis_last_error(), words))
        fail_msg("%s \"%s\" where one of \"%s\" was expected", tamis_status_name(status),
                 tamis_last_error(), words);
    assert_true(solo_hash(one) == before);
}

static void test_any_flipped_bit_is_refused(void **state) {
    solo one = solo_open("tamis");
    (void)state;
    for (size_t bit = 0; bit < one.state.bytes * 8; bit++) {
        one.state.control[bit / 8] ^= (unsigned char)(1u << bit % 8);
        expect_refused(&one, &one.state, "damaged|version|byte order");
        one.state.control[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t i = 0; i < SMALL; i++) {
        float kept = one.state.residual[i];
        one.state.residual[i] += 1.0f;
        expect_refused(&one, &one.state, "at another time");
        one.state.residual[i] = kept;
    }
    assert_int_equal(give_state(one.reducer, &one.state), TAMIS_OK);
    solo_close(&one);
}

static void test_a_control_part_of_another_size_is_refused(void **state) {
    solo one = solo_open("tamis");
    memory_state longer = one.state;
    (void)state;
    for (size_t bytes = 0; bytes < one.state.bytes; bytes++) {
        memory_state cut = one.state;
        cut.bytes = bytes;
        expect_refused(&one, &cut, "truncated");
    }
    longer.memory = calloc(1, longer.bytes + 1);
    memcpy(longer.memory, one.state.control, one.state.bytes);
    longer.control = longer.memory;
    longer.bytes++;
    expect_refused(&one, &longer, "extra data");
    free(longer.memory);
    solo_close(&one);
}

static void test_parts_of_different_moments_are_refused_together(void **state) {
    solo one = solo_open("tamis");
    uint64_t hash;
    memory_state mixed = one.state;
    (void)state;
    assert_int_equal(step_once(one.reducer, 0, 3, SMALL, &hash), TAMIS_OK);
    assert_int_equal(tamis_reducer_save_residual(one.reducer, mixed.residual), TAMIS_OK);
    expect_refused(&one, &mixed, "at another time");
    /* loading one after the other is allowed */
    assert_int_equal(tamis_reducer_load_memory(one.reducer, mixed.control, mixed.bytes, NULL),
                     TAMIS_OK);
    assert_int_equal(tamis_reducer_load_memory(one.reducer, NULL, 0, mixed.residual), TAMIS_OK);
    solo_close(&one);
}

static void test_a_state_of_another_reducer_is_refused(void **state) {
    solo one = solo_open("tamis"), other = solo_open("topk");
    (void)state;
    expect_refused(&one, &other.state, "scheme");
    solo_close(&other);
    other = solo_open("tamis");
    tamis_reducer_destroy(other.reducer);
    assert_int_equal(make(other.comm, "tamis", SMALL + 1, 0, &other.reducer), TAMIS_OK);
    uint64_t before = solo_hash(&one);
    assert_int_equal(
        tamis_reducer_load_memory(other.reducer, one.state.control, one.state.bytes, NULL),
        TAMIS_E_FORMAT);
    assert_true(has_word(tamis_last_error(), "layout length"));
    assert_true(solo_hash(&one) == before);
    solo_close(&other);
    solo_close(&one);
}

static void test_wrong_arguments_change_nothing(void **state) {
    solo one = solo_open("tamis"), dense = solo_open("dense");
    float residual[SMALL] = {0};
    size_t bytes = 1;
    (void)state;
    uint64_t before = solo_hash(&one);
    tamis_reducer *r = one.reducer;
    assert_int_equal(tamis_reducer_control_bytes(NULL, &bytes), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_control_bytes(r, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_save_control(r, NULL, one.state.bytes), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_save_control(r, residual, 3), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_save_residual(r, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_load_memory(NULL, NULL, 0, residual), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_load_memory(r, NULL, 0, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_save_residual(dense.reducer, residual), TAMIS_E_UNSUPPORTED);
    assert_int_equal(tamis_reducer_load_memory(dense.reducer, NULL, 0, residual),
                     TAMIS_E_UNSUPPORTED);
    residual[7] = NAN;
    assert_int_equal(tamis_reducer_load_memory(r, NULL, 0, residual), TAMIS_E_ARGUMENT);
    assert_true(has_word(tamis_last_error(), "element 7"));
    assert_true(solo_hash(&one) == before);
    solo_close(&dense);
    solo_close(&one);
}

static void test_a_state_is_not_touched_while_a_step_is_under_way(void **state) {
    solo one = solo_open("tamis");
    float gradient[SMALL] = {1.0f}, residual[SMALL];
    tamis_step step = data_step(gradient);
    (void)state;
    assert_int_equal(tamis_reducer_start(one.reducer, &step), TAMIS_OK);
    assert_int_equal(tamis_reducer_save_control(one.reducer, one.state.control, one.state.bytes),
                     TAMIS_E_STATE);
    assert_int_equal(tamis_reducer_save_residual(one.reducer, residual), TAMIS_E_STATE);
    assert_int_equal(give_state(one.reducer, &one.state), TAMIS_E_STATE);
    assert_int_equal(tamis_reducer_wait(one.reducer), TAMIS_OK);
    assert_int_equal(give_state(one.reducer, &one.state), TAMIS_OK);
    solo_close(&one);
}

/* -- another number of ranks ------------------------------------------------------------------ */

enum { MOST = 4 }; /* ranks */

typedef struct moved {
    uint32_t old_ranks, new_ranks;
    tamis_op op;
    float residuals[MOST][N]; /* of the old ranks */
    double waiting[N];        /* the result that they hold pending */
} moved;

static void leave_residuals(test_rank *self) {
    moved *all = self->shared;
    uint64_t hash;
    tamis_reducer *reducer = NULL;
    RANK_OK(self, make(self->comm, "tamis", N, 0, &reducer));
    for (uint32_t number = 0; number < 4; number++)
        RANK_OK(self, step_once(reducer, self->id, number, N, &hash));
    RANK_OK(self, tamis_reducer_save_residual(reducer, all->residuals[self->id]));
    tamis_reducer_destroy(reducer);
}

/* A new rank takes several old residuals, or several new ranks share one. */
static void take_share(const moved *all, uint32_t rank, float *residual) {
    bool mean = all->op == TAMIS_OP_MEAN;
    float factor = mean ? (float)all->new_ranks / (float)all->old_ranks : 1.0f;
    for (uint32_t i = 0; i < N; i++) {
        residual[i] = 0.0f;
        for (uint32_t old = rank; old < all->old_ranks; old += all->new_ranks)
            residual[i] += factor * all->residuals[old][i];
    }
}

/* Whole numbers, and factors that are powers of two: sums are exact. */
static void go_on(test_rank *self) {
    const moved *all = self->shared;
    float residual[N], gradient[N], sum[N] = {0};
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.05;
    config.op = all->op;
    take_share(all, self->id, residual);
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    RANK_OK(self, tamis_reducer_load_memory(reducer, NULL, 0, residual));
    for (uint32_t number = 0; number < 80; number++) { /* 35 of 700 entries a step: all leave */
        memset(gradient, 0, sizeof gradient);
        tamis_step step = data_step(gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        for (uint32_t i = 0; i < N; i++)
            sum[i] += gradient[i];
    }
    for (uint32_t i = 0; i < N; i++)
        RANK_CHECK(self, (double)sum[i] == all->waiting[i], "element %u: %g of %g came out", i,
                   (double)sum[i], all->waiting[i]);
    tamis_reducer_destroy(reducer);
}

static void test_what_waits_comes_out_with_another_number_of_ranks(void **state) {
    static const uint32_t numbers[][2] = {{4, 2}, {2, 4}, {4, 1}, {1, 4}};
    static moved all;
    (void)state;
    for (size_t c = 0; c < 2 * sizeof numbers / sizeof numbers[0]; c++) {
        memset(&all, 0, sizeof all);
        all.old_ranks = numbers[c / 2][0];
        all.new_ranks = numbers[c / 2][1];
        all.op = c % 2 ? TAMIS_OP_SUM : TAMIS_OP_MEAN;
        test_context("%u ranks, then %u, %s", all.old_ranks, all.new_ranks, c % 2 ? "sum" : "mean");
        ranks_run(all.old_ranks, 0, leave_residuals, &all);
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t rank = 0; rank < all.old_ranks; rank++)
                all.waiting[i] += all.residuals[rank][i] / (c % 2 ? 1.0 : all.old_ranks);
        ranks_run(all.new_ranks, 0, go_on, &all);
    }
}

enum { LONG = 400 }; /* steps; thresholds of micro move by a hundredth in some */

typedef struct thresholds {
    const char *scheme;
    uint64_t bucket_length;
    uint32_t old_ranks, new_ranks;
    memory_state states[MOST];
    double chosen; /* in the last ten steps */
} thresholds;

static tamis_status make_low(test_rank *self, tamis_reducer **out) {
    const thresholds *all = self->shared;
    return make_from(self->comm, all->scheme, N, all->bucket_length, 6.0, out);
}

/* Run ten steps and return their figures. */
static void count_steps(test_rank *self, tamis_reducer *reducer, uint32_t from, tamis_stats *out) {
    uint64_t chosen = 0, hash;
    for (uint32_t number = from; number < from + 10; number++) {
        *out = (tamis_stats)TAMIS_STATS_INIT;
        RANK_OK(self, step_once(reducer, self->id, number, N, &hash));
        RANK_OK(self, tamis_reducer_stats(reducer, out));
        chosen += out->selected;
    }
    out->selected = chosen;
}

static void leave_thresholds(test_rank *self) {
    thresholds *all = self->shared;
    uint64_t hash;
    tamis_reducer *reducer = NULL;
    tamis_stats stats;
    RANK_OK(self, make_low(self, &reducer));
    for (uint32_t number = 0; number < LONG; number++)
        RANK_OK(self, step_once(reducer, self->id, number, N, &hash));
    count_steps(self, reducer, LONG, &stats);
    RANK_OK(self, take_state(reducer, &all->states[self->id]));
    if (self->id == 0)
        all->chosen = (double)stats.selected;
    tamis_reducer_destroy(reducer);
}

/* Each rank takes thresholds from one of the old ranks. With the initial thresholds micro would
 * select 3.5 times as much. Replicas stay equal: the library compares results in every step. */
static void go_on_with_thresholds(test_rank *self) {
    const thresholds *all = self->shared;
    const memory_state *from = &all->states[self->id % all->old_ranks];
    tamis_reducer *reducer = NULL;
    tamis_stats stats;
    RANK_OK(self, make_low(self, &reducer));
    RANK_STATUS(self, TAMIS_E_FORMAT,
                tamis_reducer_load_memory(reducer, from->control, from->bytes, from->residual));
    RANK_OK(self, tamis_reducer_load_memory(reducer, from->control, from->bytes, NULL));
    RANK_OK(self, tamis_reducer_load_memory(reducer, NULL, 0, from->residual));
    count_steps(self, reducer, LONG + 10, &stats);
    double chosen = (double)stats.selected;
    RANK_CHECK(self, stats.steps == LONG + 20, "%llu steps", (unsigned long long)stats.steps);
    RANK_CHECK(self, chosen > all->chosen / 2 && chosen < all->chosen * 2,
               "%g selected in ten steps, with the old ranks %g", chosen, all->chosen);
    tamis_reducer_destroy(reducer);
}

static void test_thresholds_go_on_with_another_number_of_ranks(void **state) {
    static const char *const schemes[] = {"tamis", "micro", "exdyna", "deft", "oktopk"};
    static const uint32_t numbers[][2] = {{4, 2}, {2, 4}, {3, 2}};
    static thresholds all;
    (void)state;
    for (size_t c = 0; c < 3 * sizeof schemes / sizeof schemes[0]; c++) {
        memset(&all, 0, sizeof all);
        all.scheme = schemes[c / 3];
        all.old_ranks = numbers[c % 3][0];
        all.new_ranks = numbers[c % 3][1];
        all.bucket_length = c % 2 ? 200 : 0;
        test_context("%s, %u ranks, then %u", all.scheme, all.old_ranks, all.new_ranks);
        ranks_run(all.old_ranks, 0, leave_thresholds, &all);
        ranks_run(all.new_ranks, 0, go_on_with_thresholds, &all);
        for (uint32_t r = 0; r < all.old_ranks; r++)
            free(all.states[r].memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_resumed_from_memory_is_bit_identical),
        cmocka_unit_test(test_any_flipped_bit_is_refused),
        cmocka_unit_test(test_a_control_part_of_another_size_is_refused),
        cmocka_unit_test(test_parts_of_different_moments_are_refused_together),
        cmocka_unit_test(test_a_state_of_another_reducer_is_refused),
        cmocka_unit_test(test_wrong_arguments_change_nothing),
        cmocka_unit_test(test_a_state_is_not_touched_while_a_step_is_under_way),
        cmocka_unit_test(test_what_waits_comes_out_with_another_number_of_ranks),
        cmocka_unit_test(test_thresholds_go_on_with_another_number_of_ranks),
    };
    return cmocka_run_group_tests_name("state_memory", tests, NULL, NULL);
}
