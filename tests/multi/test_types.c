/* SPDX-License-Identifier: MIT
 *
 * 16-bit gradients: the step equals that of float32 gradients with the same values, and the result
 * is rounded once.
 */
#include "lib/base/half.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static const tamis_dtype halves[] = {TAMIS_DTYPE_FLOAT16, TAMIS_DTYPE_BFLOAT16};

static float rounded(float x, tamis_dtype type) {
    uint16_t half[2]; /* room for any type */
    float wide = 0;
    tam_narrow(&x, 1, type, half);
    tam_widen(type, half, 1, &wide);
    return wide;
}

static bool same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Compare what a step left behind, except the gradient. */
static void compare_state(const trial_record *a, const trial_record *b, uint32_t step) {
    size_t n = a->trial.n, count = record_moment(b, step, 0)->count;
    for (uint32_t r = 0; r < a->trial.nranks; r++) {
        const moment *m = record_moment(a, step, r), *plain = record_moment(b, step, r);
        assert_int_equal(m->count, plain->count);
        assert_int_equal(m->sparse_hash, plain->sparse_hash);
        assert_int_equal(m->stats.wire_bytes, plain->stats.wire_bytes);
        assert_true(m->stats.acc_norm == plain->stats.acc_norm);
        if (memcmp(record_residual(a, step, r), record_residual(b, step, r), n * sizeof(float)))
            fail_msg("[%s] step %u: the residuals of rank %u differ", test_context_text(), step, r);
    }
    if (a->has_indices)
        assert_memory_equal(a->values + step * n, b->values + step * n, count * sizeof(float));
}

static void compare_gradients(const trial_record *a, const trial_record *b, uint32_t step) {
    for (size_t i = 0; i < a->trial.n; i++) {
        float have = record_result(a, step)[i], plain = record_result(b, step)[i];
        if (!same_bits(have, rounded(plain, a->trial.type)))
            fail_msg("[%s] step %u: gradient[%zu] is %a, of %a", test_context_text(), step, i,
                     (double)have, (double)plain);
    }
}

static void check_as_plain(trial what, tamis_dtype type) {
    trial_record narrow, plain;
    what.type = what.fits = type;
    assert_true(trial_run(&what, &narrow));
    what.type = TAMIS_DTYPE_FLOAT32;
    assert_true(trial_run(&what, &plain));
    check_ranks_identical(&narrow);
    for (uint32_t step = 0; step < what.steps; step++) {
        compare_state(&narrow, &plain, step);
        if (what.output == TAMIS_OUTPUT_DENSE)
            compare_gradients(&narrow, &plain, step);
    }
    record_free(&narrow);
    record_free(&plain);
}

static void test_presets_step_as_with_wide_gradients(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (unsigned i = 0; i < 16; i++) {
            if (!test_drawn(5))
                continue;
            trial what = trial_usual(scheme.name, i & 1 ? 3 : 2, i & 2 ? 4097 : 1001, 0.02);
            what.by_segment = i & 2;
            what.output = i & 4 && !scheme.dense ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
            what.op = i & 1 ? TAMIS_OP_MEAN : TAMIS_OP_SUM;
            what.real = i & 1;
            what.scale = i & 4 ? 0.5f : 1.0f;
            what.threads = i & 4 ? 2 : 1;
            check_as_plain(what, halves[i >> 3]);
        }
}

/* Sums of whole numbers that 16 bits hold: nothing is rounded, so every rule can be checked. */
static void test_mass_is_conserved_where_nothing_is_rounded(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t t = 0; t < 2; t++) {
            trial_record record;
            trial what = trial_usual(scheme.name, 3, 2000, 0.05);
            what.type = what.fits = halves[t];
            what.pattern = DATA_TIES;
            assert_true(trial_run(&what, &record));
            check_ranks_identical(&record);
            check_union(&record);
            check_stats(&record);
            check_conservation(&record);
            record_free(&record);
        }
}

/* Scheme dense processes the gradient in pieces of 2^20 elements. */
static void test_dense_sums_more_than_a_piece(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        trial what = trial_usual("dense", 2, (1 << 20) + 77, 1);
        what.steps = 1;
        what.by_segment = i;
        check_as_plain(what, halves[i]);
    }
}

/* -- NaN, Inf, and results that exceed the type ----------------------------------------------- */

enum { N = 600, BAD = 7, LARGE = 300 };

typedef struct bad_case {
    const char *scheme;
    tamis_dtype type;
    tamis_nonfinite policy;
    float bad, large;
    /* written by rank 0 */
    float result[N];
    tamis_stats stats;
} bad_case;

