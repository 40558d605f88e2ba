/* SPDX-License-Identifier: MIT
 *
 * Cases: drawn from a seed and a number; and twins, changed where no result may change.
 */
#include "tests/fuzz/property/property.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tamis/lists.h>

typedef struct dice {
    uint64_t state;
} dice;

uint64_t fuzz_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t next(dice *d) {
    return fuzz_mix(d->state++);
}

static uint32_t roll(dice *d, uint32_t sides) {
    return (uint32_t)(next(d) % sides);
}

static bool chance(dice *d, uint32_t percent) {
    return roll(d, 100) < percent;
}

/* Uniform in its logarithm. */
static double spread(dice *d, double low, double high) {
    double x = (double)(next(d) >> 11) / 9007199254740992.0;
    return low * exp(x * log(high / low));
}

/* -- layout ----------------------------------------------------------------------------------- */

static uint32_t draw_ranks(dice *d) {
    static const uint32_t usual[] = {1, 2, 2, 2, 3, 3, 4, 4, 5};
    return chance(d, 86) ? usual[roll(d, 9)] : 6 + roll(d, MOST_RANKS - 5);
}

static uint32_t draw_length(dice *d, uint32_t most) {
    return (uint32_t)spread(d, 1.0, (double)most + 0.99);
}

static void draw_layout(dice *d, fuzz_case *c) {
    uint32_t most = chance(d, 80) ? 60 : chance(d, 85) ? 600 : 6000, left = MOST_LENGTH;
    uint32_t wanted = chance(d, 25) ? 1 : 1 + roll(d, chance(d, 80) ? 8 : MOST_SEGMENTS);
    bool with_rows = chance(d, 15);
    while (c->nsegments < wanted && left > 0) {
        uint32_t length = draw_length(d, most < left ? most : left), row = 0;
        if (with_rows && chance(d, 45)) {
            row = 1 + roll(d, 9);
            length = (length + row - 1) / row * row;
        }
        if (length > left)
            break;
        c->lengths[c->nsegments] = length;
        c->rows[c->nsegments++] = row;
        left -= length;
    }
}

/* -- what is asked for ------------------------------------------------------------------------ */

static const char *const policies[4][6] = {
    {"all", "rotate", "bins", "cyclic", "leader", "balanced"},
    {"global", "norm"},
    {"exact", "predict", "step", "fixed", "sage", "reuse"},
    {"union", "pairs", "auto", "balanced-pairs"},
};

enum { OWN_ALL, OWN_ROTATE, OWN_BINS, OWN_CYCLIC, OWN_LEADER, OWN_BALANCED };

/* Mostly valid combinations. */
static void draw_policies(dice *d, fuzz_case *c) {
    uint32_t own = roll(d, 6), budget = roll(d, 2), threshold = roll(d, 6), exchange = roll(d, 4);
    if (chance(d, 95)) {
        if (own == OWN_BALANCED)
            threshold = 2 + roll(d, 3);
        if (own != OWN_ALL && threshold == 5)
            threshold = roll(d, 2);
        if (own != OWN_ALL && exchange == 3)
            exchange = 0;
        budget = threshold >= 2 ? 0 : budget;
        if (own == OWN_BINS) {
            budget = 1, threshold = 0;
            exchange = exchange == 1 ? 0 : exchange;
        }
    }
    snprintf(c->scheme, sizeof c->scheme, "%s+%s+%s+%s", policies[0][own], policies[1][budget],
             policies[2][threshold], policies[3][exchange]);
}

static void draw_scheme(dice *d, fuzz_case *c) {
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    uint32_t presets = 0;
    while (tamis_scheme_list(presets, &info))
        presets++;
    if (chance(d, 55) && tamis_scheme_list(roll(d, presets), &info))
        snprintf(c->scheme, sizeof c->scheme, "%s", info.name);
    else
        draw_policies(d, c);
}

