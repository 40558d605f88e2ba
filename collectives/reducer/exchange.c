/* SPDX-License-Identifier: MIT
 *
 * The job of a step: everything after the accumulate pass. Straight line, one function a phase.
 *
 *     plan     bins only: one rank packs, all learn where they select
 *     cut      candidates -> my indices, ascending, into my slot
 *     gather   slots to all ranks; union of the indices
 *     reduce   my acc at the union, summed over ranks
 *     apply    result to the gradient, residual cleared: not before everything has arrived
 *     control  thresholds of the next step from what all ranks know
 */
#include "collectives/reducer/reducer.h"

#include "collectives/exchange/union.h"
#include "lib/base/half.h"
#include "lib/policy/budget.h"

#include <math.h>
#include <stdio.h>
#include <xxhash.h>

typedef struct stopwatch {
    uint64_t last_ns;
} stopwatch;

/* Seconds since the last lap, added to a phase. */
static void lap(stopwatch *w, double *phase_s) {
    uint64_t now_ns = tam_clock_ns();
    *phase_s += (double)(now_ns - w->last_ns) * 1e-9;
    w->last_ns = now_ns;
}

/* -- plan ------------------------------------------------------------------------------------- */

/* DEFT: every rank budgets by its own norms; rank (step mod P) packs for all. */
static tamis_status plan(tamis_reducer *r, tam_link *link) {
    tam_packing *p = &r->packing;
    tam_grid *grid = &r->division.grid;
    if (!tam_scheme_by_group(r->scheme))
        return TAMIS_OK;
    for (uint32_t g = 0; g < grid->ngroups; g++)
        r->control.norms[g] = sqrt(r->accumulated.group_sums[g]);
    tam_budget_norm(r->k, r->control.norms, grid, r->control.order, p->budgets);
    if (r->scheme.ownership == TAM_OWN_ALL)
        return TAMIS_OK;

    tam_bins_pack(p->budgets, grid, link->nranks, r->control.order, p->loads, p->parts);
    size_t bytes = grid->ngroups * sizeof p->parts[0];
    TAM_TRY(link->transport->allgather(link->self, p->parts, bytes, p->all, &link->call));
    const uint32_t *agreed = p->all + r->step % link->nranks * grid->ngroups;
    /* The headers that follow show whether all ranks received the same packing. */
    r->slots.config = XXH3_64bits_withSeed(agreed, bytes, r->config_hash);
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        uint32_t part = agreed[grid->tiles[t].group];
        if (part >= link->nranks && part != TAM_PART_COMMON)
            return tam_fail(TAMIS_E_PROTOCOL, "the packing of rank %u was refused: part %u",
                            (unsigned)(r->step % link->nranks), part);
        grid->tiles[t].part = part;
    }
    return TAMIS_OK;
}

/* -- cut -------------------------------------------------------------------------------------- */

static bool candidates_taken(const tamis_reducer *r) {
    return r->scheme.threshold == TAM_THRESHOLD_STEP ||
           (r->scheme.threshold == TAM_THRESHOLD_PREDICT && r->control.state.primed);
}

static tam_cut choose_cut(const tamis_reducer *r, const tam_link *link) {
    tam_cut cut = {
        .kind = TAM_CUT_TOTAL,
        .acc = r->acc,
        .mine = tam_part_of(&r->division, r->step, link->rank),
        .k = r->slots.capacity,
        .floor_key = r->control.floor_key,
        .candidates = candidates_taken(r) ? &r->accumulated.candidates : NULL,
    };
    if (tam_scheme_by_group(r->scheme)) {
        cut.kind = TAM_CUT_GROUPS;
        cut.budgets = r->packing.budgets;
    } else if (r->scheme.threshold == TAM_THRESHOLD_STEP) {
        cut.kind = TAM_CUT_ALL;
    } else {
        cut.k = tam_share_of(&r->division, r->step, link->rank, r->k);
        cut.weights = tam_scheme_weighted(r->scheme) ? r->control.weights : NULL;
    }
    return cut;
}

static void fill_header(tamis_reducer *r, const tam_cut_result *result) {
    tam_slot_header *h = tam_slot_own_header(&r->slots);
    const tam_candidates *seen = &r->accumulated.candidates;
    bool known = candidates_taken(r) && seen->complete;
    h->step = r->step;
    h->last_result = r->last_result;
    h->count = (uint32_t)result->count;
    h->deferred = (uint32_t)result->deferred;
    h->candidates = known ? (uint32_t)seen->count : UINT32_MAX;
    h->nonfinite =
        (uint32_t)(r->accumulated.nonfinite < UINT32_MAX ? r->accumulated.nonfinite : UINT32_MAX);
    h->key = result->key;
    h->flags = result->rescanned ? TAM_SLOT_RESCANNED : 0;
    if (result->count > 0 && result->key > 0.0f && isfinite(result->key))
        h->flags |= TAM_SLOT_HAS_KEY;
    float *stats = tam_slot_own_stats(&r->slots);
    for (uint32_t g = 0; g < r->slots.nstats; g++) {
        double sum = r->accumulated.group_sums[g];
        stats[g] = sum < 3e38 ? (float)sum : 3e38f;
    }
}

