/* SPDX-License-Identifier: MIT
 *
 * What must hold for every record of a trial.
 */
#include "tests/support/ranks.h"
#include "tests/support/trial.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* Every message begins with the trial's description and the step. */
#define CHECK(condition, step, format, ...)                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            describe(&record->trial);                                                              \
            fail_msg("[%s] step %u: " format, test_context_text(), step, __VA_ARGS__);             \
        }                                                                                          \
    } while (0)

static void describe(const trial *what) {
    test_context("%s P=%u G=%u n=%zu density=%g %s", what->scheme, what->nranks,
                 what->ranks_per_node, what->n, what->density,
                 what->real ? "real" : data_name(what->pattern));
}

static void *take(size_t count, size_t size) {
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

void check_ranks_identical(const trial_record *record) {
    bool dense = record->trial.output == TAMIS_OUTPUT_DENSE;
    for (uint32_t step = 0; step < record->trial.steps; step++) {
        const moment *first = record_moment(record, step, 0);
        for (uint32_t r = 1; r < record->trial.nranks; r++) {
            const moment *m = record_moment(record, step, r);
            CHECK(m->count == first->count, step, "rank %u has %zu entries, rank 0 has %zu", r,
                  m->count, first->count);
            CHECK(m->sparse_hash == first->sparse_hash, step,
                  "indices or values of rank %u differ from rank 0", r);
            CHECK(!dense || m->dense_hash == first->dense_hash, step,
                  "the gradient of rank %u differs from rank 0", r);
        }
    }
}

/* sum[i] += scale * gradient of all ranks in this step */
static void add_gradients(const trial *what, uint32_t step, float *scratch, double *sum) {
    for (uint32_t r = 0; r < what->nranks; r++) {
        trial_fill(what, r, step, scratch);
        for (size_t i = 0; i < what->n; i++)
            sum[i] += (double)what->scale * (double)scratch[i];
    }
}

/* All numbers are whole and small, so the comparison is exact. */
static void compare_mass(const trial_record *record, uint32_t step, const double *owed) {
    for (size_t i = 0; i < record->trial.n; i++) {
        double held = 0;
        for (uint32_t r = 0; r < record->trial.nranks; r++)
            held += (double)record_residual(record, step, r)[i];
        CHECK(held == owed[i], step,
              "entry %zu: gradients less applied make %.17g, residuals hold %.17g", i, owed[i],
              held);
    }
}

void check_conservation(const trial_record *record) {
    size_t n = record->trial.n;
    float *scratch = take(n, sizeof *scratch);
    double *owed = take(n, sizeof *owed);
    for (uint32_t step = 0; step < record->trial.steps; step++) {
        const float *applied = record_result(record, step);
        add_gradients(&record->trial, step, scratch, owed);
        for (size_t i = 0; i < n; i++)
            owed[i] -= (double)applied[i];
        compare_mass(record, step, owed);
    }
    free(owed);
    free(scratch);
}

static void check_scatter(const trial_record *record, uint32_t step) {
    size_t n = record->trial.n, count = record_moment(record, step, 0)->count, next = 0;
    const uint32_t *indices = record->indices + step * n;
    const float *values = record->values + step * n;
    const float *dense = record_result(record, step);
    for (size_t i = 0; i < n; i++) {
        bool chosen = next < count && indices[next] == i;
        float expected = chosen ? values[next] : 0.0f;
        CHECK(dense[i] == expected, step, "gradient[%zu] is %.9g, the result says %.9g", i,
              (double)dense[i], (double)expected);
        next += chosen;
    }
}

void check_union(const trial_record *record) {
    size_t n = record->trial.n;
    for (uint32_t step = 0; record->has_indices && step < record->trial.steps; step++) {
        const uint32_t *indices = record->indices + step * n;
        size_t count = record_moment(record, step, 0)->count;
        for (size_t i = 0; i < count; i++) {
            CHECK(indices[i] < n, step, "index[%zu] is %u", i, indices[i]);
            CHECK(i == 0 || indices[i - 1] < indices[i], step,
                  "index[%zu] = %u does not ascend from %u", i, indices[i], indices[i - 1]);
        }
        check_scatter(record, step);
    }
}

void check_count(const trial_record *record) {
    uint64_t k = trial_target(&record->trial);
    for (uint32_t step = 0; step < record->trial.steps; step++)
        for (uint32_t r = 0; r < record->trial.nranks; r++) {
            const moment *m = record_moment(record, step, r);
            CHECK(m->count == k, step, "rank %u: the result has %zu entries, k is %llu", r,
                  m->count, (unsigned long long)k);
        }
}

void check_stats(const trial_record *record) {
    const trial *what = &record->trial;
    bool sparse = record->has_indices;
    for (uint32_t step = 0; step < what->steps; step++) {
        uint64_t most = 0;
        for (uint32_t r = 0; r < what->nranks; r++) {
            const moment *m = record_moment(record, step, r);
            const tamis_stats *s = &m->stats;
            double density = (double)m->count / (double)what->n;
            CHECK(s->steps == step + 1, step, "stats.steps is %llu", (unsigned long long)s->steps);
            CHECK(s->length == what->n, step, "stats.length is %llu",
                  (unsigned long long)s->length);
            CHECK(what->gbit > 0 || s->target == (sparse ? trial_target(what) : what->n), step,
                  "stats.target is %llu", (unsigned long long)s->target);
            CHECK(s->selected == m->count, step, "stats.selected is %llu, the result has %zu",
                  (unsigned long long)s->selected, m->count);
            CHECK(s->density == density, step, "stats.density is %.17g, not %.17g", s->density,
                  density);
            CHECK(s->skipped == 0 && s->nonfinite == 0, step, "skipped %llu, nonfinite %llu",
                  (unsigned long long)s->skipped, (unsigned long long)s->nonfinite);
            most = s->sent > most ? s->sent : most;
        }
        uint64_t said = record_moment(record, step, 0)->stats.sent_max;
        CHECK(!sparse || said == most, step, "stats.sent_max is %llu, the most is %llu",
              (unsigned long long)said, (unsigned long long)most);
    }
}

void check_all_applied(const trial_record *record) {
    size_t n = record->trial.n;
    float *scratch = take(n, sizeof *scratch);
    double *sum = take(n, sizeof *sum);
    add_gradients(&record->trial, 0, scratch, sum);
    for (size_t i = 0; i < n; i++) {
        CHECK((double)record_result(record, 0)[i] == sum[i], 0, "entry %zu is %.9g, the sum %.17g",
              i, (double)record_result(record, 0)[i], sum[i]);
        for (uint32_t r = 0; r < record->trial.nranks; r++)
            CHECK(record_residual(record, 0, r)[i] == 0, 0, "residual[%zu] of rank %u is %.9g", i,
                  r, (double)record_residual(record, 0, r)[i]);
    }
    free(sum);
    free(scratch);
}

void check_same(const trial_record *a, const trial_record *b) {
    const trial_record *record = b;
    const trial *what = &a->trial;
    bool dense = a->trial.output == b->trial.output;
    for (uint32_t step = 0; step < what->steps; step++)
        for (uint32_t r = 0; r < what->nranks; r++) {
            const moment *one = record_moment(a, step, r), *two = record_moment(b, step, r);
            size_t bytes = what->n * sizeof(float);
            CHECK(one->count == two->count && one->sparse_hash == two->sparse_hash, step,
                  "rank %u: results differ from the run it is compared with", r);
            CHECK(!dense || one->dense_hash == two->dense_hash, step,
                  "rank %u: gradients differ from the run it is compared with", r);
            CHECK(memcmp(record_residual(a, step, r), record_residual(b, step, r), bytes) == 0,
                  step, "rank %u: residuals differ from the run it is compared with", r);
        }
}
