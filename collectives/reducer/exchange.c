/* SPDX-License-Identifier: MIT
 *
 * The job of a bucket: everything between the accumulate pass and the end of the step. Straight
 * line, one function a phase. Nothing that the caller sees changes here.
 *
 *     sum      hierarchical only: gradients of a node, of which each rank takes a slice
 *     plan     bins only: one rank packs, all learn where they select
 *     aim      sage, reuse only: this rank's threshold, from its own acc
 *     cut      candidates -> my indices, ascending, into my slot
 *     gather   slots to all ranks; union of the indices
 *     reduce   my acc at the union, summed over ranks
 *     share    hierarchical only: results of all slices, in the node
 *
 * Values that travel as bfloat16 are rounded twice, and what that takes has a place: at union index
 * i, of 3 ranks, whose slice rank 1 sums,
 *
 *     rank 0   gives bf16(v0), keeps v0 - bf16(v0)
 *     rank 1   gives bf16(v1), keeps v1 - bf16(v1) + (S - bf16(S)),  S = bf16(v0) + bf16(v1) + bf16(v2)
 *     rank 2   gives bf16(v2), keeps v2 - bf16(v2)                   result bf16(S)
 *
 * so that what is applied and what is kept sum to v0 + v1 + v2, whether the result is the sum or,
 * divided afterwards, the mean.
 */
#include "collectives/reducer/rows.h"
#include "collectives/reducer/slice.h"
#include "collectives/reducer/undo.h"

#include "collectives/exchange/union.h"
#include "lib/base/half.h"
#include "lib/policy/budget.h"
#include "lib/policy/rules.h"

#include <math.h>
#include <xxhash.h>

/* -- plan ------------------------------------------------------------------------------------- */

/* DEFT: every rank budgets by its own norms; rank (step mod P) packs for all. */
static tamis_status plan(tam_bucket *b, tam_link *link) {
    const tamis_reducer *r = b->reducer;
    tam_packing *p = &b->packing;
    tam_grid *grid = &b->division.grid;
    for (uint32_t g = 0; g < grid->ngroups; g++)
        b->control.norms[g] = sqrt(b->accumulated.group_sums[g]);
    tam_budget_norm(b->k, b->control.norms, grid, b->control.order, p->budgets);
    if (b->scheme.ownership == TAM_OWN_ALL)
        return TAMIS_OK;

    tam_bins_pack(p->budgets, grid, link->nranks, b->control.order, p->loads, p->parts);
    size_t bytes = grid->ngroups * sizeof p->parts[0];
    TAM_TRY(link->transport->allgather(link->self, p->parts, bytes, p->all, &link->call));
    const uint32_t *agreed = p->all + r->step % link->nranks * grid->ngroups;
    /* The headers that follow show whether all ranks received the same packing. */
    b->slots.config = XXH3_64bits_withSeed(agreed, bytes, b->slots.config);
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        uint32_t part = agreed[grid->tiles[t].group];
        if (part >= link->nranks && part != TAM_PART_COMMON)
            return tam_fail(TAMIS_E_PROTOCOL, "the packing of rank %u was refused: part %u",
                            (unsigned)(r->step % link->nranks), part);
        grid->tiles[t].part = part;
    }
    return TAMIS_OK;
}

/* -- aim -------------------------------------------------------------------------------------- */

/* SAGE. @return bits of the threshold */
static tamis_status aim_sage(tam_bucket *b, uint32_t *out) {
    const tamis_reducer *r = b->reducer;
    tam_sage *s = &b->control.sage;
    uint64_t counted;
    tam_sage_draw(s, r->comm->rank, b->index, r->step);
    TAM_TRY(r->device->gather(b->kernels, b->acc, s->positions, s->count, s->values));
    *out = tam_rule_bits(tam_sage_measure(s, &b->control.state));
    if (!b->control.state.primed)
        return TAMIS_OK;
    TAM_TRY(r->device->count(b->kernels, b->acc, *out, &counted));
    tam_sage_correct(s, counted, b->k);
    *out = tam_rule_bits(s->threshold);
    return TAMIS_OK;
}

