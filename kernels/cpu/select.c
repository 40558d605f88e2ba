/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/select.h"

#include "kernels/cpu/scan.h"
#include "lib/base/base.h"
#include "lib/base/numbers.h"

#include <float.h>

enum {
    SMALL = 1 << 15,      /* up to so many entries: use all keys, without a guess */
    SAMPLE_MIN = 1 << 13, /* least keys in a sample */
    SAMPLE_ONE_IN = 256,  /* sample one entry in so many, ... */
    SAMPLE_LARGEST = 32,  /* ... or more, up to one in so many, ... */
    SAMPLE_CHOSEN = 64,   /* ... so that about so many chosen ones are in the sample */
    GUESSES = 3
};

tamis_status tam_select_open(tam_sweep *sweep, tam_select *out) {
    const tam_grid *grid = sweep->grid;
    tam_select s = {.sweep = sweep, .capacity = SMALL};
    if (s.capacity < grid->n / SAMPLE_LARGEST)
        s.capacity = grid->n / SAMPLE_LARGEST;
    if (s.capacity < sweep->capacity)
        s.capacity = sweep->capacity;
    s.keys = tam_alloc_array(s.capacity, sizeof s.keys[0]);
    s.spare = tam_alloc_array(s.capacity, sizeof s.spare[0]);
    s.thresholds = tam_alloc_array(grid->ngroups, sizeof s.thresholds[0]);
    s.last_thresholds = tam_alloc_array(grid->ngroups, sizeof s.last_thresholds[0]);
    s.cutoffs = tam_alloc_array(grid->ngroups, sizeof s.cutoffs[0]);
    if (!s.keys || !s.spare || !s.thresholds || !s.last_thresholds || !s.cutoffs)
        goto err_close;
    for (uint32_t g = 0; g < grid->ngroups; g++)
        s.last_thresholds[g] = TAM_INFINITE_BITS;
    *out = s;
    return TAMIS_OK;

err_close:
    tam_select_close(&s);
    return tam_fail(TAMIS_E_NOMEM, "no memory to select from %zu candidates", sweep->capacity);
}

void tam_select_close(tam_select *s) {
    tam_free(s->keys);
    tam_free(s->spare);
    tam_free(s->thresholds);
    tam_free(s->last_thresholds);
    tam_free(s->cutoffs);
    *s = (tam_select){0};
}

/* -- from a list ------------------------------------------------------------------------------ */

static uint64_t group_end(const tam_group *group) {
    return (uint64_t)group->begin + group->length;
}

/* Keys of the list: its magnitudes, or those times the weights, in s->keys. */
static const uint32_t *list_keys(tam_select *s, const tam_scope *scope,
                                 const tam_candidates *list) {
    if (!scope->weights)
        return list->magnitude;
    uint32_t g = scope->grid->tiles[scope->span.first].group;
    for (size_t i = 0; i < list->count; g++) {
        size_t end =
            tam_first_from(list->index, i, list->count, group_end(&scope->grid->groups[g]));
        float weight = scope->weights[g];
        for (; i < end; i++)
            s->keys[i] = tam_key(list->magnitude[i], weight);
    }
    return s->keys;
}

static void select_emit_list(const tam_candidates *list, const uint32_t *keys, tam_cutoff cutoff,
                             size_t k, uint32_t *indices) {
    for (size_t i = 0, count = 0; count < k; i++) {
        indices[count] = list->index[i];
        if (keys[i] == cutoff.key)
            count += tam_chosen(keys[i], cutoff.key, &cutoff.ties) != 0;
        else
            count += keys[i] > cutoff.key; /* true about half the time: no branch */
    }
}

/* Choose k of a list that holds every entry whose key is at or over `floor`.
 * @return  whether it holds enough of them */
static bool select_from_list(tam_select *s, const tam_scope *scope, const tam_candidates *list,
                             uint32_t floor, size_t k, uint32_t *indices, tam_cutoff *cutoff) {
    if (!list->complete || list->count < k)
        return false;
    const uint32_t *keys = list_keys(s, scope, list);
    *cutoff = tam_kth(keys, list->count, k, s->spare);
    if (cutoff->key < floor)
        return false;
    if (indices)
        select_emit_list(list, keys, *cutoff, k, indices);
    return true;
}

/* -- from the tiles --------------------------------------------------------------------------- */

