/* SPDX-License-Identifier: MIT
 *
 * The baseline for an update pass: AdamW as frameworks fuse it, one sweep over parameters, gradient
 * and moments, 28 bytes per element, 32 if the gradient is cleared. One thread, compiled for the
 * processor's widest vectors.
 */
#ifndef TAMIS_PERF_ADAMW_H
#define TAMIS_PERF_ADAMW_H

#include <stdbool.h>
#include <stddef.h>

/** beta1 0.9, beta2 0.999, as after many steps. */
void perf_adamw(float *p, float *g, float *m, float *v, size_t n, bool clear);

#endif
