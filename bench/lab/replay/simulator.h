/* SPDX-License-Identifier: MIT
 *
 * A model of a training job on capped devices, for experiments that no test can run on a real
 * cluster. Its defaults are chosen, not measured, so its results show how a policy behaves, not
 * what a machine saves.
 *
 *     device   P = static + dynamic * activity * f^exponent;  a cap lowers f where P would exceed
 *              it
 *     step     compute ((1 - bound) + bound / f), the slowest rank's; then the exchange, with a
 *              part in proportion to density; then the pause. The faster ranks wait
 *     job      watts follow their target with a first-order lag; readings of a window are noisy
 */
#ifndef TAMIS_BENCH_SIMULATOR_H
#define TAMIS_BENCH_SIMULATOR_H

#include <stdint.h>
#include <stdio.h>

typedef struct simulator_config {
    uint32_t ranks;
    double static_w, dynamic_w, exponent;  /* of a device */
    double host_w;                         /* the rank's share of its host */
    double compute_s, bound;               /* bound: the part that waits for the clock */
    double exchange_s, exchange_density_s; /* at density 0, and what density 1 adds */
    double exchange_activity, wait_activity;
    double uneven; /* relative difference between the ranks' compute times */
    double lag_s;
    double noise; /* relative standard deviation of a window's readings */
    uint64_t seed;
} simulator_config;

/** Devices of 400 W; a quarter of their compute time waits for the clock. */
simulator_config simulator_defaults(void);

typedef struct simulator_knobs {
    double density, pace_s, cap_w; /* cap_w 0: none */
} simulator_knobs;

typedef struct simulator {
    simulator_config config;
    double watts;  /* now, behind the lag; 0: not yet begun */
    uint64_t told; /* windows read so far, for the noise */
} simulator;

/** Seconds and joules, without noise. Several runs may be summed into one window. */
typedef struct simulator_run {
    double seconds, joules;
} simulator_run;

/** Run steps and add them to `sum`. */
void simulator_steps(simulator *p, const simulator_knobs *knobs, uint64_t steps,
                     simulator_run *sum);

/** Seconds of a step, and the watts at which the job would stay. */
void simulator_steady_state(const simulator_config *c, const simulator_knobs *knobs, double *step_s,
                            double *watts);

/** A window as instruments read it, with noise. */
simulator_run simulator_read(simulator *p, const simulator_run *truth);

/**
 * A synthetic carbon trace, one row per five minutes. Two sines, of one day and half a day, not
 * fitted to data but shaped like grids with much solar power ("duck curve"): low at noon, highest
 * after sunset.
 *
 *     g/kWh = 330 + 110 cos(2 pi (h - 20) / 24) + 60 cos(2 pi (h - 20) / 12)     h: hour of the day
 */
void simulator_trace(FILE *file, double unix_begin_s, double hours);

#endif
