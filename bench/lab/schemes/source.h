/* SPDX-License-Identifier: MIT
 *
 * The source of gradients: a recording of a training run, or a generator with a heavy tail and a
 * changing scale. Both give the same numbers to every scheme.
 *
 * The generator: entry i of rank r in step t of T is
 *
 *     s(t) * w_l * x        x = pool[(a + i) mod 2^20], a a random number of (r, t, l)
 *     w_l                   weight of the layer l that holds i: lognormal, median 1, sigma 1.5
 *     pool                  Student's t with 3 degrees of freedom,
 *                           z0 / sqrt((z1^2 + z2^2 + z3^2) / 3)
 *     s(t)                  falls to a fifth from t = 0 to T, ten times more from 2 T / 3 on (a
 *                           decay of the learning rate seen from the residual), times a lognormal
 *                           jitter of sigma 0.15, times 4 in every 40th step and 100 in one at T /
 *                           3
 *
 * A common factor of all weights gives a gradient of scale 1 a norm of about 1, for which
 * thresholds that start at 1 / (2 sqrt k) are meant. The layers' lengths are between one and 32
 * times the shortest. Random numbers are those of bench/common/random.h and depend on the seed
 * alone.
 */
#ifndef TAMIS_SCHEMES_SOURCE_H
#define TAMIS_SCHEMES_SOURCE_H

#include "bench/common/recording.h"
#include "bench/lab/schemes/settings.h"

typedef struct scheme_source {
    const schemes_settings *settings;
    const char *name; /* "recorded" or "synthetic" */
    size_t n, nsegments;
    tamis_segment *segments;
    float *weights, *pool;     /* synthetic */
    bench_recording recording; /* recorded */
} scheme_source;

/** Ends the process with a message if the recording cannot be read. */
void source_open(const schemes_settings *settings, scheme_source *out);
void source_close(scheme_source *source);

/** Gradient of a rank in a step, float[n]. */
void source_fill(const scheme_source *source, uint32_t rank, uint64_t step, float *out);

#endif
