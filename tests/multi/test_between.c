/* SPDX-License-Identifier: MIT
 *
 * What happens between the steps of several buckets: micro-batches are added to the residual, the
 * density changes, states are saved and resumed.
 *
 * test: tsan
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 6, LENGTH = 500, N = SEGMENTS * LENGTH };

/* -- micro-batches ---------------------------------------------------------------------------- */

/* Four gradients, three of them accumulated, conserve mass as one step with their sum. */
static void micro_batches(test_rank *self) {
    tamis_reducer *parts = NULL, *whole = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N], sum[N];
    const float *a, *b;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &parts));
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &whole));
    tamis_step step = data_step(grad), together = data_step(sum);
    for (uint32_t number = 0; number < 6; number++) {
        memset(sum, 0, sizeof sum);
        for (uint32_t m = 0; m < 4; m++) {
            data_fill(DATA_HEAVY, self->id, 4 * number + m, N, grad);
            for (uint32_t i = 0; i < N; i++)
                sum[i] += grad[i];
            if (m < 3)
                RANK_OK(self, tamis_reducer_accumulate(parts, &step));
        }
        RANK_OK(self, tamis_reducer_start(parts, &step));
        RANK_OK(self, tamis_reducer_wait(parts));
        RANK_OK(self, tamis_reducer_start(whole, &together));
        RANK_OK(self, tamis_reducer_wait(whole));
        RANK_CHECK(self, memcmp(grad, sum, sizeof sum) == 0, "results differ in step %u", number);
        RANK_OK(self, tamis_reducer_residual(parts, &a));
        RANK_OK(self, tamis_reducer_residual(whole, &b));
        RANK_CHECK(self, memcmp(a, b, sizeof sum) == 0, "residuals differ in step %u", number);
    }
    data_fill(DATA_HEAVY, self->id, 99, N, grad); /* what is bad counts in the step to come */
    grad[7] = self->id == 0 ? INFINITY : 0.0f;
    RANK_OK(self, tamis_reducer_accumulate(parts, &step));
    RANK_OK(self, tamis_reducer_start(parts, &step));
    RANK_STATUS(self, TAMIS_E_NONFINITE, tamis_reducer_wait(parts));
    RANK_OK(self, tamis_reducer_start(parts, &step));
    RANK_OK(self, tamis_reducer_wait(parts));
    tamis_reducer_destroy(parts);
    tamis_reducer_destroy(whole);
}

static void test_micro_batches_equal_their_sum(void **state) {
    (void)state;
    test_context("micro-batches");
    ranks_run(3, 0, micro_batches, NULL);
}

/* -- density, state --------------------------------------------------------------------------- */

static void run_steps(test_rank *self, tamis_reducer *r, uint32_t from, uint32_t to,
                      uint64_t *hash) {
    float grad[N];
    tamis_step step = data_step(grad);
    for (uint32_t number = from; number < to; number++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        double density = 0.02 + 0.01 * (number % 4);
        data_fill(DATA_HEAVY, self->id, number, N, grad);
        RANK_OK(self, tamis_reducer_set_density(r, density));
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        RANK_OK(self, tamis_reducer_stats(r, &stats));
        RANK_CHECK(self, stats.selected == (uint64_t)floor(density * N), "%llu entries for %g",
                   (unsigned long long)stats.selected, density);
        *hash = data_hash(*hash, grad, sizeof grad);
    }
}

static void change_and_resume(test_rank *self) {
    tamis_reducer *straight = NULL, *first = NULL, *second = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    char name[16], path[SCRATCH_PATH];
    uint64_t expected = 0, got = 0;
    snprintf(name, sizeof name, "buckets%u", self->id);
    scratch_path(name, path);
    config.density_max = 0.05;
    config.density = 0.03;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &straight));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_set_density(straight, 0.051));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_set_density(straight, NAN));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_set_density(straight, 0.001));
    run_steps(self, straight, 0, 14, &expected);
    tamis_reducer_destroy(straight);

    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &first));
    run_steps(self, first, 0, 7, &got);
    RANK_OK(self, tamis_reducer_save(first, path));
    tamis_reducer_destroy(first);
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &second));
    RANK_OK(self, tamis_reducer_load(second, path));
    run_steps(self, second, 7, 14, &got);
    RANK_CHECK(self, got == expected, "the resumed run has other bits");
    config.bucket_budget = TAMIS_BUCKET_BUDGET_LENGTH;
    tamis_reducer_destroy(second);
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &second));
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_reducer_load(second, path));
    tamis_reducer_destroy(second);
}

static void test_density_changes_and_states_resume(void **state) {
    (void)state;
    test_context("density and state");
    char path[SCRATCH_PATH];
    scratch_path("first", path); /* makes the folder before threads start */
    ranks_run(3, 0, change_and_resume, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches_equal_their_sum),
        cmocka_unit_test(test_density_changes_and_states_resume),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