/* Ok-Topk, a step that looks: the k-th largest, found by choosing k. What is over it is fewer, and
 * is cut afterwards. */
static tamis_status find_reused(tam_bucket *b, const tam_cut *all, uint32_t *out) {
    tam_cut job = *all;
    tam_cut_result chosen;
    job.kind = TAM_CUT_TOTAL;
    job.k = b->k < b->slots.limit ? (size_t)b->k : b->slots.limit;
    TAM_TRY(b->reducer->device->cut(b->kernels, &job, tam_slot_own_indices(&b->slots), &chosen));
    b->control.reused = (double)chosen.key;
    *out = chosen.key > 0.0f ? tam_bits(chosen.key) + 1 : 1;
    return TAMIS_OK;
}

/* Ok-Topk, another step: raised while far too many are over it.
 * @param  out  [out]  left alone if it is that of the pass */
static tamis_status raise_reused(tam_bucket *b, uint32_t *out) {
    const tam_device *device = b->reducer->device;
    const tam_candidates *seen = &b->accumulated.candidates;
    uint64_t found = seen->count;
    b->control.reused = b->control.state.threshold;
    if (!seen->complete)
        TAM_TRY(device->count(b->kernels, b->acc, b->control.thresholds[0], &found));
    for (int i = 0; i < TAM_REUSE_RAISES && tam_rule_too_many(found, b->k); i++) {
        b->control.reused *= TAM_REUSE_RAISE;
        *out = tam_rule_over(b->control.reused);
        if (i + 1 < TAM_REUSE_RAISES)
            TAM_TRY(device->count(b->kernels, b->acc, *out, &found));
    }
    return TAMIS_OK;
}

/* -- cut -------------------------------------------------------------------------------------- */

/* In lanes: one sum alone would wait for each of its additions. */
static double sum_of_squares(const float *values, size_t count) {
    enum { LANES = 8 };
    double sums[LANES] = {0}, sum = 0.0;
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t j = 0; j < LANES; j++)
            sums[j] += (double)values[i + j] * values[i + j];
    }
    for (size_t i = whole; i < count; i++)
        sum += (double)values[i] * values[i];
    for (size_t j = 0; j < LANES; j++)
        sum += sums[j];
    return sum;
}

static tam_cut choose_cut(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_cut cut = {
        .kind = TAM_CUT_TOTAL,
        .acc = b->acc,
        .mine = tam_part_of(&b->division, r->step, r->rank),
        .k = b->slots.limit,
        .floor_key = b->control.floor_key,
        .candidates = tam_rule_listed(b->scheme.threshold, &b->control.state)
                          ? &b->accumulated.candidates
                          : NULL,
    };
    if (tam_scheme_by_group(b->scheme)) {
        cut.kind = TAM_CUT_GROUPS;
        cut.budgets = b->packing.budgets;
    } else if (tam_scheme_by_threshold(b->scheme)) {
        cut.kind = TAM_CUT_ALL;
    } else {
        size_t share = tam_share_of(&b->division, r->step, r->rank, b->k);
        cut.k = share < b->slots.limit ? share : b->slots.limit;
        cut.weights = tam_scheme_weighted(b->scheme) ? b->control.weights : NULL;
    }
    return cut;
}

static uint32_t at_most_32_bits(uint64_t count) {
    return (uint32_t)(count < UINT32_MAX ? count : UINT32_MAX);
}

static void fill_header(tam_bucket *b, const tam_cut_result *result) {
    const tamis_reducer *r = b->reducer;
    tam_head *h = tam_slot_own_head(&b->slots);
    const tam_candidates *seen = &b->accumulated.candidates;
    bool known = tam_rule_listed(b->scheme.threshold, &b->control.state) && seen->complete;
    h->step = r->step;
    h->last_result = b->last_result;
    h->count = (uint32_t)result->count;
    h->deferred = (uint32_t)result->deferred;
    h->candidates = known ? (uint32_t)seen->count : UINT32_MAX;
    h->nonfinite = at_most_32_bits(b->accumulated.nonfinite + b->early_nonfinite);
    h->busy_us = b == tam_last_bucket(r) ? at_most_32_bits(r->busy_us) : 0;
    h->key = result->key;
    h->flags = result->rescanned ? TAM_HEAD_RESCANNED : 0;
    if (result->count > 0 && result->key > 0.0f && isfinite(result->key))
        h->flags |= TAM_HEAD_HAS_KEY;
    float *stats = tam_slot_own_stats(&b->slots);
    for (uint32_t g = 0; g < b->slots.nstats; g++) {
        double sum = b->accumulated.group_sums[g];
        stats[g] = sum < 3e38 ? (float)sum : 3e38f;
    }
}

