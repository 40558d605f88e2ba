/* SPDX-License-Identifier: MIT
 *
 * NaN and Inf in the gradient of one rank: all ranks decide together, the residual stays finite,
 * nothing finite is lost.
 */
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/scratch.h"
#include "tests/support/data.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 1500, STEPS = 4, BAD_STEP = 1, BAD_ENTRIES = 3 };

static const size_t bad_entry[BAD_ENTRIES] = {5, 700, N - 1};

struct plan {
    const scheme_case *scheme;
    tamis_nonfinite policy;
    uint32_t bad_rank;
    /* written by the ranks */
    float residual[RANKS_MOST][STEPS][N], applied[RANKS_MOST][STEPS][N];
    size_t count[RANKS_MOST][STEPS];
    tamis_stats stats[RANKS_MOST][STEPS];
};

static void spoil(float *gradient) {
    gradient[bad_entry[0]] = NAN;
    gradient[bad_entry[1]] = INFINITY;
    gradient[bad_entry[2]] = -INFINITY;
}

static tamis_status expected_status(const struct plan *plan, uint32_t step) {
    bool lost = plan->policy == TAMIS_NONFINITE_ERROR && step == BAD_STEP;
    return lost ? TAMIS_E_NONFINITE : TAMIS_OK;
}

static void run_step(test_rank *self, tamis_reducer *reducer, uint32_t number) {
    struct plan *plan = self->shared;
    float *gradient = plan->applied[self->id][number];
    const float *residual = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    if (number == BAD_STEP && self->id == plan->bad_rank)
        spoil(gradient);
    step.grad = gradient;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, expected_status(plan, number), tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_result(reducer, &result));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    plan->count[self->id][number] = result.count;
    plan->stats[self->id][number] = (tamis_stats)TAMIS_STATS_INIT;
    RANK_OK(self, tamis_reducer_stats(reducer, &plan->stats[self->id][number]));
    if (residual)
        memcpy(plan->residual[self->id][number], residual, N * sizeof(float));
}

static void run_plan(test_rank *self) {
    const struct plan *plan = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = data_layout(N);
    config.scheme = plan->scheme->name;
    config.density = 0.05;
    config.op = TAMIS_OP_SUM;
    config.nonfinite = plan->policy;
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    for (uint32_t step = 0; step < STEPS && !self->failure[0]; step++)
        run_step(self, reducer, step);
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

/* What the ranks put in, bad entries counting as zero. */
static void add_put_in(const struct plan *plan, uint32_t nranks, uint32_t step, double *sum) {
    static float gradient[N];
    for (uint32_t r = 0; r < nranks; r++) {
        data_fill(DATA_HEAVY, r, step, N, gradient);
        if (step == BAD_STEP && r == plan->bad_rank)
            for (size_t b = 0; b < BAD_ENTRIES; b++)
                gradient[bad_entry[b]] = 0;
        for (size_t i = 0; i < N; i++)
            sum[i] += (double)gradient[i];
    }
}

static void check_entries(const struct plan *plan, uint32_t nranks) {
    static double owed[N];
    memset(owed, 0, sizeof owed);
    for (uint32_t step = 0; step < STEPS; step++) {
        add_put_in(plan, nranks, step, owed);
        for (size_t i = 0; i < N; i++) {
            double held = 0;
            owed[i] -= (double)plan->applied[0][step][i];
            for (uint32_t r = 0; r < nranks; r++)
                held += (double)plan->residual[r][step][i];
            if (held != owed[i]) /* also when one of them is not finite */
                fail_msg("[%s] step %u, entry %zu: owed %g, held %g", test_context_text(), step, i,
                         owed[i], held);
        }
    }
}

static void check_bad_step(const struct plan *plan, uint32_t nranks) {
    bool applies = plan->policy == TAMIS_NONFINITE_DROP;
    for (uint32_t r = 0; r < nranks; r++) {
        const tamis_stats *stats = &plan->stats[r][BAD_STEP];
        if (stats->nonfinite != BAD_ENTRIES || stats->skipped != !applies)
            fail_msg("[%s] rank %u: stats.nonfinite %llu, skipped %llu", test_context_text(), r,
                     (unsigned long long)stats->nonfinite, (unsigned long long)stats->skipped);
        if ((plan->count[r][BAD_STEP] > 0) != applies)
            fail_msg("[%s] rank %u: %zu entries were applied", test_context_text(), r,
                     plan->count[r][BAD_STEP]);
        for (size_t i = 0; !applies && i < N; i++)
            if (plan->applied[r][BAD_STEP][i] != 0)
                fail_msg("[%s] rank %u: gradient[%zu] is %g after a lost step", test_context_text(),
                         r, i, (double)plan->applied[r][BAD_STEP][i]);
    }
}

static void check_ranks_identical(const struct plan *plan, uint32_t nranks) {
    for (uint32_t r = 1; r < nranks; r++)
        if (memcmp(plan->applied[r], plan->applied[0], sizeof plan->applied[0]) != 0)
            fail_msg("[%s] rank %u holds other bits than rank 0", test_context_text(), r);
}

static void check_policy(tamis_nonfinite policy) {
    static const uint32_t nranks_of[] = {1, 2, 5};
    struct plan *plan = malloc(sizeof *plan);
    scheme_case scheme;
    assert_non_null(plan);
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < 3; p++)
            for (uint32_t bad = 0; bad < nranks_of[p]; bad += 2) {
                test_context("%s P=%u policy %d on rank %u", scheme.name, nranks_of[p], policy,
                             bad);
                memset(plan, 0, sizeof *plan);
                plan->scheme = &scheme;
                plan->policy = policy;
                plan->bad_rank = bad;
                ranks_run(nranks_of[p], 0, run_plan, plan);
                check_ranks_identical(plan, nranks_of[p]);
                check_bad_step(plan, nranks_of[p]);
                if (!scheme.dense) /* without a residual a lost step is lost */
                    check_entries(plan, nranks_of[p]);
            }
    free(plan);
}

