/* SPDX-License-Identifier: MIT */
#include "bench/lab/auto/ab_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"

enum { WARMUP = 5 }; /* rounds: predictions take some steps to settle */

void ab_run_open(ab_run *d) {
    static const char *const names[SCHEMES] = {"dense", "tamis", "auto"};
    tamis_segment all = {"all", d->n};
    tamis_layout *layout;
    bench_try(d->group, tamis_layout_create(&all, 1, &layout), "cannot create a layout");
    for (int i = 0; i < SCHEMES; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        config.scheme = names[i];
        config.density = d->density;
        config.link_latency_us = d->latency_us;
        config.link_gbit = d->gbit;
        bench_try(d->group, tamis_reducer_create(d->group->comm, layout, &config, &d->reducers[i]),
                  "cannot create a reducer");
    }
    tamis_layout_destroy(layout);
    d->given = bench_alloc(d->n, sizeof(float));
    d->work = bench_alloc(d->n, sizeof(float));
    for (size_t i = 0; i < d->n; i++) { /* heavy tails, a different gradient on every rank */
        uint64_t x = bench_random(d->group->rank, i);
        d->given[i] = (float)((double)(int64_t)x * 0x1p-63 / (1 + (double)(x & 1023)));
    }
}

void ab_run_close(ab_run *d) {
    for (int i = 0; i < SCHEMES; i++)
        tamis_reducer_destroy(d->reducers[i]);
    free(d->work);
    free(d->given);
}

static double time_step(ab_run *d, int scheme) {
    tamis_step step = TAMIS_STEP_INIT;
    memcpy(d->work, d->given, d->n * sizeof(float));
    step.grad = d->work;
    bench_barrier(d->group);
    double start = bench_now_s();
    bench_try(d->group, tamis_reducer_start(d->reducers[scheme], &step), "start of a step");
    bench_try(d->group, tamis_reducer_wait(d->reducers[scheme]), "end of a step");
    bench_barrier(d->group);
    return bench_now_s() - start;
}

/* One of the six orders, the same on all ranks. */
static void run_round(ab_run *d, uint64_t round, double *seconds) {
    uint64_t lot = bench_random(1, round) % 6;
    int order[SCHEMES] = {(int)(lot % 3), (int)((lot + 1) % 3), (int)((lot + 2) % 3)};
    for (int j = 0; j < SCHEMES; j++) {
        int scheme = order[lot < 3 ? j : SCHEMES - 1 - j];
        seconds[scheme] = time_step(d, scheme);
    }
}

/* Whether a ratio is known within 2 %, or is so far from 1 that precision does not matter. */
static bool is_known(ab_run_ratio r) {
    return r.high - r.low <= 0.02 * r.median || r.high < 0.9 || r.low > 1.2;
}

static bool all_known(ab_run *d) {
    return is_known(ab_run_compare(d, AUTO, DENSE)) && is_known(ab_run_compare(d, AUTO, TAMIS)) &&
           is_known(ab_run_compare(d, TAMIS, DENSE));
}

/* Rank 0's finding decides for all ranks. */
static bool needs_more(ab_run *d, size_t least, double most_s, double begin_s) {
    bool enough = d->rounds >= least && d->group->rank == 0 && all_known(d);
    bool late = bench_max(d->group, bench_now_s() - begin_s) >= most_s;
    return !late && d->rounds < ROUNDS_MAX && bench_max(d->group, enough) == 0.0;
}

void ab_run_run(ab_run *d, size_t least, double most_s) {
    double ignored[SCHEMES], seconds[SCHEMES];
    double begin_s = bench_now_s();
    for (uint64_t i = 0; i < WARMUP; i++)
        run_round(d, i, ignored);
    do { /* the longer it has run, the less often it checks */
        for (size_t some = 1 + d->rounds / 8; some > 0 && d->rounds < ROUNDS_MAX; some--) {
            run_round(d, WARMUP + d->rounds, seconds);
            for (int i = 0; i < SCHEMES; i++)
                d->seconds[i][d->rounds] = seconds[i];
            d->rounds++;
        }
    } while (needs_more(d, least, most_s, begin_s));
}

/* The ends are the order statistics 0.98 sqrt(rounds) on either side of the middle. */
ab_run_ratio ab_run_compare(ab_run *d, ab_run_scheme above, ab_run_scheme below) {
    size_t count = d->rounds;
    for (size_t i = 0; i < count; i++)
        d->scratch[i] = d->seconds[above][i] / d->seconds[below][i];
    double median = bench_median(d->scratch, count), reach = 0.98 * sqrt((double)count);
    double low = floor(0.5 * (double)count - reach), high = ceil(0.5 * (double)count + reach);
    return (ab_run_ratio){d->scratch[low > 0.0 ? (size_t)low : 0], median,
                          d->scratch[high < (double)count ? (size_t)high : count - 1]};
}

double ab_run_median_us(ab_run *d, ab_run_scheme scheme) {
    memcpy(d->scratch, d->seconds[scheme], d->rounds * sizeof d->scratch[0]);
    return 1e6 * bench_median(d->scratch, d->rounds);
}
