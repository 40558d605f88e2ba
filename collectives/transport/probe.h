/* SPDX-License-Identifier: MIT
 *
 * Measures how long messages take on a communicator: once in its life, the same on all ranks.
 */
#ifndef TAM_TRANSPORT_PROBE_H
#define TAM_TRANSPORT_PROBE_H

#include "collectives/transport/comm.h"

typedef struct tam_probe tam_probe;

/** Allocate all memory, before the ranks agree to measure. */
tamis_status tam_probe_open(const tamis_comm *comm, tam_probe **out);

/** Before the communicator is destroyed. Memory that an unfinished measurement may still use is not
 * freed. NULL is fine. */
void tam_probe_close(tam_probe *meter);

/**
 * Fill comm->costs: sums of 32 to 2^22 floats, all-gathers of 128 to 2^17 bytes and passes over
 * 2^14 to 2^22 elements, up to 35 times each, in rounds. The time of a repetition is that of the
 * slowest rank, the time of a size the median of its repetitions: that is what a step sees. It ends
 * after 80 ms on the slowest rank, and begins nothing that is expected to exceed them. A size that
 * was not measured yet is left out if it would take more than a quarter of the time left, except
 * for the first two of each kind. All ranks do the same, as they decide by shared numbers.
 *
 * Collective: yes        Errors: the comm's
 */
tamis_status tam_probe_run(tam_probe *meter, tamis_comm *comm);

#endif
