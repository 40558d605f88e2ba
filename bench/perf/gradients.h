/* SPDX-License-Identifier: MIT
 *
 * Synthetic gradients: segments of uneven length, each with its own scale, heavy-tailed inside.
 */
#ifndef TAMIS_PERF_GRADIENTS_H
#define TAMIS_PERF_GRADIENTS_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

typedef struct perf_shape {
    size_t n, nsegments;
    tamis_segment *segments; /* [nsegments], without names */
    float *scales;           /* [nsegments], lognormal with sigma 1; the same on all ranks */
} perf_shape;

void perf_shape_make(size_t n, size_t nsegments, uint64_t seed, perf_shape *out);
void perf_shape_free(perf_shape *shape);

/** Gradient of `stream` (a buffer of a rank): float32[n]. */
void perf_gradient(const perf_shape *shape, uint64_t seed, uint64_t stream, float *out);

/** A gradient of whole numbers, many of them equal: sums over ranks and steps are exact. */
void perf_gradient_whole(const perf_shape *shape, uint64_t seed, uint64_t stream, float *out);

#endif
