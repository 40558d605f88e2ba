/* SPDX-License-Identifier: MIT
 *
 * Segments with rows: bad input, bad numbers, damage, states, micro-batches, memory.
 */
#include "collectives/transport/faulty.h"
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* An ordinary segment, then 60 rows of 5. */
enum { HEAD = 100, LENGTH = 5, ROWS = 60, N = HEAD + ROWS * LENGTH };

static tamis_layout *make_layout(uint64_t row_length) {
    static const tamis_segment segments[] = {{"head", HEAD}, {"words", (uint64_t)ROWS * LENGTH}};
    tamis_layout *layout = NULL;
    if (tamis_layout_create(segments, 2, &layout) != TAMIS_OK ||
        tamis_layout_set_rows(layout, 1, row_length) != TAMIS_OK)
        abort();
    return layout;
}

static tamis_status make(tamis_comm *comm, const tamis_reducer_config *config, uint64_t row_length,
                         tamis_reducer **out) {
    tamis_layout *layout = make_layout(row_length);
    tamis_status status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* Whole numbers; rows of this rank and step. */
static void fill(uint32_t rank, uint32_t step, float *grad) {
    data_fill(DATA_HEAVY, rank, step, N, grad);
    for (size_t i = 0; i < (size_t)ROWS * LENGTH; i++) {
        if ((i / LENGTH + step) % 7 != rank)
            grad[HEAD + i] = 0.0f;
    }
}

static tamis_status one_step(tamis_reducer *reducer, float *grad) {
    const tamis_step step = data_step(grad);
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

/* -- arguments -------------------------------------------------------------------------------- */

static void test_rows_that_do_not_divide_a_segment_are_refused(void **state) {
    tamis_layout *layout = make_layout(LENGTH);
    (void)state;
    assert_int_equal(tamis_layout_set_rows(NULL, 0, 1), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_layout_set_rows(layout, 2, 1), TAMIS_E_ARGUMENT);
    assert_true(has_word(tamis_last_error(), "segment 2 is out of range: there are 2"));
    assert_int_equal(tamis_layout_set_rows(layout, 1, 7), TAMIS_E_ARGUMENT);
    assert_true(has_word(tamis_last_error(), "words has 300 elements"));
    assert_int_equal(tamis_layout_set_rows(layout, 1, UINT64_C(1) << 32 | 5), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_layout_set_rows(layout, 1, 300), TAMIS_OK); /* one row */
    assert_int_equal(tamis_layout_set_rows(layout, 1, 0), TAMIS_OK);
    tamis_layout_destroy(layout);
}

static void run_mismatch(test_rank *self) {
    tamis_reducer *reducer = NULL;
    RANK_STATUS(self, TAMIS_E_MISMATCH,
                make(self->comm, NULL, self->id == 1 ? LENGTH : 2 * LENGTH, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "segment 1: rank 0 has"), "%s",
               tamis_last_error());
    RANK_STATUS(self, TAMIS_E_MISMATCH,
                make(self->comm, NULL, self->id == 1 ? 0 : LENGTH, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "segment 1: rank 0 has"), "%s",
               tamis_last_error());
}

static void test_ranks_that_differ_in_rows_are_told_so(void **state) {
    (void)state;
    test_context("row lengths");
    ranks_run(3, 0, run_mismatch, NULL);
}

enum { MANY = 33 };

static void run_many(test_rank *self) {
    tamis_segment segments[2 * MANY];
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    for (size_t s = 0; s < sizeof segments / sizeof segments[0]; s++)
        segments[s] = (tamis_segment){NULL, 8};
    RANK_OK(self, tamis_layout_create(segments, 2 * MANY, &layout));
    for (size_t s = 0; s < 2 * MANY; s += 2)
        RANK_OK(self, tamis_layout_set_rows(layout, s, 4));
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED,
                tamis_reducer_create(self->comm, layout, NULL, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "33 segments with rows"), "%s",
               tamis_last_error());
    RANK_OK(self, tamis_layout_set_rows(layout, 0, 0)); /* these join their neighbours */
    RANK_OK(self, tamis_layout_set_rows(layout, 64, 0));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, NULL, &reducer));
    RANK_CHECK(self, tamis_reducer_nbuckets(reducer) == 31 + 32, "%u buckets",
               tamis_reducer_nbuckets(reducer));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void test_more_buckets_than_there_can_be_are_refused(void **state) {
    (void)state;
    test_context("33 segments with rows");
    ranks_run(2, 0, run_many, NULL);
}

