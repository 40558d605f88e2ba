/* SPDX-License-Identifier: MIT
 *
 * Watts from normal equations. Seconds are known only as well as the ticks are: a direction in which
 * they vary by little more than that tells nothing of watts, however well it fits. Such directions
 * are left to the prior, every phase the same watts, and the phases in them become one group.
 */
#include "lib/energy/attribute/fit.h"

#include <math.h>

enum { FINER = 5 }; /* parts of a step of the fine lags */

/* How much more than uncertain ticks would a direction must vary, as variance; and at least, as
 * part of the largest. */
static const double blur_most = 3.0, least_part = 1e-9;

/* Log of the likelihood of a lag, by the best one's, with which it may be the true one. */
static const double may_be = -12.0;
static const double interval_sd = 1.96;

/* A direction belongs to a phase with that part of its length, one phase among n having 1/n. */
static const double linked = 0.25;

typedef struct directions {
    uint32_t count, blind; /* blind: bits of those that tell nothing */
    double scale[TAM_FIT_MOST];
    double values[TAM_FIT_MOST];
    tam_matrix vectors;
} directions;

/* v' B v, in scaled coordinates. */
static double blurred(const directions *d, const tam_matrix *blur, uint32_t v) {
    double sum = 0.0;
    for (uint32_t i = 0; i < d->count; i++) {
        for (uint32_t j = 0; j < d->count; j++)
            sum += d->scale[i] * d->vectors.at[i][v] * blur->at[i][j] * d->scale[j] *
                   d->vectors.at[j][v];
    }
    return sum;
}

static double find_directions(const tam_matrix *a, const tam_matrix *blur, directions *d) {
    tam_matrix scaled = {0};
    double low = INFINITY, high = 0.0;
    for (uint32_t i = 0; i < d->count; i++)
        d->scale[i] = a->at[i][i] > 0.0 ? 1.0 / sqrt(a->at[i][i]) : 0.0;
    for (uint32_t i = 0; i < d->count; i++) {
        for (uint32_t j = 0; j < d->count; j++)
            scaled.at[i][j] = d->scale[i] * a->at[i][j] * d->scale[j];
    }
    tam_solve_eigen(d->count, &scaled, d->values, &d->vectors);
    for (uint32_t v = 0; v < d->count; v++) {
        low = fmin(low, d->values[v] > 0.0 ? d->values[v] : low); /* 0: of a phase not yet seen */
        high = fmax(high, d->values[v]);
    }
    for (uint32_t v = 0; v < d->count; v++) {
        if (d->values[v] <= blur_most * blurred(d, blur, v) + least_part * high)
            d->blind |= 1u << v;
    }
    return low > 0.0 ? fmin(sqrt(high / low), 1e9) : 1e9;
}

/* M - v v'M - M v v' + v (v'Mv) v': what M says without the direction v. */
static void strike(uint32_t count, const tam_matrix *vectors, uint32_t v, tam_matrix *m,
                   double *b) {
    double mv[TAM_FIT_MOST] = {0}, vmv = 0.0, vb = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++)
            mv[i] += m->at[i][j] * vectors->at[j][v];
        vmv += vectors->at[i][v] * mv[i];
        vb += vectors->at[i][v] * b[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        double vi = vectors->at[i][v];
        for (uint32_t j = 0; j < count; j++)
            m->at[i][j] += vi * vmv * vectors->at[j][v] - vi * mv[j] - mv[i] * vectors->at[j][v];
        b[i] -= vi * vb;
    }
}

/* Take out of the equations what blind directions say. */
static void blind(const directions *d, tam_matrix *a, double *b) {
    for (uint32_t i = 0; i < d->count; i++) {
        b[i] *= d->scale[i];
        for (uint32_t j = 0; j < d->count; j++)
            a->at[i][j] *= d->scale[i] * d->scale[j];
    }
    for (uint32_t v = 0; v < d->count; v++) {
        if (d->blind >> v & 1)
            strike(d->count, &d->vectors, v, a, b);
    }
    for (uint32_t i = 0; i < d->count; i++) {
        b[i] *= d->scale[i] > 0.0 ? 1.0 / d->scale[i] : 0.0;
        for (uint32_t j = 0; j < d->count; j++) {
            double scale = d->scale[i] * d->scale[j];
            a->at[i][j] *= scale > 0.0 ? 1.0 / scale : 0.0;
        }
    }
}

/* Bits of columns that share a blind direction with column i. */
static uint32_t mates(const directions *d, uint32_t i) {
    uint32_t bits = 0;
    for (uint32_t j = 0; j < d->count; j++) {
        double together = 0.0;
        for (uint32_t v = 0; v < d->count; v++) {
            if (d->blind >> v & 1)
                together += d->vectors.at[i][v] * d->vectors.at[j][v];
        }
        if (j != i && d->scale[i] * d->scale[j] > 0.0 && fabs(together) > linked / d->count)
            bits |= 1u << j;
    }
    return bits;
}

