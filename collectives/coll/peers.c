/* SPDX-License-Identifier: MIT
 *
 * The peers of a rank in a step, and what they send each other. In a stage the virtual ranks of a
 * group differ in one digit:
 *
 *     6 ranks, plan 2x4:   vrank   0 1 2 3 4 5 6 7
 *                          rank    0 1 2 3 4 - 5 -        - the rank on its left
 *     stage 0, groups      {0 1} {2 3} {4 5} {6 7}
 *     stage 1, groups      {0 2 4 6} {1 3 5 7}
 *
 * Rank 4 has no peers in stage 0; in stage 1 it has ranks 0 and 2 for virtual rank 4, ranks 1 and 3
 * for virtual rank 5, and rank 5 for both. What two ranks send each other for two virtual ranks is
 * one message.
 */
#include "collectives/coll/coll.h"

static uint32_t digit_of(const tam_coll *coll, uint32_t vrank) {
    return vrank / coll->stride % coll->radix;
}

static bool same_group(const tam_coll *coll, uint32_t v, uint32_t u) {
    uint32_t span = coll->stride * coll->radix;
    return v / span == u / span && v % coll->stride == u % coll->stride;
}

/* Before the first stage only primary virtual ranks have something to add. */
static bool adds(const tam_coll *coll, uint32_t vrank) {
    return coll->stage > 0 || tam_plan_is_primary(&coll->plan, vrank);
}

/* Streams from one rank's virtual ranks to another's, or the other way round. A part of a sum is
 * named after the virtual rank that sums it, and what was gathered after the virtual rank that has
 * it. */
static uint32_t list_streams(const tam_coll *coll, const uint32_t *from, uint32_t nfrom,
                             const uint32_t *to, uint32_t nto, bool sends, tam_stream out[2]) {
    bool scatters = coll->phase == TAM_PHASE_SCATTER;
    uint32_t count = 0, n = scatters ? nto : nfrom, m = scatters ? nfrom : nto;
    const uint32_t *named = scatters ? to : from, *other = scatters ? from : to;
    for (uint32_t i = 0; i < n; i++) {
        bool any = false;
        for (uint32_t j = 0; j < m; j++)
            any = any ||
                  (same_group(coll, named[i], other[j]) && (!scatters || adds(coll, other[j])));
        if (any)
            out[count++] = tam_coll_stream(coll, named[i], sends);
    }
    return count;
}

static void add_peer(tam_coll *coll, uint32_t rank, uint32_t digit) {
    uint32_t theirs[2], ntheirs = tam_plan_vranks_of(&coll->plan, rank, theirs);
    tam_peer *p = &coll->peers[coll->npeers++];
    *p = (tam_peer){.rank = rank, .digit = digit};
    p->nout = list_streams(coll, coll->vrank, coll->nvranks, theirs, ntheirs, true, p->out);
    p->nin = list_streams(coll, theirs, ntheirs, coll->vrank, coll->nvranks, false, p->in);
    for (uint32_t i = 0; i < p->nin; i++)
        coll->last[p->in[i].vrank != coll->vrank[0]] = coll->npeers - 1;
}

/* In the order of digits: the order in which sums are added. */
static void build_group(tam_coll *coll) {
    uint32_t before = UINT32_MAX, own = digit_of(coll, coll->vrank[0]);
    for (uint32_t e = 0; e < coll->radix; e++) {
        for (uint32_t i = 0; i < coll->nvranks; i++) {
            uint32_t vrank = coll->vrank[i] + (e - digit_of(coll, coll->vrank[i])) * coll->stride;
            uint32_t rank = tam_plan_rank(&coll->plan, vrank);
            if (rank == coll->rank || rank == before)
                continue;
            add_peer(coll, rank, digit_of(coll, tam_plan_vrank(&coll->plan, rank)));
            before = rank;
        }
        if (e == own)
            coll->sent.first = coll->npeers;
    }
}

static void build_all(tam_coll *coll) {
    for (uint32_t r = 0; r < coll->plan.nranks; r++) {
        if (r == coll->rank) {
            coll->sent.first = coll->npeers;
            continue;
        }
        tam_peer *p = &coll->peers[coll->npeers++];
        *p = (tam_peer){.rank = r, .digit = r, .nout = 1, .nin = 1};
        p->out[0] = tam_coll_stream(coll, r, true);
        p->in[0] = tam_coll_stream(coll, r, false);
    }
}

static void peers_count_chunks(tam_coll *coll) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < coll->npeers; i++) {
        const tam_peer *p = &coll->peers[i];
        for (uint32_t s = 0; s < p->nout; s++)
            most = p->out[s].bytes > most ? p->out[s].bytes : most;
        for (uint32_t s = 0; s < p->nin; s++)
            most = p->in[s].bytes > most ? p->in[s].bytes : most;
    }
    coll->nchunks = (uint32_t)((most + coll->part - 1) / coll->part);
    if (coll->nchunks == 0 && coll->phase != TAM_PHASE_RUNS)
        coll->nchunks = 1; /* the ranks of a group always send each other one message */
}

static void find_stage(tam_coll *coll) {
    uint32_t last = coll->plan.nstages - 1, step = coll->step;
    coll->phase = coll->kind;
    coll->stage = last - step;
    coll->fused = false;
    if (coll->kind == TAM_PHASE_SCATTER) {
        coll->phase = step <= last ? TAM_PHASE_SCATTER : TAM_PHASE_SPREAD;
        coll->stage = step <= last ? step : 2 * last + (coll->fuses ? 0 : 1) - step;
        coll->fused = coll->fuses && step == last;
    }
    coll->stride = 1;
    for (uint32_t i = 0; i < coll->stage; i++)
        coll->stride *= coll->plan.radix[i];
    coll->radix = coll->plan.radix[coll->stage];
}

/* A message holds as many coded values that are summed as it would hold floats: whole blocks. */
static void peers_find_part(tam_coll *coll) {
    bool spread = coll->phase == TAM_PHASE_SPREAD;
    size_t blocks = coll->chunk / (TAM_VALUE_BLOCK * sizeof(float));
    coll->packed = coll->type && (spread || coll->stage == 0);
    coll->part = coll->chunk;
    if (coll->packed && !spread)
        coll->part = (blocks > 0 ? blocks : 1) * tam_value_bytes(coll->type, TAM_VALUE_BLOCK);
}

void tam_coll_build_peers(tam_coll *coll) {
    coll->npeers = 0;
    coll->sent = (tam_cursor){.sends = true};
    coll->posted = coll->checked = coll->taken = (tam_cursor){0};
    memset(coll->partials, 0, sizeof coll->partials);
    coll->known.memory = NULL;
    if (coll->kind == TAM_PHASE_RUNS) {
        coll->phase = TAM_PHASE_RUNS;
        coll->fused = false;
        peers_find_part(coll);
        build_all(coll);
    } else {
        find_stage(coll);
        peers_find_part(coll);
        build_group(coll);
        if (coll->fused && coll->failed == TAMIS_OK)
            tam_coll_copy_own(coll);
    }
    peers_count_chunks(coll);
    if (coll->sent.first == coll->npeers)
        coll->sent.first = 0;
}
