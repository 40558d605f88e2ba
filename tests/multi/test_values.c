/* SPDX-License-Identifier: MIT
 *
 * 16-bit values lose nothing: the rounding error stays in a residual. With all types it is finite.
 */
#include "lib/base/base.h"
#include "lib/base/half.h"
#include "tests/multi/codec_cases.h"
#include <math.h>
#include <tamis/stats.h>

/* Entries of the last step's result at which some rank keeps something. */
static size_t kept(const trial_record *record) {
    uint32_t last = record->trial.steps - 1;
    const uint32_t *indices = record->indices + (size_t)last * record->trial.n;
    size_t count = 0;
    for (size_t i = 0; i < record_moment(record, last, 0)->count; i++) {
        bool any = false;
        for (uint32_t r = 0; r < record->trial.nranks; r++)
            any = any || record_residual(record, last, r)[indices[i]] != 0.0f;
        count += any;
    }
    return count;
}

/* Exactly, for all numbers are whole and small enough for binary32; many exceed bfloat16. */
static void test_values_of_16_bits_conserve_mass_exactly(void **state) {
    static const uint32_t ranks_of[] = {1, 2, 3, 5};
    static const double densities[] = {1, 0.1, 0.01};
    trial_record record;
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t p = 0; p < COUNT(ranks_of); p++)
            for (size_t d = 0; d < COUNT(densities); d++) {
                trial what = trial_of(c, ranks_of[p], 3001, densities[d]);
                what.value_codec = TAMIS_VALUE_BFLOAT16;
                what.index_codec = index_codecs[(c + p + d) % COUNT(index_codecs)];
                what.bucket_length = d == 1 ? 700 : 0;
                what.scale = 7; /* whole numbers of up to 19 bits; their sums have at most 24 */
                what.steps = 5;
                run(&what, &record);
                check_conservation(&record);
                if (d > 0 && kept(&record) == 0)
                    fail_msg("[%s] nothing was rounded", test_context_text());
                record_free(&record);
            }
}

/* Equal entries and residuals; the rounded sum divided. */
static void test_a_mean_of_16_bits_is_the_sum_divided_once(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        trial what = trial_of(c, 3, 1000, 0.05);
        trial_record sums, means;
        what.value_codec = TAMIS_VALUE_BFLOAT16;
        what.real = true;
        run(&what, &sums);
        what.op = TAMIS_OP_MEAN;
        run(&what, &means);
        for (uint32_t step = 0; step < what.steps; step++) {
            for (size_t i = 0; i < what.n; i++)
                assert_true(record_result(&means, step)[i] == record_result(&sums, step)[i] / 3.0f);
            for (uint32_t r = 0; r < what.nranks; r++)
                assert_memory_equal(record_residual(&sums, step, r),
                                    record_residual(&means, step, r), what.n * sizeof(float));
        }
        record_free(&sums);
        record_free(&means);
    }
}

/* One step of three ranks over everything, each with the same gradient everywhere. */
typedef struct flat_case {
    const char *scheme;
    float given[3];
    tamis_nonfinite nonfinite;
    tamis_status status;
    /* by the ranks */
    float result[3];
    float residual[3][16];
    double residual_norm[3];
} flat_case;

static void run_flat(test_rank *self) {
    flat_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    const float *residual = NULL;
    float grad[15];
    config.scheme = c->scheme;
    config.density = 1.0;
    config.op = TAMIS_OP_SUM;
    config.nonfinite = c->nonfinite;
    config.value_codec = TAMIS_VALUE_BFLOAT16;
    for (size_t i = 0; i < 15; i++)
        grad[i] = c->given[self->id];
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, 15, &config, &reducer));
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, c->status, tamis_reducer_wait(reducer));
    for (size_t i = 1; i < 15; i++)
        RANK_CHECK(self, memcmp(&grad[i], &grad[0], sizeof grad[0]) == 0, "entry %zu is %g", i,
                   (double)grad[i]);
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    memcpy(c->residual[self->id], residual, 15 * sizeof residual[0]);
    c->residual_norm[self->id] = stats.residual_norm;
    c->result[self->id] = grad[0];
    tamis_reducer_destroy(reducer);
}

static void step_flat(flat_case *c) {
    test_context("%s: %g %g %g", c->scheme, (double)c->given[0], (double)c->given[1],
                 (double)c->given[2]);
    ranks_run(3, 0, run_flat, c);
    assert_memory_equal(&c->result[0], &c->result[1], sizeof(float));
    assert_memory_equal(&c->result[0], &c->result[2], sizeof(float));
}

/* The owner, in a vector of one block, of the last shard. */
enum { OWNER = 2 };

/* 129 fits 8 bits, three times 129 does not: 388 is sent. The block's owner keeps the
 * difference. */
static void test_what_rounding_a_sum_takes_is_kept_by_its_owner(void **state) {
    flat_case c = {.scheme = "topk", .given = {129, 129, 129}};
    (void)state;
    step_flat(&c);
    assert_true(c.result[0] == 388.0f);
    for (uint32_t r = 0; r < 3; r++) {
        for (size_t i = 0; i < 15; i++)
            assert_true(c.residual[r][i] == (r == OWNER ? -1.0f : 0.0f));
        assert_true(fabs(c.residual_norm[r] - (r == OWNER ? sqrt(15.0) : 0.0)) < 1e-6);
    }
}

