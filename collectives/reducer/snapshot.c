/* SPDX-License-Identifier: MIT */
#include "collectives/reducer/snapshot.h"

#include <math.h>

typedef struct snapshot_row {
    tam_control_state control;
    uint64_t last_result, early_nonfinite, begun;
    double norm;
} snapshot_row;

static snapshot_row *rows_in(const void *snapshot) {
    return (snapshot_row *)(void *)((char *)(uintptr_t)snapshot + sizeof(tam_run_position));
}

static double *levels_in(const tamis_reducer *r, const void *snapshot) {
    return (double *)(void *)(rows_in(snapshot) + r->nbuckets);
}

/* Ownership balanced: the blocks of each part. @param nranks  that select */
static uint32_t blocks_length(const tam_bucket *b, uint32_t nranks) {
    return b->scheme.ownership == TAM_OWN_BALANCED ? nranks : 0;
}

/* Words that a bucket keeps beside control: blocks, and what its exchange remembers. */
static size_t parts_length(const tam_bucket *b, uint32_t comm_nranks) {
    uint32_t nranks = comm_nranks / b->node_shard.nlocal;
    return b->view.has_residual ? blocks_length(b, nranks) + tam_exchange_words(b->exchange, nranks)
                                : 0;
}

static size_t all_parts_length(const tamis_reducer *r, uint32_t nranks) {
    size_t words = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        words += parts_length(&r->buckets[i], nranks);
    return words;
}

/* In a snapshot of as many ranks as here. */
static uint64_t *parts_in(const tamis_reducer *r, const void *snapshot, uint32_t bucket) {
    const double *levels = levels_in(r, snapshot);
    uint64_t *parts;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        levels += r->buckets[i].division.grid.ngroups;
    parts = (uint64_t *)(void *)(uintptr_t)levels;
    for (uint32_t i = 0; i < bucket; i++)
        parts += parts_length(&r->buckets[i], r->comm->nranks);
    return parts;
}

static void pack_parts(const tam_bucket *b, uint64_t *parts) {
    uint32_t nranks = b->view.nranks, nblocks = blocks_length(b, nranks);
    size_t words = tam_exchange_words(b->exchange, nranks);
    if (nblocks > 0)
        memcpy(parts, b->division.topology.blocks, nblocks * sizeof parts[0]);
    if (words > 0)
        memcpy(parts + nblocks, b->exchange->state(b->exchanged), words * sizeof parts[0]);
}

static void take_parts(tam_bucket *b, const uint64_t *parts) {
    uint32_t nranks = b->view.nranks, nblocks = blocks_length(b, nranks);
    size_t words = tam_exchange_words(b->exchange, nranks);
    if (nblocks > 0) {
        memcpy(b->division.topology.blocks, parts, nblocks * sizeof parts[0]);
        tam_division_follow(&b->division);
    }
    if (words > 0)
        memcpy(b->exchange->state(b->exchanged), parts + nblocks, words * sizeof parts[0]);
}

static bool parts_valid(const tam_bucket *b, const uint64_t *parts) {
    uint32_t nblocks = blocks_length(b, b->view.nranks);
    return (nblocks == 0 || tam_topology_valid(&b->division.topology, parts)) &&
           (!b->exchange->state_valid || b->exchange->state_valid(&b->view, parts + nblocks));
}

size_t tam_snapshot_bytes(const tamis_reducer *r, uint64_t ngroups, uint32_t nranks) {
    uint64_t words = ngroups + all_parts_length(r, nranks);
    return sizeof(tam_run_position) + r->nbuckets * sizeof(snapshot_row) + words * sizeof(uint64_t);
}

uint64_t tam_snapshot_ngroups(const tamis_reducer *r) {
    uint64_t ngroups = 0;
    for (uint32_t i = 0; i < r->nbuckets && r->acc; i++)
        ngroups += r->buckets[i].division.grid.ngroups;
    return ngroups;
}

/* -- out -------------------------------------------------------------------------------------- */

/* While a step ends, the thread that launched the bucket may not have cleared `begun` yet. */
static snapshot_row snapshot_row_of(const tam_bucket *b, bool between) {
    return (snapshot_row){.control = b->control.state,
                          .last_result = b->view.last_result,
                          .early_nonfinite = b->view.early_nonfinite,
                          .begun = between && b->begun,
                          .norm = b->reducer->norms[b->view.index]};
}