static void run_alone(test_rank *self) {
    const tamis_segment segment = {"words", 40};
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    float grad[40] = {0};
    RANK_OK(self, tamis_layout_create(&segment, 1, &layout));
    RANK_OK(self, tamis_layout_set_rows(layout, 0, 4));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, NULL, &reducer));
    RANK_OK(self, tamis_reducer_set_density(reducer, 0.005));
    grad[4 * self->id + 1] = 6.0f;
    RANK_OK(self, one_step(reducer, grad));
    for (uint32_t i = 0; i < 40; i++)
        RANK_CHECK(self, grad[i] == (i % 4 == 1 && i / 4 < self->nranks ? 2.0f : 0.0f),
                   "element %u is %g", i, (double)grad[i]);
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_OK(self, tamis_reducer_bucket_at(reducer, 0, &bucket));
    RANK_CHECK(self, stats.target == 0 && stats.selected == 0 && stats.density == 0.0, "figures");
    RANK_CHECK(self, bucket.target == 0 && bucket.length == 40, "bucket");
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void test_a_layout_may_have_rows_alone(void **state) {
    (void)state;
    test_context("rows alone");
    ranks_run(3, 0, run_alone, NULL);
}

/* -- bad numbers ------------------------------------------------------------------------------ */

typedef struct bad_case {
    const char *scheme;
    tamis_nonfinite nonfinite;
    float bad[2]; /* of ranks 0 and 1, in one entry of row 7 */
} bad_case;

/* Step 0 is bad; its finite part comes in step 1 if the scheme has a residual. */
static void run_bad(test_rank *self) {
    const bad_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float grad[N], *row = grad + HEAD + 7 * LENGTH;
    bool drops = c->nonfinite == TAMIS_NONFINITE_DROP,
         has_residual = strcmp(c->scheme, "dense") != 0;
    bool lost = !isfinite(c->bad[0]), errs = c->nonfinite == TAMIS_NONFINITE_ERROR;
    config.scheme = c->scheme;
    config.nonfinite = c->nonfinite;
    config.op = TAMIS_OP_SUM;
    RANK_OK(self, make(self->comm, &config, LENGTH, &reducer));
    memset(grad, 0, sizeof grad);
    row[1] = self->id < 2 ? c->bad[self->id] : 0.0f;
    row[2] = 5.0f;
    RANK_STATUS(self, errs ? TAMIS_E_NONFINITE : TAMIS_OK, one_step(reducer, grad));
    float expected = drops ? 5.0f * (float)self->nranks : 0.0f;
    RANK_CHECK(self, row[2] == expected, "row: %g, not %g", (double)row[2], (double)expected);
    RANK_CHECK(self, row[1] == (drops && lost ? c->bad[1] : 0.0f), "bad: %g", (double)row[1]);

    memset(grad, 0, sizeof grad);
    row[3] = 1.0f;
    RANK_OK(self, one_step(reducer, grad));
    expected = has_residual && !drops ? 5.0f * (float)self->nranks : 0.0f;
    RANK_CHECK(self, row[2] == expected, "next row: %g, not %g", (double)row[2], (double)expected);
    RANK_CHECK(self, row[3] == (float)self->nranks, "next: %g", (double)row[3]);
    RANK_CHECK(self, row[1] == (lost && has_residual && !drops ? c->bad[1] : 0.0f), "next bad: %g",
               (double)row[1]);
    tamis_reducer_destroy(reducer);
}

static void test_numbers_that_are_not_finite_are_found_as_elsewhere(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "dense"};
    static const float bad[][2] = {{NAN, 3}, {INFINITY, 3}, {FLT_MAX, FLT_MAX}};
    (void)state;
    for (int s = 0; s < 3; s++)
        for (tamis_nonfinite n = TAMIS_NONFINITE_ERROR; n <= TAMIS_NONFINITE_DROP; n++)
            for (int i = 0; i < 3; i++) {
                bad_case c = {schemes[s], n, {bad[i][0], bad[i][1]}};
                test_context("%s, %g and %g, policy %d", c.scheme, (double)c.bad[0],
                             (double)c.bad[1], (int)n);
                ranks_run(3, 0, run_bad, &c);
            }
}

