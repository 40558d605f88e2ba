/* SPDX-License-Identifier: MIT
 *
 * Ranks that are at most one step apart: the step on which they agree, and how those ahead get
 * there.
 */
#ifndef TAM_STATE_RESYNC_H
#define TAM_STATE_RESYNC_H

#include "collectives/state/state.h"
#include "collectives/transport/handshake.h"

/** The begin of every rank's record. */
typedef struct tam_standing {
    tam_handshake_header header;
    uint64_t who; /* the reducer that the call is made for */
    uint64_t step, rollback;
} tam_standing;

/** For judges, once no rank has failed: the same reducer, at most one step apart, and able to roll
 * back where that is needed. MISMATCH, UNSUPPORTED. */
tamis_status tam_resync_judge(const unsigned char *records, uint32_t nranks);

/** The step on which they agree. */
uint64_t tam_resync_step(const unsigned char *records, uint32_t nranks);

/** Go there, at most one step back. @param scratch  float[tam_rollback_capacity]. DEVICE: the
 * reducer is lost */
tamis_status tam_resync_roll_back(tamis_reducer *r, uint64_t least, float *scratch);

#endif