void tam_snapshot_pack(const tamis_reducer *r, bool between, void *snapshot) {
    snapshot_row *rows = rows_in(snapshot);
    double *levels = levels_in(r, snapshot);
    *(tam_run_position *)snapshot = (tam_run_position){
        r->step,    r->stats.steps, r->stats.rescans_total, r->stats.wire_bytes_total,
        r->density, r->has_norms,   r->norm_matching,       r->slowdown};
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        uint32_t ngroups = r->acc ? b->division.grid.ngroups : 0;
        rows[i] = snapshot_row_of(b, between);
        if (ngroups > 0)
            memcpy(levels, b->control.levels, ngroups * sizeof levels[0]);
        levels += ngroups;
        if (b->view.has_residual)
            pack_parts(b, parts_in(r, snapshot, i));
    }
}

/* -- in --------------------------------------------------------------------------------------- */

/* As tamis_reducer_set_density. */
bool tam_snapshot_can_send(const tamis_reducer *r, double density) {
    if (!tam_positive_upto(density, 1.0))
        return false;
    uint64_t k = tam_reducer_entries(density, r->layout->ordinary);
    return k == r->k || (!r->in_graph && k >= tam_ordinary_buckets(r) && k <= r->k_max);
}

tamis_status tam_snapshot_check(const tamis_reducer *r, const void *snapshot, const char *where) {
    const tam_run_position *position = snapshot;
    if (!tam_snapshot_can_send(r, position->density))
        return tam_fail(TAMIS_E_FORMAT,
                        "%s: its density was set to %.9g, which this reducer cannot send", where,
                        position->density);
    if (!tam_norm_matching_valid(position->norm_matching))
        return tam_fail(TAMIS_E_FORMAT, "%s: its norms of updates are impossible", where);
    if (!tam_slowdown_valid(&position->slowdown))
        return tam_fail(TAMIS_E_FORMAT, "%s: its times of steps are impossible", where);
    for (uint32_t i = 0; i < r->nbuckets && r->acc; i++) {
        if (!parts_valid(&r->buckets[i], parts_in(r, snapshot, i)))
            return tam_fail(TAMIS_E_FORMAT, "%s: its parts do not cover the vector", where);
    }
    return TAMIS_OK;
}

static void snapshot_take_control(tam_bucket *b, const snapshot_row *row, const double *levels) {
    b->control.state = row->control;
    memcpy(b->control.levels, levels, b->division.grid.ngroups * sizeof levels[0]);
    tam_control_prepare(&b->control);
}

/* Budgets follow from k and the norms; the saved levels already include them, so they come after. A
 * snapshot of another number of ranks changes no parts, and no thresholds that belong to what an
 * exchange remembers. */
static void take_buckets(tamis_reducer *r, const void *snapshot, uint64_t ngroups, bool foreign) {
    const tam_run_position *position = snapshot;
    const snapshot_row *rows = rows_in(snapshot);
    const double *levels = levels_in(r, snapshot);
    bool fits = ngroups == tam_snapshot_ngroups(r);
    tam_reducer_take_density(r, position->density);
    r->has_norms = position->has_norms;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->norms[i] = rows[i].norm;
    tam_buckets_budget(r);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (!foreign || (fits && tam_exchange_words(b->exchange, r->nranks) == 0))
            snapshot_take_control(b, &rows[i], levels);
        if (!foreign)
            take_parts(b, parts_in(r, snapshot, i));
        levels += b->division.grid.ngroups;
        b->view.last_result = rows[i].last_result;
        b->view.early_nonfinite = rows[i].early_nonfinite;
        b->begun = rows[i].begun != 0;
    }
}

static void take_position(tamis_reducer *r, const tam_run_position *position) {
    r->step = position->step;
    r->stats.steps = position->steps;
    r->stats.length = r->layout->length;
    r->stats.rescans_total = position->rescans_total;
    r->stats.wire_bytes_total = position->wire_bytes_total;
    r->norm_matching = position->norm_matching;
    r->slowdown = position->slowdown;
    r->times = (tam_step_times){0};
}

void tam_snapshot_take(tamis_reducer *r, const void *snapshot, uint64_t ngroups, bool foreign) {
    tam_nonfinite_forget(r);
    if (r->acc)
        take_buckets(r, snapshot, ngroups, foreign);
    take_position(r, snapshot);
}

tamis_status tam_snapshot_resume(tamis_reducer *r) {
    r->has_result = false;
    tam_skew_forget(r);
    return r->driver->reload(r);
}

tamis_status tam_snapshot_return(tamis_reducer *r, void *snapshot) {
    snapshot_row *rows = rows_in(snapshot);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        rows[i].early_nonfinite += r->buckets[i].view.early_nonfinite;
        rows[i].begun = r->buckets[i].begun;
    }
    tam_snapshot_take(r, snapshot, tam_snapshot_ngroups(r), false);
    return tam_snapshot_resume(r);
}
