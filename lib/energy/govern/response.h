/* SPDX-License-Identifier: MIT
 *
 * How watts and the time of a step answer to the knobs, learnt from windows.
 *
 *     seconds of a step without pause    S = s (t0 + t1 y + t2 d)
 *     joules of a step                   J = w S (w0 + w1 z + w2 d) + w w3 p
 *
 *     p  pause             z  1 - cap / C      while cap < C, the least that changes nothing; else
 *                                              0
 *     d  1 - density/max   y  C / cap - 1      likewise
 *
 * s, w: of the first window, so that what is learnt is near 1. While a cap binds, a device draws
 * the cap: watts are linear in it. That S is linear in its inverse is good near the working point
 * only, which suffices, for the estimates follow it: a Kalman filter each whose values may wander.
 * Where nothing is known yet a prior stands in. +, -, *, / in a fixed order.
 */
#ifndef TAM_ENERGY_RESPONSE_H
#define TAM_ENERGY_RESPONSE_H

#include "lib/base/base.h"

enum { TAM_RESPONSE_TERMS = 4 };

/** What a decision sets. cap_w 0: none. */
typedef struct tam_knobs {
    double density, pace_s, cap_w;
} tam_knobs;

/** Values and their covariance. */
typedef struct tam_estimate {
    double value[TAM_RESPONSE_TERMS];
    double spread[TAM_RESPONSE_TERMS][TAM_RESPONSE_TERMS];
    double surprise; /* -1, 1: the last window was far below, above what was expected */
} tam_estimate;

/** The first three do not change; the rest is zero while nothing is known. */
typedef struct tam_response {
    double density_max, cap_max_w; /* cap_max_w 0: there are no caps */
    double devices;
    uint64_t windows;     /* learnt from */
    bool strange;         /* the last window was of another workload, or held up */
    double step_s, watts; /* s and w */
    double binding_w;     /* C */
    tam_estimate time, power;
} tam_response;

/**
 * Learn from a window.
 *
 * @param  knobs   [in]  in force, the mean over its steps
 * @param  step_s  [in]  seconds of a step, with its pause
 * @param  step_j  [in]  joules of a step, above 0
 * @param  moved   [in]  by how much, relative, watts were to change within the window: they lag
 */
void tam_response_learn(tam_response *r, tam_knobs knobs, double step_s, double step_j,
                        double moved);

/** Whether windows have shown what a cap does. */
bool tam_response_knows_cap(const tam_response *r);

/** Expected at other knobs: seconds of a step with its pause, and mean watts. */
double tam_response_step_s(const tam_response *r, tam_knobs knobs);
double tam_response_watts(const tam_response *r, tam_knobs knobs);

/** Variance of what is expected of the difference of watts between two settings, in W^2. */
double tam_response_doubt(const tam_response *r, tam_knobs from, tam_knobs to);

#endif