/* -- damage ----------------------------------------------------------------------------------- */

typedef struct damage_case {
    tam_fault fault;
    uint64_t nth;
    uint32_t bit;
    tamis_status status[2]; /* of the step and the next */
} damage_case;

static void run_damage(test_rank *self) {
    const damage_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float grad[N];
    config.index_codec = TAMIS_INDEX_U32;
    RANK_OK(self, make(self->comm, &config, LENGTH, &reducer));
    if (self->id == 1)
        RANK_OK(self, tam_faulty_install(self->comm, c->fault, c->nth, c->bit));
    for (uint32_t number = 0; number < 2; number++) {
        fill(self->id, number, grad);
        tamis_status expected = c->status[number], got = one_step(reducer, grad);
        RANK_CHECK(self, got == expected, "step %u: %s, not %s: %s", number, tamis_status_name(got),
                   tamis_status_name(expected), tamis_last_error());
        if (got != TAMIS_OK)
            break;
    }
    tamis_reducer_destroy(reducer);
}

static void damage(damage_case c) {
    test_context("fault %d of operation %llu, bit %u", (int)c.fault, (unsigned long long)c.nth,
                 c.bit);
    ranks_run(3, 5000, run_damage, &c);
}

/* The rows are the bucket that is exchanged first: headers, lists, and what is gathered. Rank 1
 * touches 9 rows in the first step. */
static void test_damage_to_lists_of_rows_is_refused(void **state) {
    (void)state;
    for (uint32_t byte = 0; byte < 28 + 56; byte++)
        damage((damage_case){TAM_FAULT_SPOIL, 0, 8 * byte + byte % 8, {TAMIS_E_PROTOCOL}});
    for (uint32_t byte = 0; byte < 4 * 9; byte++)
        damage((damage_case){TAM_FAULT_SPOIL, 1, 8 * byte + byte % 8, {TAMIS_E_PROTOCOL}});
}

static void test_damage_to_values_of_rows_is_noticed_in_the_next_step(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        damage((damage_case){TAM_FAULT_FLIP, 2, 32 * i + 20, {TAMIS_OK, TAMIS_E_PROTOCOL}});
}

/* -- micro-batches and states ----------------------------------------------------------------- */

static void check_sum(test_rank *self, const float *grad, uint32_t first, uint32_t last) {
    float sums[N] = {0}, one[N];
    for (uint32_t r = 0; r < self->nranks; r++)
        for (uint32_t step = first; step <= last; step++) {
            fill(r, step, one);
            for (size_t i = 0; i < N; i++)
                sums[i] += one[i];
        }
    for (size_t i = HEAD; i < N; i++)
        RANK_CHECK(self, grad[i] == sums[i] / (float)self->nranks, "row %zu: %g, not %g",
                   (i - HEAD) / LENGTH, (double)grad[i], (double)(sums[i] / (float)self->nranks));
}

static void accumulate(test_rank *self, tamis_reducer *reducer, uint32_t number, float *grad) {
    const tamis_step step = data_step(grad);
    fill(self->id, number, grad);
    RANK_OK(self, tamis_reducer_accumulate(reducer, &step));
}