static uint32_t phases_of(const tam_columns *columns, uint32_t bits) {
    uint32_t phases = 0;
    for (uint32_t i = 0; i < columns->count; i++) {
        if (bits >> i & 1)
            phases |= 1u << columns->phase[i];
    }
    return phases;
}

static void find_groups(const directions *d, const tam_columns *columns, uint32_t *group) {
    uint32_t bits[TAM_FIT_MOST];
    for (uint32_t i = 0; i < d->count; i++) {
        bits[i] = d->blind ? mates(d, i) : 0;
        bits[i] |= bits[i] ? 1u << i : 0;
    }
    for (uint32_t pass = 0; pass < d->count; pass++) {
        for (uint32_t i = 0; i < d->count; i++) {
            for (uint32_t j = 0; j < d->count; j++)
                bits[i] |= bits[i] >> j & 1 ? bits[j] : 0;
        }
    }
    for (uint32_t i = 0; i < d->count; i++)
        group[i] = phases_of(columns, bits[i]);
}

static void subtract(uint32_t count, const tam_matrix *what, tam_matrix *from) {
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++)
            from->at[i][j] -= what->at[i][j];
    }
}

/* Of rows of which there are as many as of `n`. */
static void find_blur(const tam_normal *n, const tam_edges *edges, uint32_t count, double jitter_s2,
                      tam_matrix *out) {
    double w = edges->blur.w, factor = w > 0.0 ? 2.0 * jitter_s2 * n->w / w : 0.0;
    tam_normal_matrix(&edges->blur, count, out);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++)
            out->at[i][j] *= factor;
    }
}

/* -- one lag ------------------------------------------------------------------------------------ */

typedef struct estimate {
    double lag_s, error, watts[TAM_FIT_MOST], variance_w2[TAM_FIT_MOST];
} estimate;

/* Errors of rows of weights w have variance / w, before forgetting: with it the equations weigh
 * more than they tell, by w / ww. */
static bool find_errors(const tam_normal *n, uint32_t count, const tam_matrix *a, double ridge,
                        const tam_matrix *whole, estimate *out) {
    tam_matrix inverse;
    double told = n->ww / n->w, rows = tam_normal_rows(n);
    if (!tam_solve_inverse(count, whole, &inverse))
        return false;
    for (uint32_t k = 0; k < count; k++) {
        double sum = 0.0;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < count; j++)
                sum += inverse.at[k][i] * inverse.at[k][j] *
                       (told * a->at[i][j] + (i == j ? ridge : 0.0));
        }
        out->variance_w2[k] = fmax(sum, 0.0) * out->error * rows / (rows - count);
    }
    return true;
}

static bool find_estimate(const tam_normal *n, const directions *d, const tam_matrix *blur,
                          const tam_solution *s, estimate *out) {
    tam_matrix a, whole;
    double b[TAM_FIT_MOST];
    tam_normal_matrix(n, d->count, &a);
    memcpy(b, n->b, sizeof b);
    subtract(d->count, blur, &a); /* errors of x make x'x too large, but not x'y */
    blind(d, &a, b);
    double ridge = fmax(s->variance / (s->mean_w * s->mean_w), 1e-12 * n->w);
    whole = a;
    for (uint32_t i = 0; i < d->count; i++) {
        whole.at[i][i] += ridge;
        b[i] += ridge * s->mean_w;
    }
    if (!tam_solve_nonnegative(d->count, &whole, b, out->watts))
        return false;
    out->error = fmax(tam_normal_error(n, d->count, out->watts), 1e-30);
    return find_errors(n, d->count, &a, ridge, &whole, out);
}

/* -- all lags that are as likely, together ------------------------------------------------------ */

/* Sums over lags and duties, by likelihood: between lags half a millisecond apart watts may differ
 * by more than the noise tells. */
typedef struct mixture {
    bool wide;        /* it is not known which is true: intervals hold all that may be */
    double reference; /* error to which likelihoods are relative */
    double low[TAM_FIT_MOST], high[TAM_FIT_MOST];
    double rows, sum, lag_s, watts[TAM_FIT_MOST], squares[TAM_FIT_MOST];
} mixture;

static void mix(mixture *m, uint32_t count, double prior, const estimate *e) {
    double likelihood = fmin(-0.5 * m->rows * log(e->error / m->reference), 300.0);
    double weight = prior * exp(likelihood);
    m->sum += weight;
    m->lag_s += weight * e->lag_s;
    for (uint32_t k = 0; k < count && likelihood > may_be; k++) {
        double sd = sqrt(e->variance_w2[k]);
        m->low[k] = fmin(m->low[k], e->watts[k] - interval_sd * sd);
        m->high[k] = fmax(m->high[k], e->watts[k] + interval_sd * sd);
    }
    for (uint32_t k = 0; k < count; k++) {
        m->watts[k] += weight * e->watts[k];
        m->squares[k] += weight * (e->watts[k] * e->watts[k] + e->variance_w2[k]);
    }
}

