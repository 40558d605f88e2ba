/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/selection.h"

#include "lib/policy/budget.h"
#include "lib/policy/rules.h"

#include <math.h>
#include <xxhash.h>

enum { SPARE_CANDIDATES = 4096, REUSE_CAPACITY = 4 }; /* reuse: one rank may select 4 k */

/* -- sizes ------------------------------------------------------------------------------------ */

size_t tam_selection_most(const tam_bucket_view *v, uint64_t k) {
    tam_scheme s = tam_selection_scheme(v);
    size_t own = tam_own_max(v->division);
    if (tam_scheme_exact_count(s))
        return tam_budget_max(v->division, k);
    if (s.threshold == TAM_THRESHOLD_REUSE && v->config->capacity == 0.0)
        return (size_t)tam_rule_capacity(REUSE_CAPACITY, k, 1.0, own);
    if (tam_scheme_by_threshold(s) && v->config->capacity > 0.0) {
        double ranks = tam_scheme_undivided(s) ? 1.0 : v->division->nranks;
        return (size_t)tam_rule_capacity(v->config->capacity, k, ranks, own);
    }
    /* At least one entry per group can exceed k by the number of groups. */
    size_t most = (size_t)k + v->division->grid.ngroups;
    return tam_scheme_by_threshold(s) ? own : most < own ? most : own;
}

bool tam_selection_bounded(const tam_bucket_view *v) {
    tam_scheme s = tam_selection_scheme(v);
    return tam_scheme_exact_count(s) || (tam_scheme_by_threshold(s) && v->config->capacity > 0.0);
}

size_t tam_selection_candidates(const tam_bucket_view *v) {
    tam_scheme s = tam_selection_scheme(v);
    size_t own = tam_own_max(v->division), most = own;
    if (!tam_scheme_by_threshold(s))
        most =
            (size_t)(8.0 * v->config->overselect * (double)tam_budget_max(v->division, v->k_max));
    if (s.ownership == TAM_OWN_BINS)
        most = (size_t)(2.0 * v->config->overselect * (double)v->k_max);
    most += SPARE_CANDIDATES;
    return most < own ? most : own;
}

uint32_t tam_selection_sums(const tam_bucket_view *v) {
    bool wanted = tam_scheme_weighted(tam_selection_scheme(v)) || v->norms;
    return wanted ? v->division->grid.ngroups : 0;
}

/* -- plan ------------------------------------------------------------------------------------- */

tamis_status tam_packing_open(const tam_bucket_view *v, tam_packing *p) {
    size_t ngroups = v->division->grid.ngroups, nranks = v->nranks;
    if (!tam_scheme_by_group(tam_selection_scheme(v)))
        return TAMIS_OK;
    p->budgets = tam_alloc_array(ngroups, sizeof p->budgets[0]);
    p->parts = tam_alloc_array(ngroups, sizeof p->parts[0]);
    p->all = tam_alloc_array(ngroups * nranks, sizeof p->all[0]);
    p->loads = tam_alloc_array(nranks, sizeof p->loads[0]);
    if (!p->budgets || !p->parts || !p->all || !p->loads)
        return tam_fail(TAMIS_E_NOMEM, "no memory to pack %zu groups", ngroups);
    return TAMIS_OK;
}

void tam_packing_close(tam_packing *p, bool in_flight) {
    if (!in_flight) {
        tam_free(p->parts);
        tam_free(p->all);
    }
    tam_free(p->budgets);
    tam_free(p->loads);
}

/* Rank (step mod P) packs for all. */
static tamis_status agree_on_parts(const tam_bucket_view *v, tam_packing *p, tam_link *link,
                                   uint64_t *config) {
    tam_grid *grid = &v->division->grid;
    size_t bytes = grid->ngroups * sizeof p->parts[0];
    uint32_t delegate = (uint32_t)(v->step % link->nranks);
    tam_bins_pack(p->budgets, grid, link->nranks, v->control->order, p->loads, p->parts);
    TAM_TRY(link->transport->allgather(link->self, p->parts, bytes, p->all, &link->call));
    const uint32_t *agreed = p->all + (size_t)delegate * grid->ngroups;
    *config = XXH3_64bits_withSeed(agreed, bytes, *config);
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        uint32_t part = agreed[grid->tiles[t].group];
        if (part >= link->nranks && part != TAM_PART_COMMON)
            return tam_fail(TAMIS_E_PROTOCOL,
                            "the packing of rank %u was refused: part %u is out of range", delegate,
                            part);
        grid->tiles[t].part = part;
    }
    return TAMIS_OK;
}

/* DEFT: every rank budgets by its own norms. */
tamis_status tam_selection_plan(const tam_bucket_view *v, tam_packing *p, tam_link *link,
                                uint64_t *config) {
    tam_grid *grid = &v->division->grid;
    tam_control *c = v->control;
    if (!p->all)
        return TAMIS_OK;
    for (uint32_t g = 0; g < grid->ngroups; g++)
        c->norms[g] = sqrt(v->accumulated.group_sums[g]);
    tam_budget_norm(v->k, c->norms, grid, c->order, p->budgets);
    if (tam_selection_scheme(v).ownership == TAM_OWN_ALL)
        return TAMIS_OK;
    return agree_on_parts(v, p, link, config);
}

