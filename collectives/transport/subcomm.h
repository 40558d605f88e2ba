/* SPDX-License-Identifier: MIT
 *
 * A sub-communicator: some ranks of a transport, as a transport of their own. With N nodes of G
 * ranks each, numbered node after node, there are two kinds: intra-node groups and inter-node
 * groups. Two nodes of two ranks:
 *
 *     intra     | 0 1 | 2 3 |        first a G, stride 1, G members
 *     inter     | 0 2 | 1 3 |        first g, stride G, N members
 *
 * A call of a sub-communicator is a fixed number of all-to-alls of the whole transport, in which a
 * rank sends nothing to ranks outside of it. So no byte is sent needlessly, and deadlines, poison
 * and faults are those of the transport. Parts of a sum carry checksums, for a damaged part would
 * make a sum that is wrong but the same on all ranks. In some transports a call is a barrier for
 * all ranks, so all sub-communicators of one kind must make the same calls in the same order. Their
 * counts may differ.
 */
#ifndef TAM_TRANSPORT_SUBCOMM_H
#define TAM_TRANSPORT_SUBCOMM_H

#include "lib/contracts/transport.h"

#include <stdbool.h>

typedef struct tam_subcomm {
    const tam_transport *transport; /* the whole one, of the last link */
    void *self;
    uint32_t first, stride, count; /* member i is rank first + i * stride */
    uint32_t member, nranks;       /* this rank's number in it; ranks of the transport */
    size_t *send_at, *recv_at;     /* [nranks + 1] runs for all ranks of the transport */
    size_t *shards;                /* [2 * (count + 1)] runs for the members */
    char *memory;                  /* [bytes] */
    size_t bytes;
} tam_subcomm;

/** Bytes of memory that sums of `count` values need. */
size_t tam_subcomm_sum_bytes(size_t count, uint32_t nmembers);

/** Set first, stride, count, member, nranks and bytes before. The memory must hold sums, and
 * `count` copies of what a member gathers. */
tamis_status tam_subcomm_open(tam_subcomm *out);

/** @param in_flight  the transport may still use its buffers, which are not freed */
void tam_subcomm_close(tam_subcomm *subcomm, bool in_flight);

/** The sub-communicator as a link, whose byte count continues that of the whole. */
tam_link tam_subcomm_link(tam_subcomm *subcomm, const tam_link *whole);

#endif
