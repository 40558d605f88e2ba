/* SPDX-License-Identifier: MIT
 *
 * The state machines of all ranks: what they would send, and how long it takes on the simulated
 * network. They are empty: messages have their sizes, but only headers hold anything.
 */
#include "bench/scale/scale.h"

#include "collectives/coll/coll.h"
#include "collectives/exchange/packet.h"
#include "collectives/transport/comm.h"
#include "collectives/transport/simulated.h"

#include <stdlib.h>

/* What collectives work on: only its address is looked at. */
static float nowhere[1];

/* -- counted ---------------------------------------------------------------------------------- */

typedef struct traffic {
    uint64_t messages, bytes, far_bytes;
    uint32_t peers, rounds;
} traffic;

static bool is_far(const tam_net *net, uint32_t a, uint32_t b) {
    uint32_t g = net->ranks_per_node ? net->ranks_per_node : 1;
    return a / g != b / g;
}

/* The collectives of a step, in this order. @return false: there are no more */
static bool begin(tam_coll *coll, const scale_case *c, uint32_t nth) {
    unsigned char *encoded = (unsigned char *)nowhere;
    if (c->encoded == 0 && nth > 0)
        nth += 2;
    switch (nth) {
    case 0:
        tam_coll_begin_gather(coll, NULL, c->packet_bytes, nowhere);
        return true;
    case 1:
        tam_coll_begin_scatter(coll, c->up, encoded, nowhere, c->encoded, NULL);
        return true;
    case 2:
        tam_coll_begin_spread(coll, c->down, encoded, c->encoded);
        return true;
    case 3:
        tam_coll_begin_sum(coll, nowhere, c->summed, NULL);
        return true;
    default:
        return false;
    }
}

/* Ask a collective that has begun for all its messages, step by step. */
static void count_messages(tam_coll *coll, const scale_case *c, traffic *t) {
    t->rounds += coll->nsteps;
    for (; coll->step < coll->nsteps; coll->step++) {
        tam_coll_build_peers(coll);
        for (; tam_cursor_seek(coll, &coll->sent); coll->sent.nth++) {
            size_t bytes = sizeof(tam_envelope) + tam_cursor_bytes(coll, &coll->sent);
            t->messages++;
            t->bytes += bytes;
            if (is_far(&c->net, coll->rank, tam_cursor_peer(coll, &coll->sent)->rank))
                t->far_bytes += bytes;
        }
        t->peers += coll->kind == TAM_PHASE_GATHER ? coll->npeers : 0;
    }
}

static tamis_status count_rank(const scale_case *c, const tam_plan *plan, uint32_t rank,
                               traffic *t) {
    tam_coll coll;
    tamis_status status = tam_coll_open_empty(&coll, NULL, NULL, rank, plan, TAM_COLL_CHUNK);
    for (uint32_t nth = 0; status == TAMIS_OK && begin(&coll, c, nth); nth++)
        count_messages(&coll, c, t);
    tam_coll_close(&coll, false);
    return status;
}

