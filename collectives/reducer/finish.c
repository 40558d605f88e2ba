/* SPDX-License-Identifier: MIT
 *
 * The end of a step, when all its buckets have been exchanged: either all of it is applied, or
 * nothing. Runs inside the job of the last bucket.
 *
 *     decide   what is not finite, in gradients or sums
 *     apply    results to the gradient, residual cleared but for what rounding took
 *     control  thresholds of the next step from what all ranks know
 *     share    k of the next step among the buckets
 */
#include "collectives/reducer/rows.h"
#include "collectives/reducer/slice.h"
#include "collectives/reducer/undo.h"

#include <math.h>
#include <stdio.h>

float tam_divisor(const tamis_reducer *r) {
    double ranks = r->config.average == TAMIS_AVERAGE_MEAN ? r->comm->nranks : 1.0;
    return (float)(r->config.update ? ranks / r->config.update->scale : ranks);
}

tam_entries tam_bucket_result(const tam_bucket *b) {
    const tam_slice *s = b->slice;
    return s ? (tam_entries){s->indices, s->values, s->count}
             : (tam_entries){b->indices, b->values, b->count};
}

/* Entries of it are chosen, by a threshold that is learned. */
static bool picks(const tam_bucket *b) {
    return !tam_scheme_dense(b->scheme) && !tam_scheme_rows(b->scheme);
}

/* -- decide ----------------------------------------------------------------------------------- */

tamis_status tam_say_skipped(const tamis_reducer *r, uint64_t step, uint64_t bad,
                             const char *where) {
    if (r->config.nonfinite == TAMIS_NONFINITE_SKIP)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NONFINITE,
                    "step %llu: entries that are NaN or Inf: %llu (%s); no rank applied anything",
                    (unsigned long long)step, (unsigned long long)bad, where);
}

/* All ranks met the same headers, or the same sums, and so come to the same decision. */
static tamis_status skip(tamis_reducer *r, const char *where) {
    r->count = 0;
    r->now.skipped = 1;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        b->count = 0;
        if (b->slice)
            b->slice->count = 0;
        b->picked_sum = 0.0;
        if (tam_scheme_dense(b->scheme))
            TAM_TRY(tam_dense_clear(b));
        else if (b->rows && tam_scheme_dense(r->scheme))
            TAM_TRY(tam_rows_forget(b));
    }
    return tam_say_skipped(r, r->step, r->now.nonfinite, where);
}

/* Of sums of nodes nobody knows which rank it was. */
static tamis_status skip_bad_sums(tamis_reducer *r) {
    char where[64];
    uint32_t first = r->nranks, size = r->config.ranks_per_node;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        uint32_t bad = tam_slice_bad_node(&r->buckets[i]);
        first = bad < first ? bad : first;
    }
    snprintf(where, sizeof where, "first in the sum of ranks %u to %u", first * size,
             first * size + size - 1);
    return skip(r, where);
}

static tamis_status skip_bad_gradients(tamis_reducer *r) {
    char where[32];
    uint32_t first = r->comm->nranks;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        for (uint32_t rank = 0; rank < first && !tam_scheme_dense(r->buckets[i].scheme); rank++) {
            if (tam_slot_head_of(&r->buckets[i].slots, rank)->nonfinite > 0)
                first = rank;
        }
    }
    snprintf(where, sizeof where, "first on rank %u", first);
    return skip(r, where);
}

/* Of such an entry nothing is kept, also not what rounding took: where that is kept, in the list of
 * `pairs` or in the union. */
static void forget_rest(tam_bucket *b, size_t i) {
    const uint32_t *own = tam_slot_own_indices(&b->slots);
    for (size_t j = 0; b->slots.with_values && j < b->now.picked; j++) {
        if (own[j] == b->indices[i])
            b->rest[j] = 0.0f;
    }
    if (!b->slots.with_values)
        b->rest[i] = 0.0f;
}

/* Finite values whose sum is not, or not with all factors, as it would be applied. Such entries are
 * dropped, else every later step would meet them again. @return how many */
static uint64_t drop_infinite_sums(tam_bucket *b) {
    const tam_device *device = b->reducer->device;
    const float divisor = tam_divisor(b->reducer);
    tam_entries all = tam_bucket_result(b);
    uint64_t bad = 0;
    for (size_t i = 0; i < all.count; i++)
        bad += !isfinite(all.values[i] / divisor);
    if (bad > 0 && b->slots.with_values) /* also what this rank has not given */
        tam_undo_lose(b->reducer, TAM_WAY_DROPPED);
    for (size_t i = 0; bad > 0 && b->slice && i < all.count; i++)
        all.values[i] = isfinite(all.values[i] / divisor) ? all.values[i] : 0.0f;
    for (size_t i = 0; bad > 0 && i < b->count; i++) {
        if (isfinite(b->values[i] / divisor))
            continue;
        b->values[i] = 0.0f;
        if (b->rest)
            forget_rest(b, i);
        device->put(b->kernels, b->acc, &b->indices[i], 1, NULL);
        if (tam_update_masked(b))
            device->put(b->kernels, tam_update_masked(b), &b->indices[i], 1, NULL);
    }
    if (bad > 0)
        tam_undo_drop(b);
    return bad;
}

