/* SPDX-License-Identifier: MIT */
#include "collectives/coll/coll.h"

#include "lib/base/hash.h"
#include "lib/transport/tag.h"

#include <xxhash.h>

/* -- memory ----------------------------------------------------------------------------------- */

/* Peers of the largest group: ranks with two virtual ranks have up to two peers a digit. */
static uint32_t most_peers(const tam_plan *plan) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < plan->nstages; i++)
        most = plan->radix[i] > most ? plan->radix[i] : most;
    return 2 * most < plan->nranks ? 2 * most : plan->nranks;
}

static tamis_status open_coll(tam_coll *coll, uint32_t npeers) {
    const tam_plan *plan = &coll->plan;
    char text[64];
    if (!tam_plan_valid(plan, plan->nranks))
        return tam_fail(TAMIS_E_UNSUPPORTED, "no plan of %u ranks: stages are for 1 to %d",
                        plan->nranks, TAM_PLAN_RANKS_MAX);
    if (!tam_plan_fits(plan))
        return tam_fail(TAMIS_E_UNSUPPORTED, "the stages %s of %u ranks are too large",
                        tam_plan_text(plan, text, sizeof text), plan->nranks);
    if (!coll->memory)
        coll->memory = tam_alloc_array(TAM_COLL_BUFFERS + 1, coll->buffer_bytes);
    coll->peers = tam_alloc_array(npeers, sizeof coll->peers[0]);
    if (!coll->memory || !coll->peers)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the messages of %u ranks", plan->nranks);
    return TAMIS_OK;
}

/* A block that comes in a few bytes becomes floats. */
enum { LEAST_STREAM = TAM_VALUE_BLOCK * sizeof(float) };

static tam_coll coll_of(const tam_p2p *p2p, void *self, uint32_t rank, const tam_plan *plan,
                        size_t chunk) {
    uint32_t streams = plan->nvranks == plan->nranks ? 1 : 2; /* of a message, each way, at most */
    tam_coll coll = {
        .p2p = p2p, .self = self, .rank = rank, .plan = *plan, .chunk = chunk / streams};
    coll.stream_capacity = coll.chunk > LEAST_STREAM ? coll.chunk : LEAST_STREAM;
    coll.buffer_bytes = TAM_COLL_HEADER + streams * coll.stream_capacity;
    coll.nvranks = tam_plan_vranks_of(plan, rank, coll.vrank);
    return coll;
}

tamis_status tam_coll_open(tam_coll *coll, const tam_p2p *p2p, void *self, uint32_t rank,
                           const tam_plan *plan, size_t chunk) {
    *coll = coll_of(p2p, self, rank, plan, chunk);
    return open_coll(coll, plan->nranks); /* of an all-to-all */
}

tamis_status tam_coll_open_beside(tam_coll *coll, const tam_coll *other, const tam_plan *plan) {
    size_t streams = plan->nvranks == plan->nranks ? 1 : 2;
    *coll = coll_of(other->p2p, other->self, other->rank, plan, streams * other->chunk);
    coll->memory = other->memory;
    return open_coll(coll, plan->nranks);
}

tamis_status tam_coll_open_empty(tam_coll *coll, const tam_p2p *p2p, void *self, uint32_t rank,
                                 const tam_plan *plan, size_t chunk) {
    *coll = coll_of(p2p, self, rank, plan, chunk);
    coll->empty = true;
    coll->buffer_bytes = TAM_COLL_HEADER;
    return open_coll(coll, most_peers(plan));
}

void tam_coll_close(tam_coll *coll, bool in_flight) {
    tam_free(coll->peers);
    if (!in_flight)
        tam_free(coll->memory);
}

/* -- advance ---------------------------------------------------------------------------------- */

static bool find_free(const tam_coll *coll, uint32_t from, uint32_t to, uint32_t *buffer) {
    for (uint32_t b = from; b < to; b++) {
        if (coll->holders[b] == 0) {
            *buffer = b;
            return true;
        }
    }
    return false;
}

/* After a failure. Messages that were withdrawn may end late. */
static tamis_status ignore(tam_coll *coll, uint32_t ticket) {
    return ticket % TAM_COLL_DRAINED < coll->ndrained ? tam_coll_drain(coll, ticket) : TAMIS_OK;
}

