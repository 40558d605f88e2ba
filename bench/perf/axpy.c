/* SPDX-License-Identifier: MIT
 *
 * One loop for three instruction sets, chosen at run time. This does not use target_clones, whose
 * resolver runs before the sanitizers are ready.
 */
#include "bench/perf/axpy.h"

#define AXPY_LOOP                                                                                  \
    for (size_t i = 0; i < n; i++)                                                                 \
        r[i] += s * g[i];

typedef void (*axpy_loop)(float *restrict r, const float *restrict g, float s, size_t n);

static void axpy_plain(float *restrict r, const float *restrict g, float s, size_t n) {
    AXPY_LOOP
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) static void axpy_avx2(float *restrict r, const float *restrict g,
                                                      float s, size_t n) {
    AXPY_LOOP
}

__attribute__((target("avx512f"))) static void
axpy_avx512(float *restrict r, const float *restrict g, float s, size_t n) {
    AXPY_LOOP
}

static axpy_loop best(void) {
    return __builtin_cpu_supports("avx512f") ? axpy_avx512
           : __builtin_cpu_supports("avx2")  ? axpy_avx2
                                             : axpy_plain;
}

#else

static axpy_loop best(void) {
    return axpy_plain;
}

#endif

#ifdef _OPENMP

unsigned perf_axpy_threads(unsigned threads) {
    return threads;
}

void perf_axpy(float *r, const float *g, float s, size_t n, unsigned threads) {
    axpy_loop loop = best();
    if (threads <= 1) {
        loop(r, g, s, n);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (unsigned t = 0; t < threads; t++) {
        size_t first = n * t / threads / 16 * 16;
        size_t past = t + 1 == threads ? n : n * (t + 1) / threads / 16 * 16;
        loop(r + first, g + first, s, past - first);
    }
}

#else

unsigned perf_axpy_threads(unsigned threads) {
    (void)threads;
    return 1;
}

void perf_axpy(float *r, const float *g, float s, size_t n, unsigned threads) {
    (void)threads;
    best()(r, g, s, n);
}

#endif
