/* SPDX-License-Identifier: MIT
 *
 * --local-steps: ranks train alone, and the library exchanges what they have changed.
 */
#ifndef TAMIS_TRAIN_LOCAL_STEPS_H
#define TAMIS_TRAIN_LOCAL_STEPS_H

#include <tamis/local.h>

#include "bench/common/group.h"
#include "bench/train/settings.h"
#include "bench/train/workload.h"

typedef struct local_steps {
    bench_group *group;
    tamis_local *handle;         /* NULL: gradients are exchanged, and nothing here is used */
    float **params;              /* [nsegments] */
    uint64_t rounds, wire_bytes; /* counted so far */
} local_steps;

/** Refuses what does not go together; ends the process. */
void local_steps_check(const train_settings *settings);

/** @param reducer, params  must outlive it */
void local_steps_open(bench_group *group, const train_settings *settings, const workload *work,
                      tamis_reducer *reducer, float *params, local_steps *out);
void local_steps_close(local_steps *l);

/** After a step of the rank's own optimizer. */
void local_steps_step(local_steps *l);

/** The model that all ranks have in common. */
const float *local_steps_base(const local_steps *l);

/** What has happened since the last call. */
typedef struct local_steps_news {
    uint64_t wire_bytes; /* sent by this rank */
    bool ended;          /* a round has, and */
    bool under_way;      /* the next one has begun: the reducer does not tell figures now */
    double density;      /* of the last round */
} local_steps_news;

local_steps_news local_steps_count(local_steps *l);

/** Forget what was counted before a state was loaded. */
void local_steps_resume(local_steps *l);

#endif
