/* SPDX-License-Identifier: MIT
 *
 * Exact selection: from candidates, or else from the own tiles. Three ways find the same cutoff,
 * from the cheapest to the one that always works:
 *
 *     list      the candidates hold everything over a key that is below the k-th: select from it
 *     search    guess a threshold from a sample, search the own tiles for entries at or over it,
 *               select from it; up to three guesses
 *     scan      radix selection over the own tiles themselves, three reads, no list
 *
 * All give the same result: keys are compared as integers, ties go to the lowest index.
 */
#ifndef TAM_CPU_SELECT_H
#define TAM_CPU_SELECT_H

#include "kernels/cpu/kth.h"
#include "kernels/cpu/sweep.h"

typedef struct tam_select {
    tam_sweep *sweep;
    size_t capacity;           /* of keys and spare */
    uint32_t *keys, *spare;    /* [capacity] */
    uint32_t *thresholds;      /* [ngroups] of a search */
    uint32_t *last_thresholds; /* [ngroups] of the last accumulate: used by ALL */
    tam_cutoff *cutoffs;       /* [ngroups] */
} tam_select;

/** @param  sweep  [in]  borrowed; a search uses its lists, so a selection may overwrite the
 * candidates */
tamis_status tam_select_open(tam_sweep *sweep, tam_select *out);
void tam_select_close(tam_select *select);

/** As tam_device.select. */
void tam_select_run(tam_select *select, const tam_select_job *job, uint32_t *indices,
                    tam_select_result *out);

#endif
