/* SPDX-License-Identifier: MIT
 *
 * Rollback: what a rank needs to roll back its last applied step. If the last exchange of a
 * step fails on one rank alone, the others apply the step and that rank does not; afterwards all
 * ranks return to its step (resync.c).
 *
 * A record of fixed size, in host memory, with the same layout as in a state:
 *
 *     | header | snapshot: control as it was before the step | a list per bucket |
 *
 *     list   | count, passes, decay, keep | indices | values | kept | masked |
 *
 * values: what the residual held at these indices before the step was applied; kept: the rounding
 * errors left there; masked: moments that were cleared there (rule momentum only). The next step
 * adds to the residual before it can fail, and so may micro-batches. Then
 *
 *     no pass since     residual[i] = values[i]                                     the same bits
 *     passes since      residual[i] += decay * (values[i] - kept[i])         decay: of all of them
 *
 * so nothing is lost. A step with more entries than the record has room for, as after a gradient
 * that grew many times, is recorded in a list beside it, which states leave out: a run that goes on
 * can roll it back, one that loads a state cannot.
 */
#ifndef TAM_REDUCER_ROLLBACK_H
#define TAM_REDUCER_ROLLBACK_H

#include "collectives/reducer/reducer.h"

/** Whether the last step can be rolled back, or why not. */
typedef enum tam_rollback_state {
    TAM_ROLLBACK_NONE, /* no step was applied, or a device ran it */
    TAM_ROLLBACK_POSSIBLE,
    TAM_ROLLBACK_TOO_LONG, /* the step had more entries than a state, or memory, has room for */
    TAM_ROLLBACK_DROPPED,  /* entries were dropped that the record does not hold */
    TAM_ROLLBACK_DONE,     /* it has been rolled back */
    TAM_ROLLBACK_STATES
} tam_rollback_state;

struct tam_rollback {
    uint64_t state; /* a tam_rollback_state */
};

/** Bytes of the record. */
size_t tam_rollback_bytes(const tamis_reducer *r);
/** When all buckets are open. NOMEM. */
tamis_status tam_rollback_open(tamis_reducer *r);

/** The control part of the record. */
void *tam_rollback_snapshot(const tamis_reducer *r);

/** Write the record: all buckets were exchanged, and nothing of the step is applied yet. */
tamis_status tam_rollback_record(tamis_reducer *r);
/** Entries of the bucket's union were dropped: drop their rounding errors too. */
void tam_rollback_drop(tam_bucket *b);
/** The step is skipped after all: only dropped entries, 0 by now, have left the residual. */
tamis_status tam_rollback_skip(tamis_reducer *r);
/** This step cannot be rolled back. */
void tam_rollback_invalidate(tamis_reducer *r, tam_rollback_state why);
/** A pass has multiplied a bucket's residual by `decay` and then added to it. */
void tam_rollback_pass(tam_bucket *b, float decay);

/** The record of a state. */
void tam_rollback_pack(const tamis_reducer *r, void *record);
void tam_rollback_take(tamis_reducer *r, const void *record, size_t bytes);

/** Whether a state's record is sound, given that its control part is. */
bool tam_rollback_valid(const tamis_reducer *r, const void *record);

/** Whether the reducer can go to the step before its own. */
tam_rollback_state tam_rollback_state_of(const tamis_reducer *r);
/** Entries that a list has room for, at most. */
size_t tam_rollback_capacity(const tamis_reducer *r);
void tam_rollback_close(tamis_reducer *r);
/** Roll the last step back. @param scratch  float[tam_rollback_capacity]. DEVICE: the reducer is
 * lost */
tamis_status tam_rollback_run(tamis_reducer *r, float *scratch);

#endif
