/* SPDX-License-Identifier: MIT
 *
 * Gains become rows; rows are forgotten slowly, and at once when watts change.
 */
#include "lib/energy/attribute/fit.h"

#include <math.h>

enum { CHOOSE_EVERY = 16 };

static const double forget_s = 300.0;
static const double jitter_least_s = 20e-6, jitter_most_s = 600e-6, jitter_rows = 64.0;
static const double outlier_sd = 4.5;
static const double surprise_rows = 25.0, surprise_most = 25.0, surprise_changed = 3.0;
static const double sure_rows = 10.0; /* a column: fewer predict worse than they fit */
static const double kept_rows = 2.0;  /* of what was learnt before a change */

tamis_status tam_fit_open(tam_fit **out) {
    tam_fit *fit = tam_alloc(sizeof *fit);
    if (!fit)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the watts of phases");
    fit->surprise = 1.0;
    *out = fit;
    return TAMIS_OK;
}

void tam_fit_close(tam_fit *fit) {
    tam_free(fit);
}

/* -- ticks -------------------------------------------------------------------------------------- */

static void learn_tick(tam_fit *fit, double length_s) {
    double sorted[TAM_FIT_TICKS];
    fit->ticks_s[fit->nticks++ % TAM_FIT_TICKS] = length_s;
    memcpy(sorted, fit->ticks_s, sizeof sorted);
    fit->tick_s = tam_median(sorted, fit->nticks < TAM_FIT_TICKS ? fit->nticks : TAM_FIT_TICKS);
}

/* If ticks come evenly, the second differences of their times have 6 times the variance of what
 * they are seen wrong by. */
static void note_tick(tam_fit *fit, uint64_t begin_ns, uint64_t end_ns) {
    double length_s = (double)(end_ns - begin_ns) * 1e-9;
    learn_tick(fit, length_s);
    if (begin_ns == fit->last_end_ns) {
        double second_s = length_s - fit->last_s;
        double seen = fmin(second_s * second_s / 6.0, 9.0 * jitter_most_s * jitter_most_s);
        double most = jitter_most_s * jitter_most_s, least = jitter_least_s * jitter_least_s;
        double part = 1.0 / fmin(fit->nticks, jitter_rows);
        fit->jitter_s2 = fmin(fmax(fit->jitter_s2 + (seen - fit->jitter_s2) * part, least), most);
    }
    fit->last_end_ns = end_ns;
    fit->last_s = length_s;
}

/* -- rows --------------------------------------------------------------------------------------- */

static void learn_columns(tam_columns *columns, const tam_spans *spans) {
    uint32_t fresh = tam_spans_phases(spans) & ~columns->seen;
    for (uint32_t phase = 0; fresh && phase < TAMIS_ENERGY_PHASES; phase++) {
        if (!(fresh >> phase & 1))
            continue;
        columns->of_phase[phase] = (uint8_t)columns->count;
        columns->phase[columns->count++] = (uint8_t)phase;
        columns->seen |= 1u << phase;
    }
}

/* The residual by what is usual. */
static double residual(const tam_fit *fit, const tam_spans *spans, const tam_tick *tick) {
    uint64_t at_ns[2];
    tam_exposure ends[2];
    double y = tick->y, duty = tam_sensor_duty(&fit->sensor);
    tam_sensor_looks(&fit->sensor, tick, &at_ns[1], &at_ns[0]);
    tam_spans_until(spans, at_ns, 2, ends);
    for (uint32_t c = 0; c < fit->columns.count; c++) {
        uint32_t phase = fit->columns.phase[c];
        y -=
            fit->solution.best_w[c] * 1e-9 / duty * (double)(ends[0].ns[phase] - ends[1].ns[phase]);
    }
    return y * sqrt(tick->weight / fit->solution.variance);
}

static void let_go(tam_fit *fit) {
    double weight = tam_sensor_best(&fit->sensor)->w;
    double factor = weight > kept_rows ? kept_rows / weight : 1.0;
    tam_sensor_scale(&fit->sensor, fit->columns.count, factor);
    fit->solution.valid = false;
    fit->surprise = 1.0;
    fit->changes++;
    tam_log(TAM_INFO, "energy: the watts of phases have changed; learning them anew");
}

