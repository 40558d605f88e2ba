/* SPDX-License-Identifier: MIT
 *
 * The way back: what a rank needs to take back the last step it applied. If the last exchange of a
 * step fails on one rank alone, the others apply the step and that rank does not; afterwards all
 * ranks return to its step (align.c).
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
 * so nothing is lost. A step with more entries than there is room for has no way back.
 */
#ifndef TAM_REDUCER_UNDO_H
#define TAM_REDUCER_UNDO_H

#include "collectives/reducer/reducer.h"

/** Whether there is a way back, or why not. */
typedef enum tam_way {
    TAM_WAY_NONE, /* no step was applied, or a device ran it */
    TAM_WAY_BACK,
    TAM_WAY_LONG,    /* the step had more entries than the record has room for */
    TAM_WAY_DROPPED, /* entries were dropped that the record does not hold */
    TAM_WAY_TAKEN,   /* the step was taken back */
    TAM_WAYS
} tam_way;

struct tam_undo {
    uint64_t way;
};

/** Bytes of the record. */
size_t tam_undo_bytes(const tamis_reducer *r);
/** When all buckets are open. NOMEM. */
tamis_status tam_undo_open(tamis_reducer *r);

/** The control part of the record. */
void *tam_undo_snapshot(const tamis_reducer *r);

/** Write the record: all buckets were exchanged, and nothing of the step is applied yet. */
tamis_status tam_undo_record(tamis_reducer *r);
/** Entries of the bucket's union were dropped: drop their rounding errors too. */
void tam_undo_drop(tam_bucket *b);
/** The step is skipped after all: only dropped entries, 0 by now, have left the residual. */
tamis_status tam_undo_skip(tamis_reducer *r);
/** There is no way back from this step. */
void tam_undo_lose(tamis_reducer *r, tam_way why);
/** A pass has multiplied a bucket's residual by `decay` and then added to it. */
void tam_undo_pass(tam_bucket *b, float decay);

/** Whether a state's record is sound, given that its control part is. */
bool tam_undo_valid(const tamis_reducer *r, const void *record);

/** Whether the reducer can go to the step before its own. */
tam_way tam_undo_way(const tamis_reducer *r);
/** Most entries of a list. */
size_t tam_undo_capacity(const tamis_reducer *r);
/** Take the last step back. @param scratch  float[tam_undo_capacity]. DEVICE: the reducer is
 * lost */
tamis_status tam_undo_go_back(tamis_reducer *r, float *scratch);

#endif
