/* SPDX-License-Identifier: MIT */
#include "bench/lab/schemes/settings.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>

#include "bench/common/group.h"
#include "bench/common/launcher.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/report.h"

static const char *const purpose =
    "Run every preset on the same gradients and record what each selected, and when.";

/* Whether `name` is a word of a list "a,b,c". */
static bool in_list(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

bool schemes_wanted(const schemes_settings *settings, const char *name) {
    return !settings->schemes || in_list(settings->schemes, name);
}

static void print_list(void) {
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    for (size_t i = 0; tamis_scheme_list(i, &info); i++)
        puts(info.name);
    exit(bench_report_close(NULL, 0));
}

static void read_ranks(schemes_settings *s) {
    double ranks[SCHEMES_RANKS];
    s->nranks = bench_parse_counts("ranks", s->rank_list, 4096, SCHEMES_RANKS, ranks);
    for (size_t i = 0; i < s->nranks; i++)
        s->ranks[i] = (uint32_t)ranks[i];
}

static void check_settings(schemes_settings *s) {
    read_ranks(s);
    s->ndensities =
        bench_parse_list("density", s->density_list, 0.0, 1.0, SCHEMES_DENSITIES, s->densities);
    if (!s->speed && bench_launched_ranks() > 1)
        bench_usage("without --speed all ranks run in one process; start it without mpirun");
    if (s->speed && s->input)
        bench_usage("--speed makes its own gradients; leave out --input");
    if (s->speed && bench_launched_ranks() < 2)
        bench_usage("--speed compares with MPI's all-reduce: start it under mpirun");
    if (s->segments > s->elements)
        bench_usage("--segments is more than --elements");
}

void schemes_settings_read(int argc, char **argv, schemes_settings *out) {
    *out = (schemes_settings){
        .rank_list = "8",
        .density_list = "0.01",
        .elements = 1 << 18,
        .segments = 16,
        .steps = 200,
        .checks = 10,
        .warmup = 3,
        .seed = 1,
    };
    const bench_option options[] = {
        {"input", 0, BENCH_FILE, &out->input, "FILE", 0, 0,
         "gradients of tamis_train --record, with their ranks; default: synthetic ones"},
        {"schemes", 0, BENCH_TEXT, &out->schemes, "S[,S...]", 0, 0,
         "presets to run (default: all)"},
        {"list", 0, BENCH_FLAG, &out->list, "", 0, 0, "only list the names of the presets"},
        {"ranks", 0, BENCH_TEXT, &out->rank_list, "P[,P...]", 0, 0,
         "numbers of ranks, threads of this process"},
        {"elements", 0, BENCH_COUNT, &out->elements, "N", 16, 4e9,
         "length of a synthetic gradient"},
        {"segments", 0, BENCH_COUNT, &out->segments, "L", 1, 4096,
         "segments of uneven length and scale"},
        {"density", 0, BENCH_TEXT, &out->density_list, "D[,D...]", 0, 0, ""},
        {"steps", 0, BENCH_COUNT, &out->steps, "N", 1, 1e6,
         "number of steps (a recording is repeated)"},
        {"checks", 0, BENCH_COUNT, &out->checks, "N", 1, 1e6,
         "steps checked entry by entry against the rules"},
        {"speed", 0, BENCH_FLAG, &out->speed, "", 0, 0,
         "time whole steps under mpirun instead, next to MPI's all-reduce"},
        {"warmup", 0, BENCH_COUNT, &out->warmup, "N", 0, 1e6,
         "steps of --speed before the measured ones"},
        {"seed", 0, BENCH_COUNT, &out->seed, "N", 0, 1e18, "seed of the synthetic gradients"},
        BENCH_ROW_JSON(&out->json),
    };
    bench_options_parse("tamis_schemes", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    if (out->list)
        print_list();
    check_settings(out);
    if (bench_launched_rank() == 0)
        out->report = bench_report_open(out->json);
}
