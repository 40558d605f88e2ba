/* SPDX-License-Identifier: MIT
 *
 * tamis_gate: what it costs to wait for a rank that is late, and what it costs to be ready for one
 * that is not. The same step with several ways of waiting, taken in turn, with and without delay:
 *
 *     round    even: mpi | spin | auto | nap      late: mpi | spin | auto | nap
 *              each: barrier, the last rank computes for late-ms (late only), exchange
 */
#ifndef TAMIS_GATE_GATE_H
#define TAMIS_GATE_GATE_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/common/group.h"

enum { GATE_VARIANTS = 4 };

typedef struct gate_settings {
    uint64_t elements, rounds, warmup, ranks;
    double density, late_ms;
    int transport;
    const char *json;
    FILE *report, *table; /* first rank only; table is stderr when the records go to stdout */
} gate_settings;

/** A way to wait. */
typedef struct gate_variant {
    const char *name;
    bool sum; /* MPI_Allreduce of the same vector in place of the library's step */
    tamis_waiting waiting;
} gate_variant;

/** One step, in seconds. When all rounds are done: the slowest rank's step, of the others' figures
 * the largest among the ranks that are early. */
typedef struct gate_sample {
    double step;   /* from the barrier to the end of the exchange */
    double cpu;    /* that all threads of the process took meanwhile; local: the rank's thread */
    double caller; /* its part on the caller's thread */
    double arrive; /* waiting for the late rank, as tamis_stats has it */
} gate_sample;

typedef struct gate_run {
    bench_group *group;
    const gate_settings *settings;
    gate_variant variants[GATE_VARIANTS];
    size_t nvariants;
    tamis_reducer *reducers[2]; /* of even and of late steps: each learns what to expect */
    float *grad, *sum;     /* [elements] */
    gate_sample *measured; /* [2][nvariants][rounds], even and late */
} gate_run;

static inline gate_sample *gate_samples(const gate_run *run, bool late, size_t variant) {
    return run->measured + (late * run->nvariants + variant) * run->settings->rounds;
}

/** Parse and check. Ends the process on wrong usage. */
void gate_settings_read(int argc, char **argv, gate_settings *out);

/** table.c: first rank. */
void gate_report(const gate_run *run);

#endif
