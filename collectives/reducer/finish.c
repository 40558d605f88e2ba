/* SPDX-License-Identifier: MIT
 *
 * The end of a step, when all its buckets have been exchanged: all of it is applied, or nothing.
 * Runs inside the job of the last bucket.
 *
 *     decide   whether gradients or sums are not finite
 *     apply    results go to the gradient; sent entries of the residual keep only rounding errors
 *     control  thresholds of the next step, from what all ranks know
 *     budget   k of the next step among the buckets
 */
#include "collectives/reducer/rollback.h"

#include <math.h>
#include <stdio.h>
#include <tamis/stats.h>

static float divisor(const tamis_reducer *r, double scale) {
    return (float)(tam_divisor_of_sums(r) / scale);
}

float tam_divisor(const tamis_reducer *r) {
    return divisor(r, tam_update_scale(r, &r->norm_matching));
}

static bool learns(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_LEARNS;
}

static bool has_residual(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_HAS_RESIDUAL;
}

/* -- decide ----------------------------------------------------------------------------------- */

/* All ranks saw the same headers, or the same sums, so all decide the same. */
static tamis_status finish_skip(tamis_reducer *r, const char *where) {
    r->count = 0;
    r->now.skipped = 1;
    r->now.update_scale = tam_update_scale(r, &r->norm_matching);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        tam_outcome *out = &b->view.out;
        out->result.count = out->local.count = out->sent.count = 0;
        out->sent_sum = 0.0;
        TAM_TRY(tam_exchange_do(b->exchange->skip, b->exchanged));
    }
    char row[TAM_NONFINITE_TEXT];
    tam_nonfinite_count(r, r->step, where);
    return tam_nonfinite_say(r, r->step, r->now.nonfinite, where, tam_nonfinite_row_text(r, row));
}

/* In the sum of a node, the rank is unknown. */
static tamis_status skip_bad_gradients(tamis_reducer *r) {
    char where[128];
    const char *segment = tam_nonfinite_segment(r);
    uint32_t first = r->comm->nranks, ranks = 1;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_outcome *out = &r->buckets[i].view.out;
        if (out->bad_ranks > 0 && out->bad_first < first) {
            first = out->bad_first;
            ranks = out->bad_ranks;
        }
    }
    if (ranks == 1 && first == r->comm->rank && segment)
        snprintf(where, sizeof where, "first on rank %u, in the gradient of %.64s", first, segment);
    else if (ranks == 1)
        snprintf(where, sizeof where, "first on rank %u", first);
    else
        snprintf(where, sizeof where, "first in the sum of ranks %u to %u", first,
                 first + ranks - 1);
    return finish_skip(r, where);
}

/* Drop sums that are not finite. @return how many */
static uint64_t finish_drop(tam_bucket *b) {
    const tam_outcome *out = &b->view.out;
    uint64_t bad = b->exchange->drop(b->exchanged);
    if (bad > 0 && out->sent.indices != out->local.indices) /* some were not sent by this rank */
        tam_rollback_invalidate(b->reducer, TAM_ROLLBACK_DROPPED);
    if (bad > 0)
        tam_rollback_drop(b);
    return bad;
}

/* -- apply ------------------------------------------------------------------------------------ */

/* Concatenate the lists so that indices ascend: the last bucket holds the first segments. */
static void join_results(tamis_reducer *r) {
    size_t at = 0;
    for (uint32_t i = r->nbuckets; i-- > 0 && r->indices;) {
        const tam_bucket_view *v = &r->buckets[i].view;
        const tam_entries *one = &v->out.result;
        for (size_t j = 0; j < one->count; j++)
            r->indices[at + j] = one->indices[j] + (uint32_t)v->begin;
        memcpy(r->values + at, one->values, one->count * sizeof one->values[0]);
        at += one->count;
    }
}

/* -- control ---------------------------------------------------------------------------------- */

static void count_groups(tam_bucket *b) {
    const tam_grid *grid = &b->division.grid;
    const tam_entries *local = &b->view.out.local;
    for (size_t g = 0, i = 0; g < grid->ngroups; g++) {
        uint64_t end = (uint64_t)grid->groups[g].begin + grid->groups[g].length;
        size_t next = tam_first_from(local->indices, i, local->count, end);
        b->group_selected[g] = (uint32_t)(next - i);
        i = next;
    }
}

/* Ownership balanced: the entries found in each part determine the parts of the next step. */
static void balance(tam_bucket *b, uint64_t found) {
    const tamis_reducer *r = b->reducer;
    const tam_headers *headers = &b->view.out.headers;
    for (uint32_t i = 0; i < headers->nranks; i++) {
        uint64_t deferred = tam_header_words(headers, i)[0];
        uint32_t part = tam_part_of(&b->division, r->step, i);
        b->division.topology.loads[part] = tam_header_at(headers, i)->count + deferred;
    }
    tam_division_balance(&b->division, found);
}