static tamis_status test(tam_coll *coll) {
    tam_done done[TAM_COLL_TICKETS];
    uint32_t count = 0;
    bool idle = coll->waiting + coll->nsending + coll->ndrained == 0 && !tam_coll_leaving(coll);
    if (idle &&
        coll->failed == TAMIS_OK) /* withdrawn messages end before their tickets serve anew */
        return TAMIS_OK;
    TAM_TRY(coll->p2p->test(coll->self, done, &count));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t buffer = done[i].ticket / TAM_COLL_PARTS;
        if (done[i].ticket >= TAM_COLL_FIRST_ABORT) {
            coll->leaving[done[i].ticket - TAM_COLL_FIRST_ABORT] = false;
            continue;
        }
        if (buffer < TAM_COLL_COMING && coll->failed != TAMIS_OK) {
            TAM_TRY(ignore(coll, done[i].ticket));
            continue;
        }
        coll->in_flight[buffer]--;
        if (buffer < TAM_COLL_COMING && done[i].ticket % TAM_COLL_PARTS == 0)
            coll->received_bytes[buffer] = done[i].bytes;
        if (buffer >= TAM_COLL_COMING && coll->in_flight[buffer] == 0) {
            coll->holders[buffer] = 0;
            coll->nsending--;
        }
    }
    return TAMIS_OK;
}

static uint32_t queued(const tam_coll *coll, uint32_t nth) {
    return coll->queue[(coll->first + nth) % TAM_COLL_COMING];
}

static tamis_status work(tam_coll *coll, bool *moved) {
    uint32_t buffer;
    while (coll->nchecked < coll->waiting &&
           coll->received_bytes[queued(coll, coll->nchecked)] != SIZE_MAX) {
        TAM_TRY(tam_coll_receive_header(coll, queued(coll, coll->nchecked)));
        *moved = true;
    }
    while (coll->nchecked > 0 && coll->in_flight[queued(coll, 0)] == 0) {
        TAM_TRY(tam_coll_take(coll));
        *moved = true;
    }
    while (tam_cursor_seek(coll, &coll->posted) && find_free(coll, 0, TAM_COLL_COMING, &buffer)) {
        TAM_TRY(tam_coll_post_receive(coll, buffer));
        *moved = true;
    }
    while (tam_cursor_seek(coll, &coll->sent) &&
           find_free(coll, TAM_COLL_COMING, TAM_COLL_BUFFERS, &buffer)) {
        TAM_TRY(tam_coll_post_send(coll, buffer));
        *moved = true;
    }
    return TAMIS_OK;
}

static bool step_done(tam_coll *coll) {
    return coll->waiting == 0 && !tam_cursor_seek(coll, &coll->posted) &&
           !tam_cursor_seek(coll, &coll->sent);
}

static void next_step(tam_coll *coll) {
    coll->counter += coll->received;
    coll->received = 0;
    if (++coll->step < coll->nsteps)
        tam_coll_build_peers(coll);
}

static tamis_status coll_advance(tam_coll *coll, bool *moved) {
    for (bool again = true; again;) {
        again = false;
        TAM_TRY(test(coll));
        if (coll->step < coll->nsteps)
            TAM_TRY(work(coll, &again));
        if (coll->step < coll->nsteps && step_done(coll)) {
            next_step(coll);
            again = true;
        }
        *moved = *moved || again;
    }
    return TAMIS_OK;
}

/* As long as messages leave at once: nothing may come that would wake this rank again. */
static tamis_status send_aborts(tam_coll *coll, bool *all) {
    uint64_t before;
    do {
        before = coll->naborts;
        TAM_TRY(test(coll));
        TAM_TRY(tam_coll_send_aborts(coll, all));
    } while (!*all && coll->naborts != before);
    return test(coll);
}

tamis_status tam_coll_advance(tam_coll *coll, bool *moved, bool *done) {
    bool all = true;
    *moved = false;
    if (coll->failed == TAMIS_OK) {
        tamis_status status = coll_advance(coll, moved);
        if (status != TAMIS_OK) {
            tam_coll_fail(coll, status, coll->rank); /* no message has shown whose fault it is */
            return status;
        }
        all = coll->step == coll->nsteps;
    } else {
        TAM_TRY(send_aborts(coll, &all));
    }
    *done = all && coll->nsending == 0 && !tam_coll_leaving(coll);
    return TAMIS_OK;
}