/* -- thresholds of this step ------------------------------------------------------------------ */

/* SAGE: a sample, corrected by a count. @param  out  [out]  bits of the threshold */
static tamis_status threshold_of_sage(const tam_bucket_view *v, uint32_t *out) {
    tam_control *c = v->control;
    tam_sage *s = &c->sage;
    uint64_t counted;
    tam_sage_draw(s, v->comm_rank, v->index, v->step);
    TAM_TRY(v->device->gather(v->kernels, v->acc, s->positions, s->count, s->values));
    *out = tam_rule_bits(tam_sage_measure(s, &c->state));
    if (!c->state.primed)
        return TAMIS_OK;
    TAM_TRY(v->device->count(v->kernels, v->acc, *out, &counted));
    tam_sage_correct(s, counted, v->k);
    *out = tam_rule_bits(s->threshold);
    return TAMIS_OK;
}

/* Ok-Topk, in a step that searches: the k-th largest, found by choosing k. Fewer than k entries
 * exceed it; they are selected afterwards. @param  indices  [scratch] */
static tamis_status find_reused(const tam_bucket_view *v, const tam_select_job *all,
                                uint32_t *indices, uint32_t *out) {
    tam_select_job job = *all;
    tam_select_result chosen;
    job.kind = TAM_SELECT_TOTAL;
    job.k = v->k < all->k ? (size_t)v->k : all->k;
    TAM_TRY(v->device->select(v->kernels, &job, indices, &chosen));
    v->control->reused = (double)chosen.key;
    *out = chosen.key > 0.0f ? tam_bits(chosen.key) + 1 : 1;
    return TAMIS_OK;
}

/* Ok-Topk, in all other steps: raise the threshold while far too many entries exceed it.
 * @param  out  [out]  untouched if the pass's own threshold stays */
static tamis_status raise_reused(const tam_bucket_view *v, uint32_t *out) {
    const tam_candidates *seen = &v->accumulated.candidates;
    tam_control *c = v->control;
    uint64_t found = seen->count;
    c->reused = c->state.threshold;
    if (!seen->complete)
        TAM_TRY(v->device->count(v->kernels, v->acc, c->thresholds[0], &found));
    for (int i = 0; i < TAM_REUSE_RAISES && tam_rule_too_many(found, v->k); i++) {
        c->reused *= TAM_REUSE_RAISE;
        *out = tam_rule_over(c->reused);
        if (i + 1 < TAM_REUSE_RAISES)
            TAM_TRY(v->device->count(v->kernels, v->acc, *out, &found));
    }
    return TAMIS_OK;
}

/* A threshold that follows from the accumulated gradient. */
static tamis_status selection_find_threshold(const tam_bucket_view *v, tam_select_job *job,
                                             uint32_t *indices) {
    tam_scheme s = tam_selection_scheme(v);
    if (s.threshold == TAM_THRESHOLD_SAGE)
        return threshold_of_sage(v, &job->threshold);
    if (s.threshold == TAM_THRESHOLD_REUSE)
        return v->control->state.primed > 0 ? raise_reused(v, &job->threshold)
                                            : find_reused(v, job, indices, &job->threshold);
    return TAMIS_OK;
}

/* -- run -------------------------------------------------------------------------------------- */

static tam_select_job choose_job(const tam_bucket_view *v, const tam_packing *packing,
                                 size_t limit) {
    tam_scheme s = tam_selection_scheme(v);
    const tam_control *c = v->control;
    tam_select_job job = {
        .kind = TAM_SELECT_TOTAL,
        .acc = v->acc,
        .mine = tam_part_of(v->division, v->step, v->rank),
        .k = limit,
        .floor_key = c->floor_key,
        .candidates = tam_rule_listed(s.threshold, &c->state) ? &v->accumulated.candidates : NULL,
    };
    if (tam_scheme_by_group(s)) {
        job.kind = TAM_SELECT_GROUPS;
        job.budgets = packing->budgets;
    } else if (tam_scheme_by_threshold(s)) {
        job.kind = TAM_SELECT_ALL;
    } else {
        size_t budget = tam_budget_of(v->division, v->step, v->rank, v->k);
        job.k = budget < limit ? budget : limit;
        job.weights = tam_scheme_weighted(s) ? c->weights : NULL;
    }
    return job;
}

/* Ok-Topk, in a step that searches: if nothing exceeds the k-th largest, as with k = 1, take what
 * equals it. */
tamis_status tam_selection_run(const tam_bucket_view *v, const tam_packing *packing, size_t limit,
                               uint32_t *indices, tam_select_result *out) {
    tam_select_job job = choose_job(v, packing, limit);
    const tam_control *c = v->control;
    TAM_TRY(selection_find_threshold(v, &job, indices));
    TAM_TRY(v->device->select(v->kernels, &job, indices, out));
    bool looks = c->scheme.threshold == TAM_THRESHOLD_REUSE && c->state.primed == 0;
    if (out->count > 0 || !looks || c->reused == 0.0)
        return TAMIS_OK;
    job.threshold = tam_bits((float)c->reused);
    return v->device->select(v->kernels, &job, indices, out);
}
