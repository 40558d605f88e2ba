/* SPDX-License-Identifier: MIT */
#include "tests/support/generator.h"
#include "tests/support/data.h"

#include <math.h>

enum { START_MS = 1000 };

typedef struct piece {
    double begin_s, watts, joules; /* joules: of the track, before it */
    uint32_t phase, twin;
} piece;

typedef struct track {
    piece *pieces;
    size_t count, told;
} track;

struct generator {
    generator_config config;
    track tracks[GENERATOR_TRACKS];
    uint64_t random;
    uint64_t tick;
    uint64_t first_ns, seen_ns;
    double counter_j; /* with noise */
    int64_t shown_uj, gained_uj;
};

double generator_uniform(uint64_t *state) {
    return (double)(data_mix((*state)++) >> 11) / 9007199254740992.0;
}

double generator_normal(uint64_t *state) {
    double radius = sqrt(-2.0 * log(1.0 - generator_uniform(state)));
    return radius * cos(6.283185307179586 * generator_uniform(state));
}

generator_config generator_six(uint64_t seed) {
    return (generator_config){
        .tracks = {{{TAMIS_ENERGY_FORWARD, 22, 420, 0.15, 0},
                    {TAMIS_ENERGY_BACKWARD, 41, 470, 0.15, 0},
                    {TAMIS_PHASE_SELECT, 3, 300, 0.3, 0},
                    {TAMIS_PHASE_EXCHANGE, 12, 210, 0.5, 0},
                    {TAMIS_PHASE_WAIT, 6, 140, 1.0, 0},
                    {TAMIS_PHASE_APPLY, 2, 260, 0.3, 0}}},
        .tick_s = 0.1,
        .duty = 1.0,
        .noise_w = 10.0,
        .jitter_s = 1e-3,
        .resolution_uj = 1000.0,
        .seconds = 120.0,
        .seed = seed,
    };
}

static uint64_t ns_of(double s) {
    return (uint64_t)(s * 1e9 + 0.5);
}

/* -- power ------------------------------------------------------------------------------------ */

/* Log-normal: never below 0, and sometimes far longer, like exchanges and waits. */
static double length_s(const generator_phase *p, uint64_t *random) {
    double variance = log(1.0 + p->spread * p->spread), normal = generator_normal(random);
    return 1e-3 * p->ms * exp(sqrt(variance) * normal - 0.5 * variance);
}

static bool plan(generator *g, track *l, const generator_phase *phases) {
    double now_s = 0.0, joules = 0.0, sum_ms = 0.0, end_s = g->config.seconds + 1.0;
    uint32_t n = 0;
    for (; n < GENERATOR_MOST && phases[n].ms > 0.0; n++)
        sum_ms += phases[n].ms;
    if (n == 0)
        return true;
    size_t most = (size_t)(3.0 * (double)n * end_s * 1e3 / sum_ms) + 64;
    l->pieces = tam_alloc_array(most, sizeof *l->pieces);
    for (; l->pieces && now_s < end_s && l->count < most; l->count++) {
        const generator_phase *p = &phases[l->count % n];
        double seconds = length_s(p, &g->random), watts = p->watts;
        if (g->config.change_s > 0.0 && now_s >= g->config.change_s && l == &g->tracks[0])
            watts *= g->config.changed;
        l->pieces[l->count] = (piece){now_s, watts, joules, p->phase, p->twin};
        now_s += seconds;
        joules += seconds * watts;
    }
    return l->pieces != NULL;
}

static size_t piece_at(const track *l, double at_s) {
    size_t low = 0, high = l->count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (l->pieces[middle].begin_s <= at_s)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double joules_until(const generator *g, double at_s) {
    double sum = 0.0;
    for (uint32_t i = 0; i < GENERATOR_TRACKS; i++) {
        const track *l = &g->tracks[i];
        if (l->count == 0 || at_s <= 0.0)
            continue;
        const piece *p = &l->pieces[piece_at(l, at_s)];
        sum += p->joules + p->watts * (at_s - p->begin_s);
    }
    return sum;
}

/* -- the counter ------------------------------------------------------------------------------ */

generator *generator_open(const generator_config *config) {
    generator *g = tam_alloc(sizeof *g);
    if (!g)
        return NULL;
    g->config = *config;
    g->random = data_mix(config->seed * 1000003 + 17);
    for (uint32_t i = 0; i < GENERATOR_TRACKS; i++) {
        if (!plan(g, &g->tracks[i], config->tracks[i])) {
            generator_close(g);
            return NULL;
        }
    }
    g->tick = START_MS * 1e-3 / config->tick_s;
    g->first_ns = g->seen_ns =
        ns_of((double)g->tick * config->tick_s + config->jitter_s * generator_uniform(&g->random));
    return g;
}

void generator_close(generator *g) {
    for (uint32_t i = 0; g && i < GENERATOR_TRACKS; i++)
        tam_free(g->tracks[i].pieces);
    tam_free(g);
}

static void tell(track *l, tam_spans *spans, double until_s) {
    for (; l->told + 1 < l->count && l->pieces[l->told].begin_s <= until_s; l->told++) {
        const piece *p = &l->pieces[l->told];
        tam_spans_add(spans, p->phase, ns_of(p[0].begin_s), ns_of(p[1].begin_s));
        if (p->twin)
            tam_spans_add(spans, p->twin, ns_of(p[0].begin_s), ns_of(p[1].begin_s));
    }
}

bool generator_next(generator *g, tam_spans *spans, uint64_t *begin_ns, uint64_t *end_ns,
                    uint64_t *uj) {
    const generator_config *c = &g->config;
    double end_s = (double)++g->tick * c->tick_s, looked_s = end_s - c->lag_s;
    if (end_s > c->seconds)
        return false;
    double joules = joules_until(g, looked_s) - joules_until(g, looked_s - c->duty * c->tick_s);
    g->counter_j += joules / c->duty + c->noise_w * c->tick_s * generator_normal(&g->random);
    int64_t shows_uj = (int64_t)(floor(g->counter_j * 1e6 / c->resolution_uj) * c->resolution_uj);

    *begin_ns = g->seen_ns;
    *end_ns = g->seen_ns = ns_of(end_s + c->jitter_s * generator_uniform(&g->random));
    *uj = shows_uj > g->shown_uj ? (uint64_t)(shows_uj - g->shown_uj) : 0;
    g->shown_uj += (int64_t)*uj;
    g->gained_uj += (int64_t)*uj;
    for (uint32_t i = 0; i < GENERATOR_TRACKS; i++)
        tell(&g->tracks[i], spans, end_s + 0.01);
    return true;
}

void generator_look(const generator *g, generator_truth *out) {
    double begin_s = (double)g->first_ns * 1e-9, end_s = (double)g->seen_ns * 1e-9;
    *out = (generator_truth){.uj = g->gained_uj};
    for (uint32_t i = 0; i < GENERATOR_TRACKS; i++) {
        const track *l = &g->tracks[i];
        for (size_t p = 0; p + 1 < l->count && l->pieces[p].begin_s < end_s; p++) {
            double from_s = fmax(l->pieces[p].begin_s, begin_s);
            double seconds = fmin(l->pieces[p + 1].begin_s, end_s) - from_s;
            if (seconds <= 0.0)
                continue;
            out->seconds[l->pieces[p].phase] += seconds;
            out->joules[l->pieces[p].phase] += seconds * l->pieces[p].watts;
        }
    }
}
