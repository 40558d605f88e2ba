/* SPDX-License-Identifier: MIT
 *
 * What callers do with a meter while it runs.
 */
#include "lib/energy/meter/meter.h"
#include "lib/base/fenv.h"

#include <stdio.h>
#include <tamis/stats.h>

/* -- marks ------------------------------------------------------------------------------------ */

static bool is_phase(const tamis_energy *e, uint32_t phase) {
    return e && phase < TAMIS_ENERGY_IDLE &&
           (phase >= TAMIS_ENERGY_COMPUTE || phase < TAMIS_PHASES);
}

void tamis_energy_begin(tamis_energy *e, uint32_t phase) {
    if (is_phase(e, phase))
        tam_marks_begin(e->marks, phase, tam_clock_ns());
}

void tamis_energy_end(tamis_energy *e, uint32_t phase) {
    if (is_phase(e, phase))
        tam_marks_end(e->marks, phase, tam_clock_ns());
}

void tamis_energy_span(tamis_energy *e, uint32_t phase, uint64_t begin_ns, uint64_t end_ns) {
    if (is_phase(e, phase) && begin_ns < end_ns)
        tam_marks_span(e->marks, phase, begin_ns, end_ns);
}

/* A thread that is blocked uses nothing; what runs meanwhile is told by itself. */
void tamis_energy_on_phase(void *energy, const tamis_phase_event *event) {
    if (event && event->phase != TAMIS_PHASE_WAIT)
        tamis_energy_span(energy, (uint32_t)event->phase, event->begin_ns, event->end_ns);
}

void tamis_energy_step(tamis_energy *e, const tamis_stats *stats) {
    if (!e || !stats)
        return;
    atomic_fetch_add(&e->told.steps, 1);
    atomic_fetch_add(&e->told.wire_bytes, stats->wire_bytes);
    atomic_fetch_add(&e->told.offered, stats->length);
    atomic_fetch_add(&e->told.sent, stats->selected);
    atomic_store(&e->told.density,
                 stats->length > 0 ? (double)stats->target / (double)stats->length : NAN);
    atomic_store(&e->told.residual_norm, stats->residual_norm);
}

static tamis_status windows_check(const tamis_energy *e, const void *argument, const char *call) {
    TAM_TRY(tam_meter_present(e, call));
    return argument ? TAMIS_OK : tam_fail(TAMIS_E_ARGUMENT, "%s: the last argument is NULL", call);
}

/* -- domains, totals -------------------------------------------------------------------------- */

uint32_t tamis_energy_ndomains(const tamis_energy *e) {
    return e ? e->nchannels : 0;
}

void tam_meter_show(const tamis_energy *e, uint32_t i, const tam_energy_domain *d,
                    tamis_energy_domain *out) {
    *out = (tamis_energy_domain)TAMIS_ENERGY_DOMAIN_INIT;
    snprintf(out->id, sizeof out->id, "%s", d->sensor.id);
    snprintf(out->source, sizeof out->source, "%.*s", (int)strcspn(d->sensor.id, ":"),
             d->sensor.id);
    snprintf(out->reason, sizeof out->reason, "%s", d->reason);
    out->kind = d->sensor.kind;
    out->status = d->status;
    out->counted = e->counted[i];
    out->uj = d->total_uj;
    out->wraps = d->wraps;
    out->resets = d->resets;
    out->tick_s = d->tick_s;
    tam_fit_sensor(e->channels[i].fit, &out->lag_s, &out->duty);
}

tamis_status tamis_energy_domain_at(tamis_energy *e, uint32_t index, tamis_energy_domain *out) {
    TAM_FENV_HELD();
    tamis_energy_domain own;
    tam_energy_domain now;
    TAM_TRY(windows_check(e, out, "tamis_energy_domain_at"));
    if (index >= e->nchannels)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_energy_domain_at: domain %u is out of range: there are %u", index,
                        e->nchannels);
    pthread_mutex_lock(&e->lock);
    const tam_channel *c = &e->channels[index];
    tam_sampler_look(c->sampler, c->index, &now);
    tam_meter_show(e, index, &now, &own);
    pthread_mutex_unlock(&e->lock);
    return tam_struct_return("tamis_energy_domain", &own, sizeof own, out);
}

tamis_status tamis_energy_read(tamis_energy *e, tamis_energy_totals *out) {
    TAM_FENV_HELD();
    TAM_TRY(windows_check(e, out, "tamis_energy_read"));
    pthread_mutex_lock(&e->lock);
    tamis_energy_totals own;
    tam_meter_so_far(e, &own);
    tam_totals_join(&own, &e->earlier);
    pthread_mutex_unlock(&e->lock);
    tam_totals_explain(e, &own);
    return tam_struct_return("tamis_energy_totals", &own, sizeof own, out);
}

