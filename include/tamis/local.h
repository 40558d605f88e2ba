/* SPDX-License-Identifier: MIT
 *
 * tamis/local.h - local steps: ranks train alone for H steps, then exchange what they have changed.
 *
 *     tamis_local_config lc = TAMIS_LOCAL_CONFIG_INIT;
 *     tamis_reducer_config rc = TAMIS_REDUCER_CONFIG_INIT;
 *     tamis_local_preset("diloco", &rc, &lc);
 *     tamis_reducer_create(comm, layout, &rc, &reducer);
 *     tamis_local_create(reducer, params, &lc, &local);      params: the same on all ranks
 *     for (;;) {
 *         ... backward; the rank's own optimizer changes params ...
 *         tamis_local_step(local, params);                   every H-th call exchanges
 *     }
 *
 * A round, on every rank:
 *
 *     d       = base - params                 what H local steps have changed, an outer gradient
 *     mean    = what the reducer makes of d   any scheme, density, value codec; error feedback
 *     m       = momentum m + mean             the outer optimizer: SGD with Nesterov momentum
 *     base   -= lr (mean + momentum m)        the same bits on all ranks
 *     params  = base
 *
 * What the scheme does not send stays in the reducer's residual and is sent in a later round. With
 * a delay of D steps the exchange runs beside the next D local steps. The base then moves when it
 * has ended, and params keep what these steps have changed:
 *
 *     params  = base + (params - what they were when the exchange began)
 *
 * Fragments    Exchanging a model in parts, in turn, makes traffic even. Each part is a reducer
 *              with a tamis_local of its own; give the i-th of F the offset i * H / F.
 * Optimizers   Moments of the rank's own optimizer stay on the rank.
 * Threads      One at a time per communicator.
 * Memory       float32[n] for the base and for d; with momentum one more, with a delay one more.
 * Sources      Local SGD (arXiv 1805.09767); DiLoCo (arXiv 2311.08105); delay and fragments:
 *              Streaming DiLoCo (arXiv 2501.18512); SparseLoCo (arXiv 2508.15706).
 */
#ifndef TAMIS_LOCAL_H
#define TAMIS_LOCAL_H

#ifndef TAMIS_EXPERIMENTAL
#error "tamis/local.h may still change: define TAMIS_EXPERIMENTAL before including it"
#endif

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_local tamis_local;

/** All ranks must give the same values. */
typedef struct tamis_local_config {
    size_t size;
    uint32_t steps;     /* H: local steps of a round, 1 to 2^20 */
    uint32_t steps_max; /* the most that wait_share may make of it; 0: 16 * steps */
    uint32_t delay;     /* local steps beside an exchange, at most `steps` */
    uint32_t offset;    /* the first round is so many steps shorter: fragments; less than `steps` */
    double lr;          /* outer, over 0, at most 100; computed in float32, as */
    double momentum;    /* outer, in [0, 1); 0: plain SGD */
    double wait_share;  /* H follows what is measured, so that ranks spend at most this share of
                           their time waiting in tamis_local_step; under 1. 0: H stays, and all
                           runs give the same bits */
} tamis_local_config;

#define TAMIS_LOCAL_CONFIG_INIT                                                                    \
    TAMIS_INIT(tamis_local_config, TAMIS_SET(steps, 16) TAMIS_SET(lr, 0.7) TAMIS_SET(momentum, 0.9))

/** A published form of local steps. */
typedef struct tamis_local_preset_info {
    size_t size;
    const char *name;    /* "diloco", "sparseloco" */
    uint32_t steps;      /* of tamis_local_config */
    double lr, momentum; /* outer */
    const char *scheme;  /* of tamis_reducer_config, as the following */
    double density;
    tamis_value_codec value_codec;
    double residual_decay;
    const char *source;
} tamis_local_preset_info;

#define TAMIS_LOCAL_PRESET_INFO_INIT TAMIS_INIT(tamis_local_preset_info, )

/** The index-th preset. @return 0 past the end, else 1. */
TAMIS_API int tamis_local_preset_list(size_t index, tamis_local_preset_info *out);

/**
 * Set what a preset consists of in both configurations, which were set by their _INIT macros; all
 * else stays.
 *
 * Errors:     ARGUMENT (the sentence lists the presets): no effect
 */
TAMIS_CHECKED tamis_status tamis_local_preset(const char *name, tamis_reducer_config *reducer,
                                              tamis_local_config *local);

/**
 * Begin: the base becomes params, which must be the same on all ranks; the ranks compare.
 *
 * The reducer is borrowed and must outlive the handle; from here on only tamis_local_step steps it.
 * It exchanges float32 on the CPU with dense output and op mean; not with an update, rows, exchange
 * auto, or ranks_per_node (a group of ranks with fast links: let it train as one, and make a
 * communicator of one rank of each group).
 *
 * Collective: yes
 * Shape:      params: one pointer per segment of the reducer's layout, float32[its length], finite;
 *             no two overlap
 * Errors:     ARGUMENT, STATE (a step is under way), NOMEM, UNSUPPORTED, MISMATCH: nothing is lost;
 *             all else: the comm
 */
TAMIS_CHECKED tamis_status tamis_local_create(tamis_reducer *reducer, float *const *params,
                                              const tamis_local_config *config, tamis_local **out);

