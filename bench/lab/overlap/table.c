/* SPDX-License-Identifier: MIT
 *
 * Turns samples into a line of the table and a record. Ratios are computed in each round; the
 * median over the rounds is printed. The meaning of each column is printed above the table.
 */
#define _DEFAULT_SOURCE /* getloadavg */
#include <math.h>
#include <stdlib.h>
#include <tamis/overlap.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/lab/overlap/overlap.h"

static const char *const legend =
    "# times in ms, of the slowest rank; medians over the rounds. A round makes one step of each\n"
    "# variant on the same parameters and samples, and ratios are made in each round.\n"
    "#   step     from a barrier to the end of the update; q1, q3: quartiles\n"
    "#   x comp   step / step without exchange; speedup: step of dense-mpi / step\n"
    "#   cpu      that all threads of a rank took in a step\n"
    "#   exposed  inside ready, start and wait, less the accumulate pass where the caller makes "
    "it\n"
    "#   wait     inside wait; least: on the rank that waits least, the last to have computed: "
    "what\n"
    "#            the others wait longer, they wait for it, not for the exchange\n"
    "#   hidden   1 - least / (least of the same buckets handed over after backward)\n"
    "#   exch     transport calls and union, wherever they run; acc, select, apply: other phases\n"
    "#   hook us  a call of tamis_reducer_ready that begins no bucket: median, slowest rank\n"
    "#   wire     bytes sent in a step by the rank that sent most\n"
    "#   wrong    steps whose bits differ from those without overlap, or between ranks\n";

typedef double (*figure)(const overlap_sample *);

#define FIGURE(name)                                                                               \
    static double name(const overlap_sample *s) {                                                  \
        return s->name;                                                                            \
    }

FIGURE(step)
FIGURE(compute)
FIGURE(cpu)
FIGURE(exposed)
FIGURE(wait)
FIGURE(wait_least)
FIGURE(accumulate)
FIGURE(selection)
FIGURE(exchange)
FIGURE(apply)
FIGURE(wire_bytes)
FIGURE(rescans)

/* A variant and what its row needs. */
typedef struct row {
    const overlap_run *run;
    const overlap_variant *variant;
    double quiet_us;
    double *scratch; /* [rounds] */
} row;

static const overlap_sample *samples_of(const row *r, const overlap_variant *v) {
    return r->run->measured + (size_t)(v - r->run->variants) * r->run->settings->rounds;
}

static const overlap_variant *first_of(const overlap_run *run, overlap_kind kind) {
    const overlap_variant *v = run->variants;
    while (v->kind != kind)
        v++;
    return v;
}

static double quantile(const row *r, figure f, double q) {
    size_t rounds = r->run->settings->rounds;
    for (size_t i = 0; i < rounds; i++)
        r->scratch[i] = f(&samples_of(r, r->variant)[i]);
    return q == 0.5 ? bench_median(r->scratch, rounds) : bench_quantile(r->scratch, rounds, q);
}

static double median(const row *r, figure f) {
    return quantile(r, f, 0.5);
}

/* Quantile q of the rounds' ratios: a figure of `over` divided by the same of `under`. */
static double ratio(const row *r, figure f, const overlap_variant *over,
                    const overlap_variant *under, double q) {
    size_t rounds = r->run->settings->rounds;
    for (size_t i = 0; i < rounds; i++)
        r->scratch[i] = f(&samples_of(r, over)[i]) / f(&samples_of(r, under)[i]);
    return q == 0.5 ? bench_median(r->scratch, rounds) : bench_quantile(r->scratch, rounds, q);
}

static double load(void) {
    double last_minute = 0.0;
    return getloadavg(&last_minute, 1) == 1 ? last_minute : NAN;
}

/* -- record ----------------------------------------------------------------------------------- */

static const char *name_of(const overlap_variant *v) {
    static const char *const names[][2] = {{"compute", "compute"},
                                           {"dense-mpi", "dense-mpi"},
                                           {"dense", "dense-overlap"},
                                           {"sparse", "sparse-overlap"}};
    return names[v->kind][v->overlapped];
}