static tamis_status cut(tamis_reducer *r, const tam_link *link) {
    tam_cut job = choose_cut(r, link);
    tam_cut_result result = {0};
    uint32_t *indices = tam_slot_own_indices(&r->slots);
    TAM_TRY(r->device->cut(r->kernels, &job, indices, &result));
    fill_header(r, &result);
    r->now.picked = result.count;
    if (r->slots.with_values)
        TAM_TRY(r->device->gather(r->kernels, r->acc, indices, result.count,
                                  tam_slot_own_values(&r->slots)));
    return TAMIS_OK;
}

/* -- gather and reduce ------------------------------------------------------------------------ */

/* One damaged value would make the replicas drift apart unnoticed. */
static tamis_status compare_results(const tamis_reducer *r) {
    for (uint32_t i = 0; i < r->slots.nranks; i++) {
        if (tam_slot_header_of(&r->slots, i)->last_result != r->last_result)
            return tam_fail(TAMIS_E_PROTOCOL,
                            "the results of step %llu differ between rank %u and rank %u: values "
                            "were damaged on their way; go back to an older state",
                            (unsigned long long)(r->step - 1), r->slots.rank, i);
    }
    return TAMIS_OK;
}

static void add_up_headers(tamis_reducer *r) {
    tamis_stats *s = &r->now;
    bool known = true;
    s->picked_max = s->deferred = s->candidates = s->rescans = s->nonfinite = 0;
    for (uint32_t i = 0; i < r->slots.nranks; i++) {
        const tam_slot_header *h = tam_slot_header_of(&r->slots, i);
        s->picked_max = h->count > s->picked_max ? h->count : s->picked_max;
        s->deferred += h->deferred;
        known = known && h->candidates != UINT32_MAX;
        s->candidates += h->candidates;
        s->rescans += h->flags & TAM_SLOT_RESCANNED ? 1 : 0;
        s->nonfinite += h->nonfinite;
    }
    if (!known)
        s->candidates = 0;
    s->skipped = s->nonfinite > 0 && r->config.nonfinite != TAMIS_NONFINITE_DROP;
}

static tamis_status unite(tamis_reducer *r, const tam_link *link) {
    if (r->scheme.ownership == TAM_OWN_ALL)
        return tam_union_merge(&r->slots, r->division.grid.n, r->scratch, r->indices, &r->count);
    for (uint32_t p = 0; p < link->nranks; p++)
        r->owners[p] = tam_owner_of(&r->division, r->step, p);
    return tam_union_exclusive(&r->slots, &r->division.grid, r->owners, r->cursors, r->indices,
                               &r->count);
}

static double sum_of_squares(const float *values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sum;
}

/* What this rank gives, and so no longer holds. */
static tamis_status collect(tamis_reducer *r) {
    if (r->slots.with_values) {
        r->picked_sum = sum_of_squares(tam_slot_values_of(&r->slots, r->slots.rank), r->now.picked);
        tam_union_sum_pairs(&r->slots, r->indices, r->count, r->values);
        return TAMIS_OK;
    }
    TAM_TRY(r->device->gather(r->kernels, r->acc, r->indices, r->count, r->values));
    r->picked_sum = sum_of_squares(r->values, r->count);
    return TAMIS_OK;
}

/* -- apply and control ------------------------------------------------------------------------ */

static float divisor(const tamis_reducer *r) {
    return r->config.average == TAMIS_AVERAGE_MEAN ? (float)r->comm->nranks : 1.0f;
}

static tamis_status apply(tamis_reducer *r) {
    tam_accumulate target = r->target;
    if (r->config.output == TAMIS_OUTPUT_SPARSE) {
        target.grad = NULL;
        target.grads = NULL;
    }
    TAM_TRY(r->device->apply(r->kernels, &target, r->indices, r->count, divisor(r), r->values));
    if (r->slots.with_values)
        return r->device->clear(r->kernels, r->acc, tam_slot_own_indices(&r->slots), r->now.picked);
    return r->device->clear(r->kernels, r->acc, r->indices, r->count);
}

static void average_stats(tamis_reducer *r) {
    for (uint32_t g = 0; g < r->slots.nstats; g++) {
        double sum = 0.0;
        for (uint32_t i = 0; i < r->slots.nranks; i++)
            sum += tam_slot_stats_of(&r->slots, i)[g];
        r->group_means[g] = sum / r->slots.nranks;
    }
}

