/* SPDX-License-Identifier: MIT
 *
 * Timed repetitions of a step that runs on a CUDA device without the host. A round is one step on
 * each of several gradients in turn, so that a step's data has left the cache since the round
 * before. Rounds with their steps are captured once and replayed:
 *
 *     refill g0, start, join | refill g1, start, join | ...          (refill: dense output only)
 *
 * The time of a round is measured between two device events, on the slowest rank, less the refills,
 * which are timed separately. The baseline is the device's copy rate in the same process.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>

#include "bench/common/device.h"
#include "bench/common/measure.h"
#include "bench/perf/perf.h"

enum { BUFFERS = 4, ROUNDS_BEFORE_CAPTURE = 2, DIRECT_ROUNDS = 5 };

typedef struct rounds {
    const perf_case *c;
    tamis_reducer *reducer;
    void *grads[BUFFERS], *given[BUFFERS]; /* given: sources of dense output's refills, or NULL */
    bool refill, step;
    bench_replay *direct, *whole, *refills; /* whole: both; refills: NULL if there are none */
    double copy_s;                          /* time of a copy of a step's bytes */
} rounds;

bool perf_replays(const perf_case *c) {
    const char *threshold = c->scheme.threshold, *ownership = c->scheme.ownership;
    bool counted = strcmp(threshold, "exact") == 0 || strcmp(threshold, "predict") == 0;
    bool bounded = c->settings->capacity > 0 && strcmp(threshold, "sage") != 0 &&
                   strcmp(threshold, "reuse") != 0 && strcmp(ownership, "balanced") != 0;
    bool plain = c->settings->values == 0 && c->settings->index <= 1; /* codecs of the kernels */
    return c->device == TAMIS_DEVICE_CUDA && c->settings->op == PERF_STEP && (counted || bounded) &&
           plain && strcmp(tamis_comm_transport(c->group->comm), "nccl") == 0 &&
           strcmp(ownership, "bins") != 0 && strcmp(c->scheme.exchange, "dense") != 0 &&
           strcmp(c->scheme.exchange, "balanced-pairs") != 0;
}

static void enqueue_step(const rounds *r, void *grad, void *stream) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    step.stream = stream;
    bench_try(r->c->group, tamis_reducer_start(r->reducer, &step), "start of a step");
    bench_try(r->c->group, tamis_reducer_join(r->reducer, stream), "end of a step");
}

static void enqueue_round(void *context, void *stream) {
    const rounds *r = context;
    for (int b = 0; b < BUFFERS; b++) {
        if (r->refill)
            bench_device_enqueue_copy(r->given[b], r->c->grad_bytes, r->grads[b], stream);
        if (r->step)
            enqueue_step(r, r->grads[b], stream);
    }
}

static void open_gradients(rounds *r) {
    const perf_case *c = r->c;
    float *scratch = bench_alloc(c->shape.n, sizeof *scratch);
    for (uint64_t b = 0; b < BUFFERS; b++) {
        r->grads[b] = bench_device_alloc(c->device, c->grad_bytes);
        perf_gradient_put(c, BUFFERS * c->group->rank + b, scratch, r->grads[b]);
        if (r->refill) {
            r->given[b] = bench_device_alloc(c->device, c->grad_bytes);
            bench_device_copy(c->device, r->grads[b], c->grad_bytes, r->given[b]);
        }
    }
    free(scratch);
}

static void open_rounds(const perf_case *c, rounds *out) {
    const perf_settings *s = c->settings;
    *out = (rounds){.c = c, .refill = s->output == TAMIS_OUTPUT_DENSE, .step = true};
    out->copy_s = perf_pass_bytes(c) / (1e9 * bench_device_copy_gb_s());
    out->reducer = perf_reducer(c, s->scheme, (tamis_output)s->output, c->device);
    open_gradients(out);
    out->direct = bench_replay_open(enqueue_round, out, true);
    for (int i = 0; i < ROUNDS_BEFORE_CAPTURE; i++)
        bench_replay_time(out->direct);
    out->whole = bench_replay_open(enqueue_round, out, false);
    if (out->refill) {
        out->step = false;
        out->refills = bench_replay_open(enqueue_round, out, false);
        out->step = true;
    }
}

/* The graphs use the steps' memory, so destroy them first. */
static void close_rounds(rounds *r) {
    if (r->refills)
        bench_replay_close(r->refills);
    bench_replay_close(r->whole);
    bench_replay_close(r->direct);
    tamis_reducer_destroy(r->reducer);
    for (int b = 0; b < BUFFERS; b++) {
        bench_device_free(r->c->device, r->grads[b]);
        bench_device_free(r->c->device, r->given[b]);
    }
}

static void add_stats(rounds *r, perf_sample *sample) {
    tamis_stats stats = TAMIS_STATS_INIT;
    bench_try(r->c->group, tamis_reducer_stats(r->reducer, &stats), "statistics of a step");
    sample->wire_bytes = (double)stats.wire_bytes;
    sample->sent = (double)stats.sent;
    sample->selected = (double)stats.selected;
    sample->target = (double)stats.target;
    sample->rescans = (double)stats.rescans;
}

static perf_sample replay_round(rounds *r) {
    perf_sample sample = {.copy = r->copy_s};
    double refill_s = 0.0;
    bench_barrier(r->c->group);
    if (r->refills)
        refill_s = bench_replay_time(r->refills);
    bench_barrier(r->c->group);
    sample.step = (bench_replay_time(r->whole) - refill_s) / BUFFERS;
    add_stats(r, &sample);
    return sample;
}

/* The host's work while it enqueues steps directly: its time, and calls that could wait; -1 if not
 * counted. The library may be eight steps behind, so a round never fills its ring buffer. */
static perf_sample watch_host(rounds *r) {
    const double steps = BUFFERS * DIRECT_ROUNDS;
    perf_sample sum = {.blocking = -1, .queries = -1};
    for (int i = 0; i < DIRECT_ROUNDS; i++) {
        bench_calls calls;
        double host_s;
        bench_barrier(r->c->group);
        bench_replay_watch(r->direct, &host_s, &calls);
        sum.host += host_s / steps;
        if (calls.known) {
            sum.blocking = fmax(sum.blocking, 0.0) + (double)calls.blocking / steps;
            sum.queries = fmax(sum.queries, 0.0) + (double)calls.queries / steps;
        }
    }
    return sum;
}

perf_sample *perf_replay(const perf_case *c) {
    const perf_settings *s = c->settings;
    perf_sample *samples = bench_alloc(s->iterations, sizeof *samples);
    rounds r;
    open_rounds(c, &r);
    perf_sample host = watch_host(&r);
    for (uint64_t i = 0; i < s->warmup; i++)
        replay_round(&r);
    for (uint64_t i = 0; i < s->iterations; i++) {
        samples[i] = replay_round(&r);
        samples[i].host = host.host;
        samples[i].blocking = host.blocking;
        samples[i].queries = host.queries;
    }
    perf_take_slowest(c, samples, s->iterations);
    close_rounds(&r);
    return samples;
}
