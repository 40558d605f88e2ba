/* SPDX-License-Identifier: MIT
 *
 * A budget of watts for a run: after every GOVERN_EVERY steps all ranks report their joules, reach
 * the same decision, and apply it from the same step on.
 */
#ifndef TAMIS_TRAIN_GOVERN_H
#define TAMIS_TRAIN_GOVERN_H

#include <tamis/governor.h>

#include "bench/common/energy.h"
#include "bench/train/settings.h"

enum { GOVERN_EVERY = 100 };

typedef struct govern {
    tamis_governor *governor;     /* NULL: no budget */
    tamis_governor_decision next; /* from next.step on */
    double density, pace_s;       /* the current ones */
    int64_t uj;                   /* at the last decision */
    double at_s;
    uint64_t at_step;
    FILE *decisions; /* of rank 0; NULL: none */
} govern;

void govern_open(const train_settings *settings, bench_group *group, govern *out);
void govern_close(govern *g, bench_group *group);

/** Collective. The first window begins here, after `step` steps. */
void govern_start(govern *g, bench_energy *energy, uint64_t step);

/** Collective. After a step: apply a decision that is due, pause, decide.
 * @param step  steps done so far */
void govern_step(govern *g, bench_energy *energy, uint64_t step, tamis_reducer *reducer);

#endif
