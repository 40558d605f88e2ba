/* SPDX-License-Identifier: MIT
 *
 * Chunks of time: from gains and spans to joules of phases.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>

enum { PATIENCE_NS = 1000000000 }; /* for a counter that has not moved past the end of a chunk */

#define MEMORY_NS UINT64_C(5000000000) /* of spans, before the last chunk */

/* Not below 0: a clock may begin at a boot, or where its namespace does. */
static uint64_t chunk_less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* -- gains ------------------------------------------------------------------------------------ */

/* The oldest gain can no longer be divided in time: it is in the next chunk as a whole. */
static void pass_oldest(tam_channel *c) {
    c->passed_uj += c->gains[0].uj;
    c->ngains--;
    c->fitted -= c->fitted > 0;
    memmove(c->gains, c->gains + 1, c->ngains * sizeof c->gains[0]);
}

static void take_gain(tam_channel *c, const tam_energy_gain *gain) {
    if (c->ngains == TAM_METER_GAINS)
        pass_oldest(c);
    c->gains[c->ngains++] = *gain;
}

static void take_gains(tamis_energy *e) {
    tam_energy_gain gain;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        tam_channel *c = &e->channels[i];
        while (tam_sampler_take(c->sampler, c->index, &gain))
            take_gain(c, &gain);
    }
}

static void chunk_learn(tamis_energy *e, uint64_t settled_ns) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        tam_channel *c = &e->channels[i];
        for (; c->fitted < c->ngains && c->gains[c->fitted].end_ns <= settled_ns; c->fitted++) {
            const tam_energy_gain *g = &c->gains[c->fitted];
            tam_fit_take(c->fit, e->spans, g->begin_ns, g->end_ns, g->uj, e->now[i].tick_s);
        }
    }
}

/* -- joules up to a time ---------------------------------------------------------------------- */

static uint64_t lag_ns(const tam_channel *c) {
    double lag_s, duty;
    tam_fit_sensor(c->fit, &lag_s, &duty);
    return (uint64_t)(lag_s * 1e9);
}

static double chunk_expected(const tamis_energy *e, const tam_channel *c, uint64_t begin_ns,
                             uint64_t end_ns) {
    double seconds[TAMIS_ENERGY_PHASES];
    uint64_t lag = lag_ns(c);
    tam_spans_seconds(e->spans, chunk_less(begin_ns, lag), chunk_less(end_ns, lag), seconds);
    return tam_fit_expect(c->fit, seconds);
}

/* What a gain had come to at a time within it: as its phases should have taken it, or evenly. */
static uint64_t chunk_part_of(const tamis_energy *e, const tam_channel *c, const tam_energy_gain *g,
                              uint64_t at_ns) {
    double whole = chunk_expected(e, c, g->begin_ns, g->end_ns);
    double share = (double)(at_ns - g->begin_ns) / (double)(g->end_ns - g->begin_ns);
    if (whole > 0.0)
        share = chunk_expected(e, c, g->begin_ns, at_ns) / whole;
    share = fmin(fmax(share, 0.0), 1.0);
    return (uint64_t)(share * (double)g->uj);
}

static uint64_t joules_until(const tamis_energy *e, const tam_channel *c, uint64_t at_ns) {
    uint64_t uj = c->passed_uj;
    for (uint32_t i = 0; i < c->ngains && c->gains[i].begin_ns < at_ns; i++) {
        const tam_energy_gain *g = &c->gains[i];
        uj += g->end_ns <= at_ns ? g->uj : chunk_part_of(e, c, g, at_ns);
    }
    return uj > c->claimed_uj ? uj : c->claimed_uj;
}

static void forget_gains(tam_channel *c, uint64_t before_ns) {
    while (c->ngains > 0 && c->fitted > 0 && c->gains[0].end_ns <= before_ns)
        pass_oldest(c);
}

/* -- a chunk ---------------------------------------------------------------------------------- */

/* Errors of different counters have nothing to do with each other. */
static int64_t join_widths(int64_t a, int64_t b) {
    return (int64_t)hypot((double)a, (double)b);
}

static void join_share(tamis_energy_share *sum, const tamis_energy_share *more) {
    int64_t low = join_widths(sum->uj - sum->low_uj, more->uj - more->low_uj);
    int64_t high = join_widths(sum->high_uj - sum->uj, more->high_uj - more->uj);
    sum->uj += more->uj;
    sum->low_uj = sum->uj - low;
    sum->high_uj = sum->uj + high;
    sum->group |= more->group;
    sum->method = more->method > sum->method ? more->method : sum->method;
}

/* A stretch of time. */
typedef struct stretch {
    uint64_t begin_ns, end_ns;
} stretch;

/* Joules of a counter, by phases. @return what is unattributed */
static int64_t chunk_divide(const tamis_energy *e, const tam_channel *c, stretch s, int64_t uj,
                            tamis_energy_share shares[TAMIS_ENERGY_PHASES]) {
    double seconds[TAMIS_ENERGY_PHASES];
    int64_t rest;
    uint64_t lag = lag_ns(c);
    tam_spans_seconds(e->spans, chunk_less(s.begin_ns, lag), chunk_less(s.end_ns, lag), seconds);
    tam_fit_divide(c->fit, seconds, uj, shares, &rest);
    return rest;
}