static void mix_fine(mixture *m, const tam_sensor *sensor, const directions *d,
                     const tam_matrix *blur, const tam_solution *s) {
    estimate e;
    for (uint32_t i = 0; i < TAM_FINE; i++) {
        double prior = i == sensor->nearest ? 1.0 / FINER : 1.0;
        if (tam_sensor_fine(sensor, i, &e.lag_s) && find_estimate(&sensor->fine[i], d, blur, s, &e))
            mix(m, d->count, prior, &e);
    }
}

/* On both sides of the nearest: with many rows a quarter of a millisecond shows. */
static void mix_finer(mixture *m, const tam_sensor *sensor, const directions *d,
                      const tam_matrix *blur, const tam_solution *s) {
    tam_normal n;
    estimate e;
    uint32_t first = sensor->nearest > 0 ? sensor->nearest - 1 : 0;
    for (uint32_t i = first; i <= sensor->nearest && i + 1 < TAM_FINE; i++) {
        double lag_s;
        for (uint32_t f = 1; f < FINER && tam_sensor_fine(sensor, i, &lag_s); f++) {
            tam_sensor_between(sensor, d->count, i, (double)f / FINER, &n);
            e.lag_s = lag_s + 1e-9 * TAM_FINE_STEP_NS * f / FINER;
            if (find_estimate(&n, d, blur, s, &e))
                mix(m, d->count, 1.0 / FINER, &e);
        }
    }
}

/* The others, while they may be true as well. */
static void mix_coarse(mixture *m, const tam_sensor *sensor, const directions *d,
                       const tam_matrix *blur, const tam_solution *s) {
    estimate e;
    for (uint32_t i = 0; i < TAM_DUTIES * TAM_LAGS; i++) {
        uint32_t duty = i / TAM_LAGS, lag = i % TAM_LAGS;
        bool is_fine = duty == sensor->duty && lag < sensor->lag + 2 && sensor->lag < lag + 2;
        e.lag_s = 1e-9 * TAM_LAG_STEP_NS * lag;
        if (!is_fine && find_estimate(&sensor->coarse[duty][lag], d, blur, s, &e))
            mix(m, d->count, (double)TAM_LAG_STEP_NS / TAM_FINE_STEP_NS, &e);
    }
}

static mixture mix_all(const tam_sensor *sensor, const directions *d, const tam_matrix *blur,
                       const estimate *best, double rows, const tam_solution *s) {
    mixture m = {.wide = !sensor->found, .reference = best->error, .rows = rows};
    for (uint32_t k = 0; k < d->count; k++)
        m.low[k] = m.high[k] = best->watts[k];
    mix_fine(&m, sensor, d, blur, s);
    mix_finer(&m, sensor, d, blur, s);
    if (m.wide)
        mix_coarse(&m, sensor, d, blur, s);
    return m;
}

static bool settle(const mixture *m, uint32_t count, tam_solution *s) {
    if (!(m->sum > 0.0 && isfinite(m->sum)))
        return false;
    s->lag_s = m->lag_s / m->sum;
    for (uint32_t k = 0; k < count; k++) {
        s->watts[k] = m->watts[k] / m->sum;
        s->sd_w[k] = sqrt(fmax(m->squares[k] / m->sum - s->watts[k] * s->watts[k], 0.0));
        double reach_w = fmax(m->high[k] - s->watts[k], s->watts[k] - m->low[k]);
        if (m->wide)
            s->sd_w[k] = fmax(s->sd_w[k], reach_w / interval_sd);
    }
    return true;
}

void tam_solution_find(const tam_sensor *sensor, const tam_columns *columns, const tam_edges *edges,
                       double jitter_s2, tam_solution *s) {
    const tam_normal *best = tam_sensor_best(sensor);
    directions d = {.count = columns->count};
    double rows = tam_normal_rows(best), least = 2.0 * d.count + 8.0;
    tam_matrix a, blur;
    estimate e;
    s->mean_w = tam_normal_mean(best, d.count);
    s->valid = false;
    if (rows < least || best->w < least || !(s->mean_w > 0.0))
        return;
    tam_normal_matrix(best, d.count, &a);
    find_blur(best, edges, d.count, jitter_s2, &blur);
    s->condition = find_directions(&a, &blur, &d);
    find_groups(&d, columns, s->group);
    if (!find_estimate(best, &d, &blur, s, &e))
        return;
    memcpy(s->best_w, e.watts, sizeof e.watts);
    s->variance = e.error * rows / (rows - d.count);

    mixture m = mix_all(sensor, &d, &blur, &e, rows, s);
    s->valid = settle(&m, d.count, s);
    s->unseen = tam_normal_error(&edges->unseen, d.count, s->watts);
}
