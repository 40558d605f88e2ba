/* SPDX-License-Identifier: MIT
 *
 * Inside a pipeline: pipeline.c creates it and records the marks, balance.c divides the budget.
 * Ranks exchange values through the records of their communicator.
 */
#ifndef TAM_PIPELINE_PIPELINE_H
#define TAM_PIPELINE_PIPELINE_H

#include "collectives/transport/handshake.h"

#include <tamis/pipeline.h>

struct tamis_pipeline {
    tamis_comm *world;
    tamis_pipeline_config config;
    uint64_t budget;     /* entries of all stages together */
    tamis_stage *stages; /* [nstages] */
    uint32_t *stage_of;  /* [nranks] of the world */
    uint64_t *lengths;   /* [nstages] */
    uint64_t *budgets;   /* [nstages] entries that each stage has now */

    /* Marks of this rank, since the last balance. */
    tamis_mark next;
    uint64_t marked_ns; /* time of the last mark; 0: the window since then does not count */
    uint64_t window_ns, busy_ns;
    double exchanged_s;      /* the reducer's exchange time until the last balance */
    uint64_t windows, steps; /* measured */

    /* [nstages] scratch of balance. */
    tamis_stage *learned;
    uint64_t *even, *wanted;
    double *windows_s, *entry_s;
};

/** The density at which a reducer of `length` elements sends `entries`. */
double tam_pipeline_density(uint64_t entries, uint64_t length);

#endif
