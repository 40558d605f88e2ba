/* SPDX-License-Identifier: MIT */
#include "bench/train/one_bit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"

enum { FIRST = 0, SECOND = 1 }; /* moments among the optimizer's states */

void one_bit_check(const train_settings *s) {
    if (s->one_bit == 0)
        return;
    if (s->optimizer != TRAIN_ADAMW || strcmp(s->scheme, "dense") != 0 || s->low_rank > 0)
        bench_usage("--one-bit needs --optimizer adamw and --scheme dense, and no --low-rank");
    if (s->stages > 1 || s->micro_batches > 1 || s->overlap || s->device != TAMIS_DEVICE_CPU)
        bench_usage(
            "--one-bit needs --stages 1, --micro-batches 1, --overlap off and --device cpu");
    if (s->local_steps > 0 || s->save || s->load || s->states)
        bench_usage("--one-bit has no --local-steps, --save, --states and --load");
}

/* Signs of a segment, and a magnitude from and to everybody; what a rank owns itself stays. */
static uint64_t bytes_of(size_t length, uint32_t ranks) {
    return 2 * (ranks - 1) * ((length / 8 + 1) / ranks + 4);
}

void one_bit_open(bench_group *group, const train_settings *s, const workload *work, one_bit *out) {
    *out = (one_bit){.group = group, .work = work};
    if (s->one_bit == 0)
        return;
    out->left = bench_alloc(work->length, sizeof(float));
    out->left_by_owners = bench_alloc(work->length, sizeof(float));
    out->all = bench_alloc(work->length * group->nranks, sizeof(float));
    for (size_t i = 0; i < work->nsegments; i++)
        out->wire_bytes += bytes_of(work->segments[i].length, group->nranks);
}

void one_bit_close(one_bit *o) {
    free(o->all);
    free(o->left_by_owners);
    free(o->left);
}

bool one_bit_begins(const one_bit *o, const train_settings *s, uint64_t step) {
    return o->left && step >= s->one_bit;
}

/* x + left becomes a magnitude with signs, left what that leaves out. Zero counts as positive. */
static void compress(float *x, float *left, size_t count) {
    double square = 0.0;
    for (size_t i = 0; i < count; i++) {
        left[i] += x[i];
        square += (double)left[i] * (double)left[i];
    }
    float size = (float)sqrt(square / (double)(count ? count : 1));
    for (size_t i = 0; i < count; i++) {
        x[i] = left[i] < 0.0f ? -size : size;
        left[i] -= x[i];
    }
}

/* The mean over ranks of a segment, as its owners send it. */
static void mean_of_all(one_bit *o, size_t begin, size_t length, float *mean) {
    uint32_t ranks = o->group->nranks;
    for (size_t i = begin; i < begin + length; i++) {
        float sum = 0.0f;
        for (uint32_t r = 0; r < ranks; r++)
            sum += o->all[r * o->work->length + i];
        mean[i] = sum / (float)ranks;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        size_t first = begin + length * r / ranks, end = begin + length * (r + 1) / ranks;
        compress(mean + first, o->left_by_owners + first, end - first);
    }
}

static void reduce(one_bit *o, float *momentum) {
    const workload *w = o->work;
    for (size_t i = 0, at = 0; i < w->nsegments; at += w->segments[i].length, i++)
        compress(momentum + at, o->left + at, w->segments[i].length);
    bench_allgather(o->group, momentum, w->length * sizeof *momentum, o->all);
    for (size_t i = 0, at = 0; i < w->nsegments; at += w->segments[i].length, i++)
        mean_of_all(o, at, w->segments[i].length, momentum);
}

void one_bit_step(one_bit *o, optimizer *of, const optimizer_pace *pace, const float *grad,
                  float *params) {
    const train_settings *s = of->settings;
    const float *v = of->states[SECOND];
    float *m = of->states[FIRST], b1 = (float)s->beta1, eps = (float)s->eps;
    float root = (float)(1.0 / sqrt(1.0 - pow(s->beta2, (double)s->one_bit)));
    for (size_t i = 0; i < o->work->length; i++)
        m[i] = b1 * m[i] + (1.0f - b1) * grad[i];
    reduce(o, m);
    for (size_t i = 0, at = 0; i < o->work->nsegments; at += o->work->segments[i].length, i++) {
        bool decays = o->work->columns[i] > 0;
        float keep = decays ? (float)(1.0 - (double)pace->rate * s->weight_decay) : 1.0f;
        for (size_t j = at; j < at + o->work->segments[i].length; j++)
            params[j] = keep * params[j] - pace->rate * m[j] / (sqrtf(v[j]) * root + eps);
    }
}