/* -- begin ------------------------------------------------------------------------------------ */

static void coll_describe(tam_coll *coll, uint64_t size) {
    const tam_tag *tag = coll->tag;
    struct {
        uint64_t kind, size, reducer, step, begin;
        uint32_t radix[TAM_PLAN_STAGES], fused_bytes, bits;
    } all = {(uint64_t)coll->kind, size, tag ? tag->reducer : 0, tag ? tag->step : 0,
             tag ? tag->begin : 0, {0},  coll->plan.fused_bytes, coll->type ? coll->type->bits : 0};
    memcpy(all.radix, coll->plan.radix, sizeof all.radix);
    coll->call = XXH3_64bits_withSeed(&all, sizeof all, coll->plan.nranks);
}

static void coll_begin(tam_coll *coll, tam_phase kind, uint64_t size, uint32_t nsteps) {
    coll->kind = kind;
    coll->number++;
    coll->step = 0;
    coll->nsteps = coll->plan.nranks > 1 ? nsteps : 0;
    coll->received = 0;
    coll_describe(coll, size);
    if (coll->nsteps > 0)
        tam_coll_build_peers(coll);
}

void tam_coll_begin_gather(tam_coll *coll, const void *send, size_t bytes, void *recv) {
    coll->recv = recv;
    coll->bytes = bytes;
    coll->type = NULL;
    coll->tag = NULL;
    coll->counter = 0;
    if (!coll->empty && bytes > 0)
        memcpy(coll->recv + coll->rank * bytes, send, bytes);
    coll_begin(coll, TAM_PHASE_GATHER, bytes, coll->plan.nstages);
}

/* A part of which some rank's half is longer than a chunk could not be copied. */
static bool fuses(const tam_coll *coll, uint64_t bytes) {
    return tam_plan_fuses(&coll->plan, bytes) && coll->plan.fused_bytes <= coll->chunk / 4;
}

void tam_coll_begin_sum(tam_coll *coll, float *values, size_t count, const tam_tag *tag) {
    coll->recv = (unsigned char *)(void *)values;
    coll->bytes = count;
    coll->type = NULL;
    coll->tag = tag;
    coll->counter = tag ? tag->counter : 0;
    coll->fuses = fuses(coll, count * sizeof(float));
    coll_begin(coll, TAM_PHASE_SCATTER, count, 2 * coll->plan.nstages - coll->fuses);
}

void tam_coll_begin_scatter(tam_coll *coll, const tam_value_codec *type, const void *coded,
                            float *values, size_t count, const tam_tag *tag) {
    coll->recv = (unsigned char *)(void *)values;
    coll->coded = (unsigned char *)(uintptr_t)coded; /* never written through this */
    coll->bytes = count;
    coll->type = type;
    coll->tag = tag;
    coll->counter = tag ? tag->counter : 0;
    coll->fuses = false;
    coll_begin(coll, TAM_PHASE_SCATTER, count, coll->plan.nstages);
}

void tam_coll_begin_spread(tam_coll *coll, const tam_value_codec *type, void *coded, size_t count) {
    coll->coded = coded;
    coll->bytes = count;
    coll->type = type;
    coll->tag = NULL;
    coll->counter = 0;
    coll_begin(coll, TAM_PHASE_SPREAD, count, coll->plan.nstages);
}

void tam_coll_begin_runs(tam_coll *coll, const void *send, const size_t *send_at, void *recv,
                         const size_t *recv_at) {
    uint32_t own = coll->rank;
    coll->send = send;
    coll->recv = recv;
    coll->send_at = send_at;
    coll->recv_at = recv_at;
    coll->type = NULL;
    coll->tag = NULL;
    coll->counter = 0;
    if (!coll->empty && send_at[own + 1] > send_at[own])
        memcpy(coll->recv + recv_at[own], coll->send + send_at[own],
               send_at[own + 1] - send_at[own]);
    coll_begin(coll, TAM_PHASE_RUNS, 0, 1);
}
