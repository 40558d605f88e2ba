/* SPDX-License-Identifier: MIT
 *
 * The baseline for the accumulate phase: r += s * g, in place, 12 bytes per element. Compiled for
 * the processor's widest vectors, so that no ratio looks good because its base is slow.
 */
#ifndef TAMIS_PERF_AXPY_H
#define TAMIS_PERF_AXPY_H

#include <stddef.h>

/** @param threads  used only in builds with OpenMP */
void perf_axpy(float *r, const float *g, float s, size_t n, unsigned threads);

/** Threads that perf_axpy uses when asked for `threads`. */
unsigned perf_axpy_threads(unsigned threads);

#endif
