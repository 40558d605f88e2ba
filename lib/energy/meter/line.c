/* SPDX-License-Identifier: MIT
 *
 * Lines of a meter's file. They are made with the lock held and written without it: a slow disk
 * holds up nobody else.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>

/* Of the domain that used most. */
static void fill_quality(const tamis_energy *e, tam_energy_record *r) {
    const tam_channel *most = NULL;
    r->residual_w = r->condition = NAN;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        if (e->counted[i] && (!most || c->claimed_uj > most->claimed_uj))
            most = c;
    }
    if (most)
        tam_fit_quality(most->fit, &r->residual_w, &r->condition);
}

static tam_energy_record describe(tamis_energy *e, const tam_window *w, const tam_tally *tally) {
    const tamis_energy_totals *t = &tally->totals;
    bool stepped = e->run.totals.steps > 0;
    tam_energy_record r = {
        .name = w->name,
        .overlaps = w != &e->windows[TAM_METER_WINDOWS],
        .tally = tally,
        .domains = e->shown,
        .ndomains = e->nchannels,
        .density_asked = stepped ? atomic_load(&e->told.density) : NAN,
        .residual_norm = stepped ? atomic_load(&e->told.residual_norm) : NAN,
        .intensity_g_per_kwh = t->uj > 0 ? t->grams * 3.6e12 / ((double)t->uj * e->pue) : NAN,
        .dropped = tam_marks_dropped(e->marks) + tam_spans_dropped(e->spans),
    };
    for (uint32_t i = 0; i < e->nchannels; i++)
        tam_meter_show(e, i, &e->now[i], &e->shown[i]);
    fill_quality(e, &r);
    return r;
}

/* The meter's own window begins again where it ended. @return whether there is a line to write */
static bool finish(tamis_energy *e, tam_window *w) {
    bool lined = e->log && w->named;
    tam_totals_explain(&w->tally.totals, e->nchannels);
    if (lined) {
        tam_energy_record record = describe(e, w, &w->tally);
        tam_energy_log_window(e->log, &record);
    }
    w->state = TAM_WINDOW_KNOWN;
    if (w == &e->windows[TAM_METER_WINDOWS]) {
        tam_tally_begin(e, &w->tally);
        w->state = TAM_WINDOW_COUNTS;
    }
    pthread_cond_broadcast(&e->changed);
    return lined;
}

bool tam_meter_make_line(tamis_energy *e) {
    for (uint32_t i = 0; i <= TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (w->state == TAM_WINDOW_COMPLETE && finish(e, w))
            return true;
    }
    return false;
}

void tam_meter_summary(tamis_energy *e) {
    if (!e->log)
        return;
    tam_tally all = e->run;
    tam_totals_join(&all.totals, &e->earlier);
    tam_totals_explain(&all.totals, e->nchannels);
    tam_energy_record record = describe(e, &e->windows[TAM_METER_WINDOWS], &all);
    tam_energy_log_summary(e->log, &record);
    tam_energy_log_write(e->log);
}
