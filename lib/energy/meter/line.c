/* SPDX-License-Identifier: MIT
 *
 * What a meter writes to its files. Lines are prepared with the lock held and written without it: a
 * slow disk holds up nobody else.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* -- open, close ------------------------------------------------------------------------------ */

tamis_status tam_meter_open_log(tamis_energy *e, const tam_energy_log_setup *setup) {
    tam_line *l = &e->line;
    l->domains = tam_alloc_array(e->nchannels, sizeof l->domains[0]);
    l->unattributed_uj = tam_alloc_array(e->nchannels, sizeof l->unattributed_uj[0]);
    l->idle_uj = tam_alloc_array(e->nchannels, sizeof l->idle_uj[0]);
    e->notes = tam_alloc_array(TAM_METER_NOTES, sizeof e->notes[0]);
    if (!l->domains || !l->unattributed_uj || !l->idle_uj || !e->notes)
        return tam_fail(TAMIS_E_NOMEM, "energy: no memory for %u domains", e->nchannels);
    for (uint32_t i = 0; i < e->nchannels; i++)
        tam_meter_show(e, i, &e->now[i], &l->domains[i]);
    return tam_energy_log_open(setup, l->domains, e->nchannels, &e->log);
}

void tam_meter_close_log(tamis_energy *e) {
    tam_energy_log_close(e->log);
    tam_free(e->notes);
    tam_free(e->line.idle_uj);
    tam_free(e->line.unattributed_uj);
    tam_free(e->line.domains);
}

/* -- slack ------------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill_slack(const tam_told *told, uint64_t begin, uint64_t end, tam_energy_record *r) {
    double slacks[TAM_METER_SLACKS];
    size_t n = 0;
    for (uint64_t step = end; step > begin && n < TAM_METER_SLACKS; step--)
        slacks[n++] = fmax(atomic_load(&told->slacks[(step - 1) % TAM_METER_SLACKS]), 0.0);
    r->slack_p50_s = r->slack_p95_s = r->slack_max_s = NAN;
    r->straggler = atomic_load(&told->straggler);
    if (n == 0 || r->straggler == UINT32_MAX)
        return;
    qsort(slacks, n, sizeof slacks[0], ascending);
    r->slack_p50_s = slacks[n / 2];
    r->slack_p95_s = slacks[(n - 1) * 95 / 100];
    r->slack_max_s = slacks[n - 1];
}

/* -- a line ----------------------------------------------------------------------------------- */

static void fill_domain(tamis_energy *e, uint32_t i, const struct tam_tally_domain *sum) {
    tamis_energy_domain *d = &e->line.domains[i];
    tam_meter_show(e, i, &e->now[i], d);
    d->uj = (uint64_t)sum->uj;
    d->wraps -= sum->wraps;
    d->resets -= sum->resets;
    e->line.unattributed_uj[i] = sum->unattributed_uj;
    e->line.idle_uj[i] = sum->idle_uj;
}

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

static double intensity(const tamis_energy *e, const tamis_energy_totals *t) {
    return t->uj > 0 ? t->grams * 3.6e12 / ((double)t->uj * e->footprint.pue) : NAN;
}

/* The lock is held. */
static void fill(tamis_energy *e, const char *name, const tam_tally *tally) {
    tam_line *l = &e->line;
    tam_energy_record *r = &l->record;
    snprintf(l->name, sizeof l->name, "%s", name);
    *r = (tam_energy_record){
        .name = l->name,
        .begin_ns = tally->begin_ns,
        .end_ns = tally->end_ns,
        .step0 = tally->first_step,
        .step1 = tally->first_step + tally->totals.steps,
        .domains = l->domains,
        .unattributed_uj = l->unattributed_uj,
        .idle_uj = l->idle_uj,
        .ndomains = e->nchannels,
        .totals = tally->totals,
        .elements_offered = tally->offered,
        .elements_sent = tally->sent,
        .dropped = tam_marks_dropped(e->marks) + tam_spans_dropped(e->spans),
    };
    tam_totals_explain(&r->totals, e->nchannels);
    for (uint32_t i = 0; i < e->nchannels; i++)
        fill_domain(e, i, &tally->domains[i]);
    r->density_asked = r->step1 > 0 ? atomic_load(&e->told.density) : NAN;
    r->residual_norm = r->step1 > 0 ? atomic_load(&e->told.residual_norm) : NAN;
    fill_slack(&e->told, r->step0, r->step1, r);
    fill_quality(e, r);
    r->intensity_g_per_kwh = intensity(e, &r->totals);
}

void tam_meter_write_lines(tamis_energy *e) {
    for (uint32_t i = 0; e->log && i <= TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (!w->open || !w->complete || w->written)
            continue;
        fill(e, w->name, &w->tally);
        e->line.record.overlaps = i < TAM_METER_WINDOWS;
        e->line.window = w;
        pthread_mutex_unlock(&e->lock);
        tam_energy_log_window(e->log, &e->line.record);
        pthread_mutex_lock(&e->lock);
        if (e->line.window) /* it was not given up meanwhile */
            w->written = true;
    }
    e->line.window = NULL;
}

void tam_meter_summary(tamis_energy *e) {
    if (!e->log)
        return;
    fill(e, "run", &e->run);
    tam_totals_join(&e->line.record.totals, &e->earlier);
    tam_energy_log_summary(e->log, &e->line.record);
}

/* -- notes ------------------------------------------------------------------------------------ */

static bool pop_note(tamis_energy *e, char *line) {
    pthread_mutex_lock(&e->lock);
    bool some = e->nnotes > 0;
    if (some) {
        memcpy(line, e->notes[0], sizeof e->notes[0]);
        memmove(e->notes[0], e->notes[1], --e->nnotes * sizeof e->notes[0]);
    }
    pthread_mutex_unlock(&e->lock);
    return some;
}

void tam_meter_write_notes(tamis_energy *e) {
    char line[TAM_METER_NOTE_BYTES];
    while (e->log && pop_note(e, line))
        tam_energy_log_note(e->log, line);
}

/* -- events ----------------------------------------------------------------------------------- */

/* What is new of a domain, one thing at a time; NULL: nothing. */
static const char *find_news(tam_channel *c, const tam_energy_domain *d) {
    if (d->resets != c->told_resets) {
        c->told_resets = d->resets;
        return "reset";
    }
    if (d->wraps != c->told_wraps) {
        c->told_wraps = d->wraps;
        return "wrap";
    }
    if (d->status == c->told_status)
        return NULL;
    c->told_status = d->status;
    return tamis_energy_status_name(d->status);
}

void tam_meter_events(tamis_energy *e, uint64_t now_ns) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_energy_domain *d = &e->now[i];
        const char *id = d->place.id, *reason = d->reason, *name;
        while ((name = find_news(&e->channels[i], d)) != NULL) {
            tam_log(TAM_INFO, "energy: %s: %s%s%s", id, name, reason[0] ? ", " : "", reason);
            if (e->log)
                tam_energy_log_event(e->log, now_ns, name, id, reason);
        }
    }
}