/* What counts of domain i. */
static void add_counted(tamis_energy *e, uint32_t i, stretch s, tamis_energy_totals *sum) {
    tamis_energy_share shares[TAMIS_ENERGY_PHASES];
    int64_t uj = (int64_t)e->gains[i].uj;
    if (!e->counted[i])
        return;
    sum->known = sum->known || e->now[i].has_raw;
    sum->uj += uj;
    e->gains[i].sum_uj += e->gains[i].uj;
    sum->unattributed_uj += chunk_divide(e, &e->channels[i], s, uj, shares);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        join_share(&sum->shares[p], &shares[p]);
}

/* What every domain gains in a stretch in which each is read all the time or not at all. */
static void cover_stretch(tamis_energy *e, stretch s, tamis_energy_totals *sum) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        uint64_t from = s.begin_ns > e->run.end_ns ? joules_until(e, c, s.begin_ns) : c->claimed_uj;
        e->gains[i].uj = joules_until(e, c, s.end_ns) - from;
        e->gains[i].compared = e->now[i].has_raw && e->now[i].since_ns <= s.begin_ns;
    }
    tam_domain_cover(e->now, e->nchannels, e->gains, e->counted, sum->missing);
    for (uint32_t i = 0; i < e->nchannels; i++)
        add_counted(e, i, s, sum);
}

/* When the next domain was first read, or `end_ns`. */
static uint64_t next_first(const tamis_energy *e, uint64_t begin_ns, uint64_t end_ns) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        if (e->now[i].has_raw && e->now[i].since_ns > begin_ns)
            end_ns = tam_min(end_ns, e->now[i].since_ns);
    }
    return end_ns;
}

/* Joules since the last chunk. */
static void chunk_cover(tamis_energy *e, uint64_t end_ns, tamis_energy_totals *sum) {
    stretch s = {.end_ns = e->run.end_ns};
    for (uint32_t i = 0; i < e->nchannels; i++)
        e->gains[i] = (tam_cover_gain){.owed_uj = e->channels[i].owed_uj,
                                       .ahead_uj = e->channels[i].ahead_uj};
    do {
        s = (stretch){s.end_ns, next_first(e, s.end_ns, end_ns)};
        cover_stretch(e, s, sum);
    } while (s.end_ns < end_ns);
}

/* Whether it counts or not. */
static void chunk_claim(tamis_energy *e, uint32_t i, uint64_t end_ns) {
    tam_channel *c = &e->channels[i];
    tamis_energy_share shares[TAMIS_ENERGY_PHASES];
    uint64_t until = joules_until(e, c, end_ns);
    int64_t uj = (int64_t)(until - c->claimed_uj);
    int64_t rest = chunk_divide(e, c, (stretch){e->run.end_ns, end_ns}, uj, shares);
    bool reset = e->now[i].resets != c->resets; /* it will never show what it owes */
    c->claimed_uj = until;
    c->owed_uj = reset ? 0 : e->gains[i].owed_uj;
    c->ahead_uj = e->gains[i].ahead_uj;
    e->chunk.domains[i] = (tam_period_domain){
        .uj = uj,
        .counted_uj = (int64_t)e->gains[i].sum_uj,
        .unattributed_uj = rest,
        .idle_uj = shares[TAMIS_ENERGY_IDLE].uj,
        .wraps = e->now[i].wraps - c->wraps,
        .resets = e->now[i].resets - c->resets,
    };
    c->wraps = e->now[i].wraps;
    c->resets = e->now[i].resets;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        c->phases_uj[p] += shares[p].uj;
        c->methods[p] =
            c->methods[p] > shares[p].method ? c->methods[p] : (uint8_t)shares[p].method;
    }
    forget_gains(c, end_ns);
}

/* Spans before that are no longer needed: gains that the fit has not seen go back
 * to their begin. */
static uint64_t memory_begins(const tamis_energy *e, uint64_t end_ns) {
    uint64_t begin_ns = end_ns;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        if (c->ngains > 0 && c->gains[0].begin_ns < begin_ns)
            begin_ns = c->gains[0].begin_ns;
    }
    return chunk_less(begin_ns, MEMORY_NS);
}

/* Totals since the last chunk. Which domains count may change when one is lost; nothing is counted
 * twice then, for each claims its joules whether they count or not. */
static void chunk_total(tamis_energy *e, const tam_moment *end, tamis_energy_totals *out) {
    const uint64_t begin_ns = e->run.end_ns, end_ns = end->at_ns;
    double seconds[TAMIS_ENERGY_PHASES];
    *out = (tamis_energy_totals)TAMIS_ENERGY_TOTALS_INIT;
    chunk_cover(e, end_ns, out);
    tam_spans_seconds(e->spans, begin_ns, end_ns, seconds);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        out->shares[p].seconds = seconds[p];
    out->seconds = (double)(end_ns - begin_ns) * 1e-9;
    out->grams = tam_meter_grams(e, begin_ns, end_ns, out->uj);
    out->steps = end->steps - e->run.totals.steps; /* what is in chunks before */
    out->wire_bytes = end->wire_bytes - e->run.totals.wire_bytes;
}

