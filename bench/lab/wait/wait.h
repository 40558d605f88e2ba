/* SPDX-License-Identifier: MIT
 *
 * tamis_wait_bench, the wait benchmark: the cost of waiting for a late rank, and the cost of being
 * ready for one when none is late. It runs the same step with several ways of waiting, in turn,
 * with and without delay:
 *
 *     round    even: mpi | spin | auto | sleep    late: mpi | spin | auto | sleep
 *              each: barrier, the last rank computes for late-ms (late only), exchange
 */
#ifndef TAMIS_BENCH_WAIT_H
#define TAMIS_BENCH_WAIT_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/common/group.h"

enum { WAIT_VARIANTS = 4 };

typedef struct wait_settings {
    uint64_t elements, rounds, warmup, ranks;
    double density, late_ms;
    int transport;
    const char *json;
    FILE *report, *table; /* first rank only; table is stderr when the records go to stdout */
} wait_settings;

/** A way to wait. */
typedef struct wait_variant {
    const char *name;
    bool sum; /* MPI_Allreduce of the same vector instead of the library's step */
    tamis_waiting waiting;
} wait_variant;

/** One step, in seconds. After all rounds: `step` of the slowest rank; of the other figures the
 * largest among the ranks that are early. */
typedef struct wait_sample {
    double step;   /* from the barrier to the end of the exchange */
    double cpu;    /* CPU time of all threads of the process; local: of the rank's thread */
    double caller; /* the caller's thread's part of it */
    double skew;   /* waiting for the late rank, as in tamis_stats */
} wait_sample;

typedef struct wait_run {
    bench_group *group;
    const wait_settings *settings;
    wait_variant variants[WAIT_VARIANTS];
    size_t nvariants;
    tamis_reducer *reducers[2]; /* for even and for late steps: each learns what to expect */
    float *grad, *sum;          /* [elements] */
    wait_sample *measured;      /* [2][nvariants][rounds], even and late */
} wait_run;

static inline wait_sample *wait_samples(const wait_run *run, bool late, size_t variant) {
    return run->measured + (late * run->nvariants + variant) * run->settings->rounds;
}

/** Parse and check. Ends the process on wrong usage. */
void wait_settings_read(int argc, char **argv, wait_settings *out);

/** table.c: first rank. */
void wait_report(const wait_run *run);

#endif
