/* SPDX-License-Identifier: MIT
 *
 * tamis/pipeline.h - stages of a pipeline-parallel job that share one budget.
 *
 * In pipeline-parallel training every stage holds some of the layers. The ranks of one stage are a
 * data-parallel group, with a communicator and a reducer of their own. In a 1F1B schedule, every
 * later stage ends its last backward pass before stage 0 does and begins the next step after it.
 * In the window between the two, an exchange costs nothing. Two micro-batches a and b, forward
 * passes in small letters, backward passes in capitals, three stages:
 *
 *     stage 0   a b     A   B |exchange| a b
 *     stage 1     a b A   B |  exchange  | a b
 *     stage 2       a A b B |   exchange   | a b        <- the longest window
 *
 * So later stages may send more entries. All stages together send k = density * (parameters of all
 * stages), divided so that the exchanges overrun their windows as evenly as possible. No stage gets
 * less than half of its even budget, or more than that and the mean budget. Windows and speed are
 * measured, not assumed.
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
 *             give different lengths; a stage has no rank): nothing is lost. All else: the comm
 */
TAMIS_CHECKED tamis_status tamis_pipeline_create(tamis_comm *world,
                                                 const tamis_pipeline_config *config,
                                                 tamis_pipeline **out);
TAMIS_API void tamis_pipeline_destroy(tamis_pipeline *pipeline);

/** An event within a step on this rank. */
typedef enum tamis_mark {
    TAMIS_MARK_INPUT = 0,   /* the input of the step's first forward pass has arrived, perhaps
                               while the exchange still runs; on stage 0, which always has its
                               input: the first forward pass begins */
    TAMIS_MARK_BACKWARD = 1 /* the last backward pass of the step has ended */
} tamis_mark;

/** Record the time of an event. Two calls per step, each under a microsecond. Errors: ARGUMENT,
 * STATE (out of turn). */
TAMIS_CHECKED tamis_status tamis_pipeline_mark(tamis_pipeline *pipeline, tamis_mark mark);

/**
 * Exchange the measurements since the last division, divide the budget anew, and set the density of
 * this stage's `reducer`. Call it between steps; every few dozen steps is enough. Until every rank
 * has measured three steps, densities stay as they are: even, at first.
 *
 * Collective: over the world        Errors:  ARGUMENT, STATE, UNSUPPORTED (see
 *                                            tamis_reducer_set_density); all else: the comm
 */
TAMIS_CHECKED tamis_status tamis_pipeline_balance(tamis_pipeline *pipeline, tamis_reducer *reducer);

/** What is known of a stage, the same on all ranks. Times are means over its ranks and the measured
 * steps; 0 before any are known. */
typedef struct tamis_stage {
    size_t size;
    uint32_t nranks;
    uint64_t length;
    double density;     /* now; create its reducer with this config.density */
    double density_max; /* the most it can become; create it with this config.density_max */
    double window_s;    /* slack: from its last backward pass to its next input */
    double busy_s;      /* from its first input to the end of its last backward pass */
    double exchange_s;  /* of a step, as its reducers measured it */
    uint32_t straggler; /* world rank, within the stage, busy longest; UINT32_MAX: unknown */
    double straggler_s; /* how much longer than the mean of the stage */
} tamis_stage;

#define TAMIS_STAGE_INIT TAMIS_INIT(tamis_stage, TAMIS_SET(straggler, UINT32_MAX))

/** Read what is known of a stage. Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_pipeline_stage_at(const tamis_pipeline *pipeline, uint32_t stage,
                                                   tamis_stage *out);

#ifdef __cplusplus
}
#endif

#endif
