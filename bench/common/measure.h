/* SPDX-License-Identifier: MIT
 *
 * Clock, order statistics and large buffers for measurements.
 */
#ifndef TAMIS_BENCH_MEASURE_H
#define TAMIS_BENCH_MEASURE_H

#include <stddef.h>
#include <time.h>

static inline double bench_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/** Quantile q in [0, 1] by nearest rank; q = 0 is the minimum. Sorts `values`. 0 if empty. */
double bench_quantile(double *values, size_t count, double q);

/** As bench_quantile at 1/2, with the mean of the middle two for even counts. Sorts `values`. */
double bench_median(double *values, size_t count);

/**
 * Zeroed array, page-aligned, in huge pages if the system gives them, so that address translation
 * does not slow down a baseline. Ends the process when memory is short. Free with free().
 */
void *bench_alloc(size_t count, size_t size);

#endif
