/* SPDX-License-Identifier: MIT
 *
 * Every lag and duty has normal equations of its own; the one that explains the gains best wins.
 */
#include "lib/energy/attribute/fit.h"

#include <float.h>
#include <math.h>

enum {
    FINE_MIDDLE = TAM_FINE / 2,
    SEARCH_ROWS = 600, /* with every gain; then, once found, with every RECHECK-th */
    RECHECK = 4,
    APART = 3 /* lags nearer than that need not be told from the best to call it found */
};

/* Gains of log likelihood, doubled: what chance makes of 84 candidates is seldom as much. */
static const double switch_gain = 12.0, found_gain = 10.0, fine_gain = 2.0;

static const double duties[TAM_DUTIES] = {1.0, 0.5, 0.25, 0.125};

double tam_sensor_duty(const tam_sensor *s) {
    return duties[s->duty];
}

static int64_t offset_ns(const tam_sensor *s, uint32_t fine) {
    return (int64_t)s->lag * TAM_LAG_STEP_NS + ((int64_t)fine - FINE_MIDDLE) * TAM_FINE_STEP_NS;
}

static uint64_t fine_lag_ns(const tam_sensor *s, uint32_t fine) {
    int64_t lag_ns = offset_ns(s, fine);
    return lag_ns > 0 ? (uint64_t)lag_ns : 0;
}

bool tam_sensor_fine(const tam_sensor *s, uint32_t fine, double *lag_s) {
    *lag_s = (double)fine_lag_ns(s, fine) * 1e-9;
    return offset_ns(s, fine) >= 0;
}

uint64_t tam_sensor_lag_ns(const tam_sensor *s) {
    return fine_lag_ns(s, s->nearest);
}

const tam_normal *tam_sensor_best(const tam_sensor *s) {
    return &s->fine[s->nearest];
}

static uint64_t look_ns(const tam_tick *tick, double duty) {
    return (uint64_t)(duty * (double)(tick->end_ns - tick->begin_ns) + 0.5);
}

void tam_sensor_looks(const tam_sensor *s, const tam_tick *tick, uint64_t *begin_ns,
                      uint64_t *end_ns) {
    *end_ns = tick->end_ns - tam_sensor_lag_ns(s);
    *begin_ns = *end_ns - look_ns(tick, duties[s->duty]);
}

/* -- rows --------------------------------------------------------------------------------------- */

static tam_row make_row(const tam_columns *columns, const tam_tick *tick, double duty,
                        const tam_exposure *begin, const tam_exposure *end) {
    tam_row row = {.y = tick->y, .weight = tick->weight};
    for (uint32_t c = 0; c < columns->count; c++) {
        uint32_t phase = columns->phase[c];
        row.x[c] = (double)(end->ns[phase] - begin->ns[phase]) * (1e-9 / duty);
    }
    return row;
}

static void take_coarse(tam_sensor *s, const tam_columns *columns, const tam_spans *spans,
                        const tam_tick *tick) {
    uint64_t at_ns[TAM_LAGS];
    tam_exposure ends[TAM_LAGS], begins[TAM_LAGS];
    for (uint32_t lag = 0; lag < TAM_LAGS; lag++)
        at_ns[lag] = tick->end_ns - (uint64_t)lag * TAM_LAG_STEP_NS;
    tam_spans_until(spans, at_ns, TAM_LAGS, ends);
    for (uint32_t d = 0; d < TAM_DUTIES && (d == 0 || tick->whole); d++) {
        uint64_t begin_ns = tick->end_ns - look_ns(tick, duties[d]);
        for (uint32_t lag = 0; lag < TAM_LAGS; lag++)
            at_ns[lag] = begin_ns - (uint64_t)lag * TAM_LAG_STEP_NS;
        tam_spans_until(spans, at_ns, TAM_LAGS, begins);
        for (uint32_t lag = 0; lag < TAM_LAGS; lag++) {
            tam_row row = make_row(columns, tick, duties[d], &begins[lag], &ends[lag]);
            tam_normal_add(&s->coarse[d][lag], columns->count, s->pending, &row);
        }
    }
    s->pending = 1.0;
}

static void take_fine(tam_sensor *s, const tam_columns *columns, const tam_spans *spans,
                      const tam_tick *tick) {
    uint64_t begins_ns[TAM_FINE], ends_ns[TAM_FINE];
    tam_exposure begins[TAM_FINE], ends[TAM_FINE];
    double duty = duties[s->duty];
    if (s->duty != 0 && !tick->whole)
        return;
    for (uint32_t i = 0; i < TAM_FINE; i++) {
        ends_ns[i] = tick->end_ns - fine_lag_ns(s, i);
        begins_ns[i] = ends_ns[i] - look_ns(tick, duty);
    }
    tam_spans_until(spans, ends_ns, TAM_FINE, ends);
    tam_spans_until(spans, begins_ns, TAM_FINE, begins);
    tam_row before;
    for (uint32_t i = 0; i < TAM_FINE; i++) {
        tam_row row = make_row(columns, tick, duty, &begins[i], &ends[i]);
        tam_normal_add(&s->fine[i], columns->count, tick->decay, &row);
        for (uint32_t c = 0; i > 0 && c < columns->count; c++)
            before.x[c] -= row.x[c];
        if (i > 0)
            tam_normal_add(&s->gaps[i - 1], columns->count, tick->decay, &before);
        before = row;
    }
}

