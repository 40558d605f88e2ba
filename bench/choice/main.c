/* SPDX-License-Identifier: MIT
 *
 * tamis_choice: dense, tamis and auto, alternated in one run over a grid of sizes and densities. Tells
 * what auto chose, how long each took, and how often the choice was right. The ranks are those of one
 * communicator, so that auto measures once.
 *
 * A choice is also judged without auto's own times, which where it runs the same code as the one or the
 * other differ by noise alone: by how much the exchange that it took is slower than the other.
 *
 * Times count from barrier to barrier, so from all to all. A ratio is the median of those of the single
 * repetitions, in which all three ran right after one another, in an order that turns.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/common/group.h"
#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/random.h"
#include "bench/common/report.h"

enum { DENSE, TAMIS, AUTO, SCHEMES, LIST = 16, ROUNDS_MOST = 101 };

static const char *const names[SCHEMES] = {"dense", "tamis", "auto"};

typedef struct settings {
    const char *size_list, *density_list, *json;
    double sizes[LIST], densities[LIST], latency_us, gbit;
    size_t nsizes, ndensities;
    uint64_t ranks, rounds;
    int transport;
    FILE *report;
} settings;

typedef struct tally {
    uint32_t cases, beside_dense, near_best, right_5, right_10;
} tally;

typedef struct duel {
    bench_group *group;
    size_t n;
    double density;
    tamis_reducer *reducers[SCHEMES];
    float *given, *work;
    double seconds[SCHEMES][ROUNDS_MOST];
} duel;

static void open_duel(duel *d, const settings *s) {
    tamis_segment all = {"all", d->n};
    tamis_layout *layout;
    bench_try(d->group, tamis_layout_create(&all, 1, &layout), "cannot make a layout");
    for (int i = 0; i < SCHEMES; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        config.scheme = names[i];
        config.density = d->density;
        config.link_latency_us = s->latency_us;
        config.link_gbit = s->gbit;
        bench_try(d->group, tamis_reducer_create(d->group->comm, layout, &config, &d->reducers[i]),
                  "cannot make a reducer");
    }
    tamis_layout_destroy(layout);
    d->given = bench_alloc(d->n, sizeof(float));
    d->work = bench_alloc(d->n, sizeof(float));
    for (size_t i = 0; i < d->n; i++) { /* heavy tails, another gradient on every rank */
        uint64_t x = bench_random(d->group->rank, i);
        d->given[i] = (float)((double)(int64_t)x * 0x1p-63 / (1 + (double)(x & 1023)));
    }
}

static void close_duel(duel *d) {
    for (int i = 0; i < SCHEMES; i++)
        tamis_reducer_destroy(d->reducers[i]);
    free(d->work);
    free(d->given);
}

static double time_step(duel *d, int scheme) {
    tamis_step step = TAMIS_STEP_INIT;
    memcpy(d->work, d->given, d->n * sizeof(float));
    step.grad = d->work;
    bench_barrier(d->group);
    double start = bench_now_s();
    bench_try(d->group, tamis_reduce_start(d->reducers[scheme], &step), "start of a step");
    bench_try(d->group, tamis_reduce_wait(d->reducers[scheme]), "end of a step");
    bench_barrier(d->group);
    return bench_now_s() - start;
}

/* Predictions take some steps to settle; they and large sizes get fewer repetitions. */
static uint64_t run_duel(duel *d, uint64_t rounds) {
    enum { WARMUP = 5 };
    rounds = d->n > 3000000 ? (rounds + 4) / 5 : d->n > 300000 ? (rounds + 1) / 2 : rounds;
    for (uint64_t i = 0; i < WARMUP + rounds; i++) {
        for (uint64_t j = 0; j < SCHEMES; j++) {
            int scheme = (int)((i + j) % SCHEMES);
            double seconds = time_step(d, scheme);
            if (i >= WARMUP)
                d->seconds[scheme][i - WARMUP] = seconds;
        }
    }
    return rounds;
}

static double median_ratio(const duel *d, int above, int below, uint64_t rounds) {
    double ratios[ROUNDS_MOST];
    for (uint64_t i = 0; i < rounds; i++)
        ratios[i] = d->seconds[above][i] / d->seconds[below][i];
    return bench_median(ratios, rounds);
}

