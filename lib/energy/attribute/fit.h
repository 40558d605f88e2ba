/* SPDX-License-Identifier: MIT
 *
 * Inside of a fit. Rows are gains: joules y over a tick, and per phase seconds x in the time at
 * which the sensor looked, by its share of the tick.
 *
 *     counter   tick             tick             tick
 *     time   ----|----------------|----------------|--->
 *     looks              [--------]       [--------]            duty 1/2
 *                             lag |<->|                         the tick shows what was until there
 */
#ifndef TAM_ENERGY_FIT_H
#define TAM_ENERGY_FIT_H

#include "lib/energy/attribute/attribute.h"
#include "lib/energy/attribute/solve.h"

enum {
    TAM_FIT_MOST = TAMIS_ENERGY_PHASES,
    TAM_FIT_PACKED = TAM_FIT_MOST * (TAM_FIT_MOST + 1) / 2,
    TAM_FIT_TICKS = 16
};

/* -- normal.c: weighted sums over rows ---------------------------------------------------------- */

/** Phases become columns as they are first seen. */
typedef struct tam_columns {
    uint32_t count;
    uint32_t seen; /* bits */
    uint8_t phase[TAM_FIT_MOST], of_phase[TAM_FIT_MOST];
} tam_columns;

typedef struct tam_row {
    double x[TAM_FIT_MOST], y, weight;
} tam_row;

typedef struct tam_normal {
    double a[TAM_FIT_PACKED]; /* lower triangle of sum w x x' */
    double b[TAM_FIT_MOST];   /* sum w x y */
    double yy, w, ww;         /* sums of w y y, w, w w */
} tam_normal;

/** Forget by `decay`, then add a row. */
void tam_normal_add(tam_normal *n, uint32_t count, double decay, const tam_row *row);
void tam_normal_scale(tam_normal *n, uint32_t count, double factor);

/** The matrix, whole. */
void tam_normal_matrix(const tam_normal *n, uint32_t count, tam_matrix *out);

/** The watts that all phases would have if they had the same. */
double tam_normal_mean(const tam_normal *n, uint32_t count);

/** Mean of the squared residuals of watts, weighted. */
double tam_normal_error(const tam_normal *n, uint32_t count, const double *watts);

/** Rows that weigh as much. */
double tam_normal_rows(const tam_normal *n);

/* -- sensor.c: lag and duty by residual --------------------------------------------------------- */

enum { TAM_LAG_STEP_NS = 3000000, TAM_FINE_STEP_NS = 500000 };
enum { TAM_LAGS = 21, TAM_DUTIES = 4, TAM_FINE = 13 };

typedef struct tam_sensor {
    tam_normal coarse[TAM_DUTIES][TAM_LAGS]; /* lags 3 ms apart */
    tam_normal fine[TAM_FINE];               /* 0.5 ms apart, around the best of them */
    tam_normal gaps[TAM_FINE - 1];           /* of the differences of rows of two neighbours */
    uint32_t duty, lag, nearest;             /* indices of the best */
    bool found;                              /* no other one is nearly as good */
    uint64_t rows;
    double pending; /* decay that the coarse ones have not seen yet */
} tam_sensor;

/** A gain as the sensor has it. */
typedef struct tam_tick {
    uint64_t begin_ns, end_ns;
    double y, weight, decay;
    bool whole; /* one tick; several merged tell nothing of a sensor that looks at times */
} tam_tick;

double tam_sensor_duty(const tam_sensor *s);
uint64_t tam_sensor_lag_ns(const tam_sensor *s);
const tam_normal *tam_sensor_best(const tam_sensor *s);

/** Lag of a fine candidate. @return false: it is none, for the counter would tell the future */
bool tam_sensor_fine(const tam_sensor *s, uint32_t fine, double *lag_s);

/** The sums of a lag between a fine candidate and the next, `part` of the way: seconds of phases
 * are linear in the lag but for phases that begin or end in between. */
void tam_sensor_between(const tam_sensor *s, uint32_t count, uint32_t fine, double part,
                        tam_normal *out);

/** When it looked, by what is known. */
void tam_sensor_looks(const tam_sensor *s, const tam_tick *tick, uint64_t *begin_ns,
                      uint64_t *end_ns);

void tam_sensor_take(tam_sensor *s, const tam_columns *columns, const tam_spans *spans,
                     const tam_tick *tick);
void tam_sensor_scale(tam_sensor *s, uint32_t count, double factor);

/** Look which lag and duty leave the least residual. `ridge` and `mean_w` as in tam_solution. */
void tam_sensor_choose(tam_sensor *s, uint32_t count, double ridge, double mean_w);

/* -- edges.c: ticks are not known exactly, and a sensor looks only at times --------------------- */

/** Sums over the same rows as those of the best lag and duty. */
typedef struct tam_edges {
    tam_normal blur;   /* seconds that a row has too many per second by which a tick is wrong; two
                          rows for each of theirs: its own tick, the one before */
    tam_normal unseen; /* what the sensor took for the tick less what was in it */
} tam_edges;

void tam_edges_take(tam_edges *e, const tam_columns *columns, const tam_sensor *sensor,
                    const tam_spans *spans, const tam_tick *tick);

/* -- solution.c: watts, their errors, and what cannot be told apart ------------------------------ */

typedef struct tam_solution {
    bool valid;
    double mean_w;   /* what a phase takes as far as rows do not tell, +- the same again */
    double variance; /* J^2, of the residual of a row of weight 1 */
    double unseen;   /* J^2, by which such a row is wrong since the sensor looks only at times */
    double lag_s;
    double watts[TAM_FIT_MOST], sd_w[TAM_FIT_MOST]; /* by column */
    double best_w[TAM_FIT_MOST];                    /* by the best lag and duty alone */
    uint32_t group[TAM_FIT_MOST];                   /* by column, bits of phases; 0: told apart */
    double condition;
} tam_solution;

/** @param  jitter_s2  [in]      variance of the times of ticks
 *  @param  solution   [in,out]  the last one */
void tam_solution_find(const tam_sensor *sensor, const tam_columns *columns, const tam_edges *edges,
                       double jitter_s2, tam_solution *solution);

struct tam_fit {
    tam_columns columns;
    tam_sensor sensor;
    tam_edges edges;
    tam_solution solution;
    double ticks_s[TAM_FIT_TICKS]; /* last lengths */
    uint32_t nticks;
    double tick_s;    /* median of them */
    double jitter_s2; /* variance of tick times */
    uint64_t last_end_ns;
    double last_s;
    double surprise; /* mean of the last squared residuals by their variance */
    uint32_t changes;
    uint32_t since_solved, since_chosen;
};

#endif
