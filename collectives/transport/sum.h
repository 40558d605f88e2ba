/* SPDX-License-Identifier: MIT
 *
 * What sums of several transports share, and what those make of it that only gather: the sum, chunk
 * by chunk, added here in rank order, which costs nranks / 2 times the bytes of a sum whose slices
 * have owners; and the all-to-all.
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

typedef struct tam_alltoall_scratch {
    size_t *begins; /* [nranks] */
    char *chunk;    /* [room] */
    size_t room;    /* bytes that a rank gives at a time, a multiple of 8 */
} tam_alltoall_scratch;

/** @return false: there is no memory; close takes what there is. */
bool tam_alltoall_scratch_open(uint32_t nranks, size_t room, tam_alltoall_scratch *out);
void tam_alltoall_scratch_close(tam_alltoall_scratch *scratch);

/** As tam_transport.alltoall, of ranks that only gather: what each has for all others goes to
 * everybody, so P - 1 times what is needed travels. */
tamis_status tam_alltoall_by_gather(tam_gather_chunk gather, void *self, uint32_t rank,
                                    uint32_t nranks, const tam_alltoall_scratch *scratch,
                                    const void *send, const size_t *send_at, void *recv,
                                    const size_t *recv_at, tam_call *call);

#endif