static double draw_density(dice *d, double most) {
    if (chance(d, 12))
        return most;
    if (chance(d, 1))
        return spread(d, 1e-307, most);
    return spread(d, chance(d, 20) ? most * 1e-4 : most * 0.02, most);
}

/* Rare options: each keeps its default in most cases. */
static void draw_rare(dice *d, tamis_reducer_config *o) {
    if (chance(d, 15))
        o->block = 32 * (1 + roll(d, chance(d, 80) ? 4 : 2048));
    if (chance(d, 10))
        o->overselect = spread(d, 1.1, 8.0);
    if (chance(d, 25))
        o->capacity = spread(d, 0.1, 8.0);
    if (chance(d, 20))
        o->threshold = chance(d, 70) ? spread(d, 0.01, 100.0) : spread(d, 1e-38, 1e38);
    o->residual_decay = 1.0; /* advised defaults: tests/multi/test_update.c */
    if (chance(d, 20))
        o->residual_decay = chance(d, 40) ? 0.5 : chance(d, 30) ? 0.0 : spread(d, 0.01, 1.0);
    if (chance(d, 10))
        o->bucket_budget = TAMIS_BUCKET_BUDGET_LENGTH;
    if (chance(d, 12))
        o->density_max = chance(d, 50) ? 1.0 : spread(d, o->density, 1.0);
}

static void draw_link(dice *d, const fuzz_case *c, tamis_reducer_config *o) {
    /* Without these numbers exchange auto measures, which takes 80 ms and makes runs differ. */
    if (fuzz_is(c, 3, "auto") || chance(d, 5)) {
        o->link_latency_us = spread(d, 1e-3, 100.0);
        o->link_gbit = spread(d, 1e-3, 1000.0);
    }
}

static void draw_buckets(dice *d, const fuzz_case *c, tamis_reducer_config *o) {
    uint64_t n = fuzz_length(c);
    if (chance(d, 50))
        o->bucket_length = chance(d, 5) ? TAMIS_BUCKETS_PLANNED : 1 + roll(d, (uint32_t)n);
}

static void draw_nodes(dice *d, const fuzz_case *c, tamis_reducer_config *o) {
    if (chance(d, 90) || c->nranks == 1)
        return;
    do
        o->ranks_per_node = 1 + roll(d, c->nranks);
    while (chance(d, 97) && c->nranks % o->ranks_per_node != 0);
}

static void draw_update(dice *d, fuzz_case *c) {
    c->updates = chance(d, 14);
    c->update = (tamis_update)TAMIS_UPDATE_INIT;
    c->update.rule = chance(d, 50)   ? TAMIS_UPDATE_ADAM
                     : chance(d, 50) ? TAMIS_UPDATE_MOMENTUM
                                     : TAMIS_UPDATE_STEP;
    c->update.beta1 = chance(d, 35) ? 0.0 : chance(d, 50) ? 0.5 : 0.9;
    c->update.beta2 = chance(d, 10) ? 0.0 : 0.99;
    c->update.epsilon = chance(d, 80) ? 1e-8 : spread(d, 1e-38, 1e38);
    c->update.scale = chance(d, 50) ? 1.0 : spread(d, 1e-6, 1e6);
    if (c->update.rule == TAMIS_UPDATE_STEP)
        c->update.beta1 = 0.0;
    if (chance(d, 30) && c->update.rule != TAMIS_UPDATE_MOMENTUM)
        c->update.norm_matching = spread(d, 0.01, 100.0);
    if (c->updates && c->config.value_codec == TAMIS_VALUE_AUTO) /* which may be fp4 there */
        c->config.value_codec = TAMIS_VALUE_FLOAT32;
}

