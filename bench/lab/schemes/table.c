/* SPDX-License-Identifier: MIT
 *
 * A record of each run. Its fields:
 *
 *     scheme, ownership, budget, threshold_rule, exchange, count_promised     the preset; promised:
 *                  exactly k entries in every step
 *     input, n, ranks, steps, density_target, target, seed: the same for all presets; target is k
 *     selected_min, _mean, _max; count_error_max: max |selected - k| / k
 *     density      selected / n, step by step
 *     padding      P * (most entries of a rank) / (entries of all) - 1, step by step:
 *                  unused part of packets of equal size; 0 if no rank sent any.
 *                  imbalance_max: the largest + 1, most / mean
 *     threshold    smallest magnitude sent, mean over the ranks that sent anything, step by step;
 *                  null if the scheme has no threshold in units of the gradient: budget not
 *                  `global`, or dense
 *     checked      steps compared with the rules: step, true_threshold, captured (schemes.h)
 *     cpu_us, cpu_slowest_us   processor time of a phase, mean over ranks and of the slowest rank;
 *                  median over steps
 *     residual     norm of what stayed / norm before select, mean over ranks, step by step; null
 *                  for dense. residual_norm: of the last step, mean over ranks
 *     wire_bytes_per_step      of the rank that sent most, mean over steps; dense_bytes: of a ring
 *     deferred     entries that did not fit a packet, all steps
 *     wrong, replicas_identical     0 and true, or something is broken
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/lab/schemes/schemes.h"

typedef struct table {
    const scheme_run *run;
    uint32_t ranks;
} table;

static double figure(table t, uint32_t rank, uint64_t step, size_t offset) {
    const scheme_sample *s = &t.run->samples[rank * t.run->steps + step];
    return *(const double *)(const void *)((const char *)s + offset);
}

static double sum_of(table t, uint64_t step, size_t offset) {
    double sum = 0;
    for (uint32_t r = 0; r < t.ranks; r++)
        sum += figure(t, r, step, offset);
    return sum;
}

static double most_of(table t, uint64_t step, size_t offset) {
    double most = figure(t, 0, step, offset);
    for (uint32_t r = 1; r < t.ranks; r++)
        most = fmax(most, figure(t, r, step, offset));
    return most;
}

#define SUM(t, step, field) sum_of(t, step, offsetof(scheme_sample, field))
#define MOST(t, step, field) most_of(t, step, offsetof(scheme_sample, field))

typedef double (*over_ranks)(table t, uint64_t step, size_t offset);

static double mean_of(table t, uint64_t step, size_t offset) {
    return sum_of(t, step, offset) / t.ranks;
}

static double median_us(table t, over_ranks of, size_t offset) {
    double *values = bench_alloc(t.run->steps, sizeof *values);
    for (uint64_t s = 0; s < t.run->steps; s++)
        values[s] = 1e6 * of(t, s, offset);
    double median = bench_median(values, t.run->steps);
    free(values);
    return median;
}

static json_t *cpu_us(table t, over_ranks of) {
    return json_pack("{sf sf sf sf}", "accumulate",
                     median_us(t, of, offsetof(scheme_sample, accumulate_cpu_s)), "select",
                     median_us(t, of, offsetof(scheme_sample, select_cpu_s)), "exchange",
                     median_us(t, of, offsetof(scheme_sample, exchange_cpu_s)), "apply",
                     median_us(t, of, offsetof(scheme_sample, apply_cpu_s)));
}

static double padding(table t, uint64_t step) {
    double sum = SUM(t, step, sent);
    return sum > 0 ? t.ranks * MOST(t, step, sent) / sum - 1.0 : 0.0;
}

static double residual(table t, uint64_t step) {
    double acc = SUM(t, step, acc_norm);
    return acc > 0 ? SUM(t, step, residual_norm) / acc : 0.0;
}

static json_t *threshold(table t, uint64_t step) {
    double ranks = SUM(t, step, sent_any);
    return ranks > 0 ? json_real(SUM(t, step, threshold) / ranks) : json_null();
}

static void add_traces(table t, const scheme_case *c, json_t *record) {
    bool dense = strcmp(c->policies.exchange, "dense") == 0;
    bool comparable = !dense && strcmp(c->policies.budget, "global") == 0;
    json_t *densities = json_array(), *paddings = json_array(), *residuals = json_array(),
           *thresholds = json_array();
    for (uint64_t s = 0; s < t.run->steps; s++) {
        json_array_append_new(densities, json_real(MOST(t, s, selected) / (double)c->source->n));
        json_array_append_new(paddings, json_real(padding(t, s)));
        json_array_append_new(residuals, json_real(residual(t, s)));
        json_array_append_new(thresholds, comparable ? threshold(t, s) : json_null());
    }
    json_object_set_new(record, "density", densities);
    json_object_set_new(record, "padding", paddings);
    json_object_set_new(record, "residual", dense ? json_null() : residuals);
    json_object_set_new(record, "threshold", comparable ? thresholds : json_null());
    if (dense)
        json_decref(residuals);
    if (!comparable)
        json_decref(thresholds);
}

static json_t *checked(const scheme_run *run) {
    json_t *list = json_array();
    for (uint64_t i = 0; i < run->nchecked; i++) {
        const scheme_checked *c = &run->checked[i];
        json_array_append_new(list,
                              json_pack("{sI sf sf}", "step", (json_int_t)c->step, "true_threshold",
                                        c->true_threshold, "captured", c->captured));
    }
    return list;
}

static void add_means(table t, json_t *record) {
    double least = INFINITY, most = 0, sum = 0, wire = 0, error = 0, deferred = 0, pad = 0,
           worst = 0;
    double steps = (double)t.run->steps;
    for (uint64_t s = 0; s < t.run->steps; s++) {
        double selected = MOST(t, s, selected), target = MOST(t, s, target);
        least = fmin(least, selected);
        most = fmax(most, selected);
        sum += selected / steps;
        wire += MOST(t, s, wire_bytes) / steps;
        error = fmax(error, fabs(selected / target - 1.0));
        deferred += MOST(t, s, deferred);
        pad += padding(t, s) / steps;
        worst = fmax(worst, padding(t, s) + 1.0);
    }
    json_t *more = json_pack(
        "{sf sf sf sf sf sf sf sf sf sI}", "selected_min", least, "selected_mean", sum,
        "selected_max", most, "count_error_max", error, "padding_mean", pad, "imbalance_max", worst,
        "residual_norm", SUM(t, t.run->steps - 1, residual_norm) / t.ranks, "wire_bytes_per_step",
        wire, "deferred", deferred, "target", (json_int_t)MOST(t, t.run->steps - 1, target));
    json_object_update(record, more);
    json_decref(more);
}

bool scheme_report(FILE *file, bench_group *group, const scheme_case *c, const scheme_run *run) {
    table t = {run, group->nranks};
    const schemes_settings *s = c->source->settings;
    double p = group->nranks, dense_bytes = 8.0 * (double)c->source->n * (p - 1) / p;
    bool fine = run->wrong == 0 && run->identical;
    json_t *record = bench_report_new("scheme");
    json_t *more = json_pack(
        "{ss ss ss ss ss ss ss sb sI sI sI sI sf sf so so so sf sb}", "scheme", c->info->name,
        "ownership", c->info->ownership, "budget", c->info->budget, "threshold_rule",
        c->info->threshold, "exchange", c->info->exchange, "source", c->info->source, "input",
        c->source->name, "count_promised", bench_scheme_exact(&c->policies), "n",
        (json_int_t)c->source->n, "ranks", (json_int_t)group->nranks, "steps",
        (json_int_t)run->steps, "seed", (json_int_t)s->seed, "density_target", c->density,
        "dense_bytes_per_step", dense_bytes, "checked", checked(run), "cpu_us", cpu_us(t, mean_of),
        "cpu_slowest_us", cpu_us(t, most_of), "wrong", run->wrong, "replicas_identical",
        run->identical);
    json_object_update(record, more);
    json_decref(more);
    add_means(t, record);
    add_traces(t, c, record);
    bench_report_write(file, record);
    return fine;
}
