/* SPDX-License-Identifier: MIT
 *
 * Calibrates the costs of messages on a communicator: once in its life, the same on all ranks.
 */
#ifndef TAM_TRANSPORT_CALIBRATE_COSTS_H
#define TAM_TRANSPORT_CALIBRATE_COSTS_H

#include "collectives/transport/comm.h"

typedef struct tam_cost_calibration tam_cost_calibration;

enum {
    TAM_COST_GATHERS = 3,
    TAM_COST_GATHERED_MOST = 1 << 23 /* bytes of all ranks in one all-gather */
};

/** Bytes that each of so many ranks gives in the all-gathers that are measured: 128, 4096 and 2^17
 * up to 64 ranks, then less, so that memory does not grow. At 65536 ranks they are 8, 32, 128. */
void tam_calibrate_costs_gathers(uint32_t nranks, size_t sizes[TAM_COST_GATHERS]);

/** Allocate all memory, before the ranks agree to measure. */
tamis_status tam_calibrate_costs_open(const tamis_comm *comm, tam_cost_calibration **out);

/** Before the communicator is destroyed. Memory that an unfinished measurement may still use is not
 * freed. NULL is fine. */
void tam_calibrate_costs_close(tam_cost_calibration *meter);

/**
 * Fill comm->costs: sums of 32 to 2^22 floats, all-gathers of tam_calibrate_costs_gathers and
 * passes over 2^14 to 2^22 elements, up to 35 times each, in rounds. The time of a repetition is
 * that of the slowest rank, the time of a size the median of its repetitions: that is what a step
 * sees. It ends after 80 ms on the slowest rank, and begins nothing that is expected to exceed
 * them. A size that was not measured yet is left out if it would take more than a quarter of the
 * time left, except for the first two of each kind. All ranks do the same, as they decide by shared
 * numbers.
 *
 * Where there was time for fewer than three repetitions, or a curve does not grow, sums and gathers
 * are those of the communicator's stages over a link that fits what was measured, passes are as
 * usual. If not even its rate was to be seen, rank 0 says so at level warn.
 *
 * Collective: yes        Errors: the comm's
 */
tamis_status tam_calibrate_costs_run(tam_cost_calibration *meter, tamis_comm *comm);

#endif
