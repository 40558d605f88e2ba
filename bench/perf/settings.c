/* SPDX-License-Identifier: MIT */
#include "bench/perf/settings.h"

#include "bench/common/device.h"
#include "bench/common/group.h"
#include "bench/common/half.h"
#include "bench/common/launcher.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/reducer.h"
#include "bench/common/report.h"
#include "bench/common/start.h"

static const char *const purpose = "Time one operation over a range of sizes, next to a dense "
                                   "all-reduce and an in-place axpy of the same n.";

/* The program sets these itself, for checks, sizes and the model depend on them. */
const char perf_own_options[] =
    "density|output|op|nonfinite|density_max|ranks_per_node|residual_decay|"
    "device|grad_dtype|index_codec|value_codec|sum_codec|threads|capacity|"
    "update.rule|update.beta1";

static void check_settings(perf_settings *s) {
    s->ndensities =
        bench_parse_list("density", s->density_list, 0.0, 1.0, PERF_DENSITIES, s->densities);
    if (s->max_bytes < s->min_bytes)
        bench_usage("--maxbytes is less than --minbytes");
    if (s->elements)
        s->min_bytes = s->max_bytes = 4 * s->elements;
    bench_reducer_check(s->set, perf_own_options);
    if (s->op == PERF_DENSE) {
        s->scheme = "dense";
        s->output = TAMIS_OUTPUT_DENSE;
    }
    if (strcmp(s->scheme, "dense") == 0 || strcmp(s->scheme, "quantized") == 0) {
        s->densities[0] = 1.0;
        s->ndensities = 1;
    }
    if (strcmp(s->scheme, "quantized") == 0 && s->values == TAMIS_VALUE_AUTO)
        s->values = TAMIS_VALUE_FP4; /* as the library does */
    if (s->device == TAMIS_DEVICE_CUDA && (perf_one_pass(s->op) || s->op == PERF_EXCHANGE))
        bench_usage("--op %s needs --device cpu: a step on a CUDA device cannot be split from "
                    "outside; use --op step",
                    bench_choice(PERF_OPS, s->op));
    if (s->nodes_of > 1 && (s->check || s->op != PERF_STEP))
        bench_usage("--ranks-per-node needs --op step -c 0: the check compares the residuals of "
                    "all elements, but a rank of a node holds only a shard");
    if (s->op == PERF_UPDATE) {
        if (s->threads > 1 || s->grad != TAMIS_DTYPE_FLOAT32)
            bench_usage("--op update is compared with a pass of AdamW in one thread, on fp32");
        s->check = 0; /* the check knows expected results for gradients only */
    }
    if (perf_one_pass(s->op)) {
        if (s->ranks > 1 || s->transport > BENCH_LOCAL || bench_launched_ranks() > 1)
            bench_usage("--op %s exchanges nothing: run one local rank, without mpirun",
                        bench_choice(PERF_OPS, s->op));
        s->transport = BENCH_LOCAL;
        s->ranks = 1;
    }
    bench_launch_check(&s->transport, &s->ranks);
    bench_device_check(s->device, s->transport);
    for (size_t i = 0; i < s->ndensities; i++)
        bench_scheme_check(s->scheme, s->densities[i]);
}

void perf_settings_read(int argc, char **argv, perf_settings *out) {
    *out = (perf_settings){
        .op = PERF_STEP,
        .output = TAMIS_OUTPUT_SPARSE,
        .transport = -1,
        .min_bytes = 4 << 20,
        .max_bytes = 64 << 20,
        .factor = 4,
        .iterations = 20,
        .warmup = 5,
        .check = 1,
        .threads = 1,
        .segments = 16,
        .seed = 1,
        .beta1 = 0.9,
        .scheme = "tamis",
        .density_list = "0.01",
    };
    const double big = 16e9; /* more than the library's 2^32 elements would need */
    const bench_option options[] = {
        {"op", 0, BENCH_CHOICE, &out->op, PERF_OPS, 0, 0,
         "what to time; accumulate, update: only the pass, on one local rank"},
        {"minbytes", 'b', BENCH_BYTES, &out->min_bytes, "SIZE", 4, big,
         "4 n of the smallest size; suffix K, M, G"},
        {"maxbytes", 'e', BENCH_BYTES, &out->max_bytes, "SIZE", 4, big, ""},
        {"stepfactor", 'f', BENCH_COUNT, &out->factor, "F", 2, 1e6, "factor between sizes"},
        {"elements", 0, BENCH_COUNT, &out->elements, "N", 1, big / 4,
         "a single n instead of -b -e"},
        {"iters", 'n', BENCH_COUNT, &out->iterations, "N", 1, 1e6, "measured repetitions"},
        {"warmup_iters", 'w', BENCH_COUNT, &out->warmup, "N", 0, 1e6, "repetitions before them"},
        {"check", 'c', BENCH_COUNT, &out->check, "0|1", 0, 1, "check steps on whole numbers"},
        {"threads", 'T', BENCH_COUNT, &out->threads, "N", 1, 256,
         "threads of the kernels and the axpy"},
        {"scheme", 0, BENCH_TEXT, &out->scheme, "S", 0, 0, "preset or four policies a+b+c+d"},
        {"density", 0, BENCH_TEXT, &out->density_list, "D[,D...]", 0, 0, ""},
        {"output", 0, BENCH_CHOICE, &out->output, PERF_OUTPUTS, 0, 0, "form of the result"},
        {"beta1", 0, BENCH_REAL, &out->beta1, "B", 0, 0.999,
         "op update: decay of the first moment; 0: none"},
        {"segments", 0, BENCH_COUNT, &out->segments, "L", 1, 65536,
         "segments of uneven length and scale"},
        {"capacity", 0, BENCH_REAL, &out->capacity, "C", 0, 1e6,
         "step, fixed, sage: packet size in units of k / ranks; 0: packets grow"},
        {"device", 0, BENCH_CHOICE, &out->device, BENCH_DEVICES, 0, 0,
         "device that runs the kernels"},
        {"grad", 0, BENCH_CHOICE, &out->grad, BENCH_GRADS, 0, 0, "element type of the gradient"},
        {"index", 0, BENCH_CHOICE, &out->index, PERF_INDICES, 0, 0,
         "encoding of indices on the wire"},
        BENCH_ROW_VALUES(&out->values),
        BENCH_ROW_SUM_VALUES(&out->sum_values),
        {"beside", 0, BENCH_CHOICE, &out->beside, PERF_BESIDES, 0, 0,
         "baseline of each repetition; plain: the scheme with u32 and float32, no nodes"},
        {"ranks-per-node", 0, BENCH_COUNT, &out->nodes_of, "G", 0, 65536,
         "ranks per node of the hierarchical exchange, with -c 0; 0: flat"},
        {"set", 0, BENCH_TEXT, &out->set, "O=V[,O=V...]", 0, 0,
         "other options of the scheme's reducer, as in docs/options.md"},
        BENCH_ROW_TRANSPORT(&out->transport),
        BENCH_ROW_RANKS(&out->ranks),
        {"seed", 0, BENCH_COUNT, &out->seed, "N", 0, 1e18, "seed of the synthetic gradients"},
        BENCH_ROW_JSON_TABLE(&out->json),
    };
    bench_options_parse("tamis_perf", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    check_settings(out);
    if (bench_launched_rank() == 0) {
        out->report = bench_report_open(out->json);
        out->table = out->report == stdout ? stderr : stdout;
    }
}
