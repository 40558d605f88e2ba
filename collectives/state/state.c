/* SPDX-License-Identifier: MIT */
#include "collectives/state/state.h"
#include "lib/base/hash.h"

#include <xxhash.h>

#define MAGIC UINT64_C(0x0b1e657461747457) /* changes with the format; odd bytes on purpose */
#define NO_RANK UINT64_MAX                 /* of a state whose parts are to be divided anew */
#define BYTE_ORDER_MARK UINT64_C(0x0102030405060708)

/* The snapshot `now` of a state. */
static void *now_in(const void *control) {
    return (char *)(uintptr_t)control + sizeof(tam_state_header);
}

tam_state_sizes tam_state_sizes_of(const tamis_reducer *r) {
    tam_state_sizes sizes = {0};
    sizes.ngroups = tam_snapshot_ngroups(r);
    sizes.residual = r->acc ? (size_t)r->residual_length * sizeof(float) : 0;
    sizes.moments = sizes.residual * ((r->first != NULL) + (r->second != NULL));
    sizes.snapshot = tam_snapshot_bytes(r, sizes.ngroups, r->comm->nranks);
    sizes.rollback = tam_rollback_bytes(r);
    sizes.control = sizeof(tam_state_header) + sizes.snapshot + sizes.rollback;
    return sizes;
}

static tamis_status check_between_steps(const tamis_reducer *r, const char *call) {
    if (!r->started)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_STATE, "%s: a step is under way; call tamis_reducer_wait first", call);
}

tamis_status tam_state_quiesce(tamis_reducer *r, const char *call) {
    TAM_TRY(check_between_steps(r, call));
    return r->driver->quiesce(r);
}

tamis_status tam_state_quiesce_to_load(tamis_reducer *r, const char *call) {
    TAM_TRY(check_between_steps(r, call));
    if (r->abandoned)
        return tam_fail(TAMIS_E_STATE, "%s: the last exchange never ended; create a new reducer",
                        call);
    return r->driver->quiesce(r); /* the state replaces the outcome of joined steps */
}

/* -- out -------------------------------------------------------------------------------------- */

/* The hash of each piece is seeded with that of the pieces before it. */
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

static tamis_status copy_piece(void *arg, size_t at, const void *piece, size_t bytes) {
    memcpy((char *)arg + at, piece, bytes);
    return TAMIS_OK;
}

tamis_status tam_state_copy(const tamis_reducer *r, const float *vector, float *out) {
    uint64_t hash;
    return tam_state_vector(r, vector, copy_piece, out, &hash);
}

static uint64_t state_hash_header(const tam_state_header *h) {
    return tam_hash(h, offsetof(tam_state_header, header_hash));
}

static uint64_t hash_parts(const void *control, size_t bytes) {
    return tam_hash(now_in(control), bytes - sizeof(tam_state_header));
}

static uint64_t hash_borders(const tamis_reducer *r) {
    uint64_t hash = r->nbuckets;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        hash = XXH3_64bits_withSeed(&r->buckets[i].first_segment, sizeof(uint32_t), hash);
    return hash;
}

void tam_state_warn_unused(const tamis_reducer *r) {
    if (r->stats.steps == 0)
        tam_log(TAM_WARN, "rank %u: the saved state has seen 0 steps: was the reducer used?",
                r->comm->rank);
}

void tam_state_pack(const tamis_reducer *r, uint64_t residual_hash, uint64_t moments_hash,
                    void *control) {
    tam_state_sizes sizes = tam_state_sizes_of(r);
    tam_state_header *h = control;
    memset(control, 0, sizes.control);
    tam_snapshot_pack(r, true, now_in(control));
    tam_rollback_pack(r, (char *)now_in(control) + sizes.snapshot);
    h->magic = MAGIC;
    h->byte_order = BYTE_ORDER_MARK;
    h->control_bytes = sizes.control;
    h->residual_bytes = sizes.residual;
    h->moments_bytes = sizes.moments;
    h->rollback_bytes = sizes.rollback;
    tam_config_handshake_of_state(&r->handshake, h->fields);
    h->rank = r->comm->rank;
    h->nranks = r->comm->nranks;
    h->nbuckets = r->nbuckets;
    h->borders = hash_borders(r);
    h->link_latency_us = r->config.link_latency_us;
    h->link_gbit = r->config.link_gbit;
    h->ngroups = sizes.ngroups;
    h->passes = r->passes;
    h->parts_hash = hash_parts(control, sizes.control);
    h->residual_hash = residual_hash;
    h->moments_hash = moments_hash;
    h->header_hash = state_hash_header(h);
}

