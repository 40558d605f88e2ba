/* SPDX-License-Identifier: MIT
 *
 * Whole steps on ranks that are processes. Each repetition runs MPI's own all-reduce of the whole
 * gradient and a step of every wanted preset, one after the other, so that a disturbance of the
 * machine affects all. Ratios are computed in each repetition; medians over repetitions are
 * reported.
 *
 *     step         from barrier to barrier
 *     accumulate   that phase, slowest rank
 *     after        step - accumulate: select, exchange, write back, and the barrier
 *     dense        the all-reduce, barrier to barrier
 *     over         step / accumulate
 *     speedup      dense / after
 *     ..._least    the fastest repetition: an estimate for an idle machine, if others use this one
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>
#include <tamis/stats.h>

#include "bench/common/measure.h"
#include "bench/lab/schemes/schemes.h"

enum { MOST = 32, BUFFERS = 2 };

typedef struct contestant {
    tamis_scheme_info info;
    tamis_reducer *reducer;
    double *step, *accumulate, *after; /* [repetitions] */
} contestant;

typedef struct contest {
    bench_group *group;
    const scheme_source *source;
    double density;
    contestant all[MOST];
    size_t count;
    uint64_t repetitions;
    double *dense; /* [repetitions] */
    float *gradients[BUFFERS], *sum;
} contest;

static void open_contestant(contest *c, const tamis_scheme_info *info) {
    contestant *one = &c->all[c->count++];
    tamis_layout *layout;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    one->info = *info;
    one->step = bench_alloc(c->repetitions, sizeof(double));
    one->accumulate = bench_alloc(c->repetitions, sizeof(double));
    one->after = bench_alloc(c->repetitions, sizeof(double));
    config.scheme = info->name;
    config.density = c->density;
    config.output = TAMIS_OUTPUT_SPARSE; /* leaves the gradient unchanged */
    bench_try(c->group, tamis_layout_create(c->source->segments, c->source->nsegments, &layout),
              "cannot create a layout");
    bench_try(c->group, tamis_reducer_create(c->group->comm, layout, &config, &one->reducer),
              info->name);
    tamis_layout_destroy(layout);
}

static void open_contest(bench_group *group, const scheme_source *source, double density,
                         contest *out) {
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    *out = (contest){.group = group, .source = source, .density = density};
    out->repetitions = source->settings->steps;
    for (size_t i = 0; tamis_scheme_list(i, &info) && out->count < MOST; i++) {
        bool dense = strcmp(info.exchange, "dense") == 0; /* MPI's own all-reduce replaces it */
        if (!dense && schemes_wanted(source->settings, info.name))
            open_contestant(out, &info);
    }
    out->dense = bench_alloc(out->repetitions, sizeof(double));
    out->sum = bench_alloc(source->n, sizeof(float));
    for (uint64_t b = 0; b < BUFFERS; b++) {
        out->gradients[b] = bench_alloc(source->n, sizeof(float));
        source_fill(source, group->rank, b, out->gradients[b]);
    }
}

static void close_contest(contest *c) {
    for (size_t i = 0; i < c->count; i++) {
        tamis_reducer_destroy(c->all[i].reducer);
        free(c->all[i].after);
        free(c->all[i].accumulate);
        free(c->all[i].step);
    }
    for (int b = 0; b < BUFFERS; b++)
        free(c->gradients[b]);
    free(c->sum);
    free(c->dense);
}

static double time_dense(contest *c, const float *gradient) {
    bench_barrier(c->group);
    double begin = bench_now_s();
    bench_mpi_sum(c->group, gradient, c->sum, c->source->n);
    bench_barrier(c->group);
    return bench_now_s() - begin;
}

static void time_step(contest *c, contestant *one, float *gradient, double out[2]) {
    tamis_step step = TAMIS_STEP_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    step.grad = gradient;
    bench_barrier(c->group);
    double begin = bench_now_s();
    bench_try(c->group, tamis_reducer_start(one->reducer, &step), "start of a step");
    bench_try(c->group, tamis_reducer_wait(one->reducer), "end of a step");
    bench_barrier(c->group);
    out[0] = bench_max(c->group, bench_now_s() - begin);
    bench_try(c->group, tamis_reducer_stats(one->reducer, &stats), "statistics of a step");
    out[1] = bench_max(c->group, stats.accumulate_s);
}

static void repeat(contest *c, uint64_t number, bool counts) {
    float *gradient = c->gradients[number % BUFFERS];
    uint64_t place = counts ? number : 0;
    c->dense[place] = bench_max(c->group, time_dense(c, gradient));
    for (size_t i = 0; i < c->count; i++) {
        contestant *one = &c->all[(i + number) % c->count]; /* none is always first */
        double times[2];
        time_step(c, one, gradient, times);
        one->step[place] = times[0];
        one->accumulate[place] = times[1];
        one->after[place] = times[0] - times[1];
    }
}

/* Median of a[i] / b[i], or of a[i] if b is NULL. */
static double median(const double *a, const double *b, uint64_t count) {
    double *values = bench_alloc(count, sizeof *values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = b ? a[i] / b[i] : a[i];
    double result = bench_median(values, count);
    free(values);
    return result;
}

static double least(const double *a, uint64_t count) {
    double result = a[0];
    for (uint64_t i = 1; i < count; i++)
        result = a[i] < result ? a[i] : result;
    return result;
}

/* @param against  the library's default, with which others are compared */
static void report(const contest *c, const contestant *one, const contestant *against) {
    uint64_t m = c->repetitions;
    json_t *record = bench_report_new("scheme_speed");
    json_t *more = json_pack(
        "{ss sI sI sI sf sf sf sf sf sf sf sf sf sf sf}", "scheme", one->info.name, "ranks",
        (json_int_t)c->group->nranks, "n", (json_int_t)c->source->n, "repetitions", (json_int_t)m,
        "density_target", c->density, "step_us", 1e6 * median(one->step, NULL, m), "accumulate_us",
        1e6 * median(one->accumulate, NULL, m), "after_us", 1e6 * median(one->after, NULL, m),
        "dense_us", 1e6 * median(c->dense, NULL, m), "over", median(one->step, one->accumulate, m),
        "speedup_after", median(c->dense, one->after, m), "after_by_default",
        median(one->after, against->after, m), "step_least_us", 1e6 * least(one->step, m),
        "after_least_us", 1e6 * least(one->after, m), "dense_least_us", 1e6 * least(c->dense, m));
    json_object_update(record, more);
    json_decref(more);
    bench_report_write(c->source->settings->report, record);
}

void schemes_speed(bench_group *group, const scheme_source *source, double density) {
    const schemes_settings *s = source->settings;
    contest c;
    open_contest(group, source, density, &c);
    for (uint64_t i = 0; i < s->warmup; i++)
        repeat(&c, i, false);
    for (uint64_t i = 0; i < c.repetitions; i++)
        repeat(&c, i, true);
    for (size_t i = 0; i < c.count && group->rank == 0; i++)
        report(&c, &c.all[i], &c.all[0]);
    close_contest(&c);
}