static void test_error_applies_nothing_on_any_rank(void **state) {
    (void)state;
    check_policy(TAMIS_NONFINITE_ERROR);
}

static void test_skip_applies_nothing_and_succeeds(void **state) {
    (void)state;
    check_policy(TAMIS_NONFINITE_SKIP);
}

static void test_drop_loses_only_the_bad_entries(void **state) {
    (void)state;
    check_policy(TAMIS_NONFINITE_DROP);
}

/* -- several ranks ---------------------------------------------------------------------------- */

static void run_two_bad(test_rank *self) {
    const char *const *scheme = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = data_layout(N);
    float gradient[N];
    config.scheme = *scheme;
    config.density = 0.05;
    step.grad = gradient;
    data_fill(DATA_HEAVY, self->id, 0, N, gradient);
    if (self->id == 1 || self->id == 3)
        spoil(gradient);
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, TAMIS_E_NONFINITE, tamis_reducer_wait(reducer));
    RANK_CHECK(self, strstr(tamis_last_error(), "(first on rank 1"), "it says: %s",
               tamis_last_error());
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void test_of_several_ranks_the_first_is_named(void **state) {
    const char *schemes[] = {"tamis", "topk", "oktopk", "deft"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        test_context("%s, two ranks", schemes[s]);
        ranks_run(5, 0, run_two_bad, &schemes[s]);
    }
}

/* -- NaN that lasts --------------------------------------------------------------------------- */

enum { LONG = 600, GOOD_STEPS = 2, LASTING_STEPS = 4 };