/* Values as they travel, and what stays of them. Loops over one operation each are vectorised. */
static void round_values(const float *values, size_t count, uint16_t *halves, float *rest) {
    for (size_t i = 0; i < count; i++)
        halves[i] = tam_bfloat16_clamp(values[i]);
    for (size_t i = 0; i < count; i++)
        rest[i] = tam_bfloat16_rest(values[i], halves[i]);
}

/* pairs: what is picked travels with its value. */
static tamis_status fill_values(tam_bucket *b, const uint32_t *indices, size_t count) {
    const tam_device *device = b->reducer->device;
    float *values = b->rest ? b->values : tam_slot_own_values(&b->slots);
    TAM_TRY(device->gather(b->kernels, b->acc, indices, count, values));
    b->picked_sum = sum_of_squares(values, count);
    if (!b->rest)
        return TAMIS_OK;
    round_values(values, count, tam_slot_own_values(&b->slots), b->rest);
    b->picked_sum -= sum_of_squares(b->rest, count);
    return TAMIS_OK;
}

static tamis_status pick_rows(tam_bucket *b) {
    tam_cut_result result = {0};
    TAM_TRY(tam_rows_pick(b, &result.count));
    fill_header(b, &result);
    tam_slot_own_head(&b->slots)->flags |= b->rows->all ? TAM_HEAD_ALL_ROWS : 0;
    return TAMIS_OK;
}

/* A threshold that follows from acc. */
static tamis_status aim(tam_bucket *b, tam_cut *job) {
    if (b->scheme.threshold == TAM_THRESHOLD_SAGE)
        return aim_sage(b, &job->threshold);
    if (b->scheme.threshold == TAM_THRESHOLD_REUSE)
        return b->control.state.primed > 0 ? raise_reused(b, &job->threshold)
                                           : find_reused(b, job, &job->threshold);
    return TAMIS_OK;
}

/* Ok-Topk, a step that looks: where nothing is over the k-th largest, as with k = 1, what equals
 * it. */
static tamis_status pick(tam_bucket *b, tam_cut *job, uint32_t *indices, tam_cut_result *out) {
    const tam_device *device = b->reducer->device;
    TAM_TRY(device->cut(b->kernels, job, indices, out));
    bool looks = b->scheme.threshold == TAM_THRESHOLD_REUSE && b->control.state.primed == 0;
    if (out->count > 0 || !looks || b->control.reused == 0.0)
        return TAMIS_OK;
    job->threshold = tam_bits((float)b->control.reused);
    return device->cut(b->kernels, job, indices, out);
}

static tamis_status cut(tam_bucket *b) {
    if (b->rows)
        return pick_rows(b);
    tam_cut job = choose_cut(b);
    tam_cut_result result = {0};
    TAM_TRY(aim(b, &job));
    uint32_t *indices = tam_slot_own_indices(&b->slots);
    TAM_TRY(pick(b, &job, indices, &result));
    fill_header(b, &result);
    b->now.picked = result.count;
    if (tam_scheme_regional(b->scheme))
        tam_regions_divide(&b->regions, indices, result.count, tam_slot_own_words(&b->slots));
    return b->slots.with_values ? fill_values(b, indices, result.count) : TAMIS_OK;
}

/* -- gather and reduce ------------------------------------------------------------------------ */