/* -- apply ------------------------------------------------------------------------------------ */

/* What this rank gave leaves its residual. */
static tamis_status leave(tam_bucket *b) {
    const tam_device *device = b->reducer->device;
    bool picks_alone = b->slots.with_values;
    const uint32_t *indices = picks_alone ? tam_slot_own_indices(&b->slots) : b->indices;
    size_t count = picks_alone ? (size_t)b->now.picked : b->count;
    float *masked = tam_update_masked(b);
    TAM_TRY(device->put(b->kernels, b->acc, indices, count, b->rest));
    return masked ? device->put(b->kernels, masked, indices, count, NULL) : TAMIS_OK;
}

static tamis_status apply(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_accumulate target = b->target;
    if (r->config.output == TAMIS_OUTPUT_SPARSE) {
        target.grad = NULL;
        target.grads = NULL;
    }
    tam_entries all = tam_bucket_result(b);
    void *kernels = b->slice ? b->slice->kernels : b->kernels;
    TAM_TRY(r->device->apply(kernels, &target, all.indices, all.count, tam_divisor(r), all.values));
    b->last_result = tam_sum_bytes(TAM_SUM_RESULT, all.values, all.count * sizeof all.values[0]);
    return leave(b);
}

/* Several lists become one that ascends: the last bucket holds the first segments. */
static void join_results(tamis_reducer *r) {
    size_t at = 0;
    for (uint32_t i = r->nbuckets; i-- > 0 && r->indices;) {
        tam_entries one = tam_bucket_result(&r->buckets[i]);
        for (size_t j = 0; j < one.count; j++)
            r->indices[at + j] = one.indices[j] + (uint32_t)r->buckets[i].begin;
        memcpy(r->values + at, one.values, one.count * sizeof one.values[0]);
        at += one.count;
    }
}

/* -- control ---------------------------------------------------------------------------------- */

static void average_stats(tam_bucket *b) {
    double *norm = &b->reducer->norms[b->index];
    *norm = 0.0;
    for (uint32_t g = 0; g < b->slots.nstats; g++) {
        double sum = 0.0;
        for (uint32_t i = 0; i < b->slots.nranks; i++)
            sum += tam_slot_stats_of(&b->slots, i)[g];
        b->group_means[g] = sum / b->slots.nranks;
        *norm += sqrt(b->group_means[g]);
    }
    if (b->slice)
        *norm = tam_slice_norm(b);
}

static void count_groups(tam_bucket *b) {
    const tam_grid *grid = &b->division.grid;
    for (size_t g = 0, i = 0; g < grid->ngroups; g++) {
        uint64_t end = (uint64_t)grid->groups[g].begin + grid->groups[g].length;
        size_t next = tam_first_from(b->indices, i, b->count, end);
        b->group_picked[g] = (uint32_t)(next - i);
        i = next;
    }
}

/* Ownership balanced: what was found in each part decides what the parts of the next step are. */
static void balance(tam_bucket *b, uint64_t found) {
    const tamis_reducer *r = b->reducer;
    for (uint32_t i = 0; i < b->slots.nranks; i++) {
        const tam_head *h = tam_slot_head_of(&b->slots, i);
        uint32_t part = tam_part_of(&b->division, r->step, i);
        b->division.topology.loads[part] = (uint64_t)h->count + h->deferred;
    }
    tam_division_balance(&b->division, found);
}

static void control(tam_bucket *b) {
    tam_observed seen = {
        .candidates = b->now.candidates,
        .cuts = b->cuts,
        .group_sums = b->group_means,
        .group_picked = b->group_picked,
        .step = b->reducer->step,
    };
    for (uint32_t i = 0; i < b->slots.nranks; i++) {
        const tam_head *h = tam_slot_head_of(&b->slots, i);
        uint64_t found = (uint64_t)h->count + h->deferred;
        seen.picked += found;
        seen.found = i == b->slots.rank ? found : seen.found;
        if (h->flags & TAM_HEAD_HAS_KEY)
            b->cuts[seen.ncuts++] = tam_log2(h->key);
    }
    average_stats(b);
    count_groups(b);
    tam_log(TAM_DEBUG,
            "rank %u, step %llu, bucket %u: picked %llu of %llu candidates, margin 2^%.3f, slope "
            "%.1f, %llu rescans",
            b->reducer->comm->rank, (unsigned long long)b->reducer->step, b->index,
            (unsigned long long)seen.picked, (unsigned long long)seen.candidates,
            b->control.state.margin, tam_control_slope(&b->control),
            (unsigned long long)b->now.rescans);
    tam_control_update(&b->control, &seen);
    if (b->scheme.ownership == TAM_OWN_BALANCED)
        balance(b, seen.picked);
    if (tam_scheme_regional(b->scheme))
        tam_regions_learn(&b->regions, &b->slots, b->k, b->count);
}