/* Mostly remove options that the scheme cannot have. */
static void make_fit(dice *d, fuzz_case *c) {
    tamis_reducer_config *o = &c->config;
    bool dense = fuzz_is(c, 3, "dense"), regions = fuzz_is(c, 3, "balanced-pairs");
    if (chance(d, 3))
        return;
    if (dense) {
        o->output = TAMIS_OUTPUT_DENSE;
        o->residual_decay = 1.0;
        c->updates = false;
    }
    if (dense || regions)
        o->value_codec = o->sum_codec = TAMIS_VALUE_AUTO;
    if (strstr(c->scheme, "pairs"))
        o->sum_codec = TAMIS_VALUE_AUTO;
    if (regions && o->index_codec != TAMIS_INDEX_U32)
        o->index_codec = TAMIS_INDEX_AUTO;
    if (o->ranks_per_node > 1) {
        snprintf(c->scheme, sizeof c->scheme, "%s", chance(d, 70) ? "tamis" : "cltk");
        c->updates = false;
        memset(c->rows, 0, sizeof c->rows);
    }
    if (c->updates)
        memset(c->rows, 0, sizeof c->rows);
}

static void draw_config(dice *d, fuzz_case *c) {
    tamis_reducer_config *o = &c->config;
    *o = (tamis_reducer_config)TAMIS_REDUCER_CONFIG_INIT;
    o->density = draw_density(d, 1.0);
    o->output = chance(d, 35) ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
    o->op = chance(d, 50) ? TAMIS_OP_SUM : TAMIS_OP_MEAN;
    o->nonfinite = (tamis_nonfinite)roll(d, 3);
    o->threads = chance(d, 3) ? 2 + roll(d, 3) : 1;
    o->grad_dtype = chance(d, 60) ? TAMIS_DTYPE_FLOAT32 : (tamis_dtype)(1 + roll(d, 2));
    o->worker = chance(d, 30) ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER;
    o->index_codec = (tamis_index_codec)(chance(d, 50) ? 0 : roll(d, TAMIS_INDEX_END));
    if (chance(d, 40))
        o->value_codec = (tamis_value_codec)roll(d, TAMIS_VALUE_END);
    if (chance(d, 20))
        o->sum_codec = (tamis_value_codec)roll(d, TAMIS_VALUE_END);
    draw_rare(d, o);
    draw_link(d, c, o);
    draw_buckets(d, c, o);
    draw_nodes(d, c, o);
    draw_update(d, c);
    make_fit(d, c);
}

static void draw_data(dice *d, fuzz_case *c) {
    c->data = chance(d, 45) ? DATA_WHOLE : chance(d, 45) ? DATA_REAL : DATA_HARD;
    c->quiet = chance(d, 20) ? 1 + roll(d, 6) : 0;
    c->touched = 1 + roll(d, 12);
    c->bad = 1u << roll(d, 13);
    c->specials = 1 + roll(d, 63);
    c->scaled = chance(d, 25);
}

static void draw_steps(dice *d, fuzz_case *c) {
    c->nsteps = 1 + roll(d, chance(d, 60) ? 3 : MOST_STEPS);
    bool micros = chance(d, 20);
    for (uint32_t s = 0; s < c->nsteps; s++) {
        step_plan *p = &c->steps[s];
        if (chance(d, 12))
            p->event = (event_kind)(1 + roll(d, EVENTS - 1));
        if (p->event == EVENT_FILE && chance(d, 60))
            p->event = EVENT_MEMORY;
        p->late = chance(d, 50);
        double most = c->config.density_max != 0.0 ? c->config.density_max : c->config.density;
        p->density = draw_density(d, most);
        p->micros = micros && chance(d, 50) ? 1 + roll(d, 2) : 0;
    }
}

/* The bound of segments with rows; mostly not where it is refused. */
static void draw_bound(dice *d, fuzz_case *c) {
    uint32_t most = 1 + roll(d, chance(d, 50) ? 4 : 100);
    bool rows = fuzz_ordinary(c) < fuzz_length(c), refused = fuzz_is(c, 3, "dense");
    if (chance(d, 50) && (rows || chance(d, 5)) && (!refused || chance(d, 5)))
        c->config.rows_capacity = most;
}

