/* SPDX-License-Identifier: MIT
 *
 * Compares a step with the rules. With acc_r = residual + gradient of rank r before the step, and
 * left_r = acc_r - residual of rank r after it:
 *
 *     left_r[i] is 0 or acc_r[i]
 *     result[i] = (sum over ranks of left_r[i]) / P, added by a binary tree over ranks
 *                 (docs/exchange.md, Order of sums): zero where nothing left
 *     indices ascend; their values are those of the dense result, which is zero elsewhere
 *     exact counts: k entries
 *
 * This holds for every preset, however it chooses what leaves; no rule depends on its name.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>

#include "bench/common/measure.h"
#include "bench/lab/schemes/schemes.h"

/* The data of a rank, which all ranks may read between two barriers. */
typedef struct view {
    const float *acc, *residual; /* residual NULL: the scheme has none */
} view;

void scheme_check_before(scheme_check *check, const float *gradient) {
    const float *residual;
    bench_try(check->group, tamis_reducer_residual(check->reducer, &residual), "residual before");
    for (size_t i = 0; i < check->c->source->n; i++)
        check->acc[i] = gradient[i] + (residual ? residual[i] : 0.0f);
}

static view *open_views(scheme_check *check) {
    view mine = {.acc = check->acc}, *all = bench_alloc(check->group->nranks, sizeof *all);
    bench_try(check->group, tamis_reducer_residual(check->reducer, &mine.residual), "residual");
    bench_allgather(check->group, &mine, sizeof mine, all);
    return all;
}

static void close_views(scheme_check *check, view *all) {
    bench_barrier(check->group);
    free(all);
}

/* The sum over so many virtual ranks, a power of two, of which ranks below `own` have one and the
 * others two. */
static float add_vranks(const float *left, uint32_t own, uint32_t first, uint32_t vranks) {
    if (vranks == 1)
        return left[first < own ? first : (first + own) / 2];
    if (vranks == 2 && first >= own)
        return left[(first + own) / 2];
    return add_vranks(left, own, first, vranks / 2) +
           add_vranks(left, own, first + vranks / 2, vranks / 2);
}

static float add_ranks(const float *left, uint32_t ranks) {
    uint32_t vranks = 1;
    while (vranks < ranks)
        vranks *= 2;
    return add_vranks(left, 2 * ranks - vranks, 0, vranks);
}

/* Wrong entries in this rank's share. */
static double wrong_values(const scheme_check *check, const view *all, const float *result) {
    uint32_t ranks = check->group->nranks, rank = check->group->rank;
    size_t n = check->c->source->n, end = n * (rank + 1) / ranks;
    float *left = bench_alloc(ranks, sizeof *left);
    double wrong = 0;
    for (size_t i = n * rank / ranks; i < end; i++) {
        for (uint32_t r = 0; r < ranks; r++) {
            float held = all[r].residual ? all[r].residual[i] : 0.0f;
            wrong += held != 0.0f && held != all[r].acc[i];
            left[r] = all[r].acc[i] - held;
        }
        wrong += result[i] != add_ranks(left, ranks) / (float)ranks;
    }
    free(left);
    return wrong;
}

static double wrong_indices(const scheme_check *check, const float *result) {
    size_t n = check->c->source->n, next = 0;
    tamis_result sparse = TAMIS_RESULT_INIT;
    bench_try(check->group, tamis_reducer_result(check->reducer, &sparse), "result of a step");
    if (!sparse.indices)
        return sparse.count != n;
    for (size_t i = 0; i < n; i++) {
        bool chosen = next < sparse.count && sparse.indices[next] == i;
        if ((chosen ? sparse.values[next] : 0.0f) != result[i])
            return 1;
        next += chosen;
    }
    return next != sparse.count; /* not ascending, or past the end */
}

double scheme_check_after(scheme_check *check, const float *result) {
    view *all = open_views(check);
    double wrong = wrong_values(check, all, result) + wrong_indices(check, result);
    close_views(check, all);
    return wrong;
}

/* -- truth ------------------------------------------------------------------------------------ */

/* The k-th largest of n magnitudes, k from 1, by Hoare's selection in Wirth's form. Afterwards the
 * k largest are the last k of the array. */
static float largest(float *values, size_t n, size_t k) {
    ptrdiff_t low = 0, high = (ptrdiff_t)n - 1, at = (ptrdiff_t)(n - k);
    while (low < high) {
        float pivot = values[at];
        ptrdiff_t i = low, j = high;
        do {
            while (values[i] < pivot)
                i++;
            while (values[j] > pivot)
                j--;
            if (i <= j) {
                float swap = values[i];
                values[i++] = values[j];
                values[j--] = swap;
            }
        } while (i <= j);
        low = j < at ? i : low;
        high = at < i ? j : high;
    }
    return values[at];
}

/* Energy of what left, summed over ranks, divided by that of as many largest entries of what the
 * ranks held. */
static double captured(scheme_check *check, const view *all, size_t count) {
    size_t n = check->c->source->n;
    double inside = 0, best = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, left = 0;
        for (uint32_t r = 0; r < check->group->nranks; r++) {
            float held = all[r].residual ? all[r].residual[i] : 0.0f;
            sum += (double)all[r].acc[i];
            left += (double)all[r].acc[i] - (double)held;
        }
        inside += left * left;
        check->scratch[i] = (float)fabs(sum);
    }
    if (count > 0)
        largest(check->scratch, n, count);
    for (size_t i = n - count; i < n; i++)
        best += (double)check->scratch[i] * (double)check->scratch[i];
    return best > 0 ? inside / best : 1.0;
}

void scheme_check_truth(scheme_check *check, const tamis_stats *stats, scheme_checked *out) {
    bench_group *group = check->group;
    size_t n = check->c->source->n;
    for (size_t i = 0; i < n; i++)
        check->scratch[i] = fabsf(check->acc[i]);
    double mine = (double)largest(check->scratch, n, stats->target);
    out->true_threshold = bench_sum(group, mine) / group->nranks;
    view *all = open_views(check);
    double share = group->rank == 0 ? captured(check, all, stats->selected) : 0.0;
    close_views(check, all);
    out->captured = bench_sum(group, share);
}
