/* SPDX-License-Identifier: MIT
 *
 * How all ranks learn why a collective failed. Rank 5 is dead, stages of 2 and 4 of 8 ranks:
 *
 *     stage 0   4 waits for 5 in vain, and comes first to its deadline
 *     stage 1   4 tells 0, 2 and 6 that 5 is missing; 1, 3 and 7 wait for 5 themselves
 *
 * Whoever is told gives up and tells its peers of all stages, of which some may be in the next call
 * already. So in as many hops as there are stages all ranks have given up and name the same rank.
 */
#include "collectives/coll/coll.h"

#include <stdio.h>

uint32_t tam_coll_missing(const tam_coll *coll, char *text, size_t size) {
    tam_turn t = coll->taken;
    uint32_t first = coll->rank, before = coll->rank;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < coll->waiting && tam_turn_settle(coll, &t); i++, t.nth++) {
        uint32_t from = tam_turn_peer(coll, &t)->rank;
        bool here = coll->in_flight[coll->queue[(coll->first + i) % TAM_COLL_COMING]] == 0;
        if (here || from == before)
            continue;
        first = first == coll->rank ? from : first;
        before = from;
        if (used + 16 <= size)
            used += (size_t)snprintf(text + used, size - used, " %u", from);
    }
    return first;
}

void tam_coll_cancel(tam_coll *coll) {
    for (uint32_t i = 0; i < 2 * coll->ndrained; i++)
        coll->wire->cancel(coll->self, i / 2 + i % 2 * TAM_COLL_DRAINED);
    for (uint32_t t = 0; t < TAM_COLL_TICKETS; t++) {
        if (coll->in_flight[t / TAM_COLL_PARTS] > 0)
            coll->wire->cancel(coll->self, t);
    }
}

static void withdraw_receives(tam_coll *coll) {
    for (uint32_t b = 0; b < TAM_COLL_COMING; b++) {
        for (uint32_t p = 0; p < TAM_COLL_PARTS && coll->in_flight[b] > 0; p++)
            coll->wire->cancel(coll->self, TAM_COLL_PARTS * b + p);
        coll->in_flight[b] = 0;
    }
    coll->waiting = coll->headed = coll->ndrained = 0;
}

void tam_coll_fail(tam_coll *coll, tamis_status status, uint32_t blamed) {
    if (coll->failed != TAMIS_OK)
        return;
    coll->failed = status;
    coll->blamed = blamed;
    withdraw_receives(coll);
    coll->farewell = (tam_envelope){.call = coll->call,
                                    .number = (uint32_t)coll->number,
                                    .note = blamed,
                                    .rank = coll->rank,
                                    .step = (uint8_t)coll->step,
                                    .status = (uint8_t)status};
    tam_envelope_seal(&coll->farewell, 0);
    coll->farewell_nth = 0;
    coll->told_waiting = coll->step == coll->nsteps;
    if (coll->told_waiting) { /* it has left all steps, and waits for its sends */
        coll->kind = TAM_PHASE_GATHER;
        coll->step = 0;
        coll->nsteps = coll->plan.nranks > 1 ? coll->plan.nstages : 0;
        if (coll->nsteps > 0)
            tam_coll_meet(coll);
    }
}

static bool find_ticket(const tam_coll *coll, uint32_t *buffer) {
    for (uint32_t b = TAM_COLL_COMING; b < TAM_COLL_BUFFERS; b++) {
        *buffer = b;
        if (coll->in_flight[b] == 0)
            return true;
    }
    return false;
}

/* A peer that has all of this step does not wait for more. */
static bool waits(const tam_coll *coll, uint32_t nth) {
    for (tam_turn t = coll->sent; tam_turn_settle(coll, &t); t.nth++) {
        if (tam_turn_peer(coll, &t)->rank == coll->peers[nth].rank)
            return true;
    }
    return false;
}

/* First those that wait in this step, then the peers of all stages: some may be in the next call
 * already. Whoever is told twice has given up by then. */
static bool next_to_tell(tam_coll *coll) {
    while (coll->step < coll->nsteps) {
        for (; coll->farewell_nth < coll->npeers; coll->farewell_nth++) {
            if (coll->told_waiting || waits(coll, coll->farewell_nth))
                return true;
        }
        coll->farewell_nth = 0;
        coll->step++;
        if (!coll->told_waiting) {
            coll->told_waiting = true;
            coll->kind = TAM_PHASE_GATHER;
            coll->step = 0;
            coll->nsteps = coll->plan.nstages;
        }
        if (coll->step < coll->nsteps)
            tam_coll_meet(coll);
    }
    return false;
}

/* Into memory that all such messages share. */
tamis_status tam_coll_drain(tam_coll *coll, uint32_t ticket) {
    const tam_message m = {coll->drained[ticket % TAM_COLL_DRAINED], ticket / TAM_COLL_DRAINED,
                           false, coll->memory, coll->room};
    return coll->wire->post(coll->self, ticket, &m);
}

/* A peer that has all it needs of this call still waits for its sends to be taken. */
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

tamis_status tam_coll_tell(tam_coll *coll, bool *told, bool *all) {
    uint32_t buffer;
    *told = *all = false;
    while (next_to_tell(coll)) {
        uint32_t rank = coll->peers[coll->farewell_nth].rank;
        const tam_message m = {rank, TAM_LANE_HEADS, true, &coll->farewell, sizeof coll->farewell};
        if (!find_ticket(coll, &buffer))
            return TAMIS_OK;
        TAM_TRY(begin_to_drain(coll, rank));
        TAM_TRY(coll->wire->post(coll->self, TAM_COLL_PARTS * buffer, &m));
        coll->in_flight[buffer]++;
        coll->nsending += coll->holders[buffer] == 0;
        coll->holders[buffer] = 1;
        coll->farewell_nth++;
        *told = true;
    }
    *all = true;
    return TAMIS_OK;
}
