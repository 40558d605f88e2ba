/* SPDX-License-Identifier: MIT
 *
 * Gains become rows, of every lag and duty that the sensor may have: the one whose watts leave the
 * least residual is believed. Rows are forgotten slowly, and at once when watts change.
 */
#include "lib/energy/attribute/fit.h"

#include <math.h>

enum { APART = 5 }; /* lags nearer than that need not be told from the best to call it found */

#define LAG_STEP_NS UINT64_C(1500000) /* below the length of most phases */

static const double duties[TAM_FIT_DUTIES] = {1.0, 0.5, 0.25};
static const double forget_s = 300.0;
static const double jitter_s = 300e-6; /* by which ticks are seen early or late */
static const double outlier_sd = 4.5;
static const double surprise_rows = 25.0, surprise_most = 25.0, surprise_changed = 3.0;
static const double sure_rows = 10.0; /* a phase: fewer predict worse than they fit */
static const double kept_rows = 2.0;  /* of what was learnt before a change */
static const double unseen_rows = 1000.0;

/* By how much likelier a candidate is than another (logarithm, doubled): to be taken in its place;
 * to rule the other out. What chance makes of 123 candidates is seldom as much. */
static const double switch_gain = 4.0, found_gain = 10.0;

tamis_status tam_fit_open(tam_fit **out) {
    tam_fit *fit = tam_alloc(sizeof *fit);
    if (!fit)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the power of phases");
    fit->surprise = 1.0;
    *out = fit;
    return TAMIS_OK;
}

void tam_fit_close(tam_fit *fit) {
    tam_free(fit);
}

/* -- rows ------------------------------------------------------------------------------------- */

typedef struct tick {
    uint64_t begin_ns, end_ns;
    double y, weight, decay;
    bool whole; /* one tick; several merged tell nothing of a sensor that looks at times */
} tick;

static uint64_t share_of(uint64_t ns, double part) {
    return (uint64_t)(part * (double)ns + 0.5);
}

/* Exposures until all times at which a candidate may have begun or ended to look, and until one
 * step before. */
static void read_spans(tam_fit *fit, const tam_spans *spans, const tick *t) {
    uint64_t at_ns[TAM_FIT_LAGS + 1];
    for (uint32_t lag = 0; lag <= TAM_FIT_LAGS; lag++)
        at_ns[lag] = t->end_ns - lag * LAG_STEP_NS;
    tam_spans_until(spans, at_ns, TAM_FIT_LAGS + 1, fit->ends);
    for (uint32_t d = 0; d < TAM_FIT_DUTIES; d++) {
        uint64_t looks_ns = share_of(t->end_ns - t->begin_ns, duties[d]);
        for (uint32_t lag = 0; lag <= TAM_FIT_LAGS; lag++)
            at_ns[lag] = t->end_ns - lag * LAG_STEP_NS - looks_ns;
        tam_spans_until(spans, at_ns, TAM_FIT_LAGS + 1, fit->begins[d]);
    }
}

static double duty_of(const tam_fit *fit) {
    return duties[fit->best / TAM_FIT_LAGS];
}

static double between(const tam_exposure *begin, const tam_exposure *end, uint32_t phase) {
    return (double)(end->ns[phase] - begin->ns[phase]);
}

static tam_row make_row(const tam_fit *fit, const tick *t, uint32_t choice) {
    tam_row row = {.y = t->y, .weight = t->weight};
    uint32_t duty = choice / TAM_FIT_LAGS, lag = choice % TAM_FIT_LAGS;
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        row.x[k] = between(&fit->begins[duty][lag], &fit->ends[lag], k) * (1e-9 / duties[duty]);
    return row;
}

/* Seconds that a row has too many, per second by which its own tick is late, and the one before:
 * what was under way there. The sensor's begin moves with both, by its duty. */
static void take_blur(tam_fit *fit, const tick *t) {
    uint32_t lag = fit->best % TAM_FIT_LAGS;
    const tam_exposure *end = &fit->ends[lag], *begin = &fit->begins[fit->best / TAM_FIT_LAGS][lag];
    double duty = duty_of(fit);
    tam_row own = {.weight = t->weight}, before = own;
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++) {
        double at_end = between(end + 1, end, k) / (double)LAG_STEP_NS;
        double at_begin = between(begin + 1, begin, k) / (double)LAG_STEP_NS;
        own.x[k] = (at_end - (1.0 - duty) * at_begin) / duty;
        before.x[k] = at_begin;
    }
    tam_normal_add(&fit->blur, fit->phases, t->decay, &own);
    tam_normal_add(&fit->blur, fit->phases, 1.0, &before);
}

/* Those of duty 1 come first. */
static void fit_take(tam_fit *fit, const tick *t) {
    for (uint32_t i = 0; i < (t->whole ? TAM_FIT_CHOICES : TAM_FIT_LAGS); i++) {
        tam_row row = make_row(fit, t, i);
        tam_normal_add(&fit->sums[i], fit->phases, t->decay, &row);
    }
    if (fit->best < TAM_FIT_LAGS || t->whole)
        take_blur(fit, t);
}

