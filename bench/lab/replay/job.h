/* SPDX-License-Identifier: MIT
 *
 * A fixed amount of work on the simulator, with or without a governor.
 */
#ifndef TAMIS_BENCH_JOB_H
#define TAMIS_BENCH_JOB_H

#include <tamis/governor.h>

#include "bench/lab/replay/simulator.h"

typedef struct job_plan {
    simulator_config simulator;
    tamis_governor_config governor;
    const tamis_carbon *carbon; /* NULL: intensity is unknown */
    double unix_begin_s;
    double horizon_s; /* of the outlook */
    double window_s;  /* approximately */
    uint64_t steps;   /* to be done */
} job_plan;

/** What the job took, without noise. */
typedef struct job_result {
    double seconds, joules, grams; /* grams NAN: unknown */
    double density;                /* mean over the steps */
    uint64_t windows, changes;
} job_result;

/** Called after every window; may be NULL. */
typedef void (*job_observer)(void *context, const simulator_run *truth,
                             const tamis_governor_window *window,
                             const tamis_governor_decision *decision);

tamis_status job_run(const job_plan *plan, job_observer observer, void *context, job_result *out);

#endif