static void close_chunk(tamis_energy *e, const tam_moment *end) {
    const uint64_t end_ns = end->at_ns;
    tam_period *chunk = &e->chunk;
    tam_period_begin(e, chunk);
    chunk->end_ns = end_ns;
    chunk_total(e, end, &chunk->totals);
    for (uint32_t i = 0; i < e->nchannels; i++)
        chunk_claim(e, i, end_ns);
    chunk->offered = end->offered - e->run.offered;
    chunk->sent = end->sent - e->run.sent;
    tam_period_add(e, &e->run, chunk);
    for (uint32_t i = 0; i <= TAM_METER_WINDOWS; i++) {
        if (e->windows[i].state == TAM_WINDOW_COUNTS)
            tam_period_add(e, &e->windows[i].period, chunk);
    }
    tam_spans_forget(e->spans, memory_begins(e, end_ns));
}

/* -- what no chunk has come to ---------------------------------------------------------------- */

void tam_meter_so_far(tamis_energy *e, tamis_energy_totals *out) {
    const tam_moment now = {.at_ns = e->taken_ns,
                            .steps = atomic_load(&e->told.steps),
                            .wire_bytes = atomic_load(&e->told.wire_bytes)};
    tamis_energy_totals rest;
    *out = e->run.totals;
    if (now.at_ns <= e->run.end_ns)
        return;
    chunk_total(e, &now, &rest);
    tam_totals_add(out, &rest);
    memcpy(out->missing, rest.missing, sizeof out->missing);
}

void tam_meter_exposure(const tamis_energy *e, double seconds[TAMIS_ENERGY_PHASES]) {
    uint64_t until_ns = tam_max(e->taken_ns, e->run.end_ns);
    tam_spans_seconds(e->spans, e->run.end_ns, until_ns, seconds);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        seconds[p] += e->run.totals.shares[p].seconds;
}

/* -- ends of chunks --------------------------------------------------------------------------- */

uint64_t tam_meter_mark(tamis_energy *e, tam_window *window, bool ends) {
    tam_moment *m = &e->moments[e->nmoments++];
    *m = (tam_moment){
        .window = window,
        .ends = ends,
        .at_ns = tam_clock_ns(),
        .steps = atomic_load(&e->told.steps),
        .wire_bytes = atomic_load(&e->told.wire_bytes),
        .offered = atomic_load(&e->told.offered),
        .sent = atomic_load(&e->told.sent),
    };
    return m->at_ns;
}

/* The meter's own window ends when it is due: now, for what steps had told before is not known. */
static void end_own(tamis_energy *e, uint64_t now_ns) {
    if (e->closing || now_ns < e->due_ns || e->nmoments >= TAM_METER_OWN_MOMENTS)
        return;
    tam_meter_mark(e, &e->windows[TAM_METER_WINDOWS], true);
    e->due_ns += ((now_ns - e->due_ns) / e->window_ns + 1) * e->window_ns;
}

uint64_t tam_meter_take(tamis_energy *e) {
    uint64_t now_ns = tam_clock_ns(), settled_ns = chunk_less(now_ns, e->settle_ns);
    end_own(e, now_ns);
    take_gains(e);
    tam_spans_drain(e->spans, e->marks);
    for (uint32_t i = 0; i < e->nchannels; i++)
        tam_sampler_look(e->channels[i].sampler, e->channels[i].index, &e->now[i]);
    e->taken_ns = now_ns;
    chunk_learn(e, settled_ns > e->told_ns ? settled_ns : e->told_ns);
    return now_ns;
}

/* Every counter that is read and moves has moved past the end. */
static bool have_moved(const tamis_energy *e, uint64_t end_ns, uint64_t now_ns) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        const tam_energy_domain *now = &e->now[i];
        uint64_t past_ns = c->ngains > 0 ? c->gains[c->ngains - 1].end_ns : 0;
        uint64_t wait_ns = PATIENCE_NS + (uint64_t)(3e9 * now->tick_s);
        if (now->status == TAMIS_ENERGY_OK && past_ns < end_ns && now_ns < end_ns + wait_ns)
            return false;
    }
    return true;
}

/* A chunk that would be empty is none: two windows have begun or ended at once. */
bool tam_meter_close_next(tamis_energy *e, uint64_t now_ns, bool flush) {
    const tam_moment *next = &e->moments[0];
    if (e->nmoments == 0)
        return false;
    bool told = next->at_ns <= e->told_ns || next->at_ns <= chunk_less(now_ns, e->settle_ns);
    if (!flush && !(told && have_moved(e, next->at_ns, now_ns)))
        return false;
    if (next->at_ns > e->run.end_ns)
        close_chunk(e, next);
    next->window->state = next->ends ? TAM_WINDOW_COMPLETE : TAM_WINDOW_COUNTS;
    if (!next->ends)
        tam_period_begin(e, &next->window->period);
    memmove(e->moments, e->moments + 1, --e->nmoments * sizeof e->moments[0]);
    return true;
}
