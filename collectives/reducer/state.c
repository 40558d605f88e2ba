/* SPDX-License-Identifier: MIT */
#include "collectives/reducer/state.h"

#include "collectives/reducer/undo.h"

#include <stdio.h>
#include <xxhash.h>

#define MAGIC UINT64_C(0x0b1d657461747453) /* changes with the format; odd bytes on purpose */
#define BYTE_ORDER_MARK UINT64_C(0x0102030405060708)

typedef struct state_row {
    tam_control_state control;
    uint64_t last_result, early_nonfinite, begun;
    double norm;
} state_row;

/* What is `now` in a state. */
static void *now_in(const void *control) {
    return (char *)(uintptr_t)control + sizeof(tam_state_header);
}

static state_row *rows_in(const void *moment) {
    return (state_row *)(void *)((char *)(uintptr_t)moment + sizeof(tam_state_place));
}

static double *levels_in(const tamis_reducer *r, const void *moment) {
    return (double *)(void *)(rows_in(moment) + r->nbuckets);
}

/* Of ownership balanced the blocks of each part. @param  nranks  that pick */
static uint32_t blocks_length(const tam_bucket *b, uint32_t nranks) {
    return b->scheme.ownership == TAM_OWN_BALANCED ? nranks : 0;
}

/* Words that a bucket keeps beside control, in a communicator of so many ranks: blocks, and what its
 * exchange remembers. */
static size_t parts_length(const tam_bucket *b, uint32_t comm_nranks) {
    uint32_t nranks = comm_nranks / b->slice.nlocal;
    return b->view.keeps ? blocks_length(b, nranks) + b->exchange->state_words(nranks) : 0;
}

static size_t all_parts_length(const tamis_reducer *r, uint32_t nranks) {
    size_t words = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        words += parts_length(&r->buckets[i], nranks);
    return words;
}

/* In a moment of as many ranks as here. */
static uint64_t *parts_in(const tamis_reducer *r, const void *moment, uint32_t bucket) {
    const double *levels = levels_in(r, moment);
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
    size_t words = b->exchange->state_words(nranks);
    if (nblocks > 0)
        memcpy(parts, b->division.topology.blocks, nblocks * sizeof parts[0]);
    if (words > 0)
        memcpy(parts + nblocks, b->exchange->state(b->exchanged), words * sizeof parts[0]);
}

static void take_parts(tam_bucket *b, const uint64_t *parts) {
    uint32_t nranks = b->view.nranks, nblocks = blocks_length(b, nranks);
    size_t words = b->exchange->state_words(nranks);
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
           b->exchange->state_valid(&b->view, parts + nblocks);
}

static size_t moment_bytes(const tamis_reducer *r, uint64_t ngroups, uint32_t nranks) {
    uint64_t words = ngroups + all_parts_length(r, nranks);
    return sizeof(tam_state_place) + r->nbuckets * sizeof(state_row) + words * sizeof(uint64_t);
}

tam_state_sizes tam_state_sizes_of(const tamis_reducer *r) {
    tam_state_sizes sizes = {0};
    for (uint32_t i = 0; i < r->nbuckets && r->acc; i++) /* scheme dense may have a division, too */
        sizes.ngroups += r->buckets[i].division.grid.ngroups;
    sizes.residual = r->acc ? (size_t)r->held * sizeof(float) : 0;
    sizes.moments = sizes.residual * ((r->first != NULL) + (r->second != NULL));
    sizes.moment = moment_bytes(r, sizes.ngroups, r->comm->nranks);
    sizes.undo = tam_undo_bytes(r, sizes.moment);
    sizes.control = sizeof(tam_state_header) + sizes.moment + sizes.undo;
    return sizes;
}

static tamis_status check_between_steps(const tamis_reducer *r, const char *call) {
    if (!r->started)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_STATE, "%s: a step is under way; call tamis_reduce_wait first", call);
}

tamis_status tam_state_settle(tamis_reducer *r, const char *call) {
    TAM_TRY(check_between_steps(r, call));
    return r->driver->settle(r);
}

tamis_status tam_state_settle_to_load(tamis_reducer *r, const char *call) {
    TAM_TRY(check_between_steps(r, call));
    if (r->abandoned)
        return tam_fail(TAMIS_E_STATE, "%s: the last exchange never ended; make a new reducer",
                        call);
    return r->driver->settle(r); /* the outcome of what was joined is replaced */
}

/* -- out -------------------------------------------------------------------------------------- */

/* Each piece is hashed on top of those before it. */
static uint64_t hash_piece(const void *memory, size_t bytes, uint64_t before) {
    return XXH3_64bits_withSeed(memory, bytes, before);
}

static size_t piece_at(size_t at, size_t bytes) {
    return bytes - at < TAM_STATE_PIECE ? bytes - at : TAM_STATE_PIECE;
}