static json_t *number_if(bool known, double value) {
    return known && isfinite(value) ? json_real(value) : json_null();
}

static json_t *seconds(const row *r, figure f) {
    return json_pack("{sf sf sf}", "q1", quantile(r, f, 0.25), "median", median(r, f), "q3",
                     quantile(r, f, 0.75));
}

static json_t *ratios(const row *r, figure f, const overlap_variant *over,
                      const overlap_variant *under) {
    return json_pack("{sf sf sf}", "q1", ratio(r, f, over, under, 0.25), "median",
                     ratio(r, f, over, under, 0.5), "q3", ratio(r, f, over, under, 0.75));
}

static json_t *hidden(const row *r, figure f) {
    const overlap_variant *v = r->variant;
    return number_if(v->overlapped, 1.0 - ratio(r, f, v, v->plain, 0.5));
}

static void merge(json_t *record, json_t *more) {
    json_object_update(record, more);
    json_decref(more);
}

static json_t *what(const row *r) {
    const overlap_settings *s = r->run->settings;
    const overlap_variant *v = r->variant;
    bool sums = v->kind != OVERLAP_COMPUTE;
    json_t *record = bench_report_new("overlap");
    merge(record,
          json_pack("{ss ss ss sI sI sI sI sI sI so}", "variant", name_of(v), "link", s->link,
                    "baseline", s->baseline, "ranks", (json_int_t)r->run->group->nranks, "n",
                    (json_int_t)r->run->model.length, "width", (json_int_t)s->hidden, "depth",
                    (json_int_t)s->depth, "batch", (json_int_t)s->batch, "rounds",
                    (json_int_t)s->rounds, "load", number_if(true, load())));
    merge(record,
          json_pack("{so so so so ss}", "density", number_if(sums, v->density), "buckets_asked",
                    !v->reducer                  ? json_null()
                    : v->plan == OVERLAP_PLANNED ? json_string("planned")
                                                 : json_integer(v->plan),
                    "buckets",
                    v->reducer ? json_integer(tamis_reducer_nbuckets(v->reducer)) : json_null(),
                    "worker",
                    v->overlapped && v->kind == OVERLAP_SPARSE
                        ? json_string(bench_choice(OVERLAP_WORKERS, (int)v->worker))
                        : json_null(),
                    "cpu", bench_cpu_level()));
    return record;
}

static json_t *make_record(const row *r) {
    const overlap_variant *v = r->variant;
    const overlap_variant *compute_only = first_of(r->run, OVERLAP_COMPUTE);
    const overlap_variant *dense_mpi = first_of(r->run, OVERLAP_MPI);
    json_t *record = what(r);
    merge(record,
          json_pack("{so so so so so so so}", "step_s", seconds(r, step), "over_compute",
                    ratios(r, step, v, compute_only), "speedup_vs_dense",
                    ratios(r, step, dense_mpi, v), "compute_s", seconds(r, compute), "cpu_s",
                    seconds(r, cpu), "exposed_s", seconds(r, exposed), "wait_s", seconds(r, wait)));
    merge(record,
          json_pack("{so so so so so so so}", "wait_least_s", seconds(r, wait_least), "exchange_s",
                    seconds(r, exchange), "accumulate_s", seconds(r, accumulate), "select_s",
                    seconds(r, selection), "apply_s", seconds(r, apply), "hidden",
                    hidden(r, wait_least), "hidden_longest", hidden(r, wait)));
    merge(record,
          json_pack("{so sf sf sI}", "ready_us", number_if(v->nquiet > 0, r->quiet_us),
                    "wire_bytes", quantile(r, wire_bytes, 1.0), "rescans", median(r, rescans),
                    "wrong", (json_int_t)r->run->wrong[v - r->run->variants]));
    return record;
}

/* -- table ------------------------------------------------------------------------------------ */

