/* SPDX-License-Identifier: MIT
 *
 * A model of a training job on capped devices, for what no test can do to a real cluster. It is a
 * model: its defaults are chosen, not measured, and what comes out of it says how a policy behaves,
 * not what a machine saves.
 *
 *     device   P = static + dynamic * activity * f^exponent;  a cap lowers f where P would exceed
 *              it
 *     step     compute ((1 - bound) + bound / f), the slowest rank's; then the exchange, with a
 *              part in proportion to density; then the pause. The faster ranks wait
 *     job      watts follow their target with a first-order lag; what a window tells is noisy
 */
#ifndef TAMIS_BENCH_PLANT_H
#define TAMIS_BENCH_PLANT_H

#include <stdint.h>
#include <stdio.h>

typedef struct plant_config {
    uint32_t ranks;
    double static_w, dynamic_w, exponent;  /* of a device */
    double host_w;                         /* of the rank's share of its host */
    double compute_s, bound;               /* bound: the part that waits for the clock */
    double exchange_s, exchange_density_s; /* at density 0, and what density 1 adds */
    double exchange_activity, wait_activity;
    double uneven; /* compute of the ranks differs by so much, relative */
    double lag_s;
    double noise; /* standard deviation of what a window tells, relative */
    uint64_t seed;
} plant_config;

/** Devices of 400 W, of whose compute time a quarter waits for the clock. */
plant_config plant_defaults(void);

typedef struct plant_knobs {
    double density, pace_s, cap_w; /* cap_w 0: none */
} plant_knobs;

typedef struct plant {
    plant_config config;
    double watts;  /* now, behind the lag; 0: not yet begun */
    uint64_t told; /* windows, for the noise */
} plant;

/** Seconds and joules, without noise. Sums of several runs may be told as one window. */
typedef struct plant_run {
    double seconds, joules;
} plant_run;

/** Make steps. */
void plant_steps(plant *p, const plant_knobs *knobs, uint64_t steps, plant_run *sum);

/** Seconds of a step and watts that the job would come to. */
void plant_rest(const plant_config *c, const plant_knobs *knobs, double *step_s, double *watts);

/** What instruments say of a window. */
plant_run plant_tell(plant *p, const plant_run *truth);

/**
 * A synthetic carbon trace, one row in five minutes: two sines a day, fitted to nothing, shaped as
 * grids with much solar power are ("duck curve"): low at noon, highest after sunset.
 *
 *     g/kWh = 330 + 110 cos(2 pi (h - 20) / 24) + 60 cos(2 pi (h - 20) / 12)     h: hour of the day
 */
void plant_trace(FILE *file, double unix_begin_s, double hours);

#endif