void tam_state_readdress(const tamis_reducer *r, void *control, bool same) {
    tam_state_header *h = control;
    if (h->header_hash != state_hash_header(h))
        return;
    h->rank = same ? r->comm->rank : NO_RANK;
    h->header_hash = state_hash_header(h);
}

/* -- in --------------------------------------------------------------------------------------- */

tamis_status tam_state_refuse(const char *where, const char *why) {
    return tam_fail(TAMIS_E_FORMAT, "%s: %s", where, why);
}

static bool is_foreign(const tamis_reducer *r, const tam_state_header *h) {
    return h->nranks != r->comm->nranks || h->rank == NO_RANK;
}

static tamis_status state_check_owner(const tamis_reducer *r, const tam_state_header *h, bool alone,
                                      const char *where) {
    char text[160];
    if (tam_config_handshake_differs(&r->handshake, h->fields, text, sizeof text))
        return tam_fail(TAMIS_E_FORMAT, "%s: it belongs to another reducer: %s", where, text);
    bool own = h->rank == r->comm->rank && !is_foreign(r, h);
    if (own || (alone && is_foreign(r, h) && h->nranks <= UINT32_MAX))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_FORMAT, "%s: it belongs to rank %llu of %llu, this is rank %u of %u",
                    where, (unsigned long long)h->rank, (unsigned long long)h->nranks,
                    r->comm->rank, r->comm->nranks);
}

/* With another number of ranks, groups (ownership bins), parts and the rollback record may differ
 * in size. */
static bool same_sizes(const tamis_reducer *r, const tam_state_header *h) {
    tam_state_sizes sizes = tam_state_sizes_of(r);
    if (h->nbuckets != r->nbuckets || h->ngroups > UINT32_MAX ||
        h->rollback_bytes > h->control_bytes || h->residual_bytes != sizes.residual ||
        h->moments_bytes != sizes.moments)
        return false;
    if (!is_foreign(r, h) && (h->ngroups != sizes.ngroups || h->rollback_bytes != sizes.rollback))
        return false;
    size_t now = tam_snapshot_bytes(r, h->ngroups, (uint32_t)h->nranks);
    return h->control_bytes - h->rollback_bytes == sizeof *h + now;
}

static tamis_status check_borders(const tamis_reducer *r, const tam_state_header *h,
                                  const char *where) {
    if (h->borders == hash_borders(r))
        return TAMIS_OK;
    return tam_fail(
        TAMIS_E_FORMAT,
        "%s: its buckets begin elsewhere than this reducer's: planned ones follow the "
        "number of ranks, %llu there and %u here, and the link; it had link_latency_us "
        "%g and link_gbit %g, here they are %g and %g. Give those of the state, over the "
        "same transport; with a number for bucket_length buckets follow none of these",
        where, (unsigned long long)h->nranks, r->comm->nranks, h->link_latency_us, h->link_gbit,
        r->config.link_latency_us, r->config.link_gbit);
}

tamis_status tam_state_check_header(const tamis_reducer *r, const tam_state_header *h, bool alone,
                                    const char *where) {
    if (h->magic != MAGIC)
        return tam_state_refuse(where, "not a tamis state of this version");
    if (h->byte_order != BYTE_ORDER_MARK)
        return tam_state_refuse(where, "written on a machine with another byte order");
    if (h->header_hash != state_hash_header(h))
        return tam_state_refuse(where, "the header is damaged (checksum)");
    TAM_TRY(state_check_owner(r, h, alone, where));
    TAM_TRY(check_borders(r, h, where));
    if (!same_sizes(r, h))
        return tam_state_refuse(where, "its parts differ in size from this reducer's");
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
    return tam_hash(both, sizeof both);
}