tamis_status tam_state_vector(const tamis_reducer *r, const float *vector, tam_state_sink sink,
                              void *arg, uint64_t *out_hash) {
    size_t bytes = tam_state_sizes_of(r).residual;
    tamis_status status = TAMIS_OK;
    uint64_t hash = 0;
    void *piece = tam_alloc(piece_at(0, bytes));
    if (!piece)
        return tam_fail(TAMIS_E_NOMEM, "no memory to read a vector of the state");
    for (size_t at = 0; at < bytes && status == TAMIS_OK; at += TAM_STATE_PIECE) {
        size_t length = piece_at(at, bytes);
        status =
            r->device->read(r->buckets[0].view.kernels, (const char *)vector + at, length, piece);
        if (status == TAMIS_OK)
            status = sink(arg, at, piece, length);
        hash = hash_piece(piece, length, hash);
    }
    tam_free(piece);
    if (status == TAMIS_OK)
        *out_hash = hash;
    return status;
}

/* But for `begun`, which the thread that launches a bucket has not left yet while the step of that
 * bucket ends. */
static state_row row_of(const tam_bucket *b) {
    return (state_row){.control = b->control.state,
                       .last_result = b->view.last_result,
                       .early_nonfinite = b->view.early_nonfinite,
                       .norm = b->reducer->norms[b->view.index]};
}

static uint64_t hash_header(const tam_state_header *h) {
    return XXH3_64bits(h, offsetof(tam_state_header, header_hash));
}

static uint64_t hash_parts(const void *control, size_t bytes) {
    return XXH3_64bits(now_in(control), bytes - sizeof(tam_state_header));
}

void tam_state_pack_moment(const tamis_reducer *r, void *moment) {
    state_row *rows = rows_in(moment);
    double *levels = levels_in(r, moment);
    *(tam_state_place *)moment = (tam_state_place){
        r->step, r->stats.steps, r->stats.rescans_total, r->stats.wire_bytes_total,
        r->k,    r->has_norms};
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        uint32_t ngroups = r->acc ? b->division.grid.ngroups : 0;
        rows[i] = row_of(b);
        if (ngroups > 0)
            memcpy(levels, b->control.levels, ngroups * sizeof levels[0]);
        levels += ngroups;
        if (b->view.keeps)
            pack_parts(b, parts_in(r, moment, i));
    }
}

void tam_state_pack(const tamis_reducer *r, uint64_t residual_hash, uint64_t moments_hash,
                    void *control) {
    tam_state_sizes sizes = tam_state_sizes_of(r);
    tam_state_header *h = control;
    if (r->stats.steps == 0)
        tam_log(TAM_WARN,
                "rank %u: the state that is saved has seen 0 steps: has the reducer been used?",
                r->comm->rank);
    memset(control, 0, sizes.control);
    tam_state_pack_moment(r, now_in(control));
    for (uint32_t i = 0; i < r->nbuckets; i++)
        rows_in(now_in(control))[i].begun = r->buckets[i].begun;
    memcpy((char *)now_in(control) + sizes.moment, r->undo, sizes.undo);
    h->magic = MAGIC;
    h->byte_order = BYTE_ORDER_MARK;
    h->control_bytes = sizes.control;
    h->residual_bytes = sizes.residual;
    h->moments_bytes = sizes.moments;
    h->undo_bytes = sizes.undo;
    tam_agreement_of_state(&r->agreement, h->fields);
    h->rank = r->comm->rank;
    h->nranks = r->comm->nranks;
    h->nbuckets = r->nbuckets;
    h->ngroups = sizes.ngroups;
    h->passes = r->passes;
    h->parts_hash = hash_parts(control, sizes.control);
    h->residual_hash = residual_hash;
    h->moments_hash = moments_hash;
    h->header_hash = hash_header(h);
}

/* -- in --------------------------------------------------------------------------------------- */

tamis_status tam_state_refuse(const char *where, const char *why) {
    return tam_fail(TAMIS_E_FORMAT, "%s: %s", where, why);
}

/* As tamis_reducer_set_density. */
static bool can_send(const tamis_reducer *r, uint64_t k) {
    return k == r->k ||
           (r->driver == &tam_driver_host && k >= tam_ordinary_buckets(r) && k <= r->k_max);
}

static bool is_foreign(const tamis_reducer *r, const tam_state_header *h) {
    return h->nranks != r->comm->nranks;
}