/* Single gains that fit nothing weigh little; many of them say that the watts have changed. */
static void judge(tam_fit *fit, const tam_spans *spans, tam_tick *tick) {
    double least_rows = sure_rows * fit->columns.count;
    if (!fit->solution.valid || tam_sensor_best(&fit->sensor)->w < least_rows)
        return;
    double r = residual(fit, spans, tick);
    fit->surprise += (fmin(r * r, surprise_most) - fit->surprise) / surprise_rows;
    if (fabs(r) > outlier_sd)
        tick->weight *= outlier_sd / fabs(r);
    if (fit->surprise > surprise_changed)
        let_go(fit);
}

/* -- what follows ------------------------------------------------------------------------------- */

static void choose(tam_fit *fit) {
    const tam_normal *best = tam_sensor_best(&fit->sensor);
    uint32_t count = fit->columns.count, duty = fit->sensor.duty, lag = fit->sensor.lag;
    double mean_w = tam_normal_mean(best, count);
    double scale_j = mean_w * fit->tick_s; /* of a gain: the least that noise is taken for */
    if (tam_normal_rows(best) < 3.0 * count + 10.0 || best->w < 3.0 * count + 10.0 ||
        !(mean_w > 0.0))
        return;
    double variance = fmax(fit->solution.variance, 1e-8 * scale_j * scale_j);
    tam_sensor_choose(&fit->sensor, count, variance / (mean_w * mean_w), mean_w);
    if (fit->sensor.duty != duty || fit->sensor.lag != lag)
        memset(&fit->edges, 0, sizeof fit->edges);
}

static void solve(tam_fit *fit) {
    const tam_normal *best = tam_sensor_best(&fit->sensor);
    if (!(fit->solution.variance > 0.0)) {
        double guess_j = 0.1 * tam_normal_mean(best, fit->columns.count) * fit->tick_s;
        fit->solution.variance = guess_j * guess_j;
    }
    tam_solution_find(&fit->sensor, &fit->columns, &fit->edges, fit->jitter_s2, &fit->solution);
}

/* Solving grows with the third power of the phases. */
static uint32_t solve_every(uint32_t count) {
    return 1 + count * count / 16;
}

void tam_fit_take(tam_fit *fit, const tam_spans *spans, uint64_t begin_ns, uint64_t end_ns,
                  uint64_t uj) {
    if (end_ns <= begin_ns || begin_ns < tam_spans_known_ns(spans) + TAM_FIT_REACH_NS)
        return;
    note_tick(fit, begin_ns, end_ns);
    learn_columns(&fit->columns, spans);

    double length_s = (double)(end_ns - begin_ns) * 1e-9;
    tam_tick tick = {begin_ns,
                     end_ns,
                     (double)uj * 1e-6,
                     fit->tick_s / length_s,
                     exp(-length_s / forget_s),
                     length_s < 1.5 * fit->tick_s};
    judge(fit, spans, &tick);
    tam_sensor_take(&fit->sensor, &fit->columns, spans, &tick);
    tam_edges_take(&fit->edges, &fit->columns, &fit->sensor, spans, &tick);
    if (++fit->since_chosen >= CHOOSE_EVERY) {
        fit->since_chosen = 0;
        choose(fit);
    }
    if (++fit->since_solved >= solve_every(fit->columns.count)) {
        fit->since_solved = 0;
        solve(fit);
    }
}

void tam_fit_sensor(const tam_fit *fit, double *lag_s, double *duty) {
    double known_s = (double)tam_sensor_lag_ns(&fit->sensor) * 1e-9;
    *lag_s = !fit->sensor.found ? 0.0 : fit->solution.valid ? fit->solution.lag_s : known_s;
    *duty = fit->sensor.found ? tam_sensor_duty(&fit->sensor) : 0.0;
}

void tam_fit_quality(const tam_fit *fit, double *residual_w, double *condition) {
    *residual_w = fit->solution.valid ? sqrt(fit->solution.variance) / fit->tick_s : NAN;
    *condition = fit->solution.valid ? fit->solution.condition : NAN;
}
