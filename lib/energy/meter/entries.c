/* SPDX-License-Identifier: MIT
 *
 * What a meter shows to the other ranks.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>
#include <unistd.h>

tamis_status tam_meter_present(const tamis_energy *e, const char *call) {
    if (!e)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: energy is NULL", call);
    if (e->forks == tam_forks())
        return TAMIS_OK;
    return tam_fail(
        TAMIS_E_STATE,
        "%s: the meter belongs to the process from which this one was forked; open a new one",
        call);
}

static void entries_show(const tamis_energy *e, const tam_channel *c, tam_energy_entry *out) {
    tam_energy_domain d;
    tam_sampler_look(c->sampler, c->index, &d);
    *out = (tam_energy_entry){
        .host = e->host,
        .kind = (uint32_t)d.sensor.kind,
        .status = (uint32_t)d.status,
        .resets = d.resets,
        .raw_uj = d.raw,
        .range_uj = d.sensor.range_uj,
        .has_raw = d.has_raw && !d.sensor.power,
        .most_w = (uint32_t)d.sensor.most_w,
        .uj = d.total_uj,
    };
    memcpy(out->id, d.sensor.id, sizeof out->id);
    memcpy(out->inside, d.sensor.inside, sizeof out->inside);
    memcpy(out->reason, d.reason, sizeof out->reason);
    memcpy(out->phases_uj, c->phases_uj, sizeof out->phases_uj);
    memcpy(out->methods, c->methods, sizeof out->methods);
}

void tam_meter_entries(tamis_energy *e, tam_energy_entry *out) {
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->nchannels; i++)
        entries_show(e, &e->channels[i], &out[i]);
    pthread_mutex_unlock(&e->lock);
}

void tam_meter_run(tamis_energy *e, tam_energy_run *out) {
    double seconds[TAMIS_ENERGY_PHASES];
    pthread_mutex_lock(&e->lock);
    *out = (tam_energy_run){
        .time_ns = tam_max(e->taken_ns, e->run.end_ns) - e->open_ns,
        .steps = atomic_load(&e->told.steps),
        .wire_bytes = atomic_load(&e->told.wire_bytes),
    };
    tam_meter_exposure(e, seconds);
    pthread_mutex_unlock(&e->lock);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        out->exposure_ns[p] = (uint64_t)(1e9 * seconds[p]);
}

tam_registry *tam_meter_registry(const tamis_energy *e) {
    return e->registry;
}

/* Grams of what has been counted since the last report are by the intensity since then. */
void tam_meter_complete(tamis_energy *e, tamis_energy_totals *cluster) {
    uint64_t now_ns = tam_clock_ns();
    e->reported_grams += tam_meter_grams(e, e->reported_ns, now_ns, cluster->uj - e->reported_uj);
    e->reported_uj = cluster->uj;
    e->reported_ns = now_ns;
    cluster->grams = e->reported_grams;
    tam_totals_join(cluster, &e->earlier);
    tam_totals_explain(e, cluster);
}