static tamis_status lasting_step(test_rank *self, tamis_reducer *reducer, bool bad, float scale) {
    float gradient[3 * LONG];
    tamis_step step = data_step(gradient);
    data_fill(DATA_HEAVY, self->id, 0, 3 * LONG, gradient);
    if (bad && self->id == 1)
        gradient[LONG + 1] = gradient[2 * LONG + 1] = NAN;
    step.scale = scale;
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

static void says(test_rank *self, const char *words, bool expected) {
    bool there = strstr(tamis_last_error(), words);
    RANK_CHECK(self, there == expected, "it says: %s", tamis_last_error());
}

/* As a loss scale does that is halved in each bad step, until its inverse overflows. */
static void run_lasting(test_rank *self) {
    const uint64_t *bucket_length = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    config.density = 0.05;
    config.bucket_length = *bucket_length;
    RANK_OK(self, data_even_reducer(self->comm, 3, LONG, &config, &reducer));
    for (int i = 0; i < GOOD_STEPS; i++)
        RANK_OK(self, lasting_step(self, reducer, false, 1.0f));
    char name[32], path[SCRATCH_PATH];
    snprintf(name, sizeof name, "lasting-%u", self->id);
    RANK_OK(self, tamis_reducer_save(reducer, scratch_path(name, path)));
    for (int i = 0; i < LASTING_STEPS; i++) {
        RANK_STATUS(self, TAMIS_E_NONFINITE, lasting_step(self, reducer, true, 1.0f));
        says(self, "first on rank 1, in the gradient of one)", self->id == 1);
        says(self, "first on rank 1)", self->id != 1);
        says(self, "in a row have NaN or Inf, from step 2 on, there first on rank 1", i > 0);
    }
    RANK_STATUS(self, TAMIS_E_ARGUMENT, lasting_step(self, reducer, true, INFINITY));
    says(self, "scale is inf", true);
    says(self, ", 4 steps in a row have NaN or Inf, from step 2 on", true);
    RANK_OK(self, lasting_step(self, reducer, false, 1.0f));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, lasting_step(self, reducer, true, INFINITY));
    says(self, "in a row", false);
    for (int i = 0; i < 2; i++) /* a state that is loaded has none of it */
        RANK_STATUS(self, TAMIS_E_NONFINITE, lasting_step(self, reducer, true, 1.0f));
    says(self, ", 2 steps in a row have NaN or Inf, from step 7 on", true);
    RANK_OK(self, tamis_reducer_load(reducer, path));
    RANK_STATUS(self, TAMIS_E_NONFINITE, lasting_step(self, reducer, true, 1.0f));
    says(self, "step 2: entries", true);
    says(self, "in a row", false);
    tamis_reducer_destroy(reducer);
}

static void test_nan_that_lasts_is_named_by_its_beginning(void **state) {
    uint64_t lengths[] = {0, LONG};
    (void)state;
    for (int i = 0; i < 2; i++) {
        test_context("buckets of %llu", (unsigned long long)lengths[i]);
        ranks_run(3, 0, run_lasting, &lengths[i]);
    }
}

/* -- finite gradients whose accumulation overflows -------------------------------------------- */

static void run_overflow(test_rank *self) {
    enum { LENGTH = 64 };
    const char *const *scheme = self->shared;
    float gradient[LENGTH];
    const float *residual = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = data_layout(LENGTH);
    config.scheme = *scheme;
    config.density = 1.0 / LENGTH;
    config.nonfinite = TAMIS_NONFINITE_DROP;
    step.grad = gradient;
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    for (int number = 0; number < 4; number++) {
        for (size_t i = 0; i < LENGTH; i++)
            gradient[i] = self->id == 0 ? 3e38f : 1;
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_residual(reducer, &residual));
        for (size_t i = 0; i < LENGTH; i++) {
            RANK_CHECK(self, isfinite(residual[i]), "step %d: residual[%zu] is %g", number, i,
                       (double)residual[i]);
            RANK_CHECK(self, isfinite(gradient[i]), "step %d: gradient[%zu] is %g", number, i,
                       (double)gradient[i]);
        }
    }
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void test_overflow_does_not_reach_the_residual(void **state) {
    const char *schemes[] = {"tamis", "topk", "micro", "sage", "exdyna"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        test_context("%s, overflow", schemes[s]);
        ranks_run(2, 0, run_overflow, &schemes[s]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_applies_nothing_on_any_rank),
        cmocka_unit_test(test_skip_applies_nothing_and_succeeds),
        cmocka_unit_test(test_drop_loses_only_the_bad_entries),
        cmocka_unit_test(test_of_several_ranks_the_first_is_named),
        cmocka_unit_test(test_nan_that_lasts_is_named_by_its_beginning),
        cmocka_unit_test(test_overflow_does_not_reach_the_residual),
    };
    return cmocka_run_group_tests_name("nonfinite", tests, NULL, NULL);
}