tamis_status tamis_energy_resume(tamis_energy *e, const tamis_energy_totals *earlier) {
    TAM_FENV_HELD();
    tamis_energy_totals own = TAMIS_ENERGY_TOTALS_INIT;
    TAM_TRY(windows_check(e, earlier, "tamis_energy_resume"));
    TAM_TRY(tam_struct_copy("tamis_energy_totals", &own, sizeof own, sizeof own, earlier));
    if (!tam_totals_sound(&own))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_energy_resume: the joules of phases and the "
                                          "unattributed ones do not add up to the total");
    pthread_mutex_lock(&e->lock);
    e->earlier = own;
    pthread_mutex_unlock(&e->lock);
    return TAMIS_OK;
}

/* -- windows ---------------------------------------------------------------------------------- */

tamis_status tamis_energy_window_begin(tamis_energy *e, const char *name, uint32_t *out) {
    TAM_TRY(windows_check(e, out, "tamis_energy_window_begin"));
    pthread_mutex_lock(&e->lock);
    uint32_t i = 0;
    while (i < TAM_METER_WINDOWS && e->windows[i].state != TAM_WINDOW_FREE)
        i++;
    if (i < TAM_METER_WINDOWS) {
        tam_window *w = &e->windows[i];
        w->state = TAM_WINDOW_BEGINS;
        w->ended = false;
        w->named = name != NULL;
        snprintf(w->name, sizeof w->name, "%s", name ? name : "");
        tam_meter_mark(e, w, false);
    }
    pthread_mutex_unlock(&e->lock);
    if (i == TAM_METER_WINDOWS)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_energy_window_begin: %u windows are open; "
                        "tamis_energy_window_result closes one",
                        i);
    *out = i;
    return TAMIS_OK;
}

/* With the lock held. */
static tamis_status find_window(tamis_energy *e, const char *call, uint32_t window,
                                tam_window **out) {
    if (window >= TAM_METER_WINDOWS || e->windows[window].state == TAM_WINDOW_FREE)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: there is no window %u", call, window);
    *out = &e->windows[window];
    return TAMIS_OK;
}

tamis_status tamis_energy_window_end(tamis_energy *e, uint32_t window) {
    static const char call[] = "tamis_energy_window_end";
    tam_window *w = NULL;
    TAM_TRY(tam_meter_present(e, call));
    pthread_mutex_lock(&e->lock);
    tamis_status status = find_window(e, call, window, &w);
    if (status == TAMIS_OK && w->ended)
        status = tam_fail(TAMIS_E_STATE, "%s: window %u has ended", call, window);
    if (status == TAMIS_OK) {
        w->ended = true;
        e->told_ns = tam_meter_mark(e, w, true);
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* An answer, and no mistake. */
static tamis_status not_yet(const char *call, uint32_t window) {
    bool before = tam_errors_quiet(true);
    tamis_status status = tam_fail(TAMIS_E_STATE,
                                   "%s: the counters have not moved past the end of window %u yet; "
                                   "ask again later",
                                   call, window);
    tam_errors_quiet(before);
    return status;
}

/* No chunk need end any more where the window begins or ends. */
static void free_window(tamis_energy *e, tam_window *w) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < e->nmoments; i++) {
        if (e->moments[i].window != w)
            e->moments[kept++] = e->moments[i];
    }
    e->nmoments = kept;
    w->state = TAM_WINDOW_FREE;
}

/* With the lock held. @param out  NULL: nobody wants to know */
static tamis_status windows_take_result(tamis_energy *e, uint32_t window, uint64_t until_ns,
                                        tamis_energy_totals *out) {
    static const char call[] = "tamis_energy_window_result";
    tam_window *w = NULL;
    TAM_TRY(find_window(e, call, window, &w));
    if (out) {
        if (!w->ended)
            return tam_fail(TAMIS_E_STATE, "%s: window %u has not ended", call, window);
        while (w->state != TAM_WINDOW_KNOWN && tam_lock_wait(&e->lock, &e->changed, until_ns))
            continue;
        if (w->state != TAM_WINDOW_KNOWN)
            return not_yet(call, window);
        TAM_TRY(tam_struct_return("tamis_energy_totals", &w->period.totals, sizeof *out, out));
    }
    free_window(e, w);
    return TAMIS_OK;
}

tamis_status tamis_energy_window_result(tamis_energy *e, uint32_t window, uint32_t wait_ms,
                                        tamis_energy_totals *out) {
    TAM_FENV_HELD();
    TAM_TRY(tam_meter_present(e, "tamis_energy_window_result"));
    uint64_t until_ns = tam_clock_ns() + (uint64_t)wait_ms * 1000000u;
    pthread_mutex_lock(&e->lock);
    tamis_status status = windows_take_result(e, window, until_ns, out);
    pthread_mutex_unlock(&e->lock);
    return status;
}
