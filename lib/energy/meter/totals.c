/* SPDX-License-Identifier: MIT
 *
 * Totals of one stretch after another. The error of a phase's watts is the same in all of them, so
 * half widths of intervals add up as they are.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>
#include <stdio.h>

static void add_share(tamis_energy_share *sum, const tamis_energy_share *more) {
    sum->seconds += more->seconds;
    sum->uj += more->uj;
    sum->low_uj += more->low_uj;
    sum->high_uj += more->high_uj;
    sum->group |= more->group;
    sum->method = more->method > sum->method ? more->method : sum->method;
}

void tam_totals_add(tamis_energy_totals *sum, const tamis_energy_totals *more) {
    sum->seconds += more->seconds;
    sum->steps += more->steps;
    sum->wire_bytes += more->wire_bytes;
    sum->known = sum->known || more->known;
    sum->uj += more->uj;
    sum->unattributed_uj += more->unattributed_uj;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        add_share(&sum->shares[p], &more->shares[p]);
    sum->grams += more->grams;
}

/* -- periods ---------------------------------------------------------------------------------- */

void tam_period_begin(const tamis_energy *e, tam_period *period) {
    uint64_t now_ns = e->run.end_ns;
    *period = (tam_period){
        .begin_ns = now_ns,
        .end_ns = now_ns,
        .first_step = e->run.totals.steps,
        .totals = TAMIS_ENERGY_TOTALS_INIT,
        .domains = period->domains,
    };
    period->totals.grams = tam_meter_grams(e, now_ns, now_ns, 0);
    memcpy(period->totals.missing, e->run.totals.missing, sizeof period->totals.missing);
    memset(period->domains, 0, e->nchannels * sizeof period->domains[0]);
}

void tam_period_add(const tamis_energy *e, tam_period *sum, const tam_period *chunk) {
    tam_totals_add(&sum->totals, &chunk->totals);
    memcpy(sum->totals.missing, chunk->totals.missing, sizeof sum->totals.missing);
    sum->end_ns = chunk->end_ns;
    sum->offered += chunk->offered;
    sum->sent += chunk->sent;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        sum->domains[i].uj += chunk->domains[i].uj;
        sum->domains[i].counted_uj += chunk->domains[i].counted_uj;
        sum->domains[i].unattributed_uj += chunk->domains[i].unattributed_uj;
        sum->domains[i].idle_uj += chunk->domains[i].idle_uj;
        sum->domains[i].wraps += chunk->domains[i].wraps;
        sum->domains[i].resets += chunk->domains[i].resets;
    }
}

double tam_meter_grams(const tamis_energy *e, uint64_t begin_ns, uint64_t end_ns, int64_t uj) {
    if (!e->carbon)
        return NAN;
    return uj == 0 ? 0.0
                   : tamis_carbon_grams(e->carbon, e->unix_minus_s + (double)begin_ns * 1e-9,
                                        e->unix_minus_s + (double)end_ns * 1e-9, uj, e->pue);
}

/* -- other runs ------------------------------------------------------------------------------- */

/* What an earlier part lacked is still missing. */
static void join_missing(const tamis_energy_totals *earlier, char missing[TAMIS_ENERGY_TEXT]) {
    if (missing[0] || (earlier->known && !earlier->missing[0]))
        return;
    snprintf(missing, TAMIS_ENERGY_TEXT, "in an earlier part of the run: %.*s",
             TAMIS_ENERGY_TEXT - 32,
             earlier->missing[0] ? earlier->missing : "nothing was measured");
}

void tam_totals_join(tamis_energy_totals *sum, const tamis_energy_totals *earlier) {
    if (earlier->size == 0)
        return;
    tamis_energy_totals part = *earlier;
    part.grams = part.known ? part.grams : 0.0; /* as its joules */
    tam_totals_add(sum, &part);
    join_missing(earlier, sum->missing);
}

void tam_totals_explain(const tamis_energy *e, tamis_energy_totals *t) {
    t->grams = t->known ? t->grams : NAN;
    if (t->missing[0])
        return;
    if (!t->known)
        snprintf(t->missing, sizeof t->missing, "%s",
                 e->nchannels == 0 ? "no source of energy is open"
                                   : "no counter has been read yet");
    else if (e->carbon && isnan(t->grams))
        tam_carbon_explain(e->carbon, e->unix_minus_s + (double)tam_clock_ns() * 1e-9, t->missing,
                           sizeof t->missing);
}

bool tam_totals_sound(const tamis_energy_totals *t) {
    int64_t sum = t->unattributed_uj;
    if (!(t->seconds >= 0.0 && t->seconds < 1e12) || t->uj < 0 || t->uj > INT64_MAX / 4 ||
        sum < 0 || sum > t->uj || t->grams < 0.0 || !memchr(t->missing, '\0', sizeof t->missing))
        return false;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        const tamis_energy_share *s = &t->shares[p];
        if (s->uj < 0 || s->uj > t->uj - sum || !(s->seconds >= 0.0 && s->seconds < 1e12) ||
            (uint32_t)s->method >= TAMIS_ENERGY_METHODS || s->low_uj < 0 || s->low_uj > s->uj ||
            s->high_uj < s->uj || s->high_uj > INT64_MAX / 4)
            return false;
        sum += s->uj;
    }
    return sum == t->uj;
}