/* 257 lies between 256 and 258, 259 between 258 and 260: ties go to the even mantissa. */
static void test_what_rounding_a_value_takes_is_kept_by_its_sender(void **state) {
    flat_case c = {.scheme = "topk", .given = {257, 0, 259}};
    (void)state;
    step_flat(&c);
    assert_true(c.result[0] == 516.0f); /* 256 + 260 */
    for (size_t i = 0; i < 15; i++) {
        assert_true(c.residual[0][i] == 1.0f);
        assert_true(c.residual[1][i] == 0.0f);
        assert_true(c.residual[2][i] == -1.0f);
    }
    c = (flat_case){.scheme = "all+global+exact+pairs", .given = {257, 0, 259}};
    step_flat(&c); /* pairs travel once, and every rank adds them up */
    assert_true(c.result[0] == 516.0f);
    for (size_t i = 0; i < 15; i++)
        assert_true(c.residual[0][i] == 1.0f && c.residual[2][i] == -1.0f);
}

/* The largest bfloat16 is 0x7f7f; above it binary32 still has 65,536 numbers. */
static void test_finite_values_stay_finite_and_what_exceeds_is_kept(void **state) {
    static const char *const schemes[] = {"topk", "all+global+exact+pairs"};
    const float most = tam_bfloat16_widen(0x7f7f), largest = tam_float(0x7f7fffff);
    (void)state;
    for (int s = 0; s < 2; s++) {
        flat_case c = {.scheme = schemes[s], .given = {-largest, 0, 0}};
        step_flat(&c);
        assert_true(c.result[0] == -most);
        for (size_t i = 0; i < 15; i++)
            assert_true(c.residual[0][i] == -(largest - most));
    }
    /* a sum that binary32 can represent and bfloat16 cannot */
    float little = tam_bfloat16_widen(0x7b00);
    flat_case c = {.scheme = "topk", .given = {most, little, 0}};
    step_flat(&c);
    assert_true(most + little < INFINITY && c.result[0] == most);
    for (size_t i = 0; i < 15; i++)
        for (uint32_t r = 0; r < 3; r++)
            assert_true(c.residual[r][i] == (r == OWNER ? (most + little) - most : 0.0f));
}

static void test_sums_that_are_not_finite_are_found_as_with_32_bits(void **state) {
    static const char *const schemes[] = {"topk", "all+global+exact+pairs"};
    const float large = tam_float(0x7f7fffff);
    (void)state;
    for (int s = 0; s < 2; s++) {
        flat_case c = {.scheme = schemes[s], .given = {large, large, 257}};
        c.nonfinite = TAMIS_NONFINITE_DROP; /* drop such an entry wholly */
        step_flat(&c);
        for (uint32_t r = 0; r < 3; r++)
            for (size_t i = 0; i < 15; i++)
                assert_true(c.residual[r][i] == 0.0f);
        assert_true(c.result[0] == 0.0f);
        c.nonfinite = TAMIS_NONFINITE_ERROR;
        c.status = TAMIS_E_NONFINITE;
        step_flat(&c);
        assert_true(c.result[0] == 0.0f);
        c = (flat_case){.scheme = schemes[s], .given = {NAN, 257, 0}};
        c.nonfinite = TAMIS_NONFINITE_DROP;
        step_flat(&c);
        assert_true(c.result[0] == 256.0f && c.residual[1][3] == 1.0f);
    }
}

/* -- errors of fp2 ---------------------------------------------------------------------------- */

/* What rank 0 sends at entry 0 is far too small, what rank 1 sends there far too large, and so is
 * their sum before it is rounded: rank 0 would keep 3.6e38. */
static void run_large(test_rank *self) {
    enum { LENGTH = 256 };
    float grad[LENGTH] = {0};
    const float *residual = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    const tamis_step step = data_step(grad);
    config.density = 1.0;
    config.op = TAMIS_OP_SUM;
    config.value_codec = config.sum_codec = TAMIS_VALUE_FP2;
    grad[0] = self->id == 0 ? 3.25e38f : 0.09e38f;
    for (size_t i = 1; i <= 60 && self->id == 0; i++)
        grad[i] = 1e38f;
    for (size_t i = 100; i < 106 && self->id == 1; i++)
        grad[i] = i < 104 ? 1e38f : 2.9e38f;
    RANK_OK(self, data_reducer(self->comm, LENGTH, &config, &r));
    for (int number = 0; number < 3; number++) {
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        RANK_OK(self, tamis_reducer_residual(r, &residual));
        for (size_t i = 0; i < LENGTH; i++)
            RANK_CHECK(self, isfinite(residual[i]), "step %d: residual[%zu] is %g", number, i,
                       (double)residual[i]);
        memset(grad, 0, sizeof grad);
    }
    tamis_reducer_destroy(r);
}

static void test_no_residual_becomes_infinite(void **state) {
    (void)state;
    test_context("errors of fp2");
    ranks_run(2, 0, run_large, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_of_16_bits_conserve_mass_exactly),
        cmocka_unit_test(test_a_mean_of_16_bits_is_the_sum_divided_once),
        cmocka_unit_test(test_what_rounding_a_sum_takes_is_kept_by_its_owner),
        cmocka_unit_test(test_what_rounding_a_value_takes_is_kept_by_its_sender),
        cmocka_unit_test(test_finite_values_stay_finite_and_what_exceeds_is_kept),
        cmocka_unit_test(test_sums_that_are_not_finite_are_found_as_with_32_bits),
        cmocka_unit_test(test_no_residual_becomes_infinite),
    };
    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
