/* SPDX-License-Identifier: MIT
 *
 * tamis_auto_bench, the benchmark of scheme auto: dense, tamis and auto, alternated in one run over
 * a grid of sizes and densities (ab_run.h). Reports what auto chose, how long each took, and how
 * often the choice was right. All cases use one communicator, so auto measures once.
 *
 * A choice is also judged without auto's own times, for where auto runs the same code as one of the
 * others, its time differs by noise alone. This score is how much slower the chosen exchange is
 * than the other.
 */
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>

#include "bench/lab/auto/ab_run.h"
#include "bench/common/launcher.h"
#include "bench/common/measure.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/common/start.h"

enum { LIST = 16 };

typedef struct settings {
    const char *size_list, *density_list, *json;
    double sizes[LIST], densities[LIST], latency_us, gbit, seconds;
    size_t nsizes, ndensities;
    uint64_t ranks, rounds;
    int transport;
    FILE *report;
} settings;

typedef struct totals {
    uint32_t cases, beside_dense, surely_slower, near_best, right_5, right_10;
} totals;

/* The result of a case, on rank 0. */
typedef struct verdict {
    tamis_bucket bucket;
    double us[SCHEMES];
    ab_run_ratio to_dense, to_tamis;
    double to_best, regret;
} verdict;

static verdict judge(ab_run *d) {
    verdict v = {.bucket = TAMIS_BUCKET_INIT};
    bench_try(d->group, tamis_reducer_bucket_at(d->reducers[AUTO], 0, &v.bucket), "no bucket");
    for (int i = 0; i < SCHEMES; i++)
        v.us[i] = ab_run_median_us(d, (ab_run_scheme)i);
    v.to_dense = ab_run_compare(d, AUTO, DENSE);
    v.to_tamis = ab_run_compare(d, AUTO, TAMIS);
    v.to_best = v.to_dense.median > v.to_tamis.median ? v.to_dense.median : v.to_tamis.median;
    double fixed = ab_run_compare(d, TAMIS, DENSE).median;
    v.regret = strcmp(v.bucket.exchange, "dense") == 0 ? 1.0 / fixed : fixed;
    return v;
}

static void count(const verdict *v, totals *sum) {
    sum->cases++;
    sum->right_5 += v->regret <= 1.05;
    sum->right_10 += v->regret <= 1.10;
    sum->beside_dense += v->to_dense.median <= 1.05;
    sum->surely_slower += v->to_dense.low > 1.05;
    sum->near_best += v->to_best <= 1.10;
}

static void print_heading(const bench_group *group) {
    printf(
        "# %u ranks over %s; times in us, medians; ratios are paired, that to dense with its 95 %% "
        "interval\n",
        group->nranks, tamis_comm_transport(group->comm));
    printf("%10s %8s %6s %8s %10s %11s %11s %11s %10s %13s %9s %7s %6s\n", "# elements", "density",
           "chosen", "indices", "predicted", "dense", "tamis", "auto", "auto/dense", "from-to",
           "auto/best", "regret", "rounds");
}

static void print_case(const ab_run *d, const verdict *v) {
    char interval[32];
    snprintf(interval, sizeof interval, "%.3f-%.3f", v->to_dense.low, v->to_dense.high);
    printf("%10zu %8g %6s %8s %10.1f %11.1f %11.1f %11.1f %10.3f %13s %9.3f %7.3f %6zu\n", d->n,
           d->density, v->bucket.exchange, v->bucket.index_codec, v->bucket.predicted_us,
           v->us[DENSE], v->us[TAMIS], v->us[AUTO], v->to_dense.median, interval, v->to_best,
           v->regret, d->rounds);
    fflush(stdout);
}

