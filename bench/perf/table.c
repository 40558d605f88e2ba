/* SPDX-License-Identifier: MIT
 *
 * Turns samples into a row: a line of the table and a record. Ratios are computed in each
 * repetition; the median over repetitions is printed. The meaning of each column is printed above
 * the table.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/device.h"
#include "bench/common/half.h"
#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/perf/axpy.h"
#include "bench/perf/perf.h"

static const char *const legend =
    "# times in us; each repetition alternates axpy, dense and the operation on every rank\n"
    "#   time     the operation: median, minimum, 99th percentile; step and dense count from\n"
    "#            barrier to barrier, exchange is step - accumulate\n"
    "#   axpy     r += s * g in place, binary32, same n, slowest rank; op update: a fused AdamW\n"
    "#            of parameters, moments and gradient, which it clears as the pass does; dense: "
    "%s\n"
    "#   mem      accumulate phase / axpy; exact: (accumulate + select) / axpy; on a CUDA device "
    "step "
    "/\n"
    "#            (memory traffic of its one pass / copy rate of the device)\n"
    "#   over     step / accumulate phase, both of the slowest rank\n"
    "#   speedup  dense / step; after: dense / (step - accumulate)\n"
    "#   wire     bytes sent in a step by the rank that sent most; model: indices and values\n"
    "#            without headers\n"
    "#   kerr     max |selected - k|; rescan: searches made twice, all ranks and repetitions\n"
    "#   wrong    elements that broke a rule in checked steps on whole numbers; - if not checked\n";

typedef double (*figure)(const perf_sample *);

#define FIGURE(name, expression)                                                                   \
    static double name(const perf_sample *s) {                                                     \
        return expression;                                                                         \
    }

FIGURE(axpy, s->axpy)
FIGURE(dense, s->dense)
FIGURE(step, s->step)
FIGURE(accumulate, s->accumulate)
FIGURE(selection, s->select)
FIGURE(exchange, s->exchange)
FIGURE(apply, s->apply)
FIGURE(rest, s->step - s->accumulate)
FIGURE(wire, s->wire_bytes)
FIGURE(wire_model, s->wire_model)
FIGURE(selected, s->selected)
FIGURE(count_error, fabs(s->selected - s->target))
FIGURE(copy, s->copy)
FIGURE(host, s->host)
FIGURE(blocking, s->blocking)
FIGURE(queries, s->queries)
FIGURE(memory_ratio, s->copy > 0 ? s->step / s->copy : s->accumulate / s->axpy)
FIGURE(exact_ratio, s->exact / s->axpy)
FIGURE(over, s->step / s->accumulate)
FIGURE(speedup, s->dense / s->step)
FIGURE(speedup_after, s->dense / rest(s))

typedef struct samples {
    const perf_sample *all;
    size_t count;
} samples;

static double quantile(samples s, figure f, double q) {
    double *values = bench_alloc(s.count, sizeof *values);
    for (size_t i = 0; i < s.count; i++)
        values[i] = f(&s.all[i]);
    double result = q == 0.5 ? bench_median(values, s.count) : bench_quantile(values, s.count, q);
    free(values);
    return result;
}

static double median(samples s, figure f) {
    return quantile(s, f, 0.5);
}

static double rescans(samples s) {
    double sum = 0;
    for (size_t i = 0; i < s.count; i++)
        sum += s.all[i].rescans;
    return sum;
}

/* Memory traffic of the accumulate pass; for the dense operation bytes on the wire. */
static double bytes_moved(const perf_case *c, samples s) {
    return c->settings->op == PERF_DENSE ? quantile(s, wire_model, 1.0) : perf_pass_bytes(c);
}

static figure timed(const perf_case *c) {
    return perf_one_pass(c->settings->op)     ? accumulate
           : c->settings->op == PERF_EXCHANGE ? rest
                                              : step;
}

/* -- record ----------------------------------------------------------------------------------- */

static json_t *us(double seconds) {
    return json_real(1e6 * seconds);
}

static json_t *number_if(bool known, double value) {
    return known && isfinite(value) ? json_real(value) : json_null();
}

