/* SPDX-License-Identifier: MIT
 *
 * The timed repetitions. Each one runs three operations of the same n in turn on every rank, so
 * that a disturbance of the machine affects all three:
 *
 *     axpy    r += s * g                        own time of the slowest rank; with --op update
 *             a pass of AdamW over as many bytes
 *     dense   MPI_Allreduce, or the scheme dense of the library on local ranks; with --beside plain
 *             the same scheme with indices of u32 and values of float32, without nodes
 *     step    tamis_reducer_start, _wait
 *
 * The last two are timed from barrier to barrier, which is never less than the time of the slowest
 * rank and includes the barrier. The axpy excludes it, so ratios to it are not flattered. On a CUDA
 * device only the step is timed here; replayed graphs are timed in replay.c.
 */
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>

#include "bench/common/device.h"
#include "bench/common/measure.h"
#include "bench/perf/adamw.h"
#include "bench/perf/axpy.h"
#include "bench/perf/perf.h"

enum { BUFFERS = 4 };

typedef struct loop {
    const perf_case *c;
    tamis_reducer *reducer, *dense; /* dense: local ranks, or plain */
    void *grads[BUFFERS];
    void *work;   /* a copy that may be overwritten */
    float *plain; /* a binary32 gradient for axpy and dense; NULL: grads are binary32 */
    float *r, *sum;
    float *first, *second; /* of the AdamW beside --op update */
    bool baseline, in_place;
    bench_energy *energy; /* during the repetitions that are reported, else NULL */
} loop;

/* A reducer of the scheme with default codecs and without phase events. */
static tamis_reducer *plain_reducer(const perf_case *c) {
    perf_settings plain = *c->settings;
    perf_case twin = *c;
    plain.index = TAMIS_INDEX_U32;
    plain.values = 0;
    plain.nodes_of = 0;
    plain.scheme = ""; /* differs from the scheme whose phases are recorded */
    twin.settings = &plain;
    return perf_reducer(&twin, c->settings->scheme, (tamis_output)plain.output, c->device);
}

static void open_loop(perf_case *c, loop *out) {
    const perf_settings *s = c->settings;
    bool local = c->group->transport == BENCH_LOCAL;
    size_t n = c->shape.n;
    *out = (loop){.c = c};
    bool cpu = c->device == TAMIS_DEVICE_CPU;
    out->baseline = cpu && !perf_one_pass(s->op) && !(local && s->op == PERF_DENSE);
    out->in_place = s->output == TAMIS_OUTPUT_DENSE;
    out->reducer = perf_reducer(c, s->scheme, (tamis_output)s->output, c->device);
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    bench_try(c->group, tamis_reducer_bucket_at(out->reducer, 0, &bucket), "no bucket");
    c->index_codec = bucket.index_codec;
    if (out->baseline && s->beside == PERF_BESIDE_PLAIN)
        out->dense = plain_reducer(c);
    else if (out->baseline && local)
        out->dense = perf_reducer(c, "dense", TAMIS_OUTPUT_DENSE, c->device);
    float *scratch = bench_alloc(n, sizeof(float));
    for (uint64_t b = 0; b < BUFFERS; b++) {
        out->grads[b] = bench_device_alloc(c->device, c->grad_bytes);
        perf_gradient_put(c, BUFFERS * c->group->rank + b, scratch, out->grads[b]);
    }
    if (cpu && c->type != TAMIS_DTYPE_FLOAT32) {
        perf_gradient(&c->shape, s->seed, BUFFERS * c->group->rank, scratch);
        out->plain = scratch;
    } else {
        free(scratch);
    }
    out->work = bench_device_alloc(c->device, out->in_place || out->dense ? 4 * n : 4);
    out->sum = bench_alloc(out->baseline && !local ? n : 1, sizeof(float));
    out->r = bench_alloc(cpu ? n : 1, sizeof(float));
    out->first = bench_alloc(s->op == PERF_UPDATE ? n : 1, sizeof(float));
    out->second = bench_alloc(s->op == PERF_UPDATE ? n : 1, sizeof(float));
}

static void close_loop(loop *l) {
    free(l->second);
    free(l->first);
    free(l->r);
    free(l->sum);
    free(l->plain);
    bench_device_free(l->c->device, l->work);
    for (int b = 0; b < BUFFERS; b++)
        bench_device_free(l->c->device, l->grads[b]);
    tamis_reducer_destroy(l->dense);
    tamis_reducer_destroy(l->reducer);
}

/* A copy of the gradient if the operation overwrites it, else the gradient itself. */
static void *input(loop *l, void *grad, size_t bytes, bool overwritten) {
    if (!overwritten)
        return grad;
    bench_device_copy(l->c->device, grad, bytes, l->work);
    return l->work;
}