static void tell(duel *d, const settings *s, uint64_t rounds, tally *sum) {
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    bench_try(d->group, tamis_reducer_bucket(d->reducers[AUTO], 0, &bucket), "no bucket");
    double to_dense = median_ratio(d, AUTO, DENSE, rounds);
    double to_tamis = median_ratio(d, AUTO, TAMIS, rounds);
    double to_best = to_dense > to_tamis ? to_dense : to_tamis, us[SCHEMES];
    for (int i = 0; i < SCHEMES; i++)
        us[i] = 1e6 * bench_median(d->seconds[i], rounds);
    double fixed = median_ratio(d, TAMIS, DENSE, rounds);
    double regret = strcmp(bucket.exchange, "dense") == 0 ? 1.0 / fixed : fixed;
    sum->cases++;
    sum->right_5 += regret <= 1.05;
    sum->right_10 += regret <= 1.10;
    sum->beside_dense += to_dense <= 1.05;
    sum->near_best += to_best <= 1.10;
    printf("%10zu %8g %6s %10.1f %11.1f %11.1f %11.1f %10.3f %10.3f %8.3f\n", d->n, d->density,
           bucket.exchange, bucket.predicted_us, us[DENSE], us[TAMIS], us[AUTO], to_dense, to_best,
           regret);
    fflush(stdout);
    json_t *record = bench_report_new("choice");
    json_object_set_new(record, "ranks", json_integer(d->group->nranks));
    json_object_set_new(record, "transport", json_string(tamis_comm_transport(d->group->comm)));
    json_object_set_new(record, "elements", json_integer((json_int_t)d->n));
    json_object_set_new(record, "density", json_real(d->density));
    json_object_set_new(record, "exchange", json_string(bucket.exchange));
    json_object_set_new(record, "predicted_us", json_real(bucket.predicted_us));
    json_object_set_new(record, "dense_us", json_real(us[DENSE]));
    json_object_set_new(record, "tamis_us", json_real(us[TAMIS]));
    json_object_set_new(record, "auto_us", json_real(us[AUTO]));
    json_object_set_new(record, "to_dense", json_real(to_dense));
    json_object_set_new(record, "to_best", json_real(to_best));
    json_object_set_new(record, "regret", json_real(regret));
    json_object_set_new(record, "rounds", json_integer((json_int_t)rounds));
    bench_report_write(s->report, record);
}

static int run(bench_group *group, void *context) {
    const settings *s = context;
    tally sum = {0};
    if (group->rank == 0)
        printf(
            "# %u ranks over %s; times in us, medians; ratios are paired\n%10s %8s %6s %10s %11s "
            "%11s %11s %10s %10s %8s\n",
            group->nranks, tamis_comm_transport(group->comm), "# elements", "density", "chosen",
            "predicted", "dense", "tamis", "auto", "auto/dense", "auto/best", "regret");
    for (size_t n = 0; n < s->nsizes; n++) {
        for (size_t k = 0; k < s->ndensities; k++) {
            duel *d = bench_alloc(1, sizeof *d);
            *d = (duel){.group = group, .n = (size_t)s->sizes[n], .density = s->densities[k]};
            open_duel(d, s);
            uint64_t rounds = run_duel(d, s->rounds);
            if (group->rank == 0)
                tell(d, s, rounds, &sum);
            close_duel(d);
            free(d);
        }
    }
    if (group->rank == 0)
        printf("# of %u cases: at most 5 %% slower than dense %u, within 10 %% of the better %u; "
               "the other "
               "exchange is at most 5 %% faster in %u, 10 %% in %u\n",
               sum.cases, sum.beside_dense, sum.near_best, sum.right_5, sum.right_10);
    return 0;
}

int main(int argc, char **argv) {
    static settings s = {.size_list = "1,100,1e4,1e5,1e6,1e7",
                         .density_list = "0.0001,0.001,0.01,0.1,1",
                         .transport = -1,
                         .rounds = 25};
    const bench_option options[] = {
        {"elements", 'n', BENCH_TEXT, &s.size_list, "N[,N...]", 0, 0, ""},
        {"density", 'd', BENCH_TEXT, &s.density_list, "D[,D...]", 0, 0, ""},
        {"rounds", 'r', BENCH_COUNT, &s.rounds, "N", 5, ROUNDS_MOST,
         "a half from 3e5, a fifth from 3e6"},
        {"latency", 0, BENCH_REAL, &s.latency_us, "US", 0, 1e7, "of the link; 0: auto measures"},
        {"gbit", 0, BENCH_REAL, &s.gbit, "GBIT", 0, 1e6, "of the link; 0: auto measures"},
        {"transport", 0, BENCH_CHOICE, &s.transport, BENCH_TRANSPORTS, 0, 0,
         "default: mpi under mpirun, else local"},
        {"ranks", 0, BENCH_COUNT, &s.ranks, "P", 1, 1024, "threads of local (default 1)"},
        {"json", 0, BENCH_TEXT, &s.json, "FILE", 0, 0, "records"},
    };
    bench_options_parse("tamis_choice", "Time dense, tamis and auto beside each other.", options,
                        sizeof options / sizeof options[0], argc, argv);
    s.nsizes = bench_parse_list("elements", s.size_list, 0.0, 4e9, LIST, s.sizes);
    s.ndensities = bench_parse_list("density", s.density_list, 0.0, 1.0, LIST, s.densities);
    bench_launch_check(&s.transport, &s.ranks);
    if (bench_launched_rank() == 0)
        s.report = bench_report_open(s.json);
    int status =
        bench_launch((bench_transport)s.transport, TAMIS_DEVICE_CPU, (uint32_t)s.ranks, run, &s);
    bench_report_close(s.report);
    return status;
}
