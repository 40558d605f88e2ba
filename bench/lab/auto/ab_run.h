/* SPDX-License-Identifier: MIT
 *
 * An A/B run, one case of tamis_auto_bench: three reducers of the same gradient step in turns until
 * their ratios are known well enough, or the time is over.
 *
 * A round is one step of each, in random order, so that none always follows the same other. A ratio
 * is the median over the rounds' ratios; its ends are a 95 % confidence interval. Times are from
 * barrier to barrier, so they include all ranks.
 */
#ifndef TAMIS_BENCH_AB_RUN_H
#define TAMIS_BENCH_AB_RUN_H

#include "bench/common/group.h"

typedef enum ab_run_scheme { DENSE, TAMIS, AUTO, SCHEMES } ab_run_scheme;

enum { ROUNDS_MAX = 4096 };

typedef struct ab_run {
    bench_group *group;
    size_t n;
    double density, latency_us, gbit; /* the link as given to the library; 0: auto measures */
    tamis_reducer *reducers[SCHEMES];
    float *given, *work; /* [n] */
    size_t rounds;
    double seconds[SCHEMES][ROUNDS_MAX]; /* [scheme][rounds] */
    double scratch[ROUNDS_MAX];
} ab_run;

typedef struct ab_run_ratio {
    double low, median, high;
} ab_run_ratio;

/** @param  d  group, n, density and link filled in, the rest zero */
void ab_run_open(ab_run *d);
void ab_run_close(ab_run *d);

/** Collective. @param  least  the fewest rounds, even if they exceed the time
 * @param  most_s  seconds after which no round begins, on the slowest rank */
void ab_run_run(ab_run *d, size_t least, double most_s);

/** Time of `above` over time of `below`. */
ab_run_ratio ab_run_compare(ab_run *d, ab_run_scheme above, ab_run_scheme below);

double ab_run_median_us(ab_run *d, ab_run_scheme scheme);

#endif