uint64_t tam_state_hash_moments(const tamis_reducer *r, const float *moments) {
    size_t bytes = tam_state_sizes_of(r).residual;
    uint64_t first = r->first ? hash_residual(moments, bytes) : 0;
    const float *second = r->first ? moments + r->layout->length : moments;
    return tam_state_join_hashes(first, r->second ? hash_residual(second, bytes) : 0);
}

/* The rollback record of a state; not for a foreign one, whose snapshot may have another size. */
static const tam_rollback *rollback_in(const tamis_reducer *r, const void *control) {
    return (const void *)((char *)now_in(control) + tam_state_sizes_of(r).snapshot);
}

static tamis_status check_own(const tamis_reducer *r, const void *control, const char *where) {
    const tam_rollback *rollback = rollback_in(r, control);
    TAM_TRY(tam_snapshot_check(r, now_in(control), where));
    if (rollback->state == TAM_ROLLBACK_POSSIBLE)
        TAM_TRY(tam_snapshot_check(r, rollback + 1, where));
    if (!tam_rollback_valid(r, rollback))
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
    else if (!tam_snapshot_can_send(r, ((const tam_run_position *)now_in(control))->density))
        return tam_state_refuse(where,
                                "its density was set to a value that this reducer cannot send");
    if (residual && h->residual_hash != hash_residual(residual, h->residual_bytes))
        return tam_state_refuse(where,
                                "its residual is damaged or was saved at another time (checksum)");
    return TAMIS_OK;
}

/* Find what micro-batches, or another choice of exchange auto, left in the residual; the next step
 * sends it. Micro-batches may have left zeros, whose addition still makes +0 of -0. */
static void find_pending(tamis_reducer *r, const float *residual) {
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        bool pending = b->begun || b->view.early_nonfinite > 0;
        for (uint64_t e = 0; e < b->node_shard.layout->length && !pending; e++)
            pending = residual[b->residual_begin + e] != 0.0f;
        b->view.pending = pending;
    }
}

/* A state fits any choice of dense buckets: nothing is lost, but results have other bits. */
static void log_choice(const tamis_reducer *r, const tam_state_header *h) {
    uint64_t there = h->fields[TAM_FACT_DENSE_BUCKETS];
    uint64_t here = r->handshake.fields[TAM_FACT_DENSE_BUCKETS];
    if (there != here)
        tam_log(TAM_WARN,
                "rank %u: the state was saved with dense buckets %#llx, here they are %#llx; the "
                "bits of the results will differ (runs that set link_latency_us and link_gbit from "
                "the start choose the same)",
                r->comm->rank, (unsigned long long)there, (unsigned long long)here);
}

tamis_status tam_state_take_moments(tamis_reducer *r, const float *first, const float *second) {
    size_t bytes = tam_state_sizes_of(r).residual;
    void *kernels = r->buckets[0].view.kernels;
    if (first)
        TAM_TRY(r->device->write(kernels, first, bytes, r->first));
    return second ? r->device->write(kernels, second, bytes, r->second) : TAMIS_OK;
}

/* A rollback record is valid only with the residual that its step left. */
static void take_rollback(tamis_reducer *r, const void *control, bool with_residual) {
    const tam_state_header *h = control;
    if (h && with_residual && !is_foreign(r, h))
        tam_rollback_take(r, rollback_in(r, control), h->rollback_bytes);
    else
        tam_rollback_invalidate(r, TAM_ROLLBACK_NONE);
}

static void take_all(tamis_reducer *r, const void *control) {
    const tam_state_header *h = control;
    tam_snapshot_take(r, now_in(control), h->ngroups, is_foreign(r, h));
    log_choice(r, h);
    r->passes = h->passes;
}

tamis_status tam_state_take(tamis_reducer *r, const void *control, const float *residual) {
    if (r->acc && residual) /* first, as writing it can fail while control is unchanged */
        TAM_TRY(r->device->write(r->buckets[0].view.kernels, residual,
                                 tam_state_sizes_of(r).residual, r->acc));
    if (control)
        take_all(r, control);
    if (r->acc && residual)
        find_pending(r, residual);
    take_rollback(r, control, residual || !r->acc);
    return tam_snapshot_resume(r);
}
