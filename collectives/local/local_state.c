/* SPDX-License-Identifier: MIT
 *
 * The state of local steps:
 *
 *     | header, 64-bit words | base | momentum | snapshot | d |      float[n] each
 *
 * momentum exists if it is not 0; snapshot and d exist with a delay. A state is checked completely
 * before it changes the handle.
 */
#include "collectives/local/local.h"
#include "collectives/reducer/rollback.h"
#include "lib/base/hash.h"

#include <stdio.h>

#define MAGIC UINT64_C(0x0c2d657461747453) /* changes with the format; odd bytes on purpose */
#define BYTE_ORDER_MARK UINT64_C(0x0102030405060708)

typedef struct header {
    uint64_t magic, byte_order, bytes;
    uint64_t length, delay, has_momentum;
    uint64_t rank, nranks;
    uint64_t steps, position;
    uint64_t round, kept; /* never under way; kept: of a failed one */
    uint64_t reducer_step;
    uint64_t rounds, lost_rounds;
    double ratio;
    uint64_t parts_hash;  /* of the vectors */
    uint64_t header_hash; /* last */
} header;

typedef struct vectors {
    float *list[4];
    uint32_t count;
} vectors;

static vectors vectors_of(const tamis_local *l) {
    vectors v = {.list = {l->base}, .count = 1};
    if (l->momentum)
        v.list[v.count++] = l->momentum;
    if (l->snapshot) {
        v.list[v.count++] = l->snapshot;
        v.list[v.count++] = l->d;
    }
    return v;
}

static size_t local_state_bytes_of(const tamis_local *l) {
    return sizeof(header) + vectors_of(l).count * (size_t)l->n * sizeof(float);
}

static uint64_t local_state_hash_header(const header *h) {
    return tam_hash(h, offsetof(header, header_hash));
}

static tamis_status local_state_check_arguments(const tamis_local *l, const void *memory,
                                                const char *call) {
    if (l && memory)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, l ? "memory" : "local");
}

static tamis_status local_state_check_bytes(const tamis_local *l, size_t bytes, tamis_status status,
                                            const char *call) {
    if (bytes == local_state_bytes_of(l))
        return TAMIS_OK;
    return tam_fail(status, "%s: bytes is %zu, but the state has %zu", call, bytes,
                    local_state_bytes_of(l));
}

tamis_status tamis_local_bytes(const tamis_local *l, size_t *out) {
    TAM_TRY(local_state_check_arguments(l, out, "tamis_local_bytes"));
    *out = local_state_bytes_of(l);
    return TAMIS_OK;
}

/* -- save ------------------------------------------------------------------------------------- */

tamis_status tamis_local_save(tamis_local *l, void *memory, size_t bytes) {
    static const char call[] = "tamis_local_save";
    TAM_TRY(local_state_check_arguments(l, memory, call));
    TAM_TRY(local_state_check_bytes(l, bytes, TAMIS_E_ARGUMENT, call));
    if (l->round == TAM_ROUND_UNDER_WAY)
        tam_local_arrive(l);
    vectors v = vectors_of(l);
    size_t each = (size_t)l->n * sizeof(float);
    unsigned char *to = (unsigned char *)memory + sizeof(header);
    for (uint32_t i = 0; i < v.count; i++)
        memcpy(to + i * each, v.list[i], each);
    header h = {
        .magic = MAGIC,
        .byte_order = BYTE_ORDER_MARK,
        .bytes = bytes,
        .length = l->n,
        .delay = l->config.delay,
        .has_momentum = l->momentum != NULL,
        .rank = l->reducer->comm->rank,
        .nranks = l->reducer->comm->nranks,
        .steps = l->config.steps,
        .position = l->position,
        .round = l->round,
        .kept = l->round == TAM_ROUND_FAILED && l->kept,
        .reducer_step = l->expected,
        .rounds = l->stats.rounds,
        .lost_rounds = l->stats.lost_rounds,
        .ratio = l->pace.ratio,
        .parts_hash = tam_hash(to, v.count * each),
    };
    h.header_hash = local_state_hash_header(&h);
    memcpy(memory, &h, sizeof h);
    return TAMIS_OK;
}

/* -- load ------------------------------------------------------------------------------------- */

static tamis_status local_state_refuse(const char *why) {
    return tam_fail(TAMIS_E_FORMAT, "tamis_local_load: %s", why);
}

static tamis_status check_sound(const header *h, const void *parts) {
    if (h->magic != MAGIC)
        return local_state_refuse("not a state of local steps of this version");
    if (h->byte_order != BYTE_ORDER_MARK)
        return local_state_refuse("written on a machine with another byte order");
    if (h->header_hash != local_state_hash_header(h))
        return local_state_refuse("the header is damaged (checksum)");
    if (h->parts_hash != tam_hash(parts, h->bytes - sizeof *h))
        return local_state_refuse("the vectors are damaged (checksum)");
    return TAMIS_OK;
}