/* Unknown for a replayed step. */
static json_t *phases(samples s) {
    if (median(s, copy) > 0)
        return json_null();
    return json_pack("{so so so so}", "accumulate", us(median(s, accumulate)), "select",
                     us(median(s, selection)), "exchange", us(median(s, exchange)), "apply",
                     us(median(s, apply)));
}

static json_t *times(const perf_case *c, samples s) {
    figure f = timed(c);
    return json_pack("{so so so}", "min", us(quantile(s, f, 0.0)), "median", us(median(s, f)),
                     "p99", us(quantile(s, f, 0.99)));
}

static json_t *what(const perf_case *c, samples s) {
    const perf_settings *set = c->settings;
    json_t *record = bench_report_new("perf"), *more;
    more = json_pack("{ss ss sI sf sI ss sI sI sI sI ss sf}", "op", bench_choice(PERF_OPS, set->op),
                     "scheme", set->scheme, "n", (json_int_t)c->shape.n, "density", c->density,
                     "ranks", (json_int_t)c->group->nranks, "transport",
                     tamis_comm_transport(c->group->comm), "segments",
                     (json_int_t)c->shape.nsegments, "threads", (json_int_t)set->threads,
                     "iterations", (json_int_t)s.count, "seed", (json_int_t)set->seed, "cpu",
                     bench_cpu_level(), "density_real", median(s, selected) / (double)c->shape.n);
    json_object_update(record, more);
    json_decref(more);
    json_object_set_new(record, "output", json_string(bench_choice(PERF_OUTPUTS, set->output)));
    json_object_set_new(record, "device", json_string(bench_choice(BENCH_DEVICES, set->device)));
    json_object_set_new(record, "grad", json_string(bench_choice(BENCH_GRADS, set->grad)));
    json_object_set_new(record, "beside", json_string(bench_choice(PERF_BESIDES, set->beside)));
    json_object_set_new(record, "index", json_string(c->index_codec));
    json_object_set_new(record, "ranks_per_node", json_integer((json_int_t)set->nodes_of));
    json_object_set_new(record, "values", json_string(bench_choice(BENCH_VALUES, set->values)));
    json_object_set_new(record, "sum_values",
                        json_string(bench_choice(BENCH_VALUES, set->sum_values)));
    return record;
}

/* Fields for CUDA devices only. Steps that the host drives have no replay figures. */
static void add_device(const perf_case *c, samples s, json_t *record) {
    bool replayed = median(s, copy) > 0, counted = replayed && median(s, blocking) >= 0;
    double gb_s = replayed ? 1e-9 * perf_pass_bytes(c) / median(s, copy) : 0.0;
    json_t *more = json_pack("{ss sb so so so so}", "device_name", bench_device_name(c->device),
                             "replayed", replayed, "copy_gb_s", number_if(replayed, gb_s),
                             "host_us", number_if(replayed, 1e6 * median(s, host)), "host_syncs",
                             number_if(counted, quantile(s, blocking, 1.0)), "host_queries",
                             number_if(counted, quantile(s, queries, 1.0)));
    json_object_update(record, more);
    json_decref(more);
}

static const char *const joules_of[] = {"axpy", "dense", NULL};

static json_t *make_record(const perf_case *c, samples s, double wrong) {
    bool baseline = median(s, dense) > 0, sparse = c->settings->op != PERF_DENSE;
    bool phase = sparse && median(s, accumulate) > 0, axpys = median(s, axpy) > 0;
    bool memory = phase || median(s, copy) > 0;
    json_t *record = what(c, s), *more;
    more = json_pack(
        "{so sf so so so so sf sf so so so so sf sf so}", "time_us", times(c, s), "bytes_moved",
        bytes_moved(c, s), "memory_ratio", number_if(memory, median(s, memory_ratio)),
        "exact_ratio", number_if(phase, median(s, exact_ratio)), "axpy_us",
        number_if(axpys, 1e6 * median(s, axpy)), "dense_us",
        number_if(baseline, 1e6 * median(s, dense)), "wire_bytes", quantile(s, wire, 1.0),
        "wire_bytes_model", quantile(s, wire_model, 1.0), "phase_us", phases(s),
        "step_over_accumulate", number_if(phase, median(s, over)), "speedup_vs_dense",
        number_if(baseline, median(s, speedup)), "speedup_after_accumulate",
        number_if(baseline && sparse, median(s, speedup_after)), "count_error",
        quantile(s, count_error, 1.0), "rescans", rescans(s), "wrong",
        number_if(c->settings->check, wrong));
    json_object_update(record, more);
    json_decref(more);
    static const bench_energy none; /* no earlier run */
    add_device(c, s, record);
    bench_energy_add(&none, &c->joules, (double)s.count, TAMIS_ENERGY_PHASES, joules_of, record);
    return record;
}

