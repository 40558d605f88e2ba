/* SPDX-License-Identifier: MIT */
#include "tests/support/meters.h"
#include "tests/support/data.h"

#include <stdio.h>

static uint64_t draw(meters *m, uint64_t below) {
    return data_mix(m->seed++) % below;
}

static void add_counter(meters *m, uint32_t *at, uint32_t node, const char *id, uint64_t kind,
                        uint64_t range_uj, uint64_t most_w) {
    meters_counter *c = &m->counters[(*at)++];
    snprintf(c->id, sizeof c->id, "%s", id);
    c->host = 0x1000 + node;
    c->kind = kind;
    c->range_uj = range_uj;
    c->start_uj = range_uj ? draw(m, range_uj) : draw(m, 1000000000);
    c->most_w = most_w;
    if (node == 0 && (kind == TAMIS_ENERGY_PACKAGE || kind == TAMIS_ENERGY_DRAM))
        snprintf(c->inside, sizeof c->inside, "psys");
}

void meters_begin(meters *m, uint64_t seed) {
    uint32_t at = 0;
    char id[32];
    memset(m, 0, sizeof *m);
    m->seed = seed * 1000000;
    for (uint32_t node = 0; node < METERS_NODES; node++) {
        uint64_t range_uj = node % 2 ? 65532610987 : 262143328850;
        for (uint32_t i = 0; i < 2; i++) {
            snprintf(id, sizeof id, "package-%u", i);
            add_counter(m, &at, node, id, TAMIS_ENERGY_PACKAGE, range_uj, 400);
            snprintf(id, sizeof id, "dram-%u", i);
            add_counter(m, &at, node, id, TAMIS_ENERGY_DRAM, range_uj, 100);
        }
        for (uint32_t i = 0; i < 4; i++) {
            snprintf(id, sizeof id, "gpu-%u", i);
            add_counter(m, &at, node, id, TAMIS_ENERGY_GPU, 0, 700);
        }
        if (node == 0)
            add_counter(m, &at, node, "psys", TAMIS_ENERGY_PSYS, 262143328850, 1500);
    }
}

void meters_advance(meters *m, uint64_t ms) {
    uint64_t inner_w = 0;
    for (uint32_t i = 0; i < METERS_COUNTERS; i++) {
        meters_counter *c = &m->counters[i];
        c->rate_w = draw(m, c->most_w);
        inner_w += c->inside[0] ? c->rate_w : 0;
        if (c->kind == TAMIS_ENERGY_PSYS) /* behind all that it contains */
            c->rate_w = inner_w + draw(m, 100);
        c->true_uj += c->rate_w * ms * 1000 - (c->rate_w ? draw(m, 1000) : 0);
    }
}

void meters_reopen(meters *m, uint32_t rank) {
    meters_rank *r = &m->ranks[rank];
    for (uint32_t i = 0; i < METERS_COUNTERS; i++)
        r->since_uj[i] = m->counters[i].true_uj;
}

void meters_hang(meters *m, uint32_t rank, bool hangs) {
    m->ranks[rank].hangs = hangs;
    for (uint32_t i = 0; i < METERS_COUNTERS; i++)
        m->ranks[rank].hung_uj[i] = m->counters[i].true_uj;
}

static bool sees(uint32_t id, const meters_counter *c) {
    uint32_t gpu = id % METERS_PER_NODE / 4;
    return c->host == 0x1000 + id / METERS_PER_NODE &&
           (c->kind != TAMIS_ENERGY_GPU || (uint32_t)(c->id[4] - '0') == gpu);
}

static void read_counter(const meters *m, const meters_rank *r, uint32_t index,
                         tam_energy_entry *e) {
    const meters_counter *c = &m->counters[index];
    uint64_t late_uj = c->rate_w * r->lag_ms * 1000;
    uint64_t at_uj =
        c->true_uj > r->since_uj[index] + late_uj ? c->true_uj - late_uj : r->since_uj[index];
    if (r->hangs) {
        e->status = TAMIS_ENERGY_STALE;
        snprintf(e->reason, sizeof e->reason, "no answer since then; look at the driver");
        at_uj = r->hung_uj[index];
    }
    e->has_raw = 1;
    e->raw_uj = c->start_uj + at_uj;
    e->raw_uj = c->range_uj ? e->raw_uj % c->range_uj : e->raw_uj;
    e->uj = at_uj - r->since_uj[index];
    e->phases_uj[TAMIS_ENERGY_COMPUTE] = (int64_t)(e->uj / 2);
    e->phases_uj[TAMIS_PHASE_EXCHANGE] = (int64_t)(e->uj / 3);
    e->methods[TAMIS_ENERGY_COMPUTE] = e->methods[TAMIS_PHASE_EXCHANGE] = TAMIS_ENERGY_REGRESSED;
}

uint32_t meters_show(const meters *m, uint32_t id, tam_energy_entry *out) {
    const meters_rank *r = &m->ranks[id];
    uint32_t n = 0;
    for (uint32_t i = 0; i < METERS_COUNTERS; i++) {
        const meters_counter *c = &m->counters[i];
        if (!sees(id, c) || !out) {
            n += sees(id, c);
            continue;
        }
        tam_energy_entry *e = &out[n++];
        *e = (tam_energy_entry){.host = c->host,
                                .kind = (uint32_t)c->kind,
                                .range_uj = c->range_uj,
                                .most_w = (uint32_t)c->most_w};
        memcpy(e->id, c->id, sizeof e->id);
        memcpy(e->inside, c->inside, sizeof e->inside);
        if (r->denied_rapl && c->kind != TAMIS_ENERGY_GPU) {
            e->status = TAMIS_ENERGY_DENIED;
            snprintf(e->reason, sizeof e->reason, "permission denied; run as root");
        } else {
            read_counter(m, r, i, e);
        }
    }
    return n;
}

meters_counter *meters_find(meters *m, uint32_t node, const char *id) {
    for (uint32_t i = 0; i < METERS_COUNTERS; i++) {
        if (m->counters[i].host == 0x1000 + node && strcmp(m->counters[i].id, id) == 0)
            return &m->counters[i];
    }
    return NULL;
}

uint64_t meters_truth(const meters *m, uint32_t node) {
    uint64_t uj = 0;
    for (uint32_t i = 0; i < METERS_COUNTERS; i++) {
        const meters_counter *c = &m->counters[i];
        if (c->host == 0x1000 + node && !c->inside[0])
            uj += c->true_uj;
    }
    return uj;
}

uint64_t meters_truth_of_all(const meters *m) {
    uint64_t uj = 0;
    for (uint32_t node = 0; node < METERS_NODES; node++)
        uj += meters_truth(m, node);
    return uj;
}
