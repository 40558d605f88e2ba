/* SPDX-License-Identifier: MIT
 *
 * A step as a pipeline of S stages with D = P / S ranks each. Rank r is number r % D of stage r /
 * D: launchers put adjacent ranks onto one machine, and most traffic is the gradients that the
 * ranks of a stage exchange; the values between stages are few. P = 6, S = 3:
 *
 *     stage 0    0   1    left to right: a group with its own communicator and reducer, in which
 *                |   |                   number q has the samples of rank q in a plain run
 *     stage 1    2   3                   with D ranks
 *                |   |    top to bottom: the values for a micro-batch, and back the gradient of
 *                them
 *     stage 2    4   5
 *
 * A plain run is a pipeline of one stage: it has no messages, and needs no MPI.
 */
#ifndef TAMIS_TRAIN_PIPELINE_H
#define TAMIS_TRAIN_PIPELINE_H

#include "bench/common/group.h"
#include "bench/common/trace.h"
#include "bench/train/neighbour.h"
#include "bench/train/schedule.h"
#include "bench/train/settings.h"
#include "bench/train/workload.h"

#include <tamis/pipeline.h>

enum { PIPELINE_BALANCE_EVERY = 20 }; /* steps */

typedef struct pipeline {
    uint32_t stage, nstages, micro_batches;
    uint32_t first[SCHEDULE_LAYERS + 1]; /* stage s has the layers first[s] .. first[s + 1] - 1 */
    bench_group *world;                  /* all ranks */
    bench_group *group;                  /* ranks of this stage; may be `part` */
    bench_group part;
    workload *work;          /* the layers of this stage */
    neighbour before, after; /* zero before the first stage and after the last one */
    tamis_pipeline *budget;  /* of all stages; NULL: the density is constant */
    bool input_marked;       /* the next input is already marked */
} pipeline;

/** Divide the ranks and the layers, and open this stage's layers in `work`. The outputs must not be
 * moved. Collective. */
void pipeline_open(bench_group *world, const train_settings *settings, const workload_data *data,
                   workload *work, pipeline *out);

/** Closes the workload too. The reducer must be gone. Collective. */
void pipeline_close(pipeline *p);

bool pipeline_is_last(const pipeline *p);

/** Set the densities of this stage's reducer. */
void pipeline_density(const pipeline *p, tamis_reducer_config *config);

/** Divide the budget anew if that is due after `steps` steps. Collective. */
void pipeline_balance(pipeline *p, uint64_t steps, tamis_reducer *reducer);

/** Before the wait for the exchange of step `number`: observe whether the next input arrives before
 * the exchange ends. */
void pipeline_watch(pipeline *p, uint64_t number, tamis_reducer *reducer, bench_trace *trace);

/** Seconds spent waiting for messages of neighbours, since open. */
double pipeline_waited_s(const pipeline *p);

/** Inputs, outputs and callbacks of a step. */
typedef struct pipeline_step {
    uint64_t number;
    const float *params;
    const uint32_t *order; /* micro_batches * work->batch samples */
    float *grad;           /* of the mean loss over a micro-batch, for each in turn; their sum if
                              `micro_batch` is NULL */
    void (*micro_batch)(void *context); /* grad is complete, for each micro-batch but the last */
    workload_hook layer;                /* a layer of the last micro-batch is complete; or NULL */
    void *context;
    bench_trace *trace;
} pipeline_step;

/** Run all passes of a step. @return the mean loss over its samples on the last stage, else 0. */
double pipeline_passes(pipeline *p, const pipeline_step *step);

/** Add the scores of the validation samples first .. past - 1; only the last stage adds any. Ranks
 * with the same number in their stages must pass the same samples. */
void pipeline_score(pipeline *p, const float *params, size_t first, size_t past,
                    workload_score *sums);

#endif