/** Waits for an exchange under way. Before the reducer is destroyed. NULL is fine. */
TAMIS_API void tamis_local_destroy(tamis_local *local);

/**
 * A local step was made. Call it after every optimizer step.
 *
 * Without a delay every H-th call exchanges and sets params to the new base. With a delay it begins
 * an exchange, and the D-th call after it collects the result. All other calls only count.
 *
 * If a round fails, what this rank has changed is not lost. It is in the reducer's residual, and
 * params are the base, less what steps beside the exchange have changed; or, with a scheme that
 * keeps no residual, a failed exchange leaves params as they are, and the next round includes it.
 * An exception is a round with NaN or Inf and scheme dense: its changes are lost on all ranks, as
 * dense loses such a gradient. With H = delay a call that reports a lost round has begun the next.
 *
 * Collective: those calls that begin or end an exchange: the same on all ranks. The ranks compare
 *             configuration, position and the bits of the base before anything is applied
 * Shape:      params as for create, the same memory or another
 * Cost:       2 to 3 passes over the vectors and the reducer's step; nothing in other calls
 * Errors:     ARGUMENT: the step does not count. MISMATCH: the round waits for the next call.
 *             NONFINITE: the round; on all ranks. All else as tamis_reducer_start and
 *             tamis_reducer_wait. tamis_local_stats counts lost rounds
 */
TAMIS_CHECKED tamis_status tamis_local_step(tamis_local *local, float *const *params);

/**
 * Change H from here on: at least the delay, at least 1. With wait_share it goes on from there, and
 * forgets what it measured.
 *
 * Collective: all ranks must ask the same after the same step; the next round notices if not
 * Errors:     ARGUMENT: no effect
 */
TAMIS_CHECKED tamis_status tamis_local_set_steps(tamis_local *local, uint32_t steps);

/**
 * The base, float32[n] in the order of the layout: the same bits on all ranks. It, and not params,
 * is the model of a run: evaluate and publish it.
 *
 * Lifetime:   of the handle; changes in tamis_local_step      Errors:  ARGUMENT
 */
TAMIS_CHECKED tamis_status tamis_local_base(const tamis_local *local, const float **out);

typedef struct tamis_local_stats {
    size_t size;
    uint64_t rounds;           /* applied */
    uint64_t lost_rounds;      /* that failed: their exchange, or for NaN or Inf */
    uint32_t steps;            /* H now */
    uint32_t position;         /* local steps since the last exchange began */
    uint32_t under_way;        /* 1: an exchange was begun and is not collected */
    uint64_t wire_bytes_total; /* sent by this rank: exchanges and comparisons */
    double density;       /* entries in the result of the last exchange / n; 0: none was applied */
    double outer_norm;    /* L2 norm of the last change of the base */
    double drift_norm;    /* of the last d of this rank */
    double step_s;        /* mean time of a local step, last round: of this rank */
    double wait_s;        /* time in tamis_local_step, last round */
    double waiting_share; /* of the ranks' time, last round; 0: unknown */
} tamis_local_stats;

#define TAMIS_LOCAL_STATS_INIT TAMIS_INIT(tamis_local_stats, )

/** Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_local_stats_read(const tamis_local *local, tamis_local_stats *out);

/*
 * State: base, momentum and position, and with a delay what is under way. The reducer, params and
 * the rank's own optimizer are saved separately, at the same step. A run then continues bit for
 * bit, except that measured times are forgotten.
 *
 * After an error that lost the communicator: save on all ranks. In a new one restore each rank's
 * reducer, tamis_reducer_resync, and restore its handle. Ranks that alone had applied a round went
 * back: their own state of the handle is refused as FORMAT, for the base has moved. Restore that of
 * a rank that had not applied it, and put
 *
 *     params += restored base - own base        (tamis_local_base before and after)
 *
 * What they had changed is in their residual again; with scheme dense, which has none, it is lost.
 * If no round was under way, the state of any rank serves for all, also for another number of
 * ranks; params of a new rank are the base.
 */

/** Bytes of the state, constant over the life of a handle. Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_local_bytes(const tamis_local *local, size_t *out);

/**
 * Write the state. Waits for an exchange under way, whose result is then part of the state. If that
 * fails, the next tamis_local_step that collects reports it; a handle that loads the state gives
 * back what the round has not taken, counts a lost round, and reports nothing. From there on both
 * go on with the same bits, also where H is the delay and that call begins the next round.
 *
 * @param  memory  [out]  any alignment
 * @param  bytes   [in]   from tamis_local_bytes
 *
 * Collective: no; with an exchange under way, as tamis_reducer_wait
 * Errors:     ARGUMENT
 */
TAMIS_CHECKED tamis_status tamis_local_save(tamis_local *local, void *memory, size_t bytes);

/**
 * Restore the state, after the reducer's. All is checked first.
 *
 * Collective: no, but all ranks must load the same step; the next round notices if they did not
 * Errors:     ARGUMENT, STATE (an exchange is under way), NOMEM, FORMAT (damaged; of another
 *             length, delay or rank, or with and without momentum; the reducer is at another
 *             step): no effect
 */
TAMIS_CHECKED tamis_status tamis_local_load(tamis_local *local, const void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
