/* SPDX-License-Identifier: MIT
 *
 * One step of one variant.
 */
#include "bench/lab/overlap/overlap.h"

#include <tamis/overlap.h>
#include <tamis/stats.h>
#include <time.h>
#include <xxhash.h>

#include "bench/common/measure.h"

/* Context of backward's calls when a layer is complete. */
typedef struct hook {
    overlap_run *run;
    overlap_variant *variant;
    tamis_step step;
    double seconds; /* inside tamis_reducer_ready */
} hook;

static void mark(hook *h, uint32_t segment) {
    overlap_variant *v = h->variant;
    double begin = bench_now_s();
    bench_try(h->run->group, tamis_reducer_ready(v->reducer, segment, &h->step),
              "a layer's gradient");
    double seconds = bench_now_s() - begin;
    h->seconds += seconds;
    if (!v->starts[segment])
        v->quiet_us[v->nquiet++] = 1e6 * seconds;
}

static void layer_done(void *context, size_t layer) {
    mark(context, 2 * (uint32_t)layer + 1);
    mark(context, 2 * (uint32_t)layer);
}

/* The rest of the exchange, after backward. */
static void exchange(overlap_run *run, overlap_variant *v, const tamis_step *step,
                     overlap_sample *out) {
    double begin = bench_now_s(), waiting = begin;
    if (v->kind == OVERLAP_COMPUTE)
        return;
    if (v->kind == OVERLAP_MPI) {
        bench_mpi_sum(run->group, run->grad, run->sum, run->model.length);
    } else {
        if (!v->overlapped)
            bench_try(run->group, tamis_reducer_start(v->reducer, step), "start of a step");
        waiting = bench_now_s();
        bench_try(run->group, tamis_reducer_wait(v->reducer), "end of a step");
    }
    double end = bench_now_s();
    out->calls += end - begin;
    out->wait = out->wait_least = end - waiting;
}

static void update_all(overlap_run *run, const float *direction, float rate) {
    for (size_t i = 0; i < run->model.length; i++)
        run->copy[i] -= rate * direction[i];
}

static void update(overlap_run *run, const overlap_variant *v) {
    float rate = (float)run->settings->lr;
    tamis_result result = TAMIS_RESULT_INIT;
    if (v->kind == OVERLAP_MPI)
        update_all(run, run->sum, rate / (float)run->group->nranks);
    else if (v->kind != OVERLAP_SPARSE)
        update_all(run, run->grad, rate);
    else
        bench_try(run->group, tamis_reducer_result(v->reducer, &result), "result of a step");
    for (size_t i = 0; v->kind == OVERLAP_SPARSE && i < result.count; i++)
        run->copy[result.indices[i]] -= rate * result.values[i];
}

/* Take the library's figures of the step. */
static void take_stats(overlap_run *run, const overlap_variant *v, overlap_sample *out) {
    tamis_stats stats = TAMIS_STATS_INIT;
    out->exposed = out->calls;
    if (!v->reducer)
        return;
    bench_try(run->group, tamis_reducer_stats(v->reducer, &stats), "statistics of a step");
    out->accumulate = stats.accumulate_s;
    out->selection = stats.select_s;
    out->exchange = stats.exchange_s;
    out->apply = stats.apply_s;
    out->wire_bytes = (double)stats.wire_bytes;
    out->rescans = (double)stats.rescans;
    if (v->worker == TAMIS_WORKER_CALLER)
        out->exposed -= stats.accumulate_s;
}

static uint64_t hash_result(overlap_run *run, const overlap_variant *v) {
    tamis_result result = TAMIS_RESULT_INIT;
    if (!v->reducer)
        return 0;
    if (v->kind == OVERLAP_DENSE)
        return XXH3_64bits(run->grad, run->model.length * sizeof *run->grad);
    bench_try(run->group, tamis_reducer_result(v->reducer, &result), "result of a step");
    uint64_t hash = XXH3_64bits(result.indices, result.count * sizeof *result.indices);
    return XXH3_64bits_withSeed(result.values, result.count * sizeof *result.values, hash);
}

static double cpu_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t overlap_step(overlap_run *run, overlap_variant *v, overlap_sample *out) {
    hook h = {.run = run, .variant = v, .step = TAMIS_STEP_INIT};
    h.step.grad = run->grad;
    *out = (overlap_sample){0};
    bench_barrier(run->group);
    double cpu = cpu_now_s(), begin = bench_now_s();
    workload_mlp.forward(&run->model, run->params, 0);
    workload_mlp.loss(&run->model, 0);
    workload_mlp.backward(&run->model, run->params, 0, false, run->grad,
                          v->overlapped ? layer_done : NULL, &h);
    out->calls = h.seconds;
    exchange(run, v, &h.step, out);
    update(run, v);
    out->step = bench_now_s() - begin;
    out->cpu = cpu_now_s() - cpu;
    out->compute = out->step - out->calls;
    take_stats(run, v, out);
    return hash_result(run, v);
}