static void finish_control(tam_bucket *b) {
    const tam_outcome *out = &b->view.out;
    tam_observed seen = {
        .selected = out->found,
        .found = out->own_found,
        .candidates = out->seen,
        .min_keys = b->min_keys,
        .group_sums = out->means,
        .group_selected = b->group_selected,
        .step = b->reducer->step,
    };
    for (uint32_t i = 0; i < out->headers.nranks; i++) {
        const tam_header *h = tam_header_at(&out->headers, i);
        if (tam_header_flags(h) & TAM_HEADER_HAS_KEY)
            b->min_keys[seen.nmin_keys++] = tam_log2(h->key);
    }
    count_groups(b);
    tam_log(TAM_DEBUG,
            "rank %u, step %llu, bucket %u: found %llu of %llu candidates, margin 2^%.3f, slope "
            "%.1f, %llu rescans",
            b->reducer->comm->rank, (unsigned long long)b->reducer->step, b->view.index,
            (unsigned long long)seen.selected, (unsigned long long)seen.candidates,
            b->control.state.margin, tam_control_slope(&b->control),
            (unsigned long long)out->rescans);
    tam_control_update(&b->control, &seen);
    if (b->scheme.ownership == TAM_OWN_BALANCED)
        balance(b, seen.selected);
}

/* -- statistics ------------------------------------------------------------------------------- */

/* Add up the headers of all buckets. */
static void finish_add_up(tamis_reducer *r) {
    tamis_stats *s = &r->now;
    memset(r->selected, 0, r->comm->nranks * sizeof r->selected[0]);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        const tam_outcome *out = &b->view.out;
        s->deferred += out->deferred;
        s->candidates += out->candidates;
        s->rescans += out->rescans;
        s->nonfinite += out->nonfinite;
        for (uint32_t rank = 0; rank < r->comm->nranks && has_residual(b); rank++)
            r->selected[rank] += out->selected[rank];
    }
    for (uint32_t rank = 0; rank < r->comm->nranks; rank++)
        s->sent_max = r->selected[rank] > s->sent_max ? r->selected[rank] : s->sent_max;
    s->sent = r->selected[r->comm->rank];
    if (tam_reducer_observes(r))
        tam_skew_straggler(r);
}

static void record_norms(tamis_reducer *r) {
    double total = 0.0, left = 0.0;
    float least = 0.0f;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        const tam_outcome *out = &b->view.out;
        if (!has_residual(b))
            continue;
        float key = tam_header_at(&out->headers, out->headers.own)->key;
        for (uint32_t g = 0; g < b->division.grid.ngroups; g++)
            total += b->view.accumulated.group_sums[g];
        left += out->sent_sum;
        if (key > 0.0f && (least == 0.0f || key < least))
            least = key;
    }
    double kept = total - left;
    r->now.acc_norm = sqrt(total);
    r->now.residual_norm = kept > 0.0 ? sqrt(kept) : 0.0;
    r->now.threshold = least;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Learn, for the next step. */
static void control_all(tamis_reducer *r) {
    r->has_norms = false;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (!learns(b))
            continue;
        r->norms[i] = b->view.out.norm;
        finish_control(b);
        r->has_norms = r->has_norms || b->view.out.nmeans > 0;
    }
    tam_buckets_budget(r);
}

static tamis_status finish_apply_all(tamis_reducer *r) {
    r->count = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        TAM_TRY(tam_exchange_do(b->exchange->apply, b->exchanged));
        r->count += b->view.out.result.count;
    }
    join_results(r);
    control_all(r);
    tam_slowdown_observe(r);
    return TAMIS_OK;
}

/* The scale of this step includes what it taught; a skipped step teaches nothing. */
static tam_norm_matching scale_result(tamis_reducer *r) {
    tam_norm_matching norm_matching =
        tam_update_has_norm_matching(r) ? tam_update_learn(r) : r->norm_matching;
    r->now.update_scale = tam_update_scale(r, &norm_matching);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->buckets[i].view.divisor = divisor(r, r->now.update_scale);
    return norm_matching;
}

static tamis_status finish_decide(tamis_reducer *r) {
    uint64_t bad = 0;
    finish_add_up(r);
    TAM_TRY(tam_rollback_record(r));
    if (r->now.skipped)
        return skip_bad_gradients(r);
    tam_norm_matching norm_matching = scale_result(r);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        bad += finish_drop(&r->buckets[i]);
    r->now.nonfinite += bad;
    if (bad > 0 && r->config.nonfinite != TAMIS_NONFINITE_DROP) {
        TAM_TRY(tam_rollback_skip(r));
        return finish_skip(r, "in the sum over ranks");
    }
    r->norm_matching = norm_matching;
    r->bad_steps = 0;
    return finish_apply_all(r);
}

tamis_status tam_step_finish(tamis_reducer *r, tam_job *job) {
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(tam_step_commit(r, job));
    tamis_status status = finish_decide(r);
    record_norms(r);
    tam_phase_end(r, TAMIS_PHASE_APPLY, TAMIS_NO_BUCKET, begin_ns, &r->now.apply_s);
    return status;
}

/* Earlier jobs have ended, or were abandoned meanwhile. */
static bool anything_abandoned(const tamis_reducer *r) {
    bool any = false;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        any = any || atomic_load(&r->buckets[i].job.state) == TAM_JOB_ABANDONED;
    return any;
}

tamis_status tam_step_commit(const tamis_reducer *r, tam_job *job) {
    if (!anything_abandoned(r) && tam_job_commit(job))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank %u: step %llu was abandoned by the thread that waited for it",
                    r->comm->rank, (unsigned long long)r->step);
}