/* A magnitude at or under the least one whose key, rounded, is at least `key`. */
static uint32_t threshold_of(uint32_t key, float weight) {
    /* Above the middle to the next lower key the product rounds up; exact in binary64. */
    double middle = key >= TAM_INFINITE_BITS
                        ? 0x1.ffffffp127
                        : ((double)tam_float(key) + (double)tam_float(key - 1)) / 2.0;
    double bound = middle / (double)weight * (1.0 - 0x1p-50);
    if (!(bound < (double)FLT_MAX))
        return TAM_INFINITE_BITS - 1;
    uint32_t bits = tam_bits((float)bound);
    if ((double)tam_float(bits) > bound)
        bits--;
    return bits > 0 ? bits : 1;
}

/* The entries at or over s->thresholds. */
static tam_candidates sweep(tam_select *s, const tam_scope *scope) {
    tam_candidates found;
    tam_accumulate job = {
        .acc = (float *)scope->acc, /* without a gradient it is only read */
        .mine = scope->mine,
        .thresholds = s->thresholds,
    };
    tam_sweep_run(s->sweep, &job, scope->span, &found);
    return found;
}

static tam_candidates select_search(tam_select *s, const tam_scope *scope, uint32_t key) {
    const tam_tile *tiles = scope->grid->tiles;
    uint32_t last = tiles[scope->span.end - 1].group;
    for (uint32_t g = tiles[scope->span.first].group; g <= last; g++)
        s->thresholds[g] = threshold_of(key, tam_weight(scope->weights, g));
    return sweep(s, scope);
}

/* How many keys to sample, so that the rank of the guess is meaningful. */
static size_t select_sample_size(const tam_select *s, size_t own, size_t k) {
    double wanted = (double)own * SAMPLE_CHOSEN / (double)k;
    size_t size = tam_max(own / SAMPLE_ONE_IN, SAMPLE_MIN);
    if (wanted > (double)size)
        size = wanted < (double)own ? (size_t)wanted : own;
    return tam_min(size, tam_min(s->capacity, tam_max(own / SAMPLE_LARGEST, SAMPLE_MIN)));
}

/* Search for about one and a half times k entries; too many or too few change the target. */
static bool select_by_search(tam_select *s, const tam_scope *scope, size_t own, size_t k,
                             uint32_t *indices, tam_cutoff *cutoff, size_t *considered) {
    size_t most = s->sweep->capacity, size = 0, target = 0;
    if (k + k / 8 > most || k > own / 2) /* hardly any guess would fit */
        return false;
    size_t stride = own / select_sample_size(s, own, k);
    for (int guess = 0; guess < GUESSES; guess++) {
        if (guess == 0 || scope->weights) /* the keys of a weighted list overwrite the sample */
            size = tam_scan_sample(scope, stride, s->capacity, s->keys);
        size_t chosen = (size_t)((double)k * (double)size / (double)own);
        if (guess == 0) {
            target = chosen + chosen / 2 + 8;
            target = tam_min(target, (size_t)(0.8 * (double)most * (double)size / (double)own));
        }
        target = tam_min(tam_max(target, 1), size);
        uint32_t key = tam_max(tam_kth(s->keys, size, target, s->spare).key, 1);
        tam_candidates found = select_search(s, scope, key);
        *considered = found.count;
        if (select_from_list(s, scope, &found, key, k, indices, cutoff))
            return true;
        if (found.complete && key == 1) /* there are zeros among the k */
            return false;
        target = found.complete ? 2 * target + 8 : chosen + (tam_max(target, chosen) - chosen) / 4;
    }
    return false;
}

static void select_tiles(tam_select *s, const tam_scope *scope, size_t own, size_t k,
                         uint32_t *indices, tam_cutoff *cutoff, size_t *considered) {
    if (own > SMALL && select_by_search(s, scope, own, k, indices, cutoff, considered))
        return;
    *considered = own;
    if (own <= SMALL) {
        tam_scan_keys(scope, s->keys);
        *cutoff = tam_kth(s->keys, own, k, s->spare);
    } else {
        *cutoff = tam_scan_kth(scope, k);
    }
    if (indices)
        tam_scan_emit(scope, *cutoff, k, indices);
}

/* -- the three kinds -------------------------------------------------------------------------- */

static tam_scope select_whole(const tam_select *s, const tam_select_job *job) {
    return (tam_scope){
        .grid = s->sweep->grid,
        .acc = job->acc,
        .span = {0, s->sweep->grid->ntiles},
        .mine = job->mine,
    };
}

static void select_total(tam_select *s, const tam_select_job *job, uint32_t *indices,
                         tam_select_result *out) {
    tam_scope scope = select_whole(s, job);
    scope.weights = job->weights;
    size_t own = tam_scan_length(&scope), k = tam_min(job->k, own);
    tam_cutoff cutoff;
    if (k == 0)
        return;
    uint32_t floor = (job->floor_key > 0.0f ? tam_bits(job->floor_key) : 0) + 1;
    if (job->candidates)
        out->candidates = job->candidates->count;
    if (!job->candidates ||
        !select_from_list(s, &scope, job->candidates, floor, k, indices, &cutoff)) {
        select_tiles(s, &scope, own, k, indices, &cutoff, &out->candidates);
        out->rescanned = true;
    }
    out->count = k;
    out->key = tam_float(cutoff.key);
}