/* One damaged value would make the replicas drift apart unnoticed. */
static tamis_status compare_results(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    for (uint32_t i = 0; i < b->slots.nranks; i++) {
        if (tam_slot_head_of(&b->slots, i)->last_result != b->last_result)
            return tam_fail(TAMIS_E_PROTOCOL,
                            "the results of step %llu differ between rank %u and rank %u: values "
                            "were damaged on their way; go back to an older state",
                            (unsigned long long)(r->step - 1),
                            tam_slot_rank(&b->slots, b->slots.rank), tam_slot_rank(&b->slots, i));
    }
    return TAMIS_OK;
}

static void add_up_headers(tam_bucket *b) {
    tamis_stats *s = &b->now;
    bool known = true;
    s->deferred = s->candidates = s->rescans = s->nonfinite = 0;
    for (uint32_t i = 0; i < b->slots.nranks; i++) {
        const tam_head *h = tam_slot_head_of(&b->slots, i);
        s->deferred += h->deferred;
        known = known && h->candidates != UINT32_MAX;
        s->candidates += h->candidates;
        s->rescans += h->flags & TAM_HEAD_RESCANNED ? 1 : 0;
        s->nonfinite += h->nonfinite;
    }
    if (!known)
        s->candidates = 0;
    s->skipped = s->nonfinite > 0 && b->reducer->config.nonfinite != TAMIS_NONFINITE_DROP;
}

static tamis_status unite(tam_bucket *b, const tam_link *link) {
    const tamis_reducer *r = b->reducer;
    if (b->scheme.ownership == TAM_OWN_ALL)
        return tam_union_merge(&b->slots, b->division.grid.n, b->lists, b->scratch, b->indices,
                               &b->count);
    for (uint32_t p = 0; p < link->nranks; p++)
        b->owners[p] = tam_owner_of(&b->division, r->step, p);
    return tam_union_exclusive(&b->slots, &b->division.grid, b->owners, b->cursors, b->indices,
                               &b->count);
}

/* union: what this rank gives, and so no longer holds, becomes the sum over ranks. */
static tamis_status reduce(tam_bucket *b, tam_link *link) {
    const tam_transport *t = link->transport;
    size_t count = b->count;
    TAM_TRY(b->reducer->device->gather(b->kernels, b->acc, b->indices, count, b->values));
    b->picked_sum = sum_of_squares(b->values, count);
    if (!b->rest)
        return t->allreduce_sum(link->self, b->values, count, &link->call);
    round_values(b->values, count, b->halves, b->rest);
    TAM_TRY(t->allreduce_sum_bfloat16(link->self, b->halves, count, b->rest, &link->call));
    b->picked_sum -= sum_of_squares(b->rest, count);
    tam_widen(TAMIS_TYPE_BFLOAT16, b->halves, count, b->values);
    return TAMIS_OK;
}

/* balanced-pairs: what this rank picked leaves its residual only where the sum survives. */
static tamis_status exchange_regions(tam_bucket *b, tam_link *link) {
    uint32_t *own = tam_slot_own_indices(&b->slots);
    float *given = tam_slot_own_values(&b->slots);
    TAM_TRY(tam_regions_exchange(&b->regions, &b->slots, b->k, link, b->scratch, b->indices,
                                 b->values, &b->count));
    b->now.picked = tam_regions_given(b->indices, b->count, own, given, b->now.picked);
    b->picked_sum = sum_of_squares(given, b->now.picked);
    return TAMIS_OK;
}

/* -- the job ---------------------------------------------------------------------------------- */

tamis_status tam_step_accumulate(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    tam_accumulate pass = b->slice ? tam_slice_pass(b) : b->target;
    TAM_TRY(r->device->accumulate(b->kernels, &pass, &b->accumulated));
    tam_undo_pass(b, pass.decay);
    if (b->slice && b->target.clear)
        TAM_TRY(tam_dense_clear(b));
    if (r->config.update)
        r->passes = b->pass; /* the same for all buckets of a step */
    tam_phase_end(r, TAMIS_PHASE_ACCUMULATE, b->index, begin_ns, &b->now.accumulate_s);
    return TAMIS_OK;
}