static void count_groups(tamis_reducer *r) {
    const tam_grid *grid = &r->division.grid;
    for (size_t g = 0, i = 0; g < grid->ngroups; g++) {
        uint32_t end = grid->groups[g].begin + grid->groups[g].length;
        size_t first = i;
        while (i < r->count && r->indices[i] < end)
            i++;
        r->group_picked[g] = (uint32_t)(i - first);
    }
}

static void control(tamis_reducer *r) {
    tam_observed seen = {
        .candidates = r->now.candidates,
        .cuts = r->cuts,
        .group_sums = r->group_means,
        .group_picked = r->group_picked,
    };
    for (uint32_t i = 0; i < r->slots.nranks; i++) {
        const tam_slot_header *h = tam_slot_header_of(&r->slots, i);
        seen.picked += h->count + h->deferred;
        if (h->flags & TAM_SLOT_HAS_KEY)
            r->cuts[seen.ncuts++] = tam_log2(h->key);
    }
    average_stats(r);
    count_groups(r);
    tam_log(TAM_DEBUG,
            "rank %u, step %llu: picked %llu of %llu candidates, margin 2^%.3f, slope %.1f, "
            "%llu rescans",
            r->comm->rank, (unsigned long long)r->step, (unsigned long long)seen.picked,
            (unsigned long long)seen.candidates, r->control.state.margin,
            tam_control_slope(&r->control), (unsigned long long)r->now.rescans);
    tam_control_update(&r->control, &seen);
}

static void note_norms(tamis_reducer *r) {
    double total = 0.0;
    for (uint32_t g = 0; g < r->division.grid.ngroups; g++)
        total += r->accumulated.group_sums[g];
    double rest = total - r->picked_sum;
    r->now.acc_norm = sqrt(total);
    r->now.residual_norm = rest > 0.0 ? sqrt(rest) : 0.0;
    r->now.threshold = tam_slot_own_header(&r->slots)->key;
}

/* -- the job ---------------------------------------------------------------------------------- */

static tamis_status commit(const tamis_reducer *r, tam_job *job) {
    if (tam_job_commit(job))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TIMEOUT, "rank %u: nobody waits for step %llu any more", r->comm->rank,
                    (unsigned long long)r->step);
}

static tamis_status say_skipped(const tamis_reducer *r, const char *where) {
    if (r->config.nonfinite == TAMIS_NONFINITE_SKIP)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NONFINITE,
                    "step %llu: entries that are NaN or Inf: %llu (%s); no rank applied anything",
                    (unsigned long long)r->step, (unsigned long long)r->now.nonfinite, where);
}

/* All ranks met the same headers, or the same sums, and so come to the same decision. */
static tamis_status skip(tamis_reducer *r, const char *where) {
    r->count = 0;
    r->picked_sum = 0.0;
    r->now.skipped = 1;
    note_norms(r);
    return say_skipped(r, where);
}

static tamis_status skip_step(tamis_reducer *r, tam_job *job) {
    char where[32];
    uint32_t first = 0;
    TAM_TRY(commit(r, job));
    while (tam_slot_header_of(&r->slots, first)->nonfinite == 0)
        first++;
    snprintf(where, sizeof where, "first on rank %u", first);
    return skip(r, where);
}

/* Finite values whose sum is not. Such entries are dropped, else every later step would meet them
 * again. @return how many */
static uint64_t drop_infinite_sums(tamis_reducer *r) {
    uint64_t bad = 0;
    for (size_t i = 0; i < r->count; i++)
        bad += !isfinite(r->values[i]);
    for (size_t i = 0; bad > 0 && i < r->count; i++) {
        if (isfinite(r->values[i]))
            continue;
        r->values[i] = 0.0f;
        r->device->clear(r->kernels, r->acc, &r->indices[i], 1);
    }
    r->now.nonfinite += bad;
    return bad;
}

static tamis_status finish(tamis_reducer *r, tam_job *job) {
    TAM_TRY(commit(r, job));
    if (drop_infinite_sums(r) > 0 && r->config.nonfinite != TAMIS_NONFINITE_DROP)
        return skip(r, "in the sum over ranks");
    TAM_TRY(apply(r));
    note_norms(r);
    control(r);
    r->last_result = XXH3_64bits(r->values, r->count * sizeof r->values[0]);
    return TAMIS_OK;
}

