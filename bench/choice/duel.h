/* SPDX-License-Identifier: MIT
 *
 * One case of tamis_choice: three reducers of the same gradient step in turns until their ratios
 * are known well enough, or the time is over.
 *
 * A round is one step of each, in random order, so that none always follows the same other. A ratio
 * is the median over the rounds' ratios; its ends are a 95 % confidence interval. Times are from
 * barrier to barrier, so they include all ranks.
 */
#ifndef TAMIS_BENCH_DUEL_H
#define TAMIS_BENCH_DUEL_H

#include "bench/common/group.h"

typedef enum duel_scheme { DENSE, TAMIS, AUTO, SCHEMES } duel_scheme;

enum { ROUNDS_MAX = 4096 };

typedef struct duel {
    bench_group *group;
    size_t n;
    double density, latency_us, gbit; /* the link as given to the library; 0: auto measures */
    tamis_reducer *reducers[SCHEMES];
    float *given, *work; /* [n] */
    size_t rounds;
    double seconds[SCHEMES][ROUNDS_MAX]; /* [scheme][rounds] */
    double scratch[ROUNDS_MAX];
} duel;

typedef struct duel_ratio {
    double low, median, high;
} duel_ratio;

/** @param  d  group, n, density and link filled in, the rest zero */
void duel_open(duel *d);
void duel_close(duel *d);

/** Collective. @param  least  the fewest rounds, even if they exceed the time
 * @param  most_s  seconds after which no round begins, on the slowest rank */
void duel_run(duel *d, size_t least, double most_s);

/** Time of `above` over time of `below`. */
duel_ratio duel_compare(duel *d, duel_scheme above, duel_scheme below);

double duel_median_us(duel *d, duel_scheme scheme);

#endif
