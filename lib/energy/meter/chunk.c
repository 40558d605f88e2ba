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

#define MEMORY_NS UINT64_C(5000000000) /* of spans, before the last chunk */

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

static void take_gains(tamis_energy *e) {
    tam_energy_gain gain;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        tam_channel *c = &e->channels[i];
        while (tam_sampler_take(c->sampler, c->index, &gain))
            take_gain(c, &gain);
    }
}

static void learn(tamis_energy *e, uint64_t settled_ns) {
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

static void claim(tamis_energy *e, uint32_t i, uint64_t end_ns) {
    tam_channel *c = &e->channels[i];
    tamis_energy_totals *sum = &e->chunk.totals;
    tamis_energy_share shares[TAMIS_ENERGY_PHASES];
    double seconds[TAMIS_ENERGY_PHASES];
    int64_t rest;
    uint64_t until = joules_until(e, c, end_ns), lag = lag_ns(c);
    int64_t uj = (int64_t)(until - c->claimed_uj);
    c->claimed_uj = until;
    tam_spans_seconds(e->spans, less(e->run.end_ns, lag), less(end_ns, lag), seconds);
    tam_fit_divide(c->fit, seconds, uj, shares, &rest);
    e->chunk.domains[i].uj = uj;
    e->chunk.domains[i].unattributed_uj = rest;
    e->chunk.domains[i].idle_uj = shares[TAMIS_ENERGY_IDLE].uj;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        c->phases_uj[p] += shares[p].uj;
        c->methods[p] =
            c->methods[p] > shares[p].method ? c->methods[p] : (uint8_t)shares[p].method;
    }
    forget_gains(c, end_ns);
    if (!e->counted[i])
        return;
    sum->known = sum->known || e->now[i].has_raw;
    sum->uj += uj;
    sum->unattributed_uj += rest;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        join_share(&sum->shares[p], &shares[p]);
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

/* Spans before that are no longer needed: gains that the fit has not seen go back
 * to their begin. */
static uint64_t memory_begins(const tamis_energy *e, uint64_t end_ns) {
    uint64_t begin_ns = end_ns;
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_channel *c = &e->channels[i];
        if (c->ngains > 0 && c->gains[0].begin_ns < begin_ns)
            begin_ns = c->gains[0].begin_ns;
    }
    return less(begin_ns, MEMORY_NS);
}

/* Steps of a chunk are what they had told by its end, less what is in chunks before. */
static void count_steps(tamis_energy *e, tam_tally *chunk) {
    const tam_steps *s = steps_until(e, chunk->end_ns);
    chunk->totals.steps = s->steps - e->run.totals.steps;
    chunk->totals.wire_bytes = s->wire_bytes - e->run.totals.wire_bytes;
    chunk->offered = s->offered - e->run.offered;
    chunk->sent = s->sent - e->run.sent;
}

/* Which domains count may change when one is lost; nothing is counted twice then, for each claims
 * its joules whether they count or not. */
static void close_chunk(tamis_energy *e, uint64_t end_ns) {
    tam_tally *chunk = &e->chunk;
    double seconds[TAMIS_ENERGY_PHASES];
    tam_tally_begin(e, chunk);
    chunk->end_ns = end_ns;
    tam_domain_cover(e->now, e->nchannels, e->counted, chunk->totals.missing);
    for (uint32_t i = 0; i < e->nchannels; i++)
        claim(e, i, end_ns);
    tam_spans_seconds(e->spans, chunk->begin_ns, end_ns, seconds);
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        chunk->totals.shares[p].seconds = seconds[p];
    chunk->totals.seconds = (double)(end_ns - chunk->begin_ns) * 1e-9;
    chunk->totals.grams = tam_meter_grams(e, chunk->begin_ns, end_ns, chunk->totals.uj);
    count_steps(e, chunk);
    tam_tally_add(e, &e->run, chunk);
    for (uint32_t i = 0; i <= TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (w->open && w->counts && !w->complete)
            tam_tally_add(e, &w->tally, chunk);
    }
    tam_spans_forget(e->spans, memory_begins(e, end_ns));
}

/* -- ends of chunks --------------------------------------------------------------------------- */

static uint64_t sooner(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t next_end(const tamis_energy *e) {
    uint64_t end = UINT64_MAX;
    for (uint32_t i = 0; i <= TAM_METER_WINDOWS; i++) {
        const tam_window *w = &e->windows[i];
        if (w->open && !w->counts)
            end = sooner(end, w->begin_ns);
        if (w->open && w->ended && !w->complete)
            end = sooner(end, w->end_ns);
    }
    return end > e->run.end_ns ? end : e->run.end_ns;
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

/* Windows that begin or end where the last chunk does. @return whether there is one */
static bool note_windows(tamis_energy *e) {
    bool any = false;
    for (uint32_t i = 0; i <= TAM_METER_WINDOWS; i++) {
        tam_window *w = &e->windows[i];
        if (w->open && !w->counts && w->begin_ns <= e->run.end_ns) {
            tam_tally_begin(e, &w->tally);
            any = w->counts = true;
        }
        if (w->open && w->ended && !w->complete && w->end_ns <= e->run.end_ns)
            any = w->complete = true;
    }
    return any;
}

void tam_meter_take(tamis_energy *e, uint64_t now_ns) {
    uint64_t settled_ns = less(now_ns, e->settle_ns);
    note_steps_sometimes(e);
    take_gains(e);
    tam_spans_drain(e->spans, e->marks);
    for (uint32_t i = 0; i < e->nchannels; i++)
        tam_sampler_look(e->channels[i].sampler, e->channels[i].index, &e->now[i]);
    learn(e, settled_ns > e->told_ns ? settled_ns : e->told_ns);
}

/* The meter's own window begins again. When nothing more will be told it ends at now. */
static void renew(tamis_energy *e, uint64_t now_ns, bool flush) {
    tam_window *own = &e->windows[TAM_METER_WINDOWS];
    if (own->complete && own->written) {
        tam_tally_begin(e, &own->tally);
        while (own->end_ns <= e->run.end_ns)
            own->end_ns += e->window_ns;
        own->complete = false;
        own->written = !e->log;
    }
    if (flush && own->tally.begin_ns < now_ns)
        own->end_ns = sooner(own->end_ns, now_ns);
}

bool tam_meter_close_next(tamis_energy *e, uint64_t now_ns, bool flush) {
    renew(e, now_ns, flush);
    uint64_t end_ns = next_end(e), settled_ns = less(now_ns, e->settle_ns);
    if (flush)
        end_ns = sooner(end_ns, now_ns);
    bool told = flush || end_ns <= settled_ns || end_ns <= e->told_ns;
    if (!told || end_ns > now_ns || !(flush || have_moved(e, end_ns, now_ns)))
        return false;
    if (end_ns == e->run.end_ns)
        return note_windows(e);
    close_chunk(e, end_ns);
    note_windows(e);
    return true;
}
