/* SPDX-License-Identifier: MIT
 *
 * What ranks show each other before they apply a round: what must be the same, and how long it
 * took.
 */
#include "collectives/local/local.h"
#include "lib/base/hash.h"

#include <stdio.h>
#include <xxhash.h>

typedef struct standing {
    tam_handshake_header header;
    uint64_t version, length, steps, steps_max, delay, offset, lr, momentum, wait_share;
    uint64_t ratio;
    uint64_t reducer, reducer_step, position, round, vectors;
    double step_s, wait_s; /* of this rank; wait_s is negative if it is not known */
} standing;

_Static_assert(sizeof(standing) <= TAM_RECORD_BYTES, "a standing fits the records");

#define SHOWN(field) offsetof(standing, field)

static const tam_handshake_field common[] = {
    {"library version", SHOWN(version), TAM_SHOWS_NUMBER},
    {"reducer", SHOWN(reducer), TAM_SHOWS_NUMBER},
    {"length", SHOWN(length), TAM_SHOWS_NUMBER},
    {"steps", SHOWN(steps), TAM_SHOWS_NUMBER},
    {"steps_max", SHOWN(steps_max), TAM_SHOWS_NUMBER},
    {"delay", SHOWN(delay), TAM_SHOWS_NUMBER},
    {"offset", SHOWN(offset), TAM_SHOWS_NUMBER},
    {"outer lr", SHOWN(lr), TAM_SHOWS_REAL},
    {"outer momentum", SHOWN(momentum), TAM_SHOWS_REAL},
    {"wait_share", SHOWN(wait_share), TAM_SHOWS_REAL},
    {"time of an exchange in local steps", SHOWN(ratio), TAM_SHOWS_REAL},
    {"step of the reducer", SHOWN(reducer_step), TAM_SHOWS_NUMBER},
    {"number of local steps since the last exchange", SHOWN(position), TAM_SHOWS_NUMBER},
    {"state of the round", SHOWN(round), TAM_SHOWS_NUMBER},
    {"base or its momentum", SHOWN(vectors), TAM_SHOWS_HASH},
};

static tamis_status local_handshake_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "go on with local steps"));
    return tam_handshake_same(records, nranks, common, sizeof common / sizeof common[0]);
}

static uint64_t hash_vectors(const tamis_local *l) {
    size_t bytes = (size_t)l->n * sizeof(float);
    uint64_t hash = tam_hash(l->base, bytes);
    return l->momentum ? XXH3_64bits_withSeed(l->momentum, bytes, hash) : hash;
}

static void local_handshake_describe(const tamis_local *l, standing *out) {
    const tamis_local_config *c = &l->config;
    const tam_local_times *t = &l->times;
    out->version = TAMIS_VERSION;
    out->length = l->n;
    out->steps = c->steps;
    out->steps_max = c->steps_max;
    out->delay = c->delay;
    out->offset = c->offset;
    out->lr = tam_bits64(c->lr);
    out->momentum = tam_bits64(c->momentum);
    out->wait_share = tam_bits64(c->wait_share);
    out->ratio = tam_bits64(l->pace.ratio);
    out->reducer = l->reducer->serial;
    out->reducer_step = l->reducer->step;
    out->position = l->position;
    out->round = l->round;
    out->vectors = hash_vectors(l);
    out->step_s = t->steps > 0 ? 1e-9 * (double)t->local_ns / t->steps : 0.0;
    out->wait_s = t->whole ? 1e-9 * (double)t->waited_ns : -1.0;
}

/* The next round's H, from what all ranks show: the same on all ranks. */
static void local_handshake_learn(tamis_local *l, const unsigned char *records) {
    uint32_t nranks = l->reducer->comm->nranks;
    double slowest_s = 0.0, local_s = 0.0, wait_s = 0.0;
    for (uint32_t r = 0; r < nranks; r++) {
        const standing *one = tam_handshake_record(records, r);
        if (one->wait_s < 0.0)
            return;
        slowest_s = one->step_s > slowest_s ? one->step_s : slowest_s;
        local_s += one->step_s * l->times.steps / nranks;
        wait_s += one->wait_s / nranks;
    }
    if (wait_s + local_s > 0.0)
        l->stats.waiting_share = wait_s / (wait_s + local_s);
    if (l->config.wait_share > 0.0)
        l->config.steps =
            tam_outer_steps(&l->pace, wait_s, slowest_s, l->config.wait_share, l->config.steps,
                            l->config.delay > 1 ? l->config.delay : 1, l->config.steps_max);
}

static void record_times(tamis_local *l) {
    tam_local_times *t = &l->times;
    if (t->steps > 0)
        l->stats.step_s = 1e-9 * (double)t->local_ns / t->steps;
    l->stats.wait_s = 1e-9 * (double)t->waited_ns;
    *t = (tam_local_times){.mark_ns = t->mark_ns, .whole = true};
}

tamis_status tam_local_handshake(tamis_comm *comm, tamis_local *l, tamis_status own,
                                 const char *call) {
    standing mine = {.header = {.status = (uint64_t)own}};
    snprintf(mine.header.call, sizeof mine.header.call, "%s", call);
    if (own == TAMIS_OK)
        local_handshake_describe(l, &mine);
    TAM_TRY(tam_handshake_run(comm, &mine, sizeof mine, local_handshake_judge,
                              tam_comm_deadline(comm)));
    l->compared_bytes += sizeof mine * (uint64_t)(comm->nranks - 1);
    local_handshake_learn(l, comm->records);
    record_times(l);
    return TAMIS_OK;
}
