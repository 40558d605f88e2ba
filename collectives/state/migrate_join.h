/* SPDX-License-Identifier: MIT
 *
 * What newcomers to a job get when a reducer migrates, and what ranks have in common afterwards.
 */
#ifndef TAM_STATE_MIGRATE_JOIN_H
#define TAM_STATE_MIGRATE_JOIN_H

#include "collectives/state/state.h"

/** Whether this rank is one: its reducer is of no communicator of the job that it has joined. */
bool tam_migrate_joins(const tamis_reducer *r, const tamis_comm *other);

/**
 * Collective over the communicator of the reducers, which have migrated: control and moments.
 *
 * @param  nold    ranks with a state, the first ones; the others are newcomers
 * @param  mixed   these come from different communicators
 * @param  own     of this rank so far; with a failure it takes part all the same
 * @param  vector  [residual_length] scratch
 */
tamis_status tam_migrate_join(tamis_reducer *r, uint32_t nold, bool mixed, tamis_status own,
                              float *vector);

#endif