static void run_micro_batches(test_rank *self) {
    tamis_reducer *reducer = NULL, *other = NULL, *wrong = NULL;
    float grad[N], residual[N];
    unsigned char control[1 << 14];
    size_t bytes = 0;
    RANK_OK(self, make(self->comm, NULL, LENGTH, &reducer));
    RANK_OK(self, make(self->comm, NULL, LENGTH, &other));
    RANK_OK(self, make(self->comm, NULL, 2 * LENGTH, &wrong));
    for (uint32_t number = 0; number < 9; number += 3) {
        accumulate(self, reducer, number, grad);
        accumulate(self, reducer, number + 1, grad);
        if (number == 6) { /* in the middle of a step's micro-batches */
            RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
            RANK_CHECK(self, bytes <= sizeof control, "%zu bytes", bytes);
            RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
            RANK_OK(self, tamis_reducer_save_residual(reducer, residual));
        }
        fill(self->id, number + 2, grad);
        RANK_OK(self, one_step(reducer, grad));
        check_sum(self, grad, number, number + 2);
    }
    uint64_t hash = data_hash(0, grad, sizeof grad);
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_reducer_load_memory(wrong, control, bytes, residual));
    RANK_CHECK(self, has_word(tamis_last_error(), "row lengths"), "%s", tamis_last_error());
    RANK_OK(self, tamis_reducer_load_memory(other, control, bytes, residual));
    fill(self->id, 8, grad);
    RANK_OK(self, one_step(other, grad));
    RANK_CHECK(self, data_hash(0, grad, sizeof grad) == hash, "the run went on otherwise");
    tamis_reducer_destroy(wrong);
    tamis_reducer_destroy(other);
    tamis_reducer_destroy(reducer);
}

static void test_micro_batches_of_rows_add_up_also_through_a_state(void **state) {
    (void)state;
    test_context("micro-batches");
    ranks_run(3, 0, run_micro_batches, NULL);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void run_memory(test_rank *self) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float grad[N];
    config.scheme = self->shared;
    RANK_OK(self, make(self->comm, &config, LENGTH, &reducer));
    rank_barrier(self);
    uint64_t made = tam_alloc_made();
    for (uint32_t number = 0; number < 6; number++) {
        fill(self->id, number, grad);
        for (size_t i = HEAD; number % 3 == 2 && i < N; i++) /* the whole segment */
            grad[i] = 1.0f;
        RANK_OK(self, one_step(reducer, grad));
    }
    rank_barrier(self);
    RANK_CHECK(self, tam_alloc_made() == made, "a step allocated");
    rank_barrier(self);
    tamis_reducer_destroy(reducer);
}

static void test_a_step_with_rows_allocates_nothing(void **state) {
    static char tamis[] = "tamis", dense[] = "dense";
    (void)state;
    test_context("memory");
    ranks_run(3, 0, run_memory, tamis);
    ranks_run(3, 0, run_memory, dense);
}

typedef struct scarce_case {
    const char *scheme;
    long budget;
    tamis_status status;
} scarce_case;

static void run_scarce(test_rank *self) {
    scarce_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = make_layout(LENGTH);
    config.scheme = c->scheme;
    tam_alloc_budget(c->budget);
    c->status = tamis_reducer_create(self->comm, layout, &config, &reducer);
    tam_alloc_budget(-1);
    RANK_CHECK(self, c->status == TAMIS_OK || c->status == TAMIS_E_NOMEM, "%s",
               tamis_status_name(c->status));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void test_create_with_rows_survives_any_failing_allocation(void **state) {
    static const char *const schemes[] = {"tamis", "dense"};
    (void)state;
    for (int s = 0; s < 2; s++) {
        scarce_case c = {schemes[s], 0, TAMIS_E_NOMEM};
        uint64_t live = tam_alloc_live();
        for (; c.status != TAMIS_OK; c.budget++) {
            test_context("%s, allocation %ld fails", c.scheme, c.budget);
            assert_true(c.budget < 1000);
            ranks_run(1, 0, run_scarce, &c);
            assert_int_equal(tam_alloc_live(), live);
        }
        assert_true(c.budget > 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_that_do_not_divide_a_segment_are_refused),
        cmocka_unit_test(test_ranks_that_differ_in_rows_are_told_so),
        cmocka_unit_test(test_more_buckets_than_there_can_be_are_refused),
        cmocka_unit_test(test_a_layout_may_have_rows_alone),
        cmocka_unit_test(test_numbers_that_are_not_finite_are_found_as_elsewhere),
        cmocka_unit_test(test_damage_to_lists_of_rows_is_refused),
        cmocka_unit_test(test_damage_to_values_of_rows_is_noticed_in_the_next_step),
        cmocka_unit_test(test_micro_batches_of_rows_add_up_also_through_a_state),
        cmocka_unit_test(test_a_step_with_rows_allocates_nothing),
        cmocka_unit_test(test_create_with_rows_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests_name("rows_life", tests, NULL, NULL);
}