static tamis_status check_owner(const tamis_reducer *r, const tam_state_header *h, bool alone,
                                const char *where) {
    char text[160];
    if (tam_agreement_differs(&r->agreement, h->fields, text, sizeof text))
        return tam_fail(TAMIS_E_FORMAT, "%s: it belongs to another reducer: %s", where, text);
    bool own = h->rank == r->comm->rank && !is_foreign(r, h);
    if (own || (alone && is_foreign(r, h) && h->nranks <= UINT32_MAX))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_FORMAT, "%s: it belongs to rank %llu of %llu, this is rank %u of %u",
                    where, (unsigned long long)h->rank, (unsigned long long)h->nranks,
                    r->comm->rank, r->comm->nranks);
}

/* Groups (ownership bins) and parts may be others with another number of ranks, and so what was
 * undone. */
static bool same_sizes(const tamis_reducer *r, const tam_state_header *h) {
    tam_state_sizes sizes = tam_state_sizes_of(r);
    if (h->nbuckets != r->nbuckets || h->ngroups > UINT32_MAX || h->undo_bytes > h->control_bytes ||
        h->residual_bytes != sizes.residual || h->moments_bytes != sizes.moments)
        return false;
    if (!is_foreign(r, h) && (h->ngroups != sizes.ngroups || h->undo_bytes != sizes.undo))
        return false;
    size_t moment = moment_bytes(r, h->ngroups, (uint32_t)h->nranks);
    return h->control_bytes - h->undo_bytes == sizeof *h + moment;
}

tamis_status tam_state_check_header(const tamis_reducer *r, const tam_state_header *h, bool alone,
                                    const char *where) {
    if (h->magic != MAGIC)
        return tam_state_refuse(where, "not a tamis state of this version");
    if (h->byte_order != BYTE_ORDER_MARK)
        return tam_state_refuse(where, "written on a machine with another byte order");
    if (h->header_hash != hash_header(h))
        return tam_state_refuse(where, "the header is damaged (checksum)");
    TAM_TRY(check_owner(r, h, alone, where));
    if (!same_sizes(r, h))
        return tam_state_refuse(where, "its parts have other sizes than this reducer's");
    return TAMIS_OK;
}

static uint64_t hash_residual(const float *residual, size_t bytes) {
    uint64_t hash = 0;
    for (size_t at = 0; at < bytes; at += TAM_STATE_PIECE)
        hash = hash_piece((const char *)residual + at, piece_at(at, bytes), hash);
    return hash;
}

uint64_t tam_state_join_hashes(uint64_t first, uint64_t second) {
    const uint64_t both[] = {first, second};
    return XXH3_64bits(both, sizeof both);
}

uint64_t tam_state_hash_moments(const tamis_reducer *r, const float *moments) {
    size_t bytes = tam_state_sizes_of(r).residual;
    uint64_t first = r->first ? hash_residual(moments, bytes) : 0;
    const float *rest = r->first ? moments + r->layout->length : moments;
    return tam_state_join_hashes(first, r->second ? hash_residual(rest, bytes) : 0);
}

/* Control as a state holds it, and as it was a step before. */
static tamis_status check_moment(const tamis_reducer *r, const void *moment, const char *where) {
    const tam_state_place *place = moment;
    if (!can_send(r, place->k))
        return tam_fail(TAMIS_E_FORMAT,
                        "%s: its density was set to %llu entries a step, which this reducer "
                        "cannot send",
                        where, (unsigned long long)place->k);
    for (uint32_t i = 0; i < r->nbuckets && r->acc; i++) {
        if (!parts_valid(&r->buckets[i], parts_in(r, moment, i)))
            return tam_state_refuse(where, "its parts do not make up the vector");
    }
    return TAMIS_OK;
}

/* Where its way back begins. Not of a foreign state. */
static const tam_undo *undo_in(const tamis_reducer *r, const void *control) {
    return (const void *)((char *)now_in(control) + tam_state_sizes_of(r).moment);
}

static tamis_status check_own(const tamis_reducer *r, const void *control, const char *where) {
    const tam_undo *undo = undo_in(r, control);
    TAM_TRY(check_moment(r, now_in(control), where));
    if (undo->way == TAM_WAY_BACK)
        TAM_TRY(check_moment(r, undo + 1, where));
    if (!tam_undo_valid(r, undo))
        return tam_state_refuse(where, "its last step reaches beyond the vector");
    return TAMIS_OK;
}

tamis_status tam_state_check_parts(const tamis_reducer *r, const void *control,
                                   const float *residual, const char *where) {
    const tam_state_header *h = control;
    if (h->parts_hash != hash_parts(control, h->control_bytes))
        return tam_state_refuse(where, "its content is damaged (checksum)");
    if (!is_foreign(r, h))
        TAM_TRY(check_own(r, control, where));
    else if (!can_send(r, ((const tam_state_place *)now_in(control))->k))
        return tam_state_refuse(where, "its density was set to what this reducer cannot send");
    if (residual && h->residual_hash != hash_residual(residual, h->residual_bytes))
        return tam_state_refuse(where, "its residual is damaged or of another moment (checksum)");
    return TAMIS_OK;
}

