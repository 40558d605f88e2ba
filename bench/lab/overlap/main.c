/* SPDX-License-Identifier: MIT
 *
 * tamis_overlap: ends with status 1 if overlap changed the bits of a result.
 */
#include <cblas.h>
#include <stdlib.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "bench/lab/overlap/overlap.h"

enum { BATCHES = 16 }; /* a rank takes them in turn */

/* Ten pictures, one per class; each sample is its class's picture plus as much noise. */
static void make_samples(const overlap_run *run, idx_set *out) {
    uint64_t seed = run->settings->seed;
    uint64_t pictures = bench_key(seed, 2, 0), noise = bench_key(seed, 3, run->group->rank);
    out->count = BATCHES * run->settings->batch;
    out->images = bench_alloc(out->count, IDX_PIXELS);
    out->labels = bench_alloc(out->count, 1);
    for (size_t i = 0; i < out->count; i++) {
        out->labels[i] = (uint8_t)(i % IDX_CLASSES);
        for (size_t p = 0; p < IDX_PIXELS; p++) {
            uint64_t picture = bench_random(pictures, out->labels[i] * IDX_PIXELS + p) % 128;
            uint64_t own = bench_random(noise, i * IDX_PIXELS + p) % 128;
            out->images[i * IDX_PIXELS + p] = (uint8_t)(picture + own);
        }
    }
}

static void open_run(bench_group *group, const overlap_settings *s, overlap_run *out) {
    *out = (overlap_run){.group = group, .settings = s};
    train_settings shape = overlap_shape(s);
    const workload_part whole = {0, s->depth + 1, s->batch, 1};
    out->data = (workload_data){.content = out->samples};
    workload_open(&workload_mlp, &shape, &out->data, &whole, &out->model);
    out->params = bench_alloc(out->model.length, sizeof(float));
    out->copy = bench_alloc(out->model.length, sizeof(float));
    out->grad = bench_alloc(out->model.length, sizeof(float));
    out->sum = bench_alloc(out->model.length, sizeof(float));
    workload_mlp.init(&out->model, s->seed, out->params);
    make_samples(out, &out->samples[WORKLOAD_TRAIN]);
    overlap_open_variants(out);
    out->measured = bench_alloc(out->nvariants * s->rounds, sizeof *out->measured);
    out->wrong = bench_alloc(out->nvariants, sizeof *out->wrong);
}

static void close_run(overlap_run *run) {
    free(run->wrong);
    free(run->measured);
    overlap_close_variants(run);
    free(run->samples[WORKLOAD_TRAIN].labels);
    free(run->samples[WORKLOAD_TRAIN].images);
    free(run->sum);
    free(run->grad);
    free(run->copy);
    free(run->params);
    workload_close(&run->model);
}

/* The variants take turns in being first, so that caches left by the one before favour none. */
static void play_round(overlap_run *run, uint64_t round) {
    const overlap_settings *s = run->settings;
    uint64_t hashes[OVERLAP_VARIANTS];
    overlap_sample sample;
    for (size_t i = 0; i < run->nvariants; i++) {
        size_t at = (i + round) % run->nvariants;
        workload_mlp.take(&run->model, 0, WORKLOAD_TRAIN, NULL, round % BATCHES * s->batch,
                          s->batch);
        hashes[at] = overlap_step(run, &run->variants[at], &sample);
        if (round >= s->warmup)
            run->measured[at * s->rounds + round - s->warmup] = sample;
    }
    for (size_t i = 0; i < run->nvariants; i++) {
        bool same = bench_same(run->group, hashes[i]);
        run->wrong[i] += !same || hashes[i] != hashes[run->variants[i].plain - run->variants];
    }
    float rate = (float)(s->lr / run->group->nranks);
    for (size_t i = 0; i < run->model.length; i++)
        run->params[i] -= rate * run->sum[i];
}

/* Take the largest of all ranks for each figure, for wait_least the smallest. */
static void reduce_samples(overlap_run *run) {
    size_t count = run->nvariants * run->settings->rounds, bytes = count * sizeof(overlap_sample);
    size_t figures = bytes / sizeof(double);
    double *own = (double *)run->measured, *all;
    for (size_t i = 0; i < count; i++)
        run->measured[i].wait_least *= -1;
    all = bench_alloc(run->group->nranks * figures, sizeof *all);
    bench_allgather(run->group, own, bytes, all);
    for (size_t i = 0; i < run->group->nranks * figures; i++)
        own[i % figures] = all[i] > own[i % figures] ? all[i] : own[i % figures];
    for (size_t i = 0; i < count; i++)
        run->measured[i].wait_least *= -1;
    free(all);
}

static int play(bench_group *group, void *context) {
    const overlap_settings *s = context;
    overlap_run run;
    double quiet_us[OVERLAP_VARIANTS];
    uint64_t wrong = 0;
    open_run(group, s, &run);
    for (uint64_t round = 0; round < s->warmup + s->rounds; round++)
        play_round(&run, round);
    reduce_samples(&run);
    for (size_t i = 0; i < run.nvariants; i++) {
        quiet_us[i] =
            bench_max(group, bench_median(run.variants[i].quiet_us, run.variants[i].nquiet));
        wrong += run.wrong[i];
    }
    if (group->rank == 0)
        overlap_report(&run, quiet_us);
    close_run(&run);
    return wrong > 0;
}

int main(int argc, char **argv) {
    static overlap_settings settings;
    overlap_settings_read(argc, argv, &settings);
    openblas_set_num_threads(1); /* the ranks already run in parallel */
    int status = bench_launch(BENCH_MPI, TAMIS_DEVICE_CPU, 0, play, &settings);
    return bench_report_close(settings.report, status);
}
