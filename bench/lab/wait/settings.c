/* SPDX-License-Identifier: MIT */
#include "bench/common/launcher.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "bench/lab/wait/wait.h"

static const char *const purpose =
    "Measure the CPU time that a rank spends waiting for a late one, and the time that each way of "
    "waiting adds to a step, next to MPI_Allreduce of the same vector. Start it with mpirun.";

void wait_settings_read(int argc, char **argv, wait_settings *out) {
    *out = (wait_settings){
        .elements = 65536,
        .rounds = 100,
        .warmup = 10,
        .density = 0.01,
        .late_ms = 20.0,
        .transport = -1,
    };
    const bench_option options[] = {
        {"elements", 0, BENCH_COUNT, &out->elements, "N", 1, 1e9, "length of the gradient"},
        {"density", 0, BENCH_REAL, &out->density, "D", 0, 1, "density of the library's steps"},
        {"late-ms", 0, BENCH_REAL, &out->late_ms, "T", 0, 60000, "delay of the last rank"},
        {"rounds", 'n', BENCH_COUNT, &out->rounds, "N", 1, 1e6, "measured rounds"},
        {"warmup_rounds", 'w', BENCH_COUNT, &out->warmup, "N", 0, 1e6, "rounds before them"},
        {"transport", 't', BENCH_CHOICE, &out->transport, "local|mpi", 0, 0,
         "default: mpi under mpirun"},
        {"ranks", 0, BENCH_COUNT, &out->ranks, "N", 2, 4096, "ranks of transport local"},
        BENCH_ROW_JSON_TABLE(&out->json),
    };
    bench_options_parse("tamis_wait_bench", purpose, options, sizeof options / sizeof options[0],
                        argc, argv);
    bench_scheme_check("tamis", out->density);
    bench_launch_check(&out->transport, &out->ranks);
    if (out->transport == BENCH_LOCAL && out->ranks < 2)
        bench_usage("at least two ranks are needed: --ranks 2, or mpirun -np 2");
    if (bench_launched_rank() == 0) {
        out->report = bench_report_open(out->json);
        out->table = out->report == stdout ? stderr : stdout;
    }
}
