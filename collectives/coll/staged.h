/* SPDX-License-Identifier: MIT
 *
 * A transport made of a wire: its collectives in the stages of a plan, and the waits between them.
 */
#ifndef TAM_COLL_STAGED_H
#define TAM_COLL_STAGED_H

#include "collectives/coll/coll.h"

typedef struct tam_staged {
    tam_coll coll;
    void *self;              /* of the wire */
    uint32_t ranks_per_node; /* that were found */
} tam_staged;

/** Takes ownership of `self`, even on failure. With more than 8 ranks, all find out together which
 * of them share hosts, and take a plan that exchanges inside nodes first.
 * @param  deadline_ns  for that; 0: they do not look */
tamis_status tam_staged_open(const tam_wire *wire, void *self, uint32_t rank, uint32_t nranks,
                             uint64_t deadline_ns, tam_staged **out);

/* Entries of a tam_transport whose `self` is a tam_staged. An empty run is no message: a run where
 * its receiver expects none is refused in their next call, as one of another call. */
tamis_status tam_staged_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                  tam_call *call);
tamis_status tam_staged_sum(void *arg, float *values, size_t count, tam_call *call);
tamis_status tam_staged_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                 const size_t *recv_at, tam_call *call);
void tam_staged_abort(void *arg);
void tam_staged_close(void *arg, int clean);

#endif
