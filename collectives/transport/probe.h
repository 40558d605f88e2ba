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

/** Before the communicator goes. What a measurement that never ended may still use stays. NULL is fine.
 */
void tam_probe_close(tam_probe *meter);

/**
 * Fill comm->costs. Sums of 32 to 2^20 floats and all-gathers of 128 to 2^17 bytes, sizes ascending, each
 * a few times, of which the shortest counts; of the ranks the slowest. A size that should take longer
 * than what is left of 80 ms, by the sizes before, is left out, on all ranks or none.
 *
 * Collective: yes        Errors: the comm's
 */
tamis_status tam_probe_run(tam_probe *meter, tamis_comm *comm);

#endif
