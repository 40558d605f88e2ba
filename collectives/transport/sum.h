/* SPDX-License-Identifier: MIT
 *
 * The sum of transports that only gather: chunk by chunk, added here in rank order. Costs
 * nranks / 2 times the bytes of a sum whose slices have owners.
 */
#ifndef TAM_TRANSPORT_SUM_H
#define TAM_TRANSPORT_SUM_H

#include "lib/base/base.h"
#include "lib/base/transport.h"

/** All-gather of one chunk; *out: what came, rank after rank, in memory of the transport. */
typedef tamis_status (*tam_gather_chunk)(void *self, const void *send, size_t bytes,
                                         const void **out, tam_call *call);

/** As tam_transport.allreduce_sum. @param chunk  floats that a rank gives at a time */
tamis_status tam_sum_by_gather(tam_gather_chunk gather, void *self, uint32_t nranks, size_t chunk,
                               float *values, size_t count, tam_call *call);

#endif
