/* SPDX-License-Identifier: MIT
 *
 * Joules of a bench program. There is one meter per process: local ranks are threads and share the
 * first rank's.
 */
#ifndef TAMIS_BENCH_ENERGY_H
#define TAMIS_BENCH_ENERGY_H

#include <jansson.h>
#include <stdatomic.h>
#include <tamis/energy.h>

#include "bench/common/group.h"

typedef struct bench_energy_files {
    const char *log;       /* JSON Lines, of the first rank; others append ".rankR". NULL: none */
    const char *intensity; /* CSV "time,g_per_kwh"; NULL: unknown */
} bench_energy_files;

typedef struct bench_energy {
    tamis_energy *meter;
    bench_group *group;
    struct bench_energy *first;             /* local ranks: that of rank 0 */
    atomic_uint_fast64_t ended, wire_bytes; /* there: steps of all, and bytes still to be counted */
    tamis_energy_totals earlier;            /* of the run that this one continues */
    char log[4096];                         /* of this rank; "": none */
} bench_energy;

/** Begin to count joules. Collective, like all below. */
void bench_energy_open(bench_group *group, const bench_energy_files *files, bench_energy *out);
void bench_energy_close(bench_energy *e); /* ends all ranks if the log is not complete */

/** A step of this rank has ended. Ranks that share a meter count it once, with the bytes of all.
 * Nothing waits for the others. */
void bench_energy_step(bench_energy *e, const tamis_stats *stats);

/** Joules of all ranks since open, each counter once; waits for the counters to tick. `wire_bytes`
 * is the sum over ranks. */
void bench_energy_totals(bench_energy *e, tamis_energy_totals *out);

/** The totals as last read, without waiting. */
void bench_energy_totals_now(bench_energy *e, tamis_energy_totals *out);

/** Microjoules of all ranks since open, as last read; does not wait.
 * @return whether anything could be measured */
bool bench_energy_peek(bench_energy *e, int64_t *out_uj);

/** This run continues one that ended with these totals. */
void bench_energy_resume(bench_energy *e, const tamis_energy_totals *earlier);

/**
 * Add to a record:
 *
 *     energy_j        all that could be measured, since open and in the runs that this one
 *                     continues; null: nothing, energy_reason says why
 *     energy_reason   what could not be measured; null: nothing is missing
 *     energy          null, or {step_j: (joules of this run - those of `apart`) / steps, phases:
 *                     {NAME: {j, low_j, high_j (95 % interval), s, method, with: [phases that
 *                     cannot be separated from it]}}, unattributed_j, pj_per_bit: joules of
 *                     exchange / bits sent by all ranks, co2_g or null}
 *
 * @param steps       of each rank
 * @param apart       a phase that is not part of a step; TAMIS_ENERGY_PHASES: none
 * @param user_names  names of the phases from TAMIS_ENERGY_USER on; ends with NULL
 */
void bench_energy_add(const bench_energy *e, const tamis_energy_totals *totals, double steps,
                      uint32_t apart, const char *const *user_names, json_t *record);

#endif
