/* SPDX-License-Identifier: MIT
 *
 * The settings of tamis_perf, from its command line. Letters are nccl-tests' where it has them.
 */
#ifndef TAMIS_PERF_SETTINGS_H
#define TAMIS_PERF_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <tamis/tamis.h>

typedef enum perf_op { PERF_STEP, PERF_ACCUMULATE, PERF_EXCHANGE, PERF_DENSE, PERF_UPDATE } perf_op;

#define PERF_OPS "step|accumulate|exchange|dense|update"
#define PERF_OUTPUTS "dense|sparse" /* in the order of tamis_output */
#define PERF_OR(NAME, name, number) "|" #name
#define PERF_INDICES "auto" TAMIS_INDEX_CODECS(PERF_OR) /* in the order of tamis_index_codec */

typedef enum perf_beside { PERF_BESIDE_DENSE, PERF_BESIDE_PLAIN } perf_beside;
#define PERF_BESIDES "dense|plain"

/** Whether only the accumulate phase is timed, for which one rank suffices. */
static inline bool perf_one_pass(int op) {
    return op == PERF_ACCUMULATE || op == PERF_UPDATE;
}

enum { PERF_DENSITIES = 16 };

typedef struct perf_settings {
    int op, output, transport, device, grad; /* device, grad: tamis_device, tamis_dtype */
    int index, values, sum_values, beside;   /* of PERF_INDICES, BENCH_VALUES, PERF_BESIDES */
    uint64_t min_bytes, max_bytes, factor, elements, iterations, warmup, check, threads, segments;
    uint64_t ranks, nodes_of, seed; /* nodes_of: ranks per node; 0: flat */
    const char *scheme, *density_list, *set, *json;
    double densities[PERF_DENSITIES], capacity, beta1; /* beta1: for op update */
    size_t ndensities;
    FILE *report, *table; /* first rank only; table is stderr when the records go to stdout */
} perf_settings;

/** Options of a reducer that --set may not give. */
extern const char perf_own_options[];

/** Parse and check. Ends the process on wrong usage. */
void perf_settings_read(int argc, char **argv, perf_settings *out);

#endif
