/* SPDX-License-Identifier: MIT */
#include "bench/lab/overlap/settings.h"

#include <string.h>

#include "bench/common/group.h"
#include "bench/common/launcher.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/common/start.h"

static const char *const purpose =
    "Measure how much of an exchange the backward pass hides, with and without overlap, dense and "
    "sparse, next to a step without exchange and MPI_Allreduce. Start it with mpirun.";

/* "1,8,planned" */
static void read_plans(overlap_settings *s) {
    for (const char *at = s->plan_list; *at;) {
        char word[16] = "";
        double number = OVERLAP_PLANNED;
        size_t length = strcspn(at, ",");
        memcpy(word, at, length < sizeof word ? length : sizeof word - 1);
        if (strcmp(word, "planned") != 0)
            bench_parse_list("buckets", word, 0, 64, 1, &number);
        if (s->nplans == OVERLAP_PLANS || number != (uint32_t)number)
            bench_usage("--buckets takes up to %d whole numbers or the word planned",
                        OVERLAP_PLANS);
        s->plans[s->nplans++] = (uint32_t)number;
        at += length + (at[length] == ',');
    }
    if (s->nplans == 0)
        bench_usage("--buckets needs a number or the word planned");
}

static void check_settings(overlap_settings *s) {
    train_settings shape = overlap_shape(s);
    workload_mlp.check(&shape);
    s->ndensities =
        bench_parse_list("density", s->density_list, 0.0, 1.0, OVERLAP_DENSITIES, s->densities);
    for (size_t i = 0; i < s->ndensities; i++)
        bench_scheme_check("tamis", s->densities[i]);
    read_plans(s);
}

void overlap_settings_read(int argc, char **argv, overlap_settings *out) {
    uint64_t ranks = 0;
    int transport = BENCH_MPI;
    *out = (overlap_settings){
        .hidden = 512,
        .depth = 16,
        .batch = 48,
        .rounds = 20,
        .warmup = 3,
        .seed = 1,
        .density_list = "0.01,0.001",
        .plan_list = "8",
        .link = "unknown",
        .baseline = "as MPI is tuned",
        .lr = 0.01,
    };
    const bench_option options[] = {
        {"hidden", 0, BENCH_COUNT, &out->hidden, "N", 1, 65536, "width of the hidden layers"},
        {"depth", 0, BENCH_COUNT, &out->depth, "N", 1, TRAIN_MAX_DEPTH, "number of hidden layers"},
        {"batch", 0, BENCH_COUNT, &out->batch, "N", 1, 65536, "samples per rank and step"},
        {"density", 0, BENCH_TEXT, &out->density_list, "D[,D...]", 0, 0,
         "densities of the sparse steps"},
        {"buckets", 0, BENCH_TEXT, &out->plan_list, "N[,N...]", 0, 0,
         "minimum number of buckets, if there are enough layers; planned: chosen for the link "
         "given below"},
        {"link-gbit", 0, BENCH_REAL, &out->link_gbit, "G", 0, 1e6,
         "bandwidth of the link; 0: the library's default"},
        {"link-latency-us", 0, BENCH_REAL, &out->latency_us, "T", 0, 1e6,
         "its latency; 0: the library's default"},
        {"worker", 0, BENCH_CHOICE, &out->worker, OVERLAP_WORKERS, 0, 0,
         "thread that accumulates in overlapped sparse steps"},
        {"rounds", 'n', BENCH_COUNT, &out->rounds, "N", 1, 1e6, "measured rounds"},
        {"warmup_rounds", 'w', BENCH_COUNT, &out->warmup, "N", 0, 1e6, "rounds before them"},
        {"lr", 0, BENCH_REAL, &out->lr, "X", 0, 1e6, "learning rate"},
        {"seed", 0, BENCH_COUNT, &out->seed, "N", 0, 1e18, "seed of parameters and samples"},
        {"link", 0, BENCH_TEXT, &out->link, "TEXT", 0, 0,
         "name of the link between the ranks, for the records"},
        {"baseline", 0, BENCH_TEXT, &out->baseline, "TEXT", 0, 0,
         "how MPI_Allreduce was tuned, for the records"},
        BENCH_ROW_JSON_TABLE(&out->json),
    };
    bench_options_parse("tamis_overlap", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    check_settings(out);
    bench_launch_check(&transport, &ranks);
    if (bench_launched_rank() == 0) {
        out->report = bench_report_open(out->json);
        out->table = out->report == stdout ? stderr : stdout;
    }
}