/* Choose the k largest of the entries that pass s->cutoffs. */
static void select_trim(tam_select *s, const tam_select_job *job, uint32_t *indices,
                        tam_select_result *out) {
    tam_scope scope = select_whole(s, job);
    scope.only = s->cutoffs;
    size_t all = tam_scan_count(&scope), k = tam_min(job->k, all);
    out->count = k;
    out->deferred = all - k;
    out->rescanned = true;
    if (k == 0)
        return;
    tam_cutoff cutoff = tam_scan_kth(&scope, k);
    tam_scan_emit(&scope, cutoff, k, indices);
    out->key = tam_float(cutoff.key);
}

/* Choose among all entries at or over s->thresholds, without a list. */
static void trim_all(tam_select *s, const tam_select_job *job, uint32_t *indices,
                     tam_select_result *out) {
    for (uint32_t g = 0; g < s->sweep->grid->ngroups; g++) {
        bool any = s->thresholds[g] < TAM_INFINITE_BITS;
        s->cutoffs[g] = (tam_cutoff){s->thresholds[g], any ? SIZE_MAX : 0};
    }
    select_trim(s, job, indices, out);
    out->candidates = out->count + out->deferred;
}

static void select_all(tam_select *s, const tam_select_job *job, uint32_t *indices,
                       tam_select_result *out) {
    const tam_candidates *list = job->candidates;
    tam_scope scope = select_whole(s, job);
    tam_candidates found;
    out->rescanned = job->threshold != 0;
    for (uint32_t g = 0; g < s->sweep->grid->ngroups; g++)
        s->thresholds[g] = job->threshold ? job->threshold : s->last_thresholds[g];
    if (job->threshold) {
        found = sweep(s, &scope);
        list = &found;
    }
    if (!list || !list->complete) {
        trim_all(s, job, indices, out);
        return;
    }
    size_t k = tam_min(job->k, list->count);
    out->candidates = list->count;
    out->count = k;
    out->deferred = list->count - k;
    if (k == 0)
        return;
    tam_cutoff cutoff = tam_kth(list->magnitude, list->count, k, s->spare);
    select_emit_list(list, list->magnitude, cutoff, k, indices);
    out->key = tam_float(cutoff.key);
}

/* Narrow the scope to one group. @return  entries to choose there */
static size_t enter_group(const tam_select_job *job, uint32_t g, tam_scope *scope) {
    const tam_group *group = &scope->grid->groups[g];
    scope->span = (tam_span){group->first_tile, group->first_tile + group->ntiles};
    return tam_min(job->budgets[g], tam_scan_length(scope));
}

/* Number of entries that the budgets ask for. */
static size_t count_budgets(const tam_select_job *job, tam_scope scope) {
    size_t total = 0;
    for (uint32_t g = 0; g < scope.grid->ngroups; g++)
        total += enter_group(job, g, &scope);
    return total;
}

static void select_groups(tam_select *s, const tam_select_job *job, uint32_t *indices,
                          tam_select_result *out) {
    tam_scope scope = select_whole(s, job);
    size_t total = count_budgets(job, scope);
    bool fits = total <= job->k;
    uint32_t least = UINT32_MAX;
    for (uint32_t g = 0; g < scope.grid->ngroups; g++) {
        size_t k = enter_group(job, g, &scope), considered = 0;
        uint32_t *to = fits ? indices + out->count : NULL;
        s->cutoffs[g] = (tam_cutoff){UINT32_MAX, 0};
        if (k > 0)
            select_tiles(s, &scope, tam_scan_length(&scope), k, to, &s->cutoffs[g], &considered);
        least = (uint32_t)tam_min(least, s->cutoffs[g].key);
        out->count += k;
        out->candidates += considered;
    }
    out->rescanned = total > 0;
    if (!fits)
        select_trim(s, job, indices, out);
    else if (total > 0)
        out->key = tam_float(least);
}

void tam_select_run(tam_select *s, const tam_select_job *job, uint32_t *indices,
                    tam_select_result *out) {
    *out = (tam_select_result){0};
    switch (job->kind) {
    case TAM_SELECT_TOTAL:
        select_total(s, job, indices, out);
        break;
    case TAM_SELECT_GROUPS:
        select_groups(s, job, indices, out);
        break;
    case TAM_SELECT_ALL:
        select_all(s, job, indices, out);
        break;
    }
}
