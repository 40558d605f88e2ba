/* SPDX-License-Identifier: MIT
 *
 * Lines of a meter's file. They are made with the lock held and written without it: a slow disk
 * holds up nobody else.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>

/* The quality of the domain that used most. */
static void fill_quality(const tamis_energy *e, tam_period *t) {
    const tam_channel *most = NULL;
    t->residual_w = t->condition = NAN;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        if (e->counted[i] && (!most || c->claimed_uj > most->claimed_uj))
            most = c;
    }
    if (most)
        tam_fit_quality(most->fit, &t->residual_w, &t->condition);
}

/* How things are at the end of a period; of domains in `shown`. */
static void fill_period(tamis_energy *e, tam_period *t) {
    bool stepped = e->run.totals.steps > 0;
    double uj = (double)t->totals.uj;
    for (uint32_t i = 0; i < e->nchannels; i++)
        tam_meter_show(e, i, &e->now[i], &e->shown[i]);
    fill_quality(e, t);
    t->density_asked = stepped ? atomic_load(&e->told.density) : NAN;
    t->residual_norm = stepped ? atomic_load(&e->told.residual_norm) : NAN;
    t->intensity_g_per_kwh = uj > 0.0 ? t->totals.grams * 3.6e12 / (uj * e->pue) : NAN;
    t->dropped = tam_marks_dropped(e->marks) + tam_spans_dropped(e->spans);
}

/* The meter's own window begins again where it ended. @return whether there is a line to write */
static bool line_finish(tamis_energy *e, tam_window *w) {
    bool own = w == &e->windows[TAM_METER_WINDOWS], lined = e->log && w->named;
    tam_totals_explain(e, &w->period.totals);
    if (lined) {
        fill_period(e, &w->period);
        tam_energy_log_window(e->log, w->name, !own, &w->period, e->shown);
    }
    w->state = own ? TAM_WINDOW_COUNTS : TAM_WINDOW_KNOWN;
    if (own)
        tam_period_begin(e, &w->period);
    pthread_cond_broadcast(&e->changed);
    return lined;
}

bool tam_meter_make_line(tamis_energy *e) {
    for (uint32_t i = 0; i <= TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (w->state == TAM_WINDOW_COMPLETE && line_finish(e, w))
            return true;
    }
    return false;
}

void tam_meter_summary(tamis_energy *e) {
    if (!e->log)
        return;
    tam_period all = e->run;
    tam_totals_join(&all.totals, &e->earlier);
    tam_totals_explain(e, &all.totals);
    fill_period(e, &all);
    tam_energy_log_summary(e->log, &all, e->shown);
    tam_energy_log_write(e->log);
}
