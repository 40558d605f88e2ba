/* SPDX-License-Identifier: MIT
 *
 * Chunks of time: from gains and spans to joules of phases.
 */
#include "lib/energy/meter/meter.h"

#include <math.h>

enum {
    PATIENCE_NS = 1000000000, /* for a counter that has not moved past the end of a chunk */
    NOTE_NS = 20000000        /* between two notes of steps */
};

/* Not below 0: a clock may begin at a boot, or where its namespace does. */
static uint64_t less(uint64_t a, uint64_t b) {
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

static tam_channel *channel_of(tamis_energy *e, const tam_sampler *sampler, uint32_t index) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        if (e->channels[i].sampler == sampler && e->channels[i].index == index)
            return &e->channels[i];
    }
    return NULL;
}

static void take_gains(tamis_energy *e) {
    tam_energy_gain gain;
    uint32_t index;
    for (uint32_t s = 0; s < e->nsamplers; s++) {
        while (tam_sampler_take(e->samplers[s], &index, &gain))
            take_gain(channel_of(e, e->samplers[s], index), &gain);
    }
}

static void learn(tamis_energy *e, uint64_t settled_ns) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        tam_channel *c = &e->channels[i];
        for (; c->fitted < c->ngains && c->gains[c->fitted].end_ns <= settled_ns; c->fitted++) {
            const tam_energy_gain *g = &c->gains[c->fitted];
            tam_fit_take(c->fit, e->spans, g->begin_ns, g->end_ns, g->uj);
        }
    }
}

/* -- joules up to a time ---------------------------------------------------------------------- */

static uint64_t lag_ns(const tam_channel *c) {
    double lag_s, duty;
    tam_fit_sensor(c->fit, &lag_s, &duty);
    return (uint64_t)(lag_s * 1e9);
}

static double expected(const tamis_energy *e, const tam_channel *c, uint64_t begin_ns,
                       uint64_t end_ns) {
    double seconds[TAMIS_ENERGY_PHASES];
    uint64_t lag = lag_ns(c);
    tam_spans_seconds(e->spans, less(begin_ns, lag), less(end_ns, lag), seconds);
    return tam_fit_expect(c->fit, seconds);
}

/* What a gain had come to at a time within it: as its phases should have taken it, or evenly. */
static uint64_t part_of(const tamis_energy *e, const tam_channel *c, const tam_energy_gain *g,
                        uint64_t at_ns) {
    double whole = expected(e, c, g->begin_ns, g->end_ns);
    double share = (double)(at_ns - g->begin_ns) / (double)(g->end_ns - g->begin_ns);
    if (whole > 0.0)
        share = expected(e, c, g->begin_ns, at_ns) / whole;
    share = fmin(fmax(share, 0.0), 1.0);
    return (uint64_t)(share * (double)g->uj);
}

static uint64_t joules_until(const tamis_energy *e, const tam_channel *c, uint64_t at_ns) {
    uint64_t uj = c->passed_uj;
    for (uint32_t i = 0; i < c->ngains && c->gains[i].begin_ns < at_ns; i++) {
        const tam_energy_gain *g = &c->gains[i];
        uj += g->end_ns <= at_ns ? g->uj : part_of(e, c, g, at_ns);
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

static void claim(tamis_energy *e, tam_channel *c, uint64_t end_ns, tamis_energy_totals *chunk) {
    tamis_energy_share shares[TAMIS_ENERGY_PHASES];
    double seconds[TAMIS_ENERGY_PHASES];
    int64_t rest;
    uint64_t until = joules_until(e, c, end_ns), lag = lag_ns(c);
    int64_t uj = (int64_t)(until - c->claimed_uj);
    c->claimed_uj = until;
    tam_spans_seconds(e->spans, less(e->claimed_ns, lag), less(end_ns, lag), seconds);
    tam_fit_divide(c->fit, seconds, uj, shares, &rest);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        c->phases_uj[p] += shares[p].uj;
        c->methods[p] =
            c->methods[p] > shares[p].method ? c->methods[p] : (uint8_t)shares[p].method;
    }
    c->unattributed_uj += rest;
    c->idle_uj += shares[TAMIS_ENERGY_IDLE].uj;
    forget_gains(c, end_ns);
    if (!c->counted)
        return;
    chunk->known = chunk->known || c->now.has_raw;
    chunk->uj += uj;
    chunk->unattributed_uj += rest;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        join_share(&chunk->shares[p], &shares[p]);
}

/* Which domains count now: it may change when one is lost, and then nothing is counted twice, for
 * each claims its joules whether they count or not. */
void tam_meter_choose(tamis_energy *e, char missing[TAMIS_ENERGY_TEXT]) {
    for (uint32_t i = 0; i < e->nchannels; i++)
        e->cover_domains[i] = e->channels[i].now;
    tam_domain_cover(e->cover_domains, e->nchannels, e->cover_counted, missing);
    for (uint32_t i = 0; i < e->nchannels; i++)
        e->channels[i].counted = e->cover_counted[i];
}

static double grams(const tamis_energy *e, uint64_t end_ns, const tamis_energy_totals *chunk) {
    if (!e->carbon)
        return NAN;
    if (chunk->uj == 0)
        return 0.0;
    return tamis_carbon_grams(e->carbon, tam_meter_unix(e, e->claimed_ns),
                              tam_meter_unix(e, end_ns), chunk->uj, e->pue);
}

/* What steps had told by a time; of a time between two notes, by the one before. */
static const tam_steps *steps_until(const tamis_energy *e, uint64_t at_ns) {
    uint64_t kept = e->nsteps < TAM_METER_STEPS ? e->nsteps : TAM_METER_STEPS;
    for (uint64_t i = e->nsteps; i > e->nsteps - kept; i--) {
        const tam_steps *s = &e->steps[(i - 1) % TAM_METER_STEPS];
        if (s->at_ns <= at_ns || i == e->nsteps - kept + 1)
            return s;
    }
    return &e->steps[0];
}

void tam_meter_note_steps(tamis_energy *e, uint64_t now_ns) {
    e->steps[e->nsteps++ % TAM_METER_STEPS] =
        (tam_steps){now_ns, atomic_load(&e->told.steps), atomic_load(&e->told.wire_bytes),
                    atomic_load(&e->told.offered), atomic_load(&e->told.sent)};
}

/* Times of notes ascend, for they are taken under the lock. */
static void note_steps_sometimes(tamis_energy *e) {
    uint64_t now_ns = tam_clock_ns();
    if (e->nsteps == 0 ||
        less(now_ns, e->steps[(e->nsteps - 1) % TAM_METER_STEPS].at_ns) >= NOTE_NS)
        tam_meter_note_steps(e, now_ns);
}

/* Spans before that are no longer needed: gains that the fit has not seen go back to their begin. */
static uint64_t memory_begins(const tamis_energy *e, uint64_t end_ns) {
    uint64_t begin_ns = end_ns;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        if (c->ngains > 0 && c->gains[0].begin_ns < begin_ns)
            begin_ns = c->gains[0].begin_ns;
    }
    return less(begin_ns, TAM_METER_MEMORY_NS);
}

