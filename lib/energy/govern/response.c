/* SPDX-License-Identifier: MIT */
#include "lib/energy/govern/response.h"
#include "lib/base/numbers.h"

/* Relative to the first window. A value is known no worse than `spread`, and wanders by `drift` in
 * a window (both variances); `noise` is the variance of one window. The cap's prior is that of a
 * job whose power is mostly that of its capped devices, of whose time a part only waits for the
 * clock; that of a pause: half of the watts stay. Wrong by a third they cost one more window. */
typedef struct prior {
    double value, spread, drift;
} prior;

static const prior time_priors[TAM_RESPONSE_TERMS] = {
    {1.0, 0.04, 1e-5}, {0.15, 0.02, 1e-5}, {0.0, 0.01, 1e-6}, {0.0, 0.0, 0.0}};
static const prior power_priors[TAM_RESPONSE_TERMS] = {
    {1.0, 0.04, 2e-5}, {-0.8, 0.04, 1e-4}, {0.0, 0.01, 1e-6}, {0.5, 0.04, 1e-5}};

static const double noise = 2e-5;

/* The part of a change within a window that may not have been seen in it: counters and clocks
 * lag. */
static const double lag_part = 0.07;

/* In standard deviations, squared. */
static const double surprising = 25.0;

/* What is farther off, twice, is another workload, and learnt anew. */
static const double least_ratio = 0.25, most_ratio = 4.0;

/* -- an estimate ------------------------------------------------------------------------------ */

static void response_begin(tam_estimate *e, const prior *priors) {
    memset(e, 0, sizeof *e);
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++) {
        e->value[i] = priors[i].value;
        e->spread[i][i] = priors[i].spread;
    }
}

static double combine(const tam_estimate *e, const double terms[TAM_RESPONSE_TERMS]) {
    double sum = 0.0;
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++)
        sum += e->value[i] * terms[i];
    return sum;
}

/* Time passes: what is not seen becomes less sure, up to what it was at first. */
static void add_drift(tam_estimate *e, const prior *priors) {
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++) {
        double spread = e->spread[i][i] + priors[i].drift;
        if (spread <= priors[i].spread)
            e->spread[i][i] = spread;
    }
}

/* Variance of what is seen, and e->spread * terms. */
static double predict_variance(const tam_estimate *e, const double terms[TAM_RESPONSE_TERMS],
                               double variance, double along[TAM_RESPONSE_TERMS]) {
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++) {
        along[i] = 0.0;
        for (int j = 0; j < TAM_RESPONSE_TERMS; j++)
            along[i] += e->spread[i][j] * terms[j];
        variance += terms[i] * along[i];
    }
    return variance;
}

/* A window that is far off may have been held up by something: it teaches nothing. A second one
 * says that the job has changed: its level is as unknown as at first. @return whether to learn */
static bool accept_miss(tam_estimate *e, double miss, double variance, const prior *priors) {
    double before = e->surprise;
    e->surprise = 0.0;
    if (miss * miss <= surprising * variance)
        return true;
    e->surprise = miss > 0.0 ? 1.0 : -1.0;
    if (before != e->surprise)
        return false;
    e->surprise = 0.0;
    e->spread[0][0] += priors[0].spread;
    return true;
}

static void response_observe(tam_estimate *e, const double terms[TAM_RESPONSE_TERMS], double seen,
                             double relative, const prior *priors) {
    double along[TAM_RESPONSE_TERMS], variance = seen * seen * relative;
    add_drift(e, priors);
    double miss = seen - combine(e, terms);
    if (!accept_miss(e, miss, predict_variance(e, terms, variance, along), priors))
        return;
    double total = predict_variance(e, terms, variance, along);
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++) {
        e->value[i] += along[i] * (miss / total);
        for (int j = 0; j <= i; j++)
            e->spread[i][j] = e->spread[j][i] = e->spread[i][j] - along[i] * along[j] / total;
    }
}

/* -- the two formulas ------------------------------------------------------------------------- */

typedef struct terms {
    double time[TAM_RESPONSE_TERMS], power[TAM_RESPONSE_TERMS];
} terms;

