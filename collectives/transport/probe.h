/* SPDX-License-Identifier: MIT
 *
 * What messages take on a communicator, once in its life, agreed on by all ranks.
 */
#ifndef TAM_TRANSPORT_PROBE_H
#define TAM_TRANSPORT_PROBE_H

#include "collectives/transport/comm.h"

typedef struct tam_probe tam_probe;

/** Take the memory for it: before the ranks agree to measure. */
tamis_status tam_probe_open(const tamis_comm *comm, tam_probe **out);

/** Before the communicator goes. What a measurement that never ended may still use stays. NULL is
 * fine.
 */
void tam_probe_close(tam_probe *meter);

/**
 * Fill comm->costs: sums of 32 to 2^22 floats, all-gathers of 128 to 2^17 bytes and passes over
 * 2^14 to 2^22 elements, up to 35 times each, in rounds. A repetition counts as what it took the
 * slowest rank, a size as the median of its repetitions: that is what a step sees. It ends when 80
 * ms are over on the slowest rank, and begins nothing that is expected to take it further; sizes
 * that would take more than a quarter of what is left are left out. All ranks do the same, for all
 * goes by numbers that they share.
 *
 * Collective: yes        Errors: the comm's
 */
tamis_status tam_probe_run(tam_probe *meter, tamis_comm *comm);

#endif