static void record_case(const ab_run *d, const verdict *v, FILE *report) {
    json_t *record = bench_report_new("auto");
    json_object_set_new(record, "ranks", json_integer(d->group->nranks));
    json_object_set_new(record, "transport", json_string(tamis_comm_transport(d->group->comm)));
    json_object_set_new(record, "elements", json_integer((json_int_t)d->n));
    json_object_set_new(record, "density", json_real(d->density));
    json_object_set_new(record, "exchange", json_string(v->bucket.exchange));
    json_object_set_new(record, "index_codec", json_string(v->bucket.index_codec));
    json_object_set_new(record, "predicted_us", json_real(v->bucket.predicted_us));
    json_object_set_new(record, "dense_us", json_real(v->us[DENSE]));
    json_object_set_new(record, "tamis_us", json_real(v->us[TAMIS]));
    json_object_set_new(record, "auto_us", json_real(v->us[AUTO]));
    json_object_set_new(record, "to_dense", json_real(v->to_dense.median));
    json_object_set_new(record, "to_dense_low", json_real(v->to_dense.low));
    json_object_set_new(record, "to_dense_high", json_real(v->to_dense.high));
    json_object_set_new(record, "to_best", json_real(v->to_best));
    json_object_set_new(record, "regret", json_real(v->regret));
    json_object_set_new(record, "rounds", json_integer((json_int_t)d->rounds));
    bench_report_write(report, record);
}

static void run_case(bench_group *group, const settings *s, size_t n, double density, totals *sum) {
    ab_run *d = bench_alloc(1, sizeof *d);
    d->group = group;
    d->n = n;
    d->density = density;
    d->latency_us = s->latency_us;
    d->gbit = s->gbit;
    ab_run_open(d);
    ab_run_run(d, s->rounds, s->seconds);
    if (group->rank == 0) {
        verdict v = judge(d);
        count(&v, sum);
        print_case(d, &v);
        record_case(d, &v, s->report);
    }
    ab_run_close(d);
    free(d);
}

static int run(bench_group *group, void *context) {
    const settings *s = context;
    totals sum = {0};
    if (group->rank == 0)
        print_heading(group);
    for (size_t n = 0; n < s->nsizes; n++)
        for (size_t k = 0; k < s->ndensities; k++)
            run_case(group, s, (size_t)s->sizes[n], s->densities[k], &sum);
    if (group->rank == 0)
        printf("# of %u cases: at most 5 %% slower than dense %u, surely slower %u; within 10 %% "
               "of the "
               "better %u; the other exchange is at most 5 %% faster in %u, 10 %% in %u\n",
               sum.cases, sum.beside_dense, sum.surely_slower, sum.near_best, sum.right_5,
               sum.right_10);
    return 0;
}

int main(int argc, char **argv) {
    static settings s = {.size_list = "1,100,1e4,1e5,1e6,1e7",
                         .density_list = "0.0001,0.001,0.01,0.1,1",
                         .transport = -1,
                         .seconds = 2.0,
                         .rounds = 25};
    const bench_option options[] = {
        {"elements", 'n', BENCH_TEXT, &s.size_list, "N[,N...]", 0, 0, ""},
        {"density", 'd', BENCH_TEXT, &s.density_list, "D[,D...]", 0, 0, ""},
        {"rounds", 'r', BENCH_COUNT, &s.rounds, "N", 5, ROUNDS_MAX,
         "minimum rounds per case, if there is time"},
        {"seconds", 's', BENCH_REAL, &s.seconds, "S", 0, 3600,
         "maximum time per case; less once ratios are known within 2 %"},
        {"latency", 0, BENCH_REAL, &s.latency_us, "US", 0, 1e7, "of the link; 0: measured by auto"},
        {"gbit", 0, BENCH_REAL, &s.gbit, "GBIT", 0, 1e6, "of the link; 0: measured by auto"},
        BENCH_ROW_TRANSPORT(&s.transport),
        BENCH_ROW_RANKS(&s.ranks),
        BENCH_ROW_JSON(&s.json),
    };
    bench_options_parse("tamis_auto_bench", "Time dense, tamis and auto side by side.", options,
                        sizeof options / sizeof options[0], argc, argv);
    s.nsizes = bench_parse_counts("elements", s.size_list, 4e9, LIST, s.sizes);
    s.ndensities = bench_parse_list("density", s.density_list, 0.0, 1.0, LIST, s.densities);
    bench_launch_check(&s.transport, &s.ranks);
    if (bench_launched_rank() == 0)
        s.report = bench_report_open(s.json);
    int status =
        bench_launch((bench_transport)s.transport, TAMIS_DEVICE_CPU, (uint32_t)s.ranks, run, &s);
    return bench_report_close(s.report, status);
}