/* The last of power is the pause's, which depends on the time. */
static terms terms_of(const tam_response *r, tam_knobs k) {
    bool binds = k.cap_w > 0.0 && k.cap_w < r->binding_w;
    double d = 1.0 - k.density / r->density_max;
    terms t = {{1.0, binds ? r->binding_w / k.cap_w - 1.0 : 0.0, d, 0.0},
               {1.0, binds ? 1.0 - k.cap_w / r->binding_w : 0.0, d, 0.0}};
    return t;
}

/* Seconds of a step without pause. */
static double busy_s_of(const tam_response *r, const terms *t) {
    return r->step_s * tam_clip_double(combine(&r->time, t->time), 0.1, 10.0);
}

bool tam_response_knows_cap(const tam_response *r) {
    return r->power.spread[1][1] < 0.25 * power_priors[1].spread;
}

double tam_response_step_s(const tam_response *r, tam_knobs k) {
    terms t = terms_of(r, k);
    return busy_s_of(r, &t) + k.pace_s;
}

/* A pause never takes more than a step does, nor nothing. */
double tam_response_watts(const tam_response *r, tam_knobs k) {
    terms t = terms_of(r, k);
    double step_s = busy_s_of(r, &t);
    double busy = tam_clip_double(combine(&r->power, t.power), 0.05, 10.0);
    double pause = tam_clip_double(r->power.value[3], 0.02 * busy, 0.98 * busy);
    return r->watts * ((busy * step_s + pause * k.pace_s) / (step_s + k.pace_s));
}

/* Watts are a sum of the values of power, weighed by these, in units of w. */
static void response_weigh(const tam_response *r, tam_knobs k, double out[TAM_RESPONSE_TERMS]) {
    terms t = terms_of(r, k);
    double step_s = busy_s_of(r, &t), all_s = step_s + k.pace_s;
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++)
        out[i] = i == 3 ? k.pace_s / all_s : t.power[i] * step_s / all_s;
}

double tam_response_doubt(const tam_response *r, tam_knobs from, tam_knobs to) {
    double a[TAM_RESPONSE_TERMS], b[TAM_RESPONSE_TERMS], sum = 0.0;
    response_weigh(r, from, a);
    response_weigh(r, to, b);
    for (int i = 0; i < TAM_RESPONSE_TERMS; i++) {
        for (int j = 0; j < TAM_RESPONSE_TERMS; j++)
            sum += (b[i] - a[i]) * r->power.spread[i][j] * (b[j] - a[j]);
    }
    return r->watts * r->watts * sum;
}

/* -- learning --------------------------------------------------------------------------------- */

static void response_start(tam_response *r, tam_knobs k, double busy_s, double step_j) {
    bool capped = k.cap_w > 0.0;
    double watts = step_j / (busy_s + k.pace_s);
    response_begin(&r->time, time_priors);
    response_begin(&r->power, power_priors);
    if (!(capped && r->binding_w > 0.0)) {
        double mean_w = watts / r->devices; /* without a cap, or if this one does not bind */
        r->binding_w = mean_w < r->cap_max_w ? mean_w : r->cap_max_w;
    }
    terms t = terms_of(r, k);
    t.power[3] = k.pace_s / busy_s;
    r->step_s = busy_s / combine(&r->time, t.time);
    r->watts = step_j / busy_s / combine(&r->power, t.power);
    r->windows = 0;
}

static bool is_outlier(double seen, double expected) {
    return !(seen > least_ratio * expected && seen < most_ratio * expected);
}

void tam_response_learn(tam_response *r, tam_knobs k, double step_s, double step_j, double moved) {
    double busy_s = step_s - k.pace_s; /* a caller that did not pause at all: be not misled */
    busy_s = busy_s > 0.05 * step_s ? busy_s : 0.05 * step_s;
    bool strange = is_outlier(busy_s + k.pace_s, tam_response_step_s(r, k)) ||
                   is_outlier(step_j / step_s, tam_response_watts(r, k));
    if (strange && r->windows && !r->strange) {
        r->strange = true;
        return;
    }
    if (strange || r->windows == 0)
        response_start(r, k, busy_s, step_j);
    r->strange = false;

    terms t = terms_of(r, k);
    t.power[3] = k.pace_s / busy_s;
    response_observe(&r->time, t.time, busy_s / r->step_s, noise, time_priors);
    response_observe(&r->power, t.power, step_j / busy_s / r->watts,
                     noise + lag_part * moved * lag_part * moved, power_priors);
    r->windows++;
}