/* -- judging a row ---------------------------------------------------------------------------- */

static double joules_of(const tam_fit *fit, const tam_spans *spans, uint64_t begin_ns,
                        uint64_t end_ns) {
    double seconds[TAM_FIT_MAX], sum = 0.0;
    tam_spans_seconds(spans, begin_ns, end_ns, seconds);
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        sum += fit->watts.w[k] * seconds[k];
    return sum;
}

/* By the watts, of what the sensor looked at: at its very lag, for a millisecond more or less makes
 * a residual that looks like a change. @param  unseen_j  [out]  more than the whole tick had */
static double predict(const tam_fit *fit, const tam_spans *spans, const tick *t, double *unseen_j) {
    double duty = duty_of(fit);
    uint64_t end_ns = t->end_ns - (uint64_t)(fit->watts.lag_s * 1e9);
    uint64_t length_ns = t->end_ns - t->begin_ns;
    double looked_j = joules_of(fit, spans, end_ns - share_of(length_ns, duty), end_ns) / duty;
    *unseen_j = looked_j - joules_of(fit, spans, end_ns - length_ns, end_ns);
    return looked_j;
}

/* What was learnt before counts as few rows. */
static void limit_weight(tam_normal *n) {
    if (n->w > kept_rows)
        tam_normal_scale(n, kept_rows / n->w);
}

static void restart_learning(tam_fit *fit) {
    for (uint32_t i = 0; i < TAM_FIT_CHOICES; i++)
        limit_weight(&fit->sums[i]);
    limit_weight(&fit->blur);
    fit->watts.valid = false;
    fit->surprise = 1.0;
    fit->changes++;
    tam_log(TAM_INFO, "energy: the power of the phases has changed; learning it again");
}

/* Single gains that fit nothing weigh little; many of them say that the watts have changed. */
static void fit_judge(tam_fit *fit, const tam_spans *spans, tick *t) {
    const tam_normal *best = &fit->sums[fit->best];
    if (!fit->watts.valid || best->w < sure_rows * tam_phase_count(fit->phases))
        return;
    double unseen_j, r = t->y - predict(fit, spans, t, &unseen_j);
    r *= sqrt(t->weight / fit->watts.variance);
    fit->unseen += (unseen_j * unseen_j * t->weight - fit->unseen) / fmin(best->w, unseen_rows);
    fit->surprise += (fmin(r * r, surprise_most) - fit->surprise) / surprise_rows;
    if (fabs(r) > outlier_sd)
        t->weight *= outlier_sd / fabs(r);
    if (fit->surprise > surprise_changed)
        restart_learning(fit);
}

/* -- lag, duty, watts ------------------------------------------------------------------------- */

typedef struct candidates {
    tam_unknowns sought;
    double rows, least_j2; /* noise is taken for no less */
    double error_j2[TAM_FIT_CHOICES], watts[TAM_FIT_CHOICES][TAM_FIT_MAX];
} candidates;

/* @return false: too few rows */
static bool begin_search(const tam_fit *fit, candidates *c) {
    const tam_normal *best = &fit->sums[fit->best];
    double least = 2.0 * tam_phase_count(fit->phases) + 8.0;
    c->rows = tam_normal_rows(best);
    c->sought.phases = fit->phases;
    c->sought.mean_w = tam_normal_mean(best, fit->phases);
    if (c->rows < least || best->w < least || !(c->sought.mean_w > 0.0))
        return false;
    double scale_j = c->sought.mean_w * fit->tick_s; /* of a gain */
    double variance = fit->watts.variance > 0.0 ? fit->watts.variance : 0.01 * scale_j * scale_j;
    c->least_j2 = 1e-8 * scale_j * scale_j;
    c->sought.ridge = fmax(variance, c->least_j2) / (c->sought.mean_w * c->sought.mean_w);
    return true;
}

static void solve_all(const tam_fit *fit, candidates *c) {
    for (uint32_t i = 0; i < TAM_FIT_CHOICES; i++) {
        double *error_j2 = &c->error_j2[i];
        bool solved = tam_normal_solve(&fit->sums[i], &c->sought, c->watts[i], error_j2);
        *error_j2 = solved ? fmax(*error_j2, c->least_j2) : INFINITY;
    }
}

/* By how much likelier than another. */
static double gain_of(const candidates *c, uint32_t best, uint32_t other) {
    return c->rows * log(c->error_j2[other] / c->error_j2[best]);
}

static void fit_choose(tam_fit *fit, const candidates *c) {
    uint32_t best = fit->best;
    for (uint32_t i = 0; i < TAM_FIT_CHOICES; i++)
        best = c->error_j2[i] < c->error_j2[best] ? i : best;
    if (gain_of(c, best, fit->best) > switch_gain) {
        fit->best = best;
        limit_weight(&fit->blur);
    }
    fit->found = true;
    for (uint32_t i = 0; i < TAM_FIT_CHOICES; i++) {
        bool same_duty = i / TAM_FIT_LAGS == fit->best / TAM_FIT_LAGS;
        bool near = same_duty && i < fit->best + APART && fit->best < i + APART;
        fit->found = fit->found && (near || gain_of(c, fit->best, i) >= found_gain);
    }
}