static uint64_t more(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

tamis_status scale_count(const scale_case *c, const tam_plan *plan, scale_counts *out) {
    uint64_t node_bytes = 0, node = UINT64_MAX;
    *out = (scale_counts){0};
    for (uint32_t rank = 0; rank < c->nranks; rank++) {
        traffic t = {0};
        TAM_TRY(count_rank(c, plan, rank, &t));
        uint32_t g = c->net.ranks_per_node ? c->net.ranks_per_node : 1;
        node_bytes = (rank / g == node ? node_bytes : 0) + t.far_bytes;
        node = rank / g;
        out->messages = more(out->messages, t.messages);
        out->bytes = more(out->bytes, t.bytes);
        out->node_bytes = more(out->node_bytes, node_bytes);
        out->peers = t.peers > out->peers ? t.peers : out->peers;
        out->rounds = t.rounds;
    }
    return TAMIS_OK;
}

tamis_status scale_count_rank(const scale_case *c, const tam_plan *plan, uint32_t rank,
                              uint64_t *bytes) {
    traffic t = {0};
    TAM_TRY(count_rank(c, plan, rank, &t));
    *bytes = t.bytes;
    return TAMIS_OK;
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Grows: peers (coll.h), records of handshakes (comm.h), headers of the packets. Fixed: buffers of
 * messages, own and all indices, decoded lists, union, its values, raw and encoded. */
scale_memory scale_memory_of(const scale_case *c, double index_bytes) {
    uint64_t p = c->nranks, header = tam_header_bytes(0), payload = c->packet_bytes - header;
    uint64_t each = (c->entries + p - 1) / p;
    scale_memory m = {0};
    m.grows = p * sizeof(tam_peer);
    m.grows += p * TAM_RECORD_BYTES + p * header;
    m.fixed = sizeof(tam_coll) + TAM_COLL_BUFFERS * (uint64_t)(TAM_COLL_HEADER + TAM_COLL_CHUNK);
    m.fixed += header + payload + p * payload;
    m.fixed += index_bytes == 4.0 ? 0 : (p + 1) * each * sizeof(uint32_t);
    m.fixed += 4 * (c->entries + c->summed + c->encoded);
    m.fixed += more(tam_value_bytes(c->up, c->encoded), tam_value_bytes(c->down, c->encoded));
    return m;
}

/* -- simulated -------------------------------------------------------------------------------- */

typedef struct job {
    const scale_case *c;
    uint32_t nopened;
    tam_coll *colls;
    uint32_t *nth; /* which collective a rank is in */
    tam_sim *sim;
} job;

/* The next collective follows as soon as the rank has done with one. */
static tamis_status advance(void *context, uint32_t rank, bool *done) {
    job *j = context;
    bool moved;
    TAM_TRY(tam_coll_advance(&j->colls[rank], &moved, done));
    while (*done && begin(&j->colls[rank], j->c, j->nth[rank] + 1)) {
        j->nth[rank]++;
        TAM_TRY(tam_coll_advance(&j->colls[rank], &moved, done));
    }
    return TAMIS_OK;
}

static void close_job(job *j) {
    for (uint32_t r = 0; r < j->nopened; r++)
        tam_coll_close(&j->colls[r], false);
    if (j->sim)
        tam_sim_close(j->sim);
    free(j->colls);
    free(j->nth);
}

static tamis_status open_job(job *j, const tam_plan *plan, const scale_weather *w) {
    const scale_case *c = j->c;
    const tam_sim_config config = {.nranks = c->nranks,
                                   .net = c->net,
                                   .held = sizeof(tam_envelope),
                                   .jitter = w->jitter,
                                   .loss = w->loss,
                                   .resend_s = w->resend_s,
                                   .seed = w->seed};
    j->colls = calloc(c->nranks, sizeof *j->colls);
    j->nth = calloc(c->nranks, sizeof *j->nth);
    if (!j->colls || !j->nth)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u simulated ranks", c->nranks);
    TAM_TRY(tam_sim_open(&config, &j->sim));
    for (uint32_t r = 0; r < c->nranks; r++) {
        tam_coll *coll = &j->colls[r];
        j->nopened = r + 1;
        TAM_TRY(tam_coll_open_empty(coll, &tam_sim_p2p, tam_sim_end(j->sim, r), r, plan,
                                    TAM_COLL_CHUNK));
        begin(coll, c, 0);
    }
    return TAMIS_OK;
}

tamis_status scale_simulate(const scale_case *c, const tam_plan *plan, const scale_weather *w,
                            double *seconds) {
    job j = {.c = c};
    tamis_status status = open_job(&j, plan, w);
    if (status == TAMIS_OK)
        status = tam_sim_run(j.sim, advance, &j, seconds);
    close_job(&j);
    return status;
}