/* -- table ------------------------------------------------------------------------------------ */

void perf_table_header(const perf_settings *settings, const bench_group *group) {
    FILE *out = settings->table;
    if (!out)
        return;
    bool mpi = group->transport == BENCH_MPI;
    bool cuda = settings->device == TAMIS_DEVICE_CUDA;
    fprintf(out, "# tamis_perf %s: op %s, scheme %s, output %s, %u %s rank%s, kernels %s\n",
            bench_version(), bench_choice(PERF_OPS, settings->op), settings->scheme,
            settings->output == TAMIS_OUTPUT_DENSE ? "dense" : "sparse", group->nranks,
            tamis_comm_transport(group->comm), group->nranks == 1 ? "" : "s",
            cuda ? bench_device_name(TAMIS_DEVICE_CUDA) : bench_cpu_level());
    fprintf(out, "# %llu repetitions after %llu, %llu kernel threads, axpy on %u\n",
            (unsigned long long)settings->iterations, (unsigned long long)settings->warmup,
            (unsigned long long)settings->threads, perf_axpy_threads((unsigned)settings->threads));
    bool plain = settings->beside == PERF_BESIDE_PLAIN;
    fprintf(out, legend,
            plain ? "the scheme with u32 and float32, no nodes"
            : mpi ? "MPI_Allreduce, as MPI is tuned"
                  : "scheme dense of the library");
    fprintf(out,
            "#%11s %10s %9s %9s %10s %10s %10s %10s %10s %6s %6s %7s %7s %7s %10s %10s %6s %6s "
            "%5s\n",
            "bytes", "n", "density", "real", "time", "min", "p99", "axpy", "dense", "mem", "exact",
            "over", "speedup", "after", "wire", "model", "kerr", "rescan", "wrong");
}

static void print_row(FILE *out, const json_t *record) {
    static const char *const columns[] = {"%10.1f", "axpy_us",
                                          "%10.1f", "dense_us",
                                          "%6.3f",  "memory_ratio",
                                          "%6.3f",  "exact_ratio",
                                          "%7.3f",  "step_over_accumulate",
                                          "%7.2f",  "speedup_vs_dense",
                                          "%7.2f",  "speedup_after_accumulate",
                                          "%10.0f", "wire_bytes",
                                          "%10.0f", "wire_bytes_model",
                                          "%6.0f",  "count_error",
                                          "%6.0f",  "rescans",
                                          "%5.0f",  "wrong"};
    const json_t *time = json_object_get(record, "time_us");
    long long n = json_integer_value(json_object_get(record, "n"));
    fprintf(out, " %11lld %10lld %9.3g %9.3g %10.1f %10.1f %10.1f", 4 * n, n,
            json_number_value(json_object_get(record, "density")),
            json_number_value(json_object_get(record, "density_real")),
            json_number_value(json_object_get(time, "median")),
            json_number_value(json_object_get(time, "min")),
            json_number_value(json_object_get(time, "p99")));
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i += 2) {
        const json_t *value = json_object_get(record, columns[i + 1]);
        fputc(' ', out);
        if (json_is_null(value))
            fprintf(out, "%*s", atoi(columns[i] + 1), "-");
        else
            fprintf(out, columns[i], json_number_value(value));
    }
    fputc('\n', out);
    fflush(out);
}

void perf_table_row(const perf_case *c, perf_sample *all, double wrong) {
    samples s = {all, c->settings->iterations};
    if (!c->settings->table)
        return;
    json_t *record = make_record(c, s, wrong);
    print_row(c->settings->table, record);
    bench_report_write(c->settings->report, record);
}
