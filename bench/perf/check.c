/* SPDX-License-Identifier: MIT
 *
 * Steps on whole numbers, where every sum is exact, compared element by element with the library's
 * rules:
 *
 *     all ranks hold the same indices and values, indices ascending
 *     values[i] = (sum over ranks of what left the accumulated gradient there) / ranks
 *     residual at the result: 0 (union), or 0 or untouched (pairs); elsewhere: untouched. With
 *     16-bit values not 0, but the errors of two roundings: of what the rank sent, and of the sum
 *     dense output: the gradient is the result, rounded to its type, and zero elsewhere; sparse:
 *     it is unchanged
 *     schemes with an exact count: k entries
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
#include <xxhash.h>

#include "bench/common/half.h"
#include "bench/common/measure.h"
#include "bench/perf/perf.h"

enum { STEPS = 4, PART = 1 << 15 };

typedef struct check {
    const perf_case *c;
    tamis_reducer *reducer;
    void *grad;            /* what the step works on */
    float *given, *acc;    /* the gradient before the step; residual before + given */
    const float *residual; /* after the step; NULL for the scheme dense */
    tamis_result result;
    float largest; /* magnitude that a sum of all ranks can have */
} check;

static uint32_t index_at(const check *k, size_t i) {
    return k->result.indices ? k->result.indices[i] : (uint32_t)i;
}

static float value_at(const check *k, size_t i) {
    return k->result.values ? k->result.values[i] : bench_widened(k->c->type, k->grad, i);
}

static void step(check *k, uint64_t number) {
    bench_group *group = k->c->group;
    size_t n = k->c->shape.n;
    float largest = 0.0f;
    const float *before;
    perf_gradient_whole(&k->c->shape, k->c->settings->seed + 1, STEPS * group->rank + number,
                        k->given);
    bench_try(group, tamis_reducer_residual(k->reducer, &before), "residual before a step");
    bench_narrow(k->c->type, k->given, n, k->grad);
    for (size_t i = 0; i < n; i++) {
        k->given[i] = bench_widened(k->c->type, k->grad, i);
        k->acc[i] = k->given[i] + (before ? before[i] : 0.0f);
        largest = fmaxf(largest, fabsf(k->acc[i]));
    }
    k->largest = (float)group->nranks * (float)bench_max(group, largest);
    perf_step(k->c, k->reducer, k->grad);
    k->result = (tamis_result)TAMIS_RESULT_INIT;
    bench_try(group, tamis_reducer_result(k->reducer, &k->result), "result of a step");
    bench_try(group, tamis_reducer_residual(k->reducer, &k->residual), "residual after a step");
}

/* Each rank that disagrees counts as one wrong element; values cannot be compared then. */
static bool agree(const check *k) {
    const tamis_result *r = &k->result;
    if (!bench_same(k->c->group, r->count))
        return false;
    uint64_t hash = r->values ? XXH3_64bits(r->values, r->count * sizeof *r->values)
                              : XXH3_64bits(k->grad, k->c->grad_bytes);
    if (r->indices)
        hash = XXH3_64bits_withSeed(r->indices, r->count * sizeof *r->indices, hash);
    return bench_same(k->c->group, hash);
}

static bool quantizes(const check *k) {
    const perf_settings *s = k->c->settings;
    return bench_value_bytes(s->values) < 4 || bench_sum_bytes(s->sum_values, s->values) < 4;
}

static bool shares_scales(const check *k) {
    const perf_settings *s = k->c->settings;
    return bench_value_bytes(s->values) < 2 || bench_sum_bytes(s->sum_values, s->values) < 2;
}

/* Sums of scaled values have more digits than the residual of the rank that keeps what rounding
 * them took. */
static bool differs(const check *k, float value, float expected) {
    return shares_scales(k) ? fabsf(value - expected) > 0x1p-20f * k->largest : value != expected;
}

