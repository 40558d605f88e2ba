/* SPDX-License-Identifier: MIT */
#include "bench/perf/gradients.h"

#include <math.h>
#include <stdlib.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"

void perf_shape_make(size_t n, size_t nsegments, uint64_t seed, perf_shape *out) {
    nsegments = nsegments < n ? nsegments : n;
    *out = (perf_shape){
        .n = n,
        .nsegments = nsegments,
        .segments = bench_alloc(nsegments, sizeof(tamis_segment)),
        .scales = bench_alloc(nsegments, sizeof(float)),
    };
    double *weights = bench_alloc(nsegments, sizeof *weights), sum = 0.0;
    for (size_t i = 0; i < nsegments; i++) {
        weights[i] = exp2(5.0 * bench_uniform(bench_key(seed, 2, 0), i));
        sum += weights[i];
        out->scales[i] = (float)exp(bench_normal(bench_key(seed, 3, 0), i));
    }
    size_t left = n - nsegments; /* each already has one element */
    for (size_t i = 0; i < nsegments; i++) {
        size_t share = (size_t)((double)(n - nsegments) * (weights[i] / sum));
        share = i + 1 == nsegments || share > left ? left : share;
        out->segments[i].length = 1 + share;
        left -= share;
    }
    free(weights);
}

void perf_shape_free(perf_shape *shape) {
    free(shape->segments);
    free(shape->scales);
}

/* v (1 - v^2)^(-1/4) for uniform v: P(|x| > t) falls as t^-4, like Student's t with 4 degrees of
 * freedom, but needs no logarithm. */
static void fill(float *out, size_t length, uint64_t key, uint64_t first, float scale) {
    for (size_t i = 0; i < length; i++) {
        float v = (float)(int32_t)(bench_random(key, first + i) >> 41) * 0x1p-22f - 1.0f;
        v += 0x1p-23f; /* to the middle of its interval: never -1 or 1 */
        out[i] = scale * v / sqrtf(sqrtf(1.0f - v * v));
    }
}

void perf_gradient(const perf_shape *shape, uint64_t seed, uint64_t stream, float *out) {
    uint64_t key = bench_key(seed, 4, stream);
    size_t first = 0;
    for (size_t i = 0; i < shape->nsegments; i++) {
        fill(out + first, shape->segments[i].length, key, first, shape->scales[i]);
        first += shape->segments[i].length;
    }
}

void perf_gradient_whole(const perf_shape *shape, uint64_t seed, uint64_t stream, float *out) {
    perf_gradient(shape, seed, stream, out);
    for (size_t i = 0; i < shape->n; i++)
        out[i] = rintf(8.0f * out[i]);
}
