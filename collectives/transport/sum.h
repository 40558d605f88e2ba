/* SPDX-License-Identifier: MIT
 *
 * What the sums of several transports share, and for transports that only gather: an all-to-all,
 * and a sum that gathers chunk by chunk and adds on every rank (lib/base/tree.h). That sum costs
 * nranks / 2 times the bytes of one whose shards have owners.
 */
#ifndef TAM_TRANSPORT_SUM_H
#define TAM_TRANSPORT_SUM_H

#include "lib/base/base.h"
#include "lib/contracts/transport.h"

/** All-gather one chunk. *out: what arrived, rank after rank, in memory of the transport. */
typedef tamis_status (*tam_gather_chunk)(void *self, const void *send, size_t bytes,
                                         const void **out, tam_call *call);

/** As tam_transport.allreduce_sum. @param chunk  floats that a rank gives at a time */
tamis_status tam_sum_by_gather(tam_gather_chunk gather, void *self, uint32_t nranks, size_t chunk,
                               float *values, size_t count, tam_call *call);

typedef struct tam_alltoall_scratch {
    size_t *begins;  /* [nranks] */
    char *chunk;     /* [capacity] */
    size_t capacity; /* bytes that a rank gives at a time, a multiple of 8 */
} tam_alltoall_scratch;

/** @return false: no memory; close frees what there is. */
bool tam_alltoall_scratch_open(uint32_t nranks, size_t capacity, tam_alltoall_scratch *out);
void tam_alltoall_scratch_close(tam_alltoall_scratch *scratch);

/** As tam_transport.alltoall, by all-gathers: all that a rank sends goes to every rank, so P - 1
 * times the necessary bytes are sent. */
tamis_status tam_alltoall_by_gather(tam_gather_chunk gather, void *self, uint32_t rank,
                                    uint32_t nranks, const tam_alltoall_scratch *scratch,
                                    const void *send, const size_t *send_at, void *recv,
                                    const size_t *recv_at, tam_call *call);

#endif
