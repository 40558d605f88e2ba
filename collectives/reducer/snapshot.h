/* SPDX-License-Identifier: MIT
 *
 * Control of a reducer at one time: all that determines the next step, except residual and moments.
 * A state holds two snapshots, the current one and the one before the last step (rollback.h).
 *
 *     | position | a row per bucket | levels: double[groups] | parts |
 *
 * Parts, for every bucket: with ownership balanced, the blocks of each part, uint64[ranks]; then
 * what its exchange remembers, if anything.
 */
#ifndef TAM_REDUCER_SNAPSHOT_H
#define TAM_REDUCER_SNAPSHOT_H

#include "collectives/reducer/reducer.h"

/** The position in a run. */
typedef struct tam_run_position {
    uint64_t step, steps, rescans_total, wire_bytes_total;
    double density;
    uint64_t has_norms;
    tam_norm_matching norm_matching;
    tam_slowdown slowdown;
} tam_run_position;

/** Groups whose levels are kept; scheme dense keeps none. */
uint64_t tam_snapshot_ngroups(const tamis_reducer *r);

/** Bytes of a snapshot of such a reducer with `ngroups` groups, made by `nranks` ranks. */
size_t tam_snapshot_bytes(const tamis_reducer *r, uint64_t ngroups, uint32_t nranks);

/** @param between   [in]   no step is under way
 *  @param snapshot  [out]  8-byte aligned */
void tam_snapshot_pack(const tamis_reducer *r, bool between, void *snapshot);

/** Whether a step may have the density, as tamis_reducer_set_density allows. */
bool tam_snapshot_can_send(const tamis_reducer *r, double density);

/** Check a snapshot made by as many ranks as here. FORMAT: "where: why". */
tamis_status tam_snapshot_check(const tamis_reducer *r, const void *snapshot, const char *where);

/** Take a sound one. @param foreign  it was made by another number of ranks */
void tam_snapshot_take(tamis_reducer *r, const void *snapshot, uint64_t ngroups, bool foreign);

/** After that, as the reducer is elsewhere in the run: forget times, reload the device. DEVICE. */
tamis_status tam_snapshot_resume(tamis_reducer *r);

/** Return to the snapshot of a step ago. Entries that micro-batches dropped since stay counted.
 * @param snapshot  [in,out]  sound */
tamis_status tam_snapshot_return(tamis_reducer *r, void *snapshot);

#endif