/* Scheme dense has its values in the gradient alone, so they are rounded. */
static float expected_value(const check *k, float sum) {
    float mean = sum / (float)k->c->group->nranks;
    return k->result.values ? mean : bench_rounded(k->c->type, mean);
}

/* Each rank checks all values against what left all ranks, gathered in parts. */
static double wrong_values(const check *k) {
    bench_group *group = k->c->group;
    uint32_t ranks = group->nranks;
    float *send = bench_alloc(PART, sizeof *send), *all = bench_alloc(ranks * PART, sizeof *all);
    double wrong = 0;
    for (size_t first = 0; first < k->result.count; first += PART) {
        size_t count = k->result.count - first < PART ? k->result.count - first : PART;
        for (size_t i = 0; i < count; i++) {
            uint32_t at = index_at(k, first + i);
            send[i] = k->acc[at] - (k->residual ? k->residual[at] : 0.0f);
        }
        bench_allgather(group, send, count * sizeof *send, all);
        for (size_t i = 0; i < count; i++) {
            float sum = 0.0f;
            for (uint32_t r = 0; r < ranks; r++)
                sum += all[r * count + i];
            wrong += differs(k, value_at(k, first + i), expected_value(k, sum));
        }
    }
    free(all);
    free(send);
    return wrong;
}

/* What rounding may take: with bfloat16 half a unit in the last of 8 places, of what was given and
 * of the sum; with other types a share of the largest value of a block, here of all. */
static float most_kept(const check *k, size_t i, float value) {
    float sum = fabsf(value) * (float)k->c->group->nranks;
    if (!quantizes(k))
        return 0.0f;
    return shares_scales(k) ? 2.0f * k->largest : (fabsf(k->acc[i]) + sum) * 0x1p-8f;
}

/* Residual and gradient of this rank, in and outside the result. */
static double wrong_rest(const check *k) {
    bool sparse = k->c->settings->output == TAMIS_OUTPUT_SPARSE && k->result.indices;
    bool pairs = strstr(k->c->scheme.exchange, "pairs") != NULL;
    double wrong = 0;
    size_t next = 0;
    for (size_t i = 0; i < k->c->shape.n; i++) {
        bool chosen = next < k->result.count && index_at(k, next) == i;
        float grad = sparse ? k->given[i] : chosen ? value_at(k, next) : 0.0f;
        wrong += bench_widened(k->c->type, k->grad, i) != bench_rounded(k->c->type, grad);
        if (k->residual) {
            bool untouched = k->residual[i] == k->acc[i];
            bool small = chosen && fabsf(k->residual[i]) <= most_kept(k, i, value_at(k, next));
            wrong += chosen ? !small && !(pairs && untouched) : !untouched;
        }
        next += chosen;
    }
    return wrong + (double)(k->result.count - next); /* not ascending, or past the end */
}

static double wrong_count(const check *k) {
    tamis_stats stats = TAMIS_STATS_INIT;
    bench_try(k->c->group, tamis_reducer_stats(k->reducer, &stats), "statistics of a step");
    bool exact = k->residual && bench_scheme_exact(&k->c->scheme);
    return exact && stats.selected != stats.target ? 1.0 : 0.0;
}

double perf_check(const perf_case *c) {
    check k = {.c = c};
    size_t n = c->shape.n;
    double wrong = 0;
    k.reducer =
        perf_reducer(c, c->settings->scheme, (tamis_output)c->settings->output, TAMIS_DEVICE_CPU);
    k.grad = bench_alloc(c->grad_bytes, 1);
    k.given = bench_alloc(n, sizeof(float));
    k.acc = bench_alloc(n, sizeof(float));
    for (uint64_t s = 0; s < STEPS; s++) {
        step(&k, s);
        wrong += agree(&k) ? wrong_values(&k) : 1.0;
        wrong += wrong_rest(&k) + wrong_count(&k);
    }
    free(k.acc);
    free(k.given);
    free(k.grad);
    tamis_reducer_destroy(k.reducer);
    return bench_sum(c->group, wrong);
}