/* Hierarchical: what is accumulated is the slice of the node's sum. */
static tamis_status sum_node(tam_bucket *b, tam_link *link) {
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(tam_slice_sum(b, link));
    tam_phase_end(b->reducer, TAMIS_PHASE_EXCHANGE, b->index, begin_ns, &b->now.exchange_s);
    return TAMIS_OK;
}

/* On the communicator's thread: while gradient and residual are written, who waits stays. */
static tamis_status accumulate_committed(tam_bucket *b) {
    TAM_TRY(tam_step_commit(b->reducer, &b->job));
    tamis_status status = tam_step_accumulate(b);
    tam_job_release(&b->job);
    return status;
}

/* Slots and values. A step that will be skipped is known as such by all ranks from the headers, and
 * needs no more. */
static tamis_status exchange(tam_bucket *b, tam_link *link) {
    for (uint32_t i = 0; i < link->nranks && !b->rows; i++)
        b->reaches[i] = tam_reach_of(&b->division, tam_part_of(&b->division, b->reducer->step, i));
    b->slots.leader = tam_owner_of(&b->division, b->reducer->step, 0); /* if they are led */
    TAM_TRY(tam_slots_exchange(&b->slots, link));
    TAM_TRY(compare_results(b));
    add_up_headers(b);
    b->reducer->now.skipped |= b->slice ? 0 : b->now.skipped; /* other columns do not know */
    if (b->reducer->now.skipped && !b->slice)
        return TAMIS_OK;
    if (tam_scheme_regional(b->scheme))
        return exchange_regions(b, link);
    if (b->rows)
        return tam_rows_reduce(b, link);
    TAM_TRY(unite(b, link));
    if (!b->slots.with_values)
        return reduce(b, link);
    tam_union_sum_pairs(&b->slots, b->indices, b->count, b->values);
    return TAMIS_OK;
}

/* The same among the ranks of the column, then for the node. */
static tamis_status exchange_slices(tam_bucket *b, tam_link *link) {
    tam_link column = tam_team_link(&b->slice->column, link);
    TAM_TRY(exchange(b, &column));
    link->call.wire_bytes = column.call.wire_bytes;
    return tam_slice_gather(b, link);
}

tamis_status tam_step_sparse(tam_job *job, tam_link *link) {
    tam_bucket *b = (tam_bucket *)(void *)job;
    tamis_reducer *r = b->reducer;
    if (b->slice)
        TAM_TRY(sum_node(b, link));
    if (b->slice || r->config.worker == TAMIS_WORKER_THREAD)
        TAM_TRY(accumulate_committed(b));
    bool meets_early = b->scheme.ownership == TAM_OWN_BINS; /* to plan, before it cuts */
    uint64_t begin_ns = tam_clock_ns(), planned_ns = begin_ns;
    b->slots.config = b->config_hash + b->k; /* slots of another density may be as long */
    if (meets_early)
        link->call.quiet_until_ns = tam_arrive_expected_ns(b, begin_ns);
    if (b->packing.all)
        TAM_TRY(plan(b, link));
    if (meets_early)
        planned_ns = tam_clock_ns();
    TAM_TRY(cut(b));
    uint64_t cut_ns = tam_phase_end(r, TAMIS_PHASE_CUT, b->index, planned_ns, &b->now.cut_s);
    uint64_t met_ns = b->slice ? 0 : r->met_ns; /* ranks of a node met for its sum: unknown */
    tam_slot_own_head(&b->slots)->began_us =
        at_most_32_bits(tam_arrive_us(met_ns, meets_early ? begin_ns : cut_ns));
    if (!meets_early)
        link->call.quiet_until_ns = tam_arrive_expected_ns(b, cut_ns);
    TAM_TRY(b->slice ? exchange_slices(b, link) : exchange(b, link));
    uint64_t end_ns = tam_clock_ns();
    tam_arrive_tell(b, meets_early ? begin_ns : cut_ns, meets_early ? planned_ns : end_ns);
    if (meets_early)
        tam_phase_note(r, TAMIS_PHASE_EXCHANGE, b->index, cut_ns, end_ns, &b->now.exchange_s);
    tam_arrive_met(b, end_ns);
    return b == tam_last_bucket(r) ? tam_step_finish(r, job) : TAMIS_OK;
}
