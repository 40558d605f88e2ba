/* SPDX-License-Identifier: MIT
 *
 * tamis/pipeline.h - stages of a pipeline-parallel job that share one budget.
 *
 * In pipeline-parallel training every stage holds some of the layers, and the ranks of one stage
 * are its data-parallel group, with a communicator and a reducer of their own. With the schedule
 * 1F1B stage s of S ends its last backward pass before stage 0 does, and begins the next step
 * after it: between the two it has a window in which an exchange costs nothing. Micro-batches a, b,
 * forward in small letters, backward in large ones, S = 3:
 *
 *     stage 0   a b     A   B |exchange| a b
 *     stage 1     a b A   B |  exchange  | a b
 *     stage 2       a A b B |   exchange   | a b        <- the longest window
 *
 * So later stages get more of the entries: all together k = density * (parameters of all stages),
 * divided such that exchanges end as evenly as possible beyond their windows. No stage gets less
 * than half or more than twice its even share. Windows and speed are measured, not assumed.
 */
#ifndef TAMIS_PIPELINE_H
#define TAMIS_PIPELINE_H

#ifndef TAMIS_EXPERIMENTAL
#error "tamis/pipeline.h may still change: define TAMIS_EXPERIMENTAL before including it"
#endif

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_pipeline tamis_pipeline;

typedef struct tamis_pipeline_config {
    size_t size;
    uint32_t stage, nstages; /* of this rank; at most 16384 stages */
    uint32_t micro_batches;  /* per step */
    uint64_t length;         /* parameters of this stage, at most 2^32 - 2^16 */
    double density;          /* of all stages together, in (0, 1] */
} tamis_pipeline_config;

#define TAMIS_PIPELINE_CONFIG_INIT                                                                 \
    TAMIS_INIT(tamis_pipeline_config,                                                              \
               TAMIS_SET(nstages, 1) TAMIS_SET(micro_batches, 1) TAMIS_SET(density, 0.01))

/**
 * Describe the pipeline.
 *
 * Collective: over `world`, the communicator of all ranks of all stages, borrowed
 * Errors:     ARGUMENT, NOMEM, MISMATCH (stages, micro-batches or density differ; ranks of a stage
 *             give different lengths; a stage has no rank): nothing lost; else the comm
 */
TAMIS_CHECKED tamis_status tamis_pipeline_create(tamis_comm *world,
                                                 const tamis_pipeline_config *config,
                                                 tamis_pipeline **out);
TAMIS_API void tamis_pipeline_destroy(tamis_pipeline *pipeline);

/** What has just happened on this rank in its step. */
typedef enum tamis_mark {
    TAMIS_MARK_INPUT = 0,   /* the input of the step's first forward pass has arrived, also while
                               the exchange still runs; stage 0, which has its input always: its
                               first forward pass begins */
    TAMIS_MARK_BACKWARD = 1 /* the last backward pass of the step has ended */
} tamis_mark;

/** Note the time. Two calls per step; less than a microsecond. Errors: ARGUMENT, STATE (out of
 * turn). */
TAMIS_CHECKED tamis_status tamis_pipeline_mark(tamis_pipeline *pipeline, tamis_mark mark);

/**
 * Exchange what was measured since the last call, divide the budget anew, and set the density of
 * `reducer`, this stage's. Between steps; every few dozen steps are enough. Until three steps have
 * been measured everywhere, the densities stay even.
 *
 * Collective: over the world        Errors:  ARGUMENT, STATE, UNSUPPORTED (see
 *                                            tamis_reducer_set_density); else the comm
 */
TAMIS_CHECKED tamis_status tamis_pipeline_balance(tamis_pipeline *pipeline, tamis_reducer *reducer);

/** What is known of a stage, the same on all ranks. Means over ranks and steps measured; 0 until
 * then. */
typedef struct tamis_stage {
    size_t size;
    uint32_t nranks;
    uint64_t length;
    double density;     /* now: what config.density of its reducer must be at creation */
    double density_max; /* the most it can become: config.density_max */
    double window_s;    /* from its last backward pass to its next input: slack */
    double busy_s;      /* from its first input to the end of its last backward pass */
    double exchange_s;  /* of a step, as its reducers measured it */
    uint32_t straggler; /* world rank of the stage that was busy longest; UINT32_MAX: unknown */
    double straggler_s; /* by how much longer than the mean of the stage */
} tamis_stage;

#define TAMIS_STAGE_INIT TAMIS_INIT(tamis_stage, TAMIS_SET(straggler, UINT32_MAX))

/** Read what is known of a stage. Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_pipeline_stage_at(const tamis_pipeline *pipeline, uint32_t stage,
                                                   tamis_stage *out);

#ifdef __cplusplus
}
#endif

#endif
