/* SPDX-License-Identifier: MIT
 *
 * One preset on the gradients of a source, step by step, ranks as threads.
 *
 * Times are processor times (CLOCK_THREAD_CPUTIME_ID) of each rank's own thread between the ends of
 * its phases. More ranks than cores take turns, and wall-clock time would count the turns of other
 * ranks. Thread time counts only a thread's own work and no sleep in the exchange, so it is what a
 * phase takes if every rank has a core. But ranks of one machine share its caches and memory, which
 * ranks on many machines would not, and a rank that gets a core back finds the caches filled by
 * others. The figures include this, those of the slowest rank more than the mean.
 */
#ifndef TAMIS_SCHEMES_SCHEMES_H
#define TAMIS_SCHEMES_SCHEMES_H

#include "bench/common/report.h"
#include "bench/lab/schemes/source.h"

#include <tamis/lists.h>
#include <tamis/stats.h>

typedef struct scheme_case {
    const scheme_source *source;
    const tamis_scheme_info *info;
    bench_scheme policies;
    double density;
} scheme_case;

/** One step as one rank saw it. */
typedef struct scheme_sample {
    double sent, selected, target, deferred, wire_bytes;
    double threshold, sent_any; /* threshold: only if it sent anything */
    double acc_norm, residual_norm;
    double accumulate_cpu_s, select_cpu_s, exchange_cpu_s, apply_cpu_s;
} scheme_sample;

/** A checked step. The same on all ranks. */
typedef struct scheme_checked {
    uint64_t step;
    double true_threshold; /* mean over ranks of the k-th largest magnitude that a rank holds */
    double captured; /* in the sum over ranks of what they hold: energy of what left / energy of as
                        many largest entries */
} scheme_checked;

typedef struct scheme_run {
    scheme_sample *samples; /* [nranks][steps] */
    scheme_checked *checked;
    uint64_t steps, nchecked;
    double wrong; /* entries, indices and counts that broke a rule, all ranks */
    bool identical;
} scheme_run;

/** run.c: collective; the same on all ranks. */
void scheme_run_all(bench_group *group, const scheme_case *c, scheme_run *out);
void scheme_run_free(scheme_run *run);

/* check.c */

typedef struct scheme_check {
    bench_group *group;
    const scheme_case *c;
    tamis_reducer *reducer;
    float *acc;     /* residual before the step + gradient */
    float *scratch; /* [n] */
} scheme_check;

void scheme_check_before(scheme_check *check, const float *gradient);

/** Compare with the rules: see check.c. @return how much is wrong on this rank. */
double scheme_check_after(scheme_check *check, const float *result);

/** The threshold that the step should have used, and what its choice captured. Collective. */
void scheme_check_truth(scheme_check *check, const tamis_stats *stats, scheme_checked *out);

/** table.c: first rank. @return whether everything is as promised. */
bool scheme_report(FILE *file, bench_group *group, const scheme_case *c, const scheme_run *run);

/** speed.c: whole steps of processes, beside MPI's all-reduce. Collective. */
void schemes_speed(bench_group *group, const scheme_source *source, double density);

#endif
