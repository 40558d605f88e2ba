/* SPDX-License-Identifier: MIT
 *
 * What a meter shows to the other ranks.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>
#include <stdio.h>

static void show(const tamis_energy *e, const tam_channel *c, tam_energy_entry *out) {
    tam_energy_domain d;
    tam_sampler_look(c->sampler, c->index, &d);
    *out = (tam_energy_entry){
        .host = e->host,
        .kind = (uint32_t)d.place.kind,
        .status = (uint32_t)d.status,
        .has_raw = d.has_raw && !d.place.power,
        .raw_uj = d.raw,
        .range_uj = d.place.range_uj,
        .total_uj = d.total_uj,
        .since_ns = e->open_ns,
        .read_ns = d.read_ns,
        .most_w = d.place.most_w > 0 ? (uint64_t)ceil(d.place.most_w) : 0,
    };
    snprintf(out->id, sizeof out->id, "%s", d.place.id);
    snprintf(out->inside, sizeof out->inside, "%s", d.place.inside);
    snprintf(out->reason, sizeof out->reason, "%s", d.reason);
    memcpy(out->phases_uj, c->phases_uj, sizeof out->phases_uj);
    memcpy(out->methods, c->methods, sizeof out->methods);
}

uint32_t tam_meter_entries(tamis_energy *e, tam_energy_entry *out, uint32_t most) {
    uint32_t n = e->nchannels < most ? e->nchannels : most;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; out && i < n; i++)
        show(e, &e->channels[i], &out[i]);
    pthread_mutex_unlock(&e->lock);
    return e->nchannels;
}

void tam_meter_run(tamis_energy *e, tam_energy_run *out) {
    pthread_mutex_lock(&e->lock);
    *out = (tam_energy_run){
        .time_ns = e->run.end_ns - e->open_ns,
        .steps = e->run.totals.steps,
        .wire_bytes = e->run.totals.wire_bytes,
    };
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        out->exposure_ns[p] = (uint64_t)(1e9 * e->run.totals.shares[p].seconds);
    pthread_mutex_unlock(&e->lock);
}

tam_ledger *tam_meter_ledger(const tamis_energy *e) {
    return e->ledger;
}

/* Grams of what has been counted since the last report are by the intensity since then. */
void tam_meter_complete(tamis_energy *e, tamis_energy_totals *cluster) {
    uint64_t now_ns = tam_clock_ns();
    e->reported_grams += tam_meter_grams(e, e->reported_ns, now_ns, cluster->uj - e->reported_uj);
    e->reported_uj = cluster->uj;
    e->reported_ns = now_ns;
    cluster->grams = e->reported_grams;
    tam_totals_join(cluster, &e->earlier);
}
