/* SPDX-License-Identifier: MIT */
#include "bench/lab/schemes/source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"

enum { POOL = 1 << 20, PURPOSE_LENGTHS = 10, PURPOSE_WEIGHTS, PURPOSE_POOL, PURPOSE_STEP };

static float student(uint64_t key, uint64_t i) {
    double z[4];
    for (uint64_t j = 0; j < 4; j++)
        z[j] = bench_normal(key, 4 * i + j);
    return (float)(z[0] / sqrt((z[1] * z[1] + z[2] * z[2] + z[3] * z[3]) / 3.0));
}

static void divide(scheme_source *s, uint64_t seed) {
    double *shares = bench_alloc(s->nsegments, sizeof *shares), sum = 0.0;
    size_t left = s->n - s->nsegments; /* each already has one element */
    for (size_t i = 0; i < s->nsegments; i++) {
        shares[i] = exp2(5.0 * bench_uniform(bench_key(seed, PURPOSE_LENGTHS, 0), i));
        sum += shares[i];
    }
    for (size_t i = 0; i < s->nsegments; i++) {
        size_t share = (size_t)((double)(s->n - s->nsegments) * (shares[i] / sum));
        share = i + 1 == s->nsegments || share > left ? left : share;
        s->segments[i].length = 1 + share;
        left -= share;
    }
    free(shares);
}

/* The square of Student's t with 3 degrees of freedom has mean 3. */
static void weigh(scheme_source *s, uint64_t seed) {
    double energy = 0.0;
    for (size_t i = 0; i < s->nsegments; i++) {
        double weight = exp(1.5 * bench_normal(bench_key(seed, PURPOSE_WEIGHTS, 0), i));
        energy += 3.0 * (double)s->segments[i].length * weight * weight;
        s->weights[i] = (float)weight;
    }
    for (size_t i = 0; i < s->nsegments; i++)
        s->weights[i] = (float)((double)s->weights[i] / sqrt(energy));
}

static void open_synthetic(scheme_source *s) {
    uint64_t seed = s->settings->seed;
    s->name = "synthetic";
    s->n = s->settings->elements;
    s->nsegments = s->settings->segments;
    s->segments = bench_alloc(s->nsegments, sizeof *s->segments);
    s->weights = bench_alloc(s->nsegments, sizeof *s->weights);
    s->pool = bench_alloc(POOL, sizeof *s->pool);
    divide(s, seed);
    weigh(s, seed);
    for (uint64_t i = 0; i < POOL; i++)
        s->pool[i] = student(bench_key(seed, PURPOSE_POOL, 0), i);
}

static void open_recorded(scheme_source *s) {
    char error[512];
    if (!bench_recording_open(s->settings->input, &s->recording, error, sizeof error)) {
        fprintf(stderr, "tamis_schemes: %s\n", error);
        exit(1);
    }
    s->name = "recorded";
    s->n = s->recording.header.length;
    s->nsegments = s->recording.header.nsegments;
    s->segments = bench_alloc(s->nsegments, sizeof *s->segments);
    for (size_t i = 0; i < s->nsegments; i++)
        s->segments[i] =
            (tamis_segment){s->recording.segments[i].name, s->recording.segments[i].length};
}

void source_open(const schemes_settings *settings, scheme_source *out) {
    *out = (scheme_source){.settings = settings};
    if (settings->input)
        open_recorded(out);
    else
        open_synthetic(out);
}

void source_close(scheme_source *source) {
    if (source->settings->input)
        bench_recording_close(&source->recording);
    free(source->pool);
    free(source->weights);
    free(source->segments);
}

static float scale_of(const scheme_source *s, uint64_t step) {
    uint64_t steps = s->settings->steps;
    double t = (double)step / (double)steps;
    double scale = pow(0.2, t) * (3 * step >= 2 * steps ? 0.1 : 1.0);
    scale *= exp(0.15 * bench_normal(bench_key(s->settings->seed, PURPOSE_STEP, 0), step));
    if (step == steps / 3)
        return (float)(100.0 * scale);
    return (float)(step % 40 == 20 ? 4.0 * scale : scale);
}

void source_fill(const scheme_source *source, uint32_t rank, uint64_t step, float *out) {
    if (source->settings->input) {
        memcpy(out, bench_recording_get(&source->recording, step, rank), source->n * sizeof *out);
        return;
    }
    uint64_t key = bench_key(source->settings->seed, PURPOSE_STEP, 1 + rank);
    float scale = scale_of(source, step);
    size_t first = 0;
    for (size_t l = 0; l < source->nsegments; l++) {
        uint64_t at = bench_random(key, step * source->nsegments + l);
        float weight = scale * source->weights[l];
        for (size_t i = 0; i < source->segments[l].length; i++)
            out[first + i] = weight * source->pool[(at + i) & (POOL - 1)];
        first += source->segments[l].length;
    }
}
