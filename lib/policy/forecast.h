/* SPDX-License-Identifier: MIT
 *
 * What the next step will be like, from the last ones: when which rank is ready, and whether one of
 * them is to be expected last. Knows nothing of how the times came here; equal times give equal
 * forecasts.
 *
 * The straggler is said with hysteresis, of the last TAM_FORECAST_RECENT steps:
 *
 *     appears   when it was last in three quarters of them, alone and clearly
 *     goes      when it was so in less than half
 *
 * Two ranks that are last by turns, or ranks that are ready at about the same time, have none.
 */
#ifndef TAM_POLICY_FORECAST_H
#define TAM_POLICY_FORECAST_H

#include "lib/base/base.h"

#include <tamis/forecast.h>

enum { TAM_FORECAST_STEPS = 64, TAM_FORECAST_RECENT = 32 };

/** A step of all ranks. */
typedef struct tam_forecast_step {
    uint32_t first_us, last_us; /* least and most of its times */
    uint32_t step_us;
    uint32_t rank; /* that was last, alone and clearly; UINT32_MAX: none */
} tam_forecast_step;

typedef struct tam_forecast {
    uint32_t nranks;
    uint32_t straggler; /* UINT32_MAX: none is expected */
    uint64_t count;     /* steps noted */
    uint32_t *busy_us;  /* [TAM_FORECAST_STEPS][nranks], the last steps in turn */
    tam_forecast_step steps[TAM_FORECAST_STEPS];
} tam_forecast;

/** Takes all memory: 256 bytes a rank. */
tamis_status tam_forecast_open(tam_forecast *forecast, uint32_t nranks);
void tam_forecast_close(tam_forecast *forecast);

/** As it was after open. */
void tam_forecast_forget(tam_forecast *forecast);

/** Where the times of the next step go, uint32_t[nranks]: when each rank was ready, in microseconds
 * since anything that was the same for all. */
uint32_t *tam_forecast_next(tam_forecast *forecast);

/** They are there. @param step_us  that a whole step takes, as known by now */
void tam_forecast_note(tam_forecast *forecast, uint32_t step_us);

/** @param out  [in,out]  all but its size is set */
void tam_forecast_read(const tam_forecast *forecast, uint32_t rank, tamis_forecast *out);

#endif
