/* SPDX-License-Identifier: MIT
 *
 * Intensity of electricity over time, and grams of joules. The calls of <tamis/governor.h> for the
 * library's own use: they are sure of their arguments.
 *
 *     rows        t0        t1              t2        t3
 *     g/kWh       |---v0----|------v1-------| unknown |---v3---|       v3 holds as long as the
 *                                                                      row before it
 */
#ifndef TAM_ENERGY_CARBON_H
#define TAM_ENERGY_CARBON_H

#include "lib/base/base.h"

#include <tamis/governor.h>

typedef struct tamis_carbon tam_carbon;

/** @param path  NULL or "": the constant, NAN: unknown */
tamis_status tam_carbon_open(const char *path, double constant_g_per_kwh, tam_carbon **out);
void tam_carbon_close(tam_carbon *carbon);

/** At a time; NAN: unknown. */
double tam_carbon_intensity(const tam_carbon *carbon, double unix_s);

/** Mean over a stretch, by time; NAN where any of it is unknown. */
double tam_carbon_mean(const tam_carbon *carbon, double unix_begin_s, double unix_end_s);

/** kWh x PUE x mean intensity; NAN: unknown, or pue is below 1. NULL: unknown. */
double tam_carbon_grams(const tam_carbon *carbon, double unix_begin_s, double unix_end_s,
                        int64_t uj, double pue);

#endif