void fuzz_draw(uint64_t seed, uint64_t number, fuzz_case *out) {
    dice own = {fuzz_mix(fuzz_mix(seed) ^ number)}, *d = &own;
    *out = (fuzz_case){.seed = seed, .number = number};
    out->nranks = draw_ranks(d);
    draw_layout(d, out);
    draw_scheme(d, out);
    draw_config(d, out);
    draw_data(d, out);
    draw_steps(d, out);
    if (chance(d, 3)) {
        out->odd = 1 + roll(d, ODDS - 1);
        out->odd_rank = roll(d, out->nranks + (out->odd >= ODD_ARGUMENT));
    }
    if (out->nranks == 1 && out->odd < ODD_ARGUMENT)
        out->odd = ODD_NONE;
    out->order_seed = next(d);
    out->ordered = chance(d, 30);
    out->callback = chance(d, 15);
    out->messages = chance(d, 50);
    draw_bound(d, out);
}

/* The model of the link, by which buckets are planned and exchange auto chooses, knows the stages
 * in which more than 8 ranks exchange. */
static bool follows_stages(const fuzz_case *c) {
    return c->nranks > 8 &&
           (c->config.bucket_length == TAMIS_BUCKETS_PLANNED || fuzz_is(c, 3, "auto"));
}

void fuzz_twin(const fuzz_case *of, fuzz_case *out) {
    dice own = {fuzz_mix(of->order_seed + 1)}, *d = &own;
    *out = *of;
    out->order_seed = next(d);
    out->ordered = chance(d, 30);
    if (chance(d, 3))
        out->config.threads = 1 + roll(d, 3);
    if (chance(d, 50))
        out->config.worker = (tamis_worker)roll(d, 2);
    if (chance(d, 60) && !fuzz_is(of, 3, "balanced-pairs"))
        out->config.index_codec = (tamis_index_codec)roll(d, TAMIS_INDEX_END);
    if (chance(d, 25) && !follows_stages(of)) {
        out->messages = chance(d, 50);
        out->callback = !of->callback || out->messages != of->messages;
    }
    out->uninterrupted = chance(d, 50);
}

/* -- what follows from a case ----------------------------------------------------------------- */

uint64_t fuzz_length(const fuzz_case *c) {
    uint64_t n = 0;
    for (uint32_t s = 0; s < c->nsegments; s++)
        n += c->lengths[s];
    return n;
}

uint64_t fuzz_ordinary(const fuzz_case *c) {
    uint64_t n = 0;
    for (uint32_t s = 0; s < c->nsegments; s++)
        n += c->rows[s] ? 0 : c->lengths[s];
    return n;
}

const char *fuzz_policy(const fuzz_case *c, int word) {
    static _Thread_local char words[64];
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    for (size_t i = 0; tamis_scheme_list(i, &info); i++) {
        const char *of[] = {info.ownership, info.budget, info.threshold, info.exchange};
        if (strcmp(info.name, c->scheme) == 0)
            return of[word];
    }
    snprintf(words, sizeof words, "%s", c->scheme);
    char *rest = words, *found = NULL;
    for (int i = 0; i <= word && rest; i++)
        found = strsep(&rest, "+");
    return found ? found : "";
}

bool fuzz_is(const fuzz_case *c, int word, const char *policy) {
    return strcmp(fuzz_policy(c, word), policy) == 0;
}

bool fuzz_has_first(const fuzz_case *c) {
    return c->updates && c->update.beta1 > 0.0;
}

bool fuzz_has_second(const fuzz_case *c) {
    return c->updates && c->update.rule == TAMIS_UPDATE_ADAM;
}

bool fuzz_accumulates(const fuzz_case *c) {
    return !fuzz_is(c, 3, "dense") && c->config.ranks_per_node <= 1 && !c->updates;
}