tamis_status tam_step_sparse(tam_job *job, tam_link *link) {
    tamis_reducer *r = (tamis_reducer *)(void *)job;
    tamis_stats *s = &r->now;
    stopwatch watch = {tam_clock_ns()};
    s->cut_s = s->exchange_s = s->apply_s = 0.0;

    TAM_TRY(plan(r, link));
    lap(&watch, &s->exchange_s);
    TAM_TRY(cut(r, link));
    lap(&watch, &s->cut_s);
    TAM_TRY(tam_slots_exchange(&r->slots, link));
    lap(&watch, &s->exchange_s);
    TAM_TRY(compare_results(r));
    add_up_headers(r);
    if (s->skipped)
        return skip_step(r, job);
    TAM_TRY(unite(r, link));
    TAM_TRY(collect(r));
    lap(&watch, &s->apply_s);
    if (!r->slots.with_values)
        TAM_TRY(link->transport->allreduce_sum(link->self, r->values, r->count, &link->call));
    lap(&watch, &s->exchange_s);
    tamis_status status = finish(r, job);
    lap(&watch, &s->apply_s);
    return status;
}

/* -- scheme dense ----------------------------------------------------------------------------- */

/* The sums are the same bits on all ranks, so all see the same bad entries and decide alike. */
static uint64_t divide(float *values, size_t count, float by, bool drop) {
    uint64_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        values[i] /= by;
        bad += !isfinite(values[i]);
    }
    for (size_t i = 0; bad > 0 && drop && i < count; i++)
        values[i] = isfinite(values[i]) ? values[i] : 0.0f;
    return bad;
}

/* What is done to a run of the gradient. */
typedef tamis_status (*visitor)(tamis_reducer *r, tam_link *link, void *run, size_t count);

static tamis_status visit_run(tamis_reducer *r, tam_link *link, visitor visit, void *run,
                              size_t length) {
    size_t most = r->staging ? TAM_DENSE_PIECE : length, bytes = tam_type_bytes(r->target.type);
    for (size_t at = 0; at < length; at += most) {
        size_t count = length - at < most ? length - at : most;
        TAM_TRY(visit(r, link, (unsigned char *)run + at * bytes, count));
    }
    return TAMIS_OK;
}

static tamis_status visit_gradient(tamis_reducer *r, tam_link *link, visitor visit) {
    const tamis_layout *l = r->layout;
    if (r->target.grad)
        return visit_run(r, link, visit, r->target.grad, (size_t)l->length);
    for (uint32_t s = 0; s < l->nsegments; s++)
        TAM_TRY(visit_run(r, link, visit, r->target.grads[s], tam_segment_length(l, s)));
    return TAMIS_OK;
}

static tamis_status reduce_values(tamis_reducer *r, tam_link *link, float *values, size_t count) {
    for (size_t i = 0; r->target.scale != 1.0f && i < count; i++)
        values[i] *= r->target.scale;
    TAM_TRY(link->transport->allreduce_sum(link->self, values, count, &link->call));
    r->now.nonfinite +=
        divide(values, count, divisor(r), r->config.nonfinite == TAMIS_NONFINITE_DROP);
    return TAMIS_OK;
}

/* Floats in memory of the host are summed where they lie; all else goes by way of the staging area:
 *
 *     staging   | float[TAM_DENSE_PIECE], summed | as many of the gradient's type, as they are |
 */
static tamis_status reduce_run(tamis_reducer *r, tam_link *link, void *run, size_t count) {
    if (!r->staging)
        return reduce_values(r, link, run, count);
    tamis_type type = r->target.type;
    size_t bytes = count * tam_type_bytes(type);
    float *values = r->staging, *raw = values + TAM_DENSE_PIECE;
    TAM_TRY(r->device->read(r->kernels, run, bytes, raw));
    tam_widen(type, raw, count, values);
    TAM_TRY(reduce_values(r, link, values, count));
    tam_narrow(values, count, type, raw);
    return r->device->write(r->kernels, raw, bytes, run);
}

static tamis_status clear_run(tamis_reducer *r, tam_link *link, void *run, size_t count) {
    size_t bytes = count * tam_type_bytes(r->target.type);
    (void)link;
    memset(r->staging ? r->staging : run, 0, bytes);
    return r->staging ? r->device->write(r->kernels, r->staging, bytes, run) : TAMIS_OK;
}

/* In place: a failure leaves the gradient partly reduced. There is no residual to keep it in. */
tamis_status tam_step_dense(tam_job *job, tam_link *link) {
    tamis_reducer *r = (tamis_reducer *)(void *)job;
    stopwatch watch = {tam_clock_ns()};
    r->now.exchange_s = 0.0;
    r->now.nonfinite = 0;
    TAM_TRY(visit_gradient(r, link, reduce_run));
    TAM_TRY(commit(r, job));
    lap(&watch, &r->now.exchange_s);
    r->count = (size_t)r->layout->length;
    r->now.skipped = r->now.nonfinite > 0 && r->config.nonfinite != TAMIS_NONFINITE_DROP;
    if (!r->now.skipped)
        return TAMIS_OK;
    r->count = 0;
    TAM_TRY(visit_gradient(r, link, clear_run));
    return say_skipped(r, "in the sum over ranks");
}
