/* SPDX-License-Identifier: MIT
 *
 * How all ranks learn why a collective failed. Rank 5 is dead, stages of 2 and 4 of 8 ranks:
 *
 *     stage 0   4 waits for 5, and is the first to reach its deadline
 *     stage 1   4 sends 0, 2 and 6 that 5 is missing; 1, 3 and 7 wait for 5 themselves
 *
 * Whoever gets an abort message gives up and sends it to the peers of all steps: also of the steps
 * before, for they may have all that they need, and wait for this rank in the next collective. So
 * in as many hops as there are steps all ranks have given up, and name the same rank: if two ranks
 * are blamed, the earlier step wins. Abort messages have tickets of their own, as the messages
 * before may be to ranks that will not take them.
 */
#include "collectives/coll/coll.h"

#include <stdio.h>

uint32_t tam_coll_missing(const tam_coll *coll, char *text, size_t size) {
    tam_cursor t = coll->taken;
    uint32_t first = coll->rank, listed[TAM_COLL_COMING], nlisted = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < coll->waiting && tam_cursor_seek(coll, &t); i++, t.nth++) {
        uint32_t from = tam_cursor_peer(coll, &t)->rank;
        bool here = coll->in_flight[coll->queue[(coll->first + i) % TAM_COLL_COMING]] == 0;
        bool again = false; /* for another chunk */
        for (uint32_t k = 0; k < nlisted; k++)
            again = again || listed[k] == from;
        if (here || again)
            continue;
        listed[nlisted++] = from;
        first = listed[0];
        if (used + 16 <= size)
            used += (size_t)snprintf(text + used, size - used, " %u", from);
    }
    return first;
}

uint32_t tam_coll_untaken(const tam_coll *coll) {
    for (uint32_t i = 0; i < TAM_COLL_GOING; i++) {
        if (coll->in_flight[TAM_COLL_COMING + i] > 0)
            return coll->going_to[i];
    }
    return coll->rank;
}

void tam_coll_cancel(tam_coll *coll) {
    for (uint32_t i = 0; i < 2 * coll->ndrained; i++)
        coll->p2p->cancel(coll->self, i / 2 + i % 2 * TAM_COLL_DRAINED);
    for (uint32_t t = 0; t < TAM_COLL_FIRST_ABORT; t++) {
        if (coll->in_flight[t / TAM_COLL_PARTS] > 0)
            coll->p2p->cancel(coll->self, t);
    }
    for (uint32_t i = 0; i < TAM_COLL_ABORTS; i++) {
        if (coll->leaving[i])
            coll->p2p->cancel(coll->self, TAM_COLL_FIRST_ABORT + i);
    }
}

static void withdraw_receives(tam_coll *coll) {
    for (uint32_t b = 0; b < TAM_COLL_COMING; b++) {
        for (uint32_t p = 0; p < TAM_COLL_PARTS && coll->in_flight[b] > 0; p++)
            coll->p2p->cancel(coll->self, TAM_COLL_PARTS * b + p);
        coll->in_flight[b] = 0;
    }
    coll->waiting = coll->nchecked = coll->ndrained = 0;
}

void tam_coll_fail(tam_coll *coll, tamis_status status, uint32_t blamed) {
    if (coll->failed != TAMIS_OK)
        return;
    coll->failed = status;
    coll->blamed = blamed;
    withdraw_receives(coll);
    coll->abort_message = (tam_envelope){.call = coll->call,
                                         .number = (uint32_t)coll->number,
                                         .extra = blamed,
                                         .rank = coll->rank,
                                         .step = (uint8_t)coll->step,
                                         .status = (uint8_t)status};
    tam_envelope_seal(&coll->abort_message, 0);
    coll->step = coll->nnotified = 0;
    if (coll->nsteps > 0)
        tam_coll_build_peers(coll);
}

bool tam_coll_leaving(const tam_coll *coll) {
    bool any = false;
    for (uint32_t i = 0; i < TAM_COLL_ABORTS; i++)
        any = any || coll->leaving[i];
    return any;
}

static bool find_ticket(const tam_coll *coll, uint32_t *nth) {
    for (*nth = 0; *nth < TAM_COLL_ABORTS; ++*nth) {
        if (!coll->leaving[*nth])
            return true;
    }
    return false;
}

/* The steps of a sum of floats back to all ranks have the same peers once more, but for a fused
 * stage. For values in another form they are a call of their own. */
static bool next_to_abort(tam_coll *coll) {
    bool returns = coll->kind == TAM_PHASE_SCATTER && !coll->type;
    uint32_t nsteps = returns ? (coll->nsteps + 1) / 2 : coll->nsteps;
    while (coll->step < nsteps && coll->nnotified == coll->npeers) {
        coll->nnotified = 0;
        if (++coll->step < nsteps)
            tam_coll_build_peers(coll);
    }
    return coll->step < nsteps;
}

/* Into memory that all such messages share. */
tamis_status tam_coll_drain(tam_coll *coll, uint32_t ticket) {
    const tam_message m = {coll->drained[ticket % TAM_COLL_DRAINED], ticket / TAM_COLL_DRAINED,
                           false, coll->memory, coll->buffer_bytes};
    return coll->p2p->post(coll->self, ticket, &m);
}

/* A peer that has all it needs of this call still waits for its messages to be taken. */
static tamis_status begin_to_drain(tam_coll *coll, uint32_t rank) {
    for (uint32_t i = 0; i < coll->ndrained; i++) {
        if (coll->drained[i] == rank)
            return TAMIS_OK;
    }
    if (coll->ndrained == TAM_COLL_DRAINED)
        return TAMIS_OK;
    coll->drained[coll->ndrained] = rank;
    TAM_TRY(tam_coll_drain(coll, coll->ndrained));
    return tam_coll_drain(coll, TAM_COLL_DRAINED + coll->ndrained++);
}

tamis_status tam_coll_send_aborts(tam_coll *coll, bool *all) {
    uint32_t nth;
    *all = false;
    while (next_to_abort(coll)) {
        if (!find_ticket(coll, &nth))
            return TAMIS_OK;
        const tam_message m = {coll->peers[coll->nnotified].rank, TAM_CHANNEL_HEADERS, true,
                               &coll->abort_message, sizeof coll->abort_message};
        TAM_TRY(begin_to_drain(coll, m.peer));
        TAM_TRY(coll->p2p->post(coll->self, TAM_COLL_FIRST_ABORT + nth, &m));
        coll->leaving[nth] = true;
        coll->nnotified++;
        coll->naborts++;
    }
    *all = true;
    return TAMIS_OK;
}
