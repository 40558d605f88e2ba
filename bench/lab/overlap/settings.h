/* SPDX-License-Identifier: MIT
 *
 * The settings of tamis_overlap, from its command line.
 */
#ifndef TAMIS_OVERLAP_SETTINGS_H
#define TAMIS_OVERLAP_SETTINGS_H

#include <stdint.h>
#include <stdio.h>

#include "bench/train/workload.h"

enum { OVERLAP_DENSITIES = 8, OVERLAP_PLANS = 16, OVERLAP_PLANNED = 0 };
enum { OVERLAP_CALLER = 0, OVERLAP_THREAD = 1, OVERLAP_BOTH = 2 };

#define OVERLAP_WORKERS "caller|thread|both" /* the first two in the order of tamis_worker */

typedef struct overlap_settings {
    uint64_t hidden, depth, batch, rounds, warmup, seed;
    const char *density_list, *plan_list, *link, *baseline, *json;
    double densities[OVERLAP_DENSITIES];
    uint32_t plans[OVERLAP_PLANS]; /* numbers of buckets, or OVERLAP_PLANNED */
    size_t ndensities, nplans;
    double link_gbit, latency_us, lr; /* the first two for OVERLAP_PLANNED */
    int worker;
    FILE *report, *table; /* first rank only; table is stderr when the records go to stdout */
} overlap_settings;

/** The shape of its mlp. */
static inline train_settings overlap_shape(const overlap_settings *s) {
    return (train_settings){.hidden = s->hidden, .depth = s->depth};
}

/** Parse and check. Ends the process on wrong usage. */
void overlap_settings_read(int argc, char **argv, overlap_settings *out);

#endif