/* -- statistics ------------------------------------------------------------------------------- */

/* What the headers of all buckets say together. */
static void add_up(tamis_reducer *r) {
    tamis_stats *s = &r->now;
    memset(r->picked, 0, r->comm->nranks * sizeof r->picked[0]);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        const tamis_stats *now = b->slice ? &b->slice->all : &b->now;
        s->deferred += now->deferred;
        s->candidates += now->candidates;
        s->rescans += now->rescans;
        s->nonfinite += tam_scheme_dense(b->scheme) ? 0 : now->nonfinite; /* decide adds those */
        for (uint32_t rank = 0; rank < r->comm->nranks && picks(b); rank++)
            r->picked[rank] +=
                b->slice ? tam_slice_picked(b, rank) : tam_slot_head_of(&b->slots, rank)->count;
    }
    for (uint32_t rank = 0; rank < r->comm->nranks; rank++)
        s->picked_max = r->picked[rank] > s->picked_max ? r->picked[rank] : s->picked_max;
    s->picked = r->picked[r->comm->rank];
    if (tam_reducer_observes(r) && !tam_scheme_dense(tam_last_bucket(r)->scheme))
        tam_arrive_note(r);
}

static void note_norms(tamis_reducer *r) {
    double total = 0.0, left = 0.0;
    float least = 0.0f;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (!picks(b))
            continue;
        float key = tam_slot_own_head(&b->slots)->key;
        for (uint32_t g = 0; g < b->division.grid.ngroups; g++)
            total += b->accumulated.group_sums[g];
        left += b->picked_sum;
        if (key > 0.0f && (least == 0.0f || key < least))
            least = key;
    }
    double rest = total - left;
    r->now.acc_norm = sqrt(total);
    r->now.residual_norm = rest > 0.0 ? sqrt(rest) : 0.0;
    r->now.threshold = least;
}

/* -- the end ---------------------------------------------------------------------------------- */

static tamis_status apply_all(tamis_reducer *r) {
    r->count = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        if (!tam_scheme_dense(r->buckets[i].scheme))
            TAM_TRY(apply(&r->buckets[i]));
        r->count += tam_bucket_result(&r->buckets[i]).count;
    }
    join_results(r);
    r->has_norms = false;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (!picks(b))
            continue;
        control(b);
        r->has_norms = r->has_norms || b->slots.nstats > 0;
    }
    if (tam_scheme_dense(r->scheme))
        return TAMIS_OK;
    tam_buckets_share(r);
    return TAMIS_OK;
}

static tamis_status decide(tamis_reducer *r) {
    uint64_t bad = 0;
    add_up(r);
    TAM_TRY(tam_undo_note(r));
    if (r->now.skipped)
        return r->config.ranks_per_node > 1 ? skip_bad_sums(r) : skip_bad_gradients(r);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        bad += tam_scheme_dense(r->buckets[i].scheme) ? r->buckets[i].now.nonfinite
                                                      : drop_infinite_sums(&r->buckets[i]);
    r->now.nonfinite += bad;
    if (bad > 0 && r->config.nonfinite != TAMIS_NONFINITE_DROP) {
        TAM_TRY(tam_undo_skip(r));
        return skip(r, "in the sum over ranks");
    }
    return apply_all(r);
}

tamis_status tam_step_finish(tamis_reducer *r, tam_job *job) {
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(tam_step_commit(r, job));
    tamis_status status = decide(r);
    note_norms(r);
    tam_phase_end(r, TAMIS_PHASE_APPLY, TAMIS_NO_BUCKET, begin_ns, &r->now.apply_s);
    return status;
}

/* Jobs before this one have ended, or were given up just then. */
static bool anything_abandoned(const tamis_reducer *r) {
    bool any = false;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        any = any || atomic_load(&r->buckets[i].job.state) == TAM_JOB_ABANDONED;
    return any;
}

tamis_status tam_step_commit(const tamis_reducer *r, tam_job *job) {
    if (!anything_abandoned(r) && tam_job_commit(job))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TIMEOUT, "rank %u: nobody waits for step %llu any more", r->comm->rank,
                    (unsigned long long)r->step);
}