static void see(tamis_energy *e, const tamis_energy_totals *chunk) {
    tam_seen_add(&e->line.last.seen, chunk);
    for (uint32_t i = 0; i < TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (w->open && w->has_begin && !w->has_end)
            tam_seen_add(&w->begin.seen, chunk);
    }
}

static void close_chunk(tamis_energy *e, uint64_t end_ns) {
    tamis_energy_totals chunk = TAMIS_ENERGY_TOTALS_INIT;
    double seconds[TAMIS_ENERGY_PHASES];
    const tam_steps *steps = steps_until(e, end_ns);
    tam_meter_choose(e, chunk.missing);
    for (uint32_t i = 0; i < e->nchannels; i++)
        claim(e, &e->channels[i], end_ns, &chunk);
    tam_spans_seconds(e->spans, e->claimed_ns, end_ns, seconds);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        chunk.shares[p].seconds = seconds[p];
    chunk.seconds = (double)(end_ns - e->claimed_ns) * 1e-9;
    chunk.steps = steps->steps - e->totals.steps;
    chunk.wire_bytes = steps->wire_bytes - e->totals.wire_bytes;
    chunk.grams = grams(e, end_ns, &chunk);
    tam_totals_add(&e->totals, &chunk);
    see(e, &chunk);
    e->offered = steps->offered;
    e->sent = steps->sent;
    e->claimed_ns = end_ns;
    tam_spans_forget(e->spans, memory_begins(e, end_ns));
}

/* -- ends of chunks --------------------------------------------------------------------------- */

static uint64_t sooner(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t next_end(const tamis_energy *e) {
    uint64_t end = e->line_ns;
    for (uint32_t i = 0; i < TAM_METER_WINDOWS; i++) {
        const tam_window *w = &e->windows[i];
        if (w->open && !w->has_begin)
            end = sooner(end, w->begin_ns);
        if (w->open && w->ended && !w->has_end)
            end = sooner(end, w->end_ns);
    }
    return end > e->claimed_ns ? end : e->claimed_ns;
}

/* Every counter that is read and moves has moved past the end. */
static bool have_moved(const tamis_energy *e, uint64_t end_ns, uint64_t now_ns) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        uint64_t past_ns = c->ngains > 0 ? c->gains[c->ngains - 1].end_ns : 0;
        uint64_t wait_ns = PATIENCE_NS + (uint64_t)(3e9 * c->now.tick_s);
        if (c->now.status == TAMIS_ENERGY_OK && past_ns < end_ns && now_ns < end_ns + wait_ns)
            return false;
    }
    return true;
}

/* Windows that begin or end where the last chunk does. @return whether there is one */
static bool note_windows(tamis_energy *e) {
    bool any = false;
    for (uint32_t i = 0; i < TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (w->open && !w->has_begin && w->begin_ns <= e->claimed_ns) {
            tam_past_note(e, &w->begin);
            any = w->has_begin = true;
        }
        if (w->open && w->ended && !w->has_end && w->end_ns <= e->claimed_ns) {
            w->end = e->totals;
            any = w->has_end = true;
        }
    }
    return any;
}

void tam_meter_take(tamis_energy *e, uint64_t now_ns) {
    uint64_t settled_ns = less(now_ns, e->settle_ns);
    note_steps_sometimes(e);
    take_gains(e);
    tam_spans_drain(e->spans, e->marks);
    for (uint32_t i = 0; i < e->nchannels; i++) {
        tam_channel *c = &e->channels[i];
        tam_sampler_look(c->sampler, c->index, &c->now);
    }
    learn(e, settled_ns > e->told_ns ? settled_ns : e->told_ns);
}

bool tam_meter_close_next(tamis_energy *e, uint64_t now_ns, bool flush) {
    uint64_t end_ns = next_end(e), settled_ns = less(now_ns, e->settle_ns);
    if (flush)
        end_ns = sooner(end_ns, now_ns);
    bool told = flush || end_ns <= settled_ns || end_ns <= e->told_ns;
    if (!told || end_ns > now_ns || !(flush || have_moved(e, end_ns, now_ns)))
        return false;
    if (end_ns == e->claimed_ns)
        return note_windows(e);
    close_chunk(e, end_ns);
    note_windows(e);
    return true;
}