/* A gradient of 1 everywhere, but `bad` in one place on rank 1, and `large` in another on all. */
static void run_bad(test_rank *self) {
    bad_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    uint16_t gradient[2 * N]; /* room for any type */
    float wide[N];
    for (size_t i = 0; i < N; i++)
        wide[i] = i == LARGE ? c->large : i == BAD && self->id == 1 ? c->bad : 1;
    tam_narrow(wide, N, c->type, gradient);
    config.scheme = c->scheme;
    config.density = 1;
    config.op = TAMIS_OP_SUM;
    config.nonfinite = c->policy;
    config.grad_dtype = c->type;
    tamis_status created = tamis_reducer_create(self->comm, layout, &config, &reducer);
    tamis_layout_destroy(layout);
    RANK_OK(self, created);
    tamis_step step = TAMIS_STEP_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    step.grad = gradient;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self,
                c->policy == TAMIS_NONFINITE_ERROR && !isfinite(c->bad) ? TAMIS_E_NONFINITE
                                                                        : TAMIS_OK,
                tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    tamis_reducer_destroy(reducer);
    if (self->id == 0) {
        tam_widen(c->type, gradient, N, c->result);
        c->stats = stats;
    }
}

static void check_bad(bad_case c) {
    bool dense = strcmp(c.scheme, "dense") == 0, drop = c.policy == TAMIS_NONFINITE_DROP;
    test_context("%s type=%d policy=%d", c.scheme, c.type, c.policy);
    ranks_run(2, 0, run_bad, &c);
    assert_int_equal(c.stats.nonfinite, 1);
    assert_int_equal(c.stats.skipped, !drop);
    for (size_t i = 0; i < N; i++) {
        float sum = i == BAD ? (dense ? 0.0f : 1.0f) : 2.0f;
        if (i == LARGE)
            sum = rounded(2 * rounded(c.large, c.type), c.type);
        assert_true(c.result[i] == (drop ? sum : 0.0f));
    }
}

static void test_bad_entries_are_found_in_every_type(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "dense"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++)
        for (int policy = TAMIS_NONFINITE_ERROR; policy <= TAMIS_NONFINITE_DROP; policy++)
            for (unsigned i = 0; i < 4; i++)
                check_bad((bad_case){.scheme = schemes[s],
                                     .type = halves[i & 1],
                                     .policy = (tamis_nonfinite)policy,
                                     .bad = i & 2 ? NAN : -INFINITY,
                                     .large = 100});
}

/* The sum is finite, so it is a result; only binary16 cannot hold it. */
static void test_a_result_that_exceeds_its_type_is_infinite(void **state) {
    static const char *const schemes[] = {"tamis", "dense"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        bad_case c = {.scheme = schemes[s], .type = TAMIS_DTYPE_FLOAT16, .bad = 1, .large = 40000};
        ranks_run(2, 0, run_bad, &c);
        assert_true(isinf(c.result[LARGE]) && c.result[BAD] == 2);
        assert_int_equal(c.stats.nonfinite, 0);
        c.type = TAMIS_DTYPE_BFLOAT16;
        ranks_run(2, 0, run_bad, &c);
        assert_true(c.result[LARGE] == rounded(2 * rounded(40000, c.type), c.type));
    }
}

/* -- arguments -------------------------------------------------------------------------------- */

static void run_arguments(test_rank *self) {
    const tamis_dtype *type = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    uint16_t gradient[N + 1] = {0};
    config.grad_dtype = (tamis_dtype)3;
    tamis_status refused = tamis_reducer_create(self->comm, layout, &config, &reducer);
    config.grad_dtype = *type;
    tamis_status created = tamis_reducer_create(self->comm, layout, &config, &reducer);
    tamis_layout_destroy(layout);
    RANK_STATUS(self, TAMIS_E_ARGUMENT, refused);
    RANK_OK(self, created);
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = (char *)gradient + 1;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_start(reducer, &step));
    step.grad = gradient + 1; /* aligned to an element, not to a float */
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    tamis_reducer_destroy(reducer);
}

static void test_types_and_their_alignment_are_checked(void **state) {
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        tamis_dtype type = halves[t];
        ranks_run(2, 0, run_arguments, &type);
    }
}

static void run_mismatch(test_rank *self) {
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    config.grad_dtype = halves[self->id];
    tamis_status created = tamis_reducer_create(self->comm, layout, &config, &reducer);
    tamis_layout_destroy(layout);
    RANK_STATUS(self, TAMIS_E_MISMATCH, created);
    RANK_CHECK(self, has_word(tamis_last_error(), "grad_dtype"), "%s", tamis_last_error());
}

static void test_ranks_with_different_types_are_told_so(void **state) {
    (void)state;
    ranks_run(2, 0, run_mismatch, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_step_as_with_wide_gradients),
        cmocka_unit_test(test_mass_is_conserved_where_nothing_is_rounded),
        cmocka_unit_test(test_dense_sums_more_than_a_piece),
        cmocka_unit_test(test_bad_entries_are_found_in_every_type),
        cmocka_unit_test(test_a_result_that_exceeds_its_type_is_infinite),
        cmocka_unit_test(test_types_and_their_alignment_are_checked),
        cmocka_unit_test(test_ranks_with_different_types_are_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
