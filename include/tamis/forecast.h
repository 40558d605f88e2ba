/* SPDX-License-Identifier: MIT
 *
 * tamis/forecast.h - when ranks will be ready in the next step, for schedulers outside the library.
 *
 *     tamis_forecast next = TAMIS_FORECAST_INIT;
 *     tamis_reducer_forecast(reducer, tamis_comm_rank(comm), &next);
 *     if (next.straggler != UINT32_MAX && next.slack_p05_s > 0.01)
 *         slow_down_by(next.slack_p05_s);      a lower clock costs no time here: others are later
 *
 * The headers of every exchange say how long their rank took from the end of the exchange before
 * until its last gradient was ready. Every rank holds the headers of all ranks, so every rank holds
 * the same forecast of each, without a message or a common clock.
 */
#ifndef TAMIS_FORECAST_H
#define TAMIS_FORECAST_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The next step of one rank, if it is like the last ones. Quantiles p05, p50, p95 over these, in
 * seconds. */
typedef struct tamis_forecast {
    size_t size;
    uint32_t rank;
    uint32_t steps; /* that it is made from, the last 64 at most; 0: nothing is known, and the
                       rest is 0. The first two after create or load tell nothing */
    double slack_p05_s, slack_p50_s, slack_p95_s; /* ready so long before the last rank: what it
                                                     could be slower at no cost. In 19 of 20 steps
                                                     it was at least the p05 */
    double late_p05_s, late_p50_s, late_p95_s;    /* ready so long after the first rank */
    double step_s;      /* a whole step: median; of each the rank that took longest */
    uint32_t straggler; /* rank that is expected last. It appears when it was last in 24 of 32
                           steps, by more than 2 % of a step, and goes when in less than 16;
                           UINT32_MAX: none */
} tamis_forecast;

#define TAMIS_FORECAST_INIT                                                                        \
    { sizeof(tamis_forecast), 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0 }

/**
 * Read what is expected of a rank into a struct set by TAMIS_FORECAST_INIT. The same on all ranks
 * that have finished the same steps.
 *
 * Collective: no; between steps                 Cost:  some 10 us, no message, no allocation
 * Lifetime:   a copy; the next step may change what is expected
 * Errors:     ARGUMENT (no such rank); STATE (a step is under way); UNSUPPORTED: scheme dense, and
 *             steps that a CUDA device runs by itself. No effect
 */
TAMIS_CHECKED tamis_status tamis_reducer_forecast(const tamis_reducer *reducer, uint32_t rank,
                                                  tamis_forecast *out);

#ifdef __cplusplus
}
#endif

#endif