static double time_axpy(loop *l, void *grad, uint64_t iteration) {
    size_t bytes = l->c->shape.n * sizeof(float);
    if (l->c->device != TAMIS_DEVICE_CPU)
        return 0.0;
    float *g = input(l, l->plain ? l->plain : grad, bytes, l->in_place); /* the cache as for step */
    float s = iteration / BUFFERS % 2 ? -0.5f : 0.5f;                    /* r stays bounded */
    bench_barrier(l->c->group);
    double start = bench_now_s();
    tamis_energy_begin(l->c->meter, PERF_AXPY);
    if (l->c->settings->op == PERF_UPDATE)
        perf_adamw(l->r, g, l->first, l->second, l->c->shape.n, l->in_place);
    else
        perf_axpy(l->r, g, s, l->c->shape.n, (unsigned)l->c->settings->threads);
    tamis_energy_end(l->c->meter, PERF_AXPY);
    return bench_now_s() - start;
}

static double time_dense(loop *l, void *grad) {
    bench_group *group = l->c->group;
    bool beside_dense = l->c->settings->beside == PERF_BESIDE_DENSE;
    void *g = input(l, grad, l->c->grad_bytes, l->dense && (beside_dense || l->in_place));
    bench_barrier(group);
    double start = bench_now_s();
    tamis_energy_begin(l->c->meter, PERF_BASELINE);
    if (l->dense || !bench_mpi_sum(group, l->plain ? l->plain : g, l->sum, l->c->shape.n))
        perf_step(l->c, l->dense, g);
    tamis_energy_end(l->c->meter, PERF_BASELINE);
    bench_barrier(group);
    return bench_now_s() - start;
}

static double time_step(loop *l, void *grad) {
    bench_group *group = l->c->group;
    void *g = input(l, grad, l->c->grad_bytes, l->in_place);
    bench_barrier(group);
    double start = bench_now_s();
    perf_step(l->c, l->reducer, g);
    bench_barrier(group);
    return bench_now_s() - start;
}

static perf_sample repeat(loop *l, uint64_t iteration) {
    void *grad = l->grads[iteration % BUFFERS];
    tamis_stats stats = TAMIS_STATS_INIT;
    perf_sample sample = {0};
    sample.axpy = time_axpy(l, grad, iteration);
    sample.dense = l->baseline ? time_dense(l, grad) : 0.0;
    sample.step = time_step(l, grad);

    bench_try(l->c->group, tamis_reducer_stats(l->reducer, &stats), "statistics of a step");
    if (l->energy)
        bench_energy_step(l->energy, &stats);
    sample.accumulate = stats.accumulate_s;
    sample.exact = stats.accumulate_s + stats.select_s;
    sample.select = stats.select_s;
    sample.exchange = stats.exchange_s;
    sample.apply = stats.apply_s;
    sample.wire_bytes = (double)stats.wire_bytes;
    sample.sent = (double)stats.sent;
    sample.selected = (double)stats.selected;
    sample.target = (double)stats.target;
    sample.rescans = (double)stats.rescans;
    return sample;
}

void perf_take_slowest(const perf_case *c, perf_sample *samples, size_t count) {
    size_t bytes = count * sizeof *samples, figures = bytes / sizeof(double);
    double *all = bench_alloc(c->group->nranks * figures, sizeof *all);
    double *own = (double *)samples;
    bench_allgather(c->group, samples, bytes, all);
    for (size_t i = 0; i < c->group->nranks * figures; i++) {
        if (all[i] > own[i % figures])
            own[i % figures] = all[i];
    }
    for (size_t i = 0; i < count; i++)
        samples[i].wire_model = perf_wire_model(c, samples[i].sent, samples[i].selected);
    free(all);
}

perf_sample *perf_loop(perf_case *c) {
    const perf_settings *s = c->settings;
    perf_sample *samples = bench_alloc(s->iterations, sizeof *samples);
    bench_energy energy;
    loop l;
    open_loop(c, &l);
    for (uint64_t i = 0; i < s->warmup; i++)
        repeat(&l, i);
    bench_energy_open(c->group, &(bench_energy_files){0}, &energy);
    c->meter = energy.meter;
    l.energy = &energy;
    for (uint64_t i = 0; i < s->iterations; i++)
        samples[i] = repeat(&l, s->warmup + i);
    bench_energy_totals(&energy, &c->joules);
    c->meter = NULL;
    bench_energy_close(&energy);
    perf_take_slowest(c, samples, s->iterations);
    close_loop(&l);
    return samples;
}