static void take_control(tam_bucket *b, const state_row *row, const double *levels) {
    b->control.state = row->control;
    memcpy(b->control.levels, levels, b->division.grid.ngroups * sizeof levels[0]);
    tam_control_prepare(&b->control);
}

/* The shares follow from k and the norms; levels were saved as they were after that. What another
 * number of ranks divided stays as it is here, and so do thresholds that go with what an exchange
 * remembers. */
static void take_buckets(tamis_reducer *r, const void *moment, uint64_t ngroups, bool foreign) {
    const tam_state_place *place = moment;
    const state_row *rows = rows_in(moment);
    const double *levels = levels_in(r, moment);
    bool fits = ngroups == tam_state_sizes_of(r).ngroups;
    tam_reducer_set_k(r, place->k);
    r->has_norms = place->has_norms;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->norms[i] = rows[i].norm;
    tam_buckets_share(r);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (!foreign || (fits && b->exchange->state_words(r->nranks) == 0))
            take_control(b, &rows[i], levels);
        if (!foreign)
            take_parts(b, parts_in(r, moment, i));
        levels += b->division.grid.ngroups;
        b->view.last_result = rows[i].last_result;
        b->view.early_nonfinite = rows[i].early_nonfinite;
        b->begun = rows[i].begun != 0;
    }
}

/* What another choice of exchange auto left in the residual goes with the next step. */
static void find_pending(tamis_reducer *r, const float *residual) {
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        bool pending = b->view.early_nonfinite > 0;
        for (uint64_t e = 0; e < b->slice.layout->length && !pending; e++)
            pending = residual[b->held_at + e] != 0.0f;
        b->view.pending = pending;
    }
}

/* A state goes with any choice: nothing is lost, but the bits are those of this one. */
static void tell_choice(const tamis_reducer *r, const tam_state_header *h) {
    uint64_t there = h->fields[TAM_FACT_DENSE_BUCKETS];
    uint64_t here = r->agreement.fields[TAM_FACT_DENSE_BUCKETS];
    if (there != here)
        tam_log(
            TAM_WARN,
            "rank %u: the state was saved with dense buckets %#llx, here they are %#llx; results "
            "go on with other bits (give link_latency_us and link_gbit to have the same choice)",
            r->comm->rank, (unsigned long long)there, (unsigned long long)here);
}

static void take_place(tamis_reducer *r, const tam_state_place *place) {
    r->step = place->step;
    r->stats.steps = place->steps;
    r->stats.length = r->layout->length;
    r->stats.rescans_total = place->rescans_total;
    r->stats.wire_bytes_total = place->wire_bytes_total;
}

tamis_status tam_state_take_moments(tamis_reducer *r, const float *first, const float *second) {
    size_t bytes = tam_state_sizes_of(r).residual;
    void *kernels = r->buckets[0].view.kernels;
    if (first)
        TAM_TRY(r->device->write(kernels, first, bytes, r->first));
    return second ? r->device->write(kernels, second, bytes, r->second) : TAMIS_OK;
}

/* A way back goes with the residual that the last step has left. */
static void take_undo(tamis_reducer *r, const void *control, bool with_residual) {
    const tam_state_header *h = control;
    if (h && with_residual && !is_foreign(r, h))
        memcpy(r->undo, undo_in(r, control), h->undo_bytes);
    else
        tam_undo_lose(r, TAM_WAY_NONE);
}

static void take_all(tamis_reducer *r, const void *control) {
    const tam_state_header *h = control;
    if (r->acc)
        take_buckets(r, now_in(control), h->ngroups, is_foreign(r, h));
    tell_choice(r, h);
    take_place(r, now_in(control));
    r->passes = h->passes;
}

/* The reducer is elsewhere in the run. */
static tamis_status arrive(tamis_reducer *r) {
    r->has_result = false;
    tam_arrive_forget(r);
    return r->driver->reload(r);
}

tamis_status tam_state_take(tamis_reducer *r, const void *control, const float *residual) {
    if (r->acc && residual) /* first, for it alone can fail */
        TAM_TRY(r->device->write(r->buckets[0].view.kernels, residual,
                                 tam_state_sizes_of(r).residual, r->acc));
    if (control)
        take_all(r, control);
    if (r->acc && residual)
        find_pending(r, residual);
    take_undo(r, control, residual || !r->acc);
    return arrive(r);
}

tamis_status tam_state_return(tamis_reducer *r, void *moment) {
    state_row *rows = rows_in(moment);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        rows[i].early_nonfinite += r->buckets[i].view.early_nonfinite;
        rows[i].begun = r->buckets[i].begun;
    }
    if (r->acc)
        take_buckets(r, moment, tam_state_sizes_of(r).ngroups, false);
    take_place(r, moment);
    return arrive(r);
}