/* Between lags the residual is a parabola and so are watts, through the best lag and its two
 * neighbours. The lag is as uncertain as the parabola is flat, and with it the watts.
 * @return false: rounding */
static bool refine(const tam_fit *fit, const candidates *c, tam_watts *out) {
    uint32_t lag = fit->best % TAM_FIT_LAGS, most = TAM_FIT_LAGS - 2;
    uint32_t middle = lag < 1 ? 1 : lag > most ? most : lag;
    const double *e = &c->error_j2[fit->best - lag + middle];
    const double(*p)[TAM_FIT_MAX] = &c->watts[fit->best - lag + middle];
    if (!isfinite(e[-1] + e[0] + e[1]))
        return false;
    double tilt = 0.5 * (e[1] - e[-1]), bend = e[1] - 2.0 * e[0] + e[-1];
    double at = bend > 0.0 ? fmin(fmax(-tilt / bend, -1.0), 1.0) : (double)lag - middle;
    double least_j2 = fmax(e[0] + at * tilt + 0.5 * at * at * bend, c->least_j2);
    double at_variance = fmin(2.0 * least_j2 / (c->rows * fmax(bend, 1e-30)), 1.0);
    out->lag_s = (middle + at) * 1e-9 * (double)LAG_STEP_NS;
    out->variance = least_j2 * c->rows / (c->rows - tam_phase_count(fit->phases));
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++) {
        double slope = 0.5 * (p[1][k] - p[-1][k]), curve = p[1][k] - 2.0 * p[0][k] + p[-1][k];
        out->w[k] = fmax(p[0][k] + at * slope + 0.5 * at * at * curve, 0.0);
        out->sd_w[k] = (slope + at * curve) * sqrt(at_variance);
    }
    return true;
}

static void group(tam_fit *fit, candidates *c) {
    const tam_normal *best = &fit->sums[fit->best];
    tam_normal blur = fit->blur;
    tam_normal_scale(&blur, blur.w > 0.0 ? 2.0 * jitter_s * jitter_s * best->w / blur.w : 0.0);
    tam_normal_groups(best, fit->phases, &blur, fit->watts.group, &fit->watts.condition);
    c->sought.group = fit->watts.group;
}

static void fit_learn(tam_fit *fit) {
    candidates c;
    tam_watts *out = &fit->watts;
    double spread[TAM_FIT_MAX];
    out->valid = false;
    if (!begin_search(fit, &c))
        return;
    group(fit, &c);
    solve_all(fit, &c);
    fit_choose(fit, &c);
    const tam_normal *best = &fit->sums[fit->best];
    if (!refine(fit, &c, out) || !tam_normal_spread(best, &c.sought, spread))
        return;
    out->mean_w = c.sought.mean_w;
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        out->sd_w[k] = sqrt(out->sd_w[k] * out->sd_w[k] + spread[k] * out->variance);
    out->valid = true;
}

/* Learning anew grows with the third power of the phases. */
static uint32_t learn_every(const tam_fit *fit) {
    uint32_t count = tam_phase_count(fit->phases);
    return 8 + count * count / 16;
}

void tam_fit_take(tam_fit *fit, const tam_spans *spans, uint64_t begin_ns, uint64_t end_ns,
                  uint64_t uj, double tick_s) {
    uint64_t known_ns = tam_spans_known_ns(spans) + TAM_FIT_REACH_NS;
    if (end_ns <= begin_ns || begin_ns < known_ns || !(tick_s > 0.0))
        return;
    fit->tick_s = tick_s;
    fit->phases = tam_spans_phases(spans);
    double length_s = (double)(end_ns - begin_ns) * 1e-9;
    tick t = {.begin_ns = begin_ns,
              .end_ns = end_ns,
              .y = (double)uj * 1e-6,
              .weight = tick_s / length_s,
              .decay = exp(-length_s / forget_s),
              .whole = length_s < 1.5 * tick_s};
    read_spans(fit, spans, &t);
    fit_judge(fit, spans, &t);
    fit_take(fit, &t);
    if (++fit->since_learnt >= learn_every(fit)) {
        fit->since_learnt = 0;
        fit_learn(fit);
    }
}

void tam_fit_sensor(const tam_fit *fit, double *lag_s, double *duty) {
    *lag_s = fit->found ? fit->watts.lag_s : 0.0;
    *duty = fit->found ? duty_of(fit) : 0.0;
}

void tam_fit_quality(const tam_fit *fit, double *residual_w, double *condition) {
    *residual_w = fit->watts.valid ? sqrt(fit->watts.variance) / fit->tick_s : NAN;
    *condition = fit->watts.valid ? fit->watts.condition : NAN;
}
