/* SPDX-License-Identifier: MIT
 *
 * tamis_overlap: the same training step in several variants, taken in turn. In a round every
 * variant starts from the same parameters and samples, so it gets the same gradient, bit for bit:
 *
 *     round   compute | dense-mpi | dense | dense-overlap | sparse | sparse-overlap | ...
 *             each: barrier, forward, backward, exchange, update of a copy of the parameters
 *     then    parameters -= rate * mean gradient, outside the times
 */
#ifndef TAMIS_OVERLAP_OVERLAP_H
#define TAMIS_OVERLAP_OVERLAP_H

#include <stdbool.h>

#include "bench/common/group.h"
#include "bench/lab/overlap/settings.h"
#include "bench/train/images.h"

typedef enum overlap_kind {
    OVERLAP_COMPUTE, /* no exchange: update with the rank's own gradient */
    OVERLAP_MPI,     /* MPI_Allreduce of the whole gradient after backward */
    OVERLAP_DENSE,   /* scheme dense */
    OVERLAP_SPARSE   /* scheme tamis */
} overlap_kind;

enum { OVERLAP_VARIANTS = 3 + OVERLAP_PLANS * (1 + 3 * OVERLAP_DENSITIES) };

/** One way to run a step. */
typedef struct overlap_variant {
    overlap_kind kind;
    bool overlapped; /* layers are marked ready as backward completes them */
    double density;
    uint32_t plan; /* from settings.plans; unused by the first three variants */
    tamis_worker worker;
    const struct overlap_variant *plain; /* the variant without overlap, with the same bits */
    tamis_reducer *reducer;              /* NULL: the first two kinds */
    bool *starts;     /* [nsegments] whether marking it completes a bucket, in backward's order */
    double *quiet_us; /* [nquiet] calls of tamis_reducer_ready that began no bucket */
    size_t nquiet;
} overlap_variant;

/** One step of this rank, in seconds. For several ranks see reduce_samples in main.c. */
typedef struct overlap_sample {
    double step;       /* from the barrier to the end of the update */
    double compute;    /* forward, backward (without `ready`) and update */
    double cpu;        /* CPU time of all threads of the process */
    double calls;      /* inside ready, start and wait; MPI: inside MPI_Allreduce */
    double exposed;    /* calls, less the accumulate pass if it runs inside them */
    double wait;       /* inside wait, longest; MPI: inside MPI_Allreduce */
    double wait_least; /* the same for the rank that waited least */
    double accumulate, selection, exchange, apply; /* as in tamis_stats */
    double wire_bytes, rescans;
} overlap_sample;

/** All data of one rank. */
typedef struct overlap_run {
    bench_group *group;
    const overlap_settings *settings;
    workload model;
    workload_data data;
    idx_set samples[2];                /* of its sets; the second is empty */
    float *params, *copy, *grad, *sum; /* [model.length] */
    overlap_variant variants[OVERLAP_VARIANTS];
    size_t nvariants;
    overlap_sample *measured; /* [nvariants][rounds] */
    uint64_t *wrong;          /* [nvariants] steps whose result differs from plain's or by rank */
} overlap_run;

/** variants.c */
void overlap_open_variants(overlap_run *run);
void overlap_close_variants(overlap_run *run);

/** step.c: one step of a variant. @return  hash of its result, 0 where there is none */
uint64_t overlap_step(overlap_run *run, overlap_variant *variant, overlap_sample *out);

/** table.c: first rank. @param  quiet_us  [nvariants] median of quiet calls, slowest rank */
void overlap_report(const overlap_run *run, const double *quiet_us);

#endif