/* Rows (1 - f) x + f z have sums (1 - f) xx' + f zz' - f (1 - f) (x - z)(x - z)'. */
void tam_sensor_between(const tam_sensor *s, uint32_t count, uint32_t fine, double part,
                        tam_normal *out) {
    const tam_normal *x = &s->fine[fine], *z = x + 1, *gap = &s->gaps[fine];
    *out = *x;
    for (uint32_t i = 0; i < count * (count + 1) / 2; i++)
        out->a[i] = (1.0 - part) * x->a[i] + part * z->a[i] - part * (1.0 - part) * gap->a[i];
    for (uint32_t i = 0; i < count; i++)
        out->b[i] = (1.0 - part) * x->b[i] + part * z->b[i];
}

void tam_sensor_take(tam_sensor *s, const tam_columns *columns, const tam_spans *spans,
                     const tam_tick *tick) {
    s->pending = (s->rows ? s->pending : 1.0) * tick->decay;
    if (s->rows < SEARCH_ROWS || !s->found || s->rows % RECHECK == 0)
        take_coarse(s, columns, spans, tick);
    take_fine(s, columns, spans, tick);
    s->rows++;
}

void tam_sensor_scale(tam_sensor *s, uint32_t count, double factor) {
    for (uint32_t i = 0; i < TAM_DUTIES * TAM_LAGS; i++)
        tam_normal_scale(&s->coarse[i / TAM_LAGS][i % TAM_LAGS], count, factor);
    for (uint32_t i = 0; i < TAM_FINE; i++)
        tam_normal_scale(&s->fine[i], count, factor);
    for (uint32_t i = 0; i + 1 < TAM_FINE; i++)
        tam_normal_scale(&s->gaps[i], count, factor);
}

/* -- choice ------------------------------------------------------------------------------------- */

static double error_of(const tam_normal *n, uint32_t count, double ridge, double mean_w) {
    tam_matrix a;
    double b[TAM_FIT_MOST], watts[TAM_FIT_MOST];
    tam_normal_matrix(n, count, &a);
    for (uint32_t i = 0; i < count; i++) {
        a.at[i][i] += ridge;
        b[i] = n->b[i] + ridge * mean_w;
    }
    if (n->w <= 0.0 || !tam_solve_part(count, &a, b, UINT32_MAX, watts))
        return DBL_MAX;
    double error = tam_normal_error(n, count, watts);
    return error > DBL_MIN ? error : DBL_MIN;
}

/* By how much `best` is likelier, of errors that are means of `rows` squares. */
static double gain(double other, double best, double rows) {
    return other < DBL_MAX ? rows * log(other / best) : 0.0;
}

static void move(tam_sensor *s, uint32_t duty, uint32_t lag) {
    s->duty = duty;
    s->lag = lag;
    s->nearest = FINE_MIDDLE;
    for (uint32_t i = 0; i < TAM_FINE; i++)
        s->fine[i] = s->coarse[duty][lag];
    memset(s->gaps, 0, sizeof s->gaps);
}

static void choose_coarse(tam_sensor *s, uint32_t count, double ridge, double mean_w) {
    double errors[TAM_DUTIES * TAM_LAGS];
    uint32_t now = s->duty * TAM_LAGS + s->lag, best = 0;
    for (uint32_t i = 0; i < TAM_DUTIES * TAM_LAGS; i++) {
        errors[i] = error_of(&s->coarse[i / TAM_LAGS][i % TAM_LAGS], count, ridge, mean_w);
        best = errors[i] < errors[best] ? i : best;
    }
    double rows = tam_normal_rows(&s->coarse[best / TAM_LAGS][best % TAM_LAGS]);
    if (gain(errors[now], errors[best], rows) > switch_gain)
        move(s, best / TAM_LAGS, best % TAM_LAGS);
    s->found = true;
    for (uint32_t i = 0; i < TAM_DUTIES * TAM_LAGS; i++) {
        uint32_t lag = i % TAM_LAGS;
        bool near = i / TAM_LAGS == s->duty && lag < s->lag + APART && s->lag < lag + APART;
        if (!near && errors[i] < DBL_MAX && gain(errors[i], errors[best], rows) < found_gain)
            s->found = false;
    }
}

static void choose_fine(tam_sensor *s, uint32_t count, double ridge, double mean_w) {
    double errors[TAM_FINE];
    uint32_t best = 0;
    for (uint32_t i = 0; i < TAM_FINE; i++) {
        errors[i] = error_of(&s->fine[i], count, ridge, mean_w);
        best = errors[i] < errors[best] ? i : best;
    }
    if (gain(errors[s->nearest], errors[best], tam_normal_rows(&s->fine[best])) > fine_gain)
        s->nearest = best;
}

void tam_sensor_choose(tam_sensor *s, uint32_t count, double ridge, double mean_w) {
    choose_coarse(s, count, ridge, mean_w);
    choose_fine(s, count, ridge, mean_w);
}