static void print_header(const overlap_run *run) {
    const overlap_settings *s = run->settings;
    fprintf(s->table,
            "# tamis_overlap %s: %u ranks, link %s, mlp with %llu hidden layers of %llu, %zu "
            "parameters, batch %llu, kernels %s\n"
            "# %llu rounds after %llu; load of the machine %.1f; dense-mpi is MPI_Allreduce %s\n%s",
            bench_version(), run->group->nranks, s->link, (unsigned long long)s->depth,
            (unsigned long long)s->hidden, run->model.length, (unsigned long long)s->batch,
            bench_cpu_level(), (unsigned long long)s->rounds, (unsigned long long)s->warmup, load(),
            s->baseline, legend);
    fprintf(
        s->table,
        "#%-14s %7s %4s %6s %8s %8s %8s %6s %7s %8s %8s %8s %8s %6s %8s %7s %7s %7s %7s %10s %5s\n",
        "variant", "density", "bkts", "worker", "step", "q1", "q3", "x comp", "speedup", "cpu",
        "exposed", "wait", "least", "hidden", "exch", "acc", "select", "apply", "hook us", "wire",
        "wrong");
}

/* A figure of the record; `part` of it (the median) if it has quartiles. */
static double value_of(const json_t *record, const char *name, const char *part) {
    const json_t *value = json_object_get(record, name);
    return json_number_value(json_is_object(value) ? json_object_get(value, part) : value);
}

static void print_cell(FILE *out, const json_t *record, const char *format, const char *name,
                       double unit) {
    fputc(' ', out);
    if (json_is_null(json_object_get(record, name)))
        fprintf(out, "%*s", atoi(format + 1), "-");
    else
        fprintf(out, format, unit * value_of(record, name, "median"));
}

static void print_row(FILE *out, const json_t *record) {
    const char *worker = json_string_value(json_object_get(record, "worker"));
    fprintf(out, " %-14s", json_string_value(json_object_get(record, "variant")));
    print_cell(out, record, "%7.4g", "density", 1);
    print_cell(out, record, "%4.0f", "buckets", 1);
    fprintf(out, " %6s", worker ? worker : "-");
    print_cell(out, record, "%8.2f", "step_s", 1e3);
    fprintf(out, " %8.2f %8.2f", 1e3 * value_of(record, "step_s", "q1"),
            1e3 * value_of(record, "step_s", "q3"));
    print_cell(out, record, "%6.3f", "over_compute", 1);
    print_cell(out, record, "%7.2f", "speedup_vs_dense", 1);
    print_cell(out, record, "%8.2f", "cpu_s", 1e3);
    print_cell(out, record, "%8.2f", "exposed_s", 1e3);
    print_cell(out, record, "%8.2f", "wait_s", 1e3);
    print_cell(out, record, "%8.2f", "wait_least_s", 1e3);
    print_cell(out, record, "%6.3f", "hidden", 1);
    print_cell(out, record, "%8.2f", "exchange_s", 1e3);
    print_cell(out, record, "%7.2f", "accumulate_s", 1e3);
    print_cell(out, record, "%7.2f", "select_s", 1e3);
    print_cell(out, record, "%7.2f", "apply_s", 1e3);
    print_cell(out, record, "%7.3f", "ready_us", 1);
    print_cell(out, record, "%10.0f", "wire_bytes", 1);
    print_cell(out, record, "%5.0f", "wrong", 1);
    fputc('\n', out);
}

void overlap_report(const overlap_run *run, const double *quiet_us) {
    const overlap_settings *s = run->settings;
    double *scratch = bench_alloc(s->rounds, sizeof *scratch);
    print_header(run);
    for (size_t i = 0; i < run->nvariants; i++) {
        row r = {run, &run->variants[i], quiet_us[i], scratch};
        json_t *record = make_record(&r);
        print_row(s->table, record);
        bench_report_write(s->report, record);
    }
    free(scratch);
}
