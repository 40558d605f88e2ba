/* SPDX-License-Identifier: MIT
 *
 * Inside of a fit.
 */
#ifndef TAM_ENERGY_FIT_H
#define TAM_ENERGY_FIT_H

#include "lib/energy/attribute/attribute.h"

enum { TAM_FIT_MAX = TAMIS_ENERGY_PHASES };

/* -- regress.c: watts of rows, of which only sums are kept ------------------------------------ */

/** Joules of a tick, and seconds of phases in it. Its error has the variance of all by weight. */
typedef struct tam_row {
    double x[TAM_FIT_MAX], y, weight;
} tam_row;

typedef struct tam_normal {
    double xx[TAM_FIT_MAX * (TAM_FIT_MAX + 1) / 2]; /* lower triangle of sum w x x' */
    double xy[TAM_FIT_MAX];                         /* sum w x y */
    double yy, w, ww;                               /* sums of w y y, w, w w */
} tam_normal;

/** What is sought: one number for each phase, but one for all of a group together. Before rows tell
 * it is thought to be the mean, give or take as much. */
typedef struct tam_unknowns {
    uint32_t phases;       /* bits of those that rows may have */
    const uint32_t *group; /* [TAM_FIT_MAX] as of tam_normal_groups */
    double mean_w, ridge;  /* ridge: variance of a row / mean_w^2 */
} tam_unknowns;

/** Forget by `decay`, then add a row. @param phases  bits of those that rows may have */
void tam_normal_add(tam_normal *n, uint32_t phases, double decay, const tam_row *row);
void tam_normal_scale(tam_normal *n, double factor);

static inline uint32_t tam_phase_count(uint32_t phases) {
    return (uint32_t)__builtin_popcount(phases);
}

/** Rows that weigh as much. */
double tam_normal_rows(const tam_normal *n);

/** The watts that all phases would have if they had the same; 0: unknown. */
double tam_normal_mean(const tam_normal *n, uint32_t phases);

/** Watts, none below 0; of phases that rows do not have, the mean.
 * @param  error_j2  [out]  mean of the squared residuals, by weight
 * @return false: rounding has made the equations singular */
bool tam_normal_solve(const tam_normal *n, const tam_unknowns *u, double watts[TAM_FIT_MAX],
                      double *error_j2);

/** Variance of watts as part of that of a row. @return as tam_normal_solve */
bool tam_normal_spread(const tam_normal *n, const tam_unknowns *u, double spread[TAM_FIT_MAX]);

/** Phases that cannot be told apart, as bits; 0: it can.
 * @param  blur       [in]   sum w e e' over the rows of n, by whose errors e their seconds are
 *                           wrong
 * @param  condition  [out]  by how much phases that come together widen the error of one, at
 *                           most */
void tam_normal_groups(const tam_normal *n, uint32_t phases, const tam_normal *blur,
                       uint32_t group[TAM_FIT_MAX], double *condition);

/* -- fit.c ------------------------------------------------------------------------------------ */

/* Candidates for lag and duty of the sensor:
 *
 *     counter   tick             tick             tick
 *     time   ----|----------------|----------------|--->
 *     looks              [--------]       [--------]            duty 1/2
 *                             lag |<->|                         the tick shows what was until there
 */
enum { TAM_FIT_DUTIES = 3, TAM_FIT_LAGS = 41, TAM_FIT_CHOICES = TAM_FIT_DUTIES * TAM_FIT_LAGS };

typedef struct tam_watts {
    bool valid;
    double mean_w;   /* of all phases together */
    double variance; /* J^2, of the residual of a row of weight 1 */
    double lag_s;
    double w[TAM_FIT_MAX], sd_w[TAM_FIT_MAX];
    uint32_t group[TAM_FIT_MAX]; /* bits of phases; 0: told apart */
    double condition;
} tam_watts;

struct tam_fit {
    tam_normal sums[TAM_FIT_CHOICES]; /* candidates: all lags of a duty, then those of the next */
    tam_normal blur; /* seconds that a row has too many, per second by which a tick is wrong */
    uint32_t best;   /* of the candidates */
    bool found;      /* no other one is nearly as good */
    uint32_t phases; /* bits of those that have been seen */
    tam_watts watts;
    double unseen; /* J^2, by which a tick is wrong as the sensor looks only at times */
    double tick_s;
    double surprise; /* mean of the last squared residuals by their variance */
    uint32_t changes;
    uint32_t since_learnt;
    tam_exposure ends[TAM_FIT_LAGS + 1], begins[TAM_FIT_DUTIES][TAM_FIT_LAGS + 1]; /* of a gain */
};

#endif