static tamis_status local_state_check_values(const header *h) {
    bool steps = h->steps >= 1 && h->steps <= TAM_LOCAL_STEPS_MAX && h->steps >= h->delay;
    bool round = h->round == TAM_ROUND_IDLE ||
                 (h->delay > 0 && (h->round == TAM_ROUND_ARRIVED || h->round == TAM_ROUND_FAILED));
    return steps && round && h->kept <= 1 && h->position <= UINT32_MAX
               ? TAMIS_OK
               : local_state_refuse("its numbers are out of range");
}

static tamis_status local_state_check_same(const char *what, uint64_t saved, uint64_t here) {
    if (saved == here)
        return TAMIS_OK;
    return tam_fail(
        TAMIS_E_FORMAT,
        "tamis_local_load: it belongs to other local steps: %s is %llu there, %llu here", what,
        (unsigned long long)saved, (unsigned long long)here);
}

static tamis_status local_state_check_owner(const tamis_local *l, const header *h) {
    TAM_TRY(local_state_check_same("length", h->length, l->n));
    TAM_TRY(local_state_check_same("delay", h->delay, l->config.delay));
    TAM_TRY(local_state_check_same("whether there is a momentum", h->has_momentum,
                                   l->momentum != NULL));
    if (h->round == TAM_ROUND_IDLE)
        return TAMIS_OK;
    const tamis_comm *comm = l->reducer->comm;
    if (h->rank == comm->rank && h->nranks == comm->nranks)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_FORMAT,
                    "tamis_local_load: an exchange was under way, so it serves only rank %llu of "
                    "%llu; this is rank %u of %u",
                    (unsigned long long)h->rank, (unsigned long long)h->nranks, comm->rank,
                    comm->nranks);
}

/* tamis_reducer_resync has rolled back the step of a round that arrived here: what this rank sent
 * is in its residual again. */
static bool taken_back(const tamis_local *l, const header *h) {
    return h->round == TAM_ROUND_ARRIVED && l->reducer->step + 1 == h->reducer_step &&
           tam_rollback_state_of(l->reducer) == TAM_ROLLBACK_DONE;
}

static tamis_status check_step(const tamis_local *l, const header *h) {
    if (l->reducer->step == h->reducer_step || taken_back(l, h))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_FORMAT,
                    "tamis_local_load: it was saved at step %llu of the reducer, which is at step "
                    "%llu; load the reducer's state of the same time first",
                    (unsigned long long)h->reducer_step, (unsigned long long)l->reducer->step);
}

static void local_state_take(tamis_local *l, const header *h, const unsigned char *parts) {
    vectors v = vectors_of(l);
    size_t each = (size_t)l->n * sizeof(float);
    bool back = taken_back(l, h);
    for (uint32_t i = 0; i < v.count; i++)
        memcpy(v.list[i], parts + i * each, each);
    l->config.steps = (uint32_t)h->steps;
    l->position = (uint32_t)h->position;
    l->round = back ? TAM_ROUND_FAILED : (tam_round)h->round;
    l->kept = back ? !l->reducer->acc : h->kept != 0;
    if (back)
        memset(l->d, 0, each);
    l->outcome = TAMIS_OK;
    snprintf(l->sentence, sizeof l->sentence, "%s",
             l->round == TAM_ROUND_FAILED ? "its exchange failed before the state was saved" : "");
    l->expected = l->reducer->step;
    l->pace.ratio = h->ratio;
    l->times = (tam_local_times){.mark_ns = tam_clock_ns()};
    l->stats = (tamis_local_stats)TAMIS_LOCAL_STATS_INIT;
    l->stats.rounds = h->rounds;
    l->stats.lost_rounds = h->lost_rounds;
}

tamis_status tamis_local_load(tamis_local *l, const void *memory, size_t bytes) {
    static const char call[] = "tamis_local_load";
    header h;
    TAM_TRY(local_state_check_arguments(l, memory, call));
    if (l->round == TAM_ROUND_UNDER_WAY)
        return tam_fail(TAMIS_E_STATE, "%s: an exchange is under way; load into a new handle",
                        call);
    if (bytes < sizeof h)
        return local_state_refuse("the state is truncated");
    memcpy(&h, memory, sizeof h);
    if (h.bytes != bytes)
        return local_state_refuse(
            "the state is truncated, has extra data, or is no state of local steps");
    const unsigned char *parts = (const unsigned char *)memory + sizeof h;
    TAM_TRY(check_sound(&h, parts));
    TAM_TRY(local_state_check_values(&h));
    TAM_TRY(local_state_check_owner(l, &h));
    TAM_TRY(local_state_check_bytes(l, bytes, TAMIS_E_FORMAT, call));
    TAM_TRY(check_step(l, &h));
    local_state_take(l, &h, parts);
    return TAMIS_OK;
}
