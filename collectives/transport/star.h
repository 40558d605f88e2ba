/* SPDX-License-Identifier: MIT
 *
 * Ranks find each other over TCP, where nothing else brings them together: rank 0 listens at an
 * address that all know, the others connect, and what they gather goes through rank 0. For a few
 * kilobytes, once.
 */
#ifndef TAM_TRANSPORT_STAR_H
#define TAM_TRANSPORT_STAR_H

#include "lib/base/base.h"

enum { TAM_STAR_MOST = 1 << 20 }; /* ranks */

typedef struct tam_star {
    uint32_t rank, nranks;
    uint64_t deadline_ns; /* of all that it does */
    int *sockets;         /* [nranks], of rank 0; the others have sockets[0]. -1: none */
} tam_star;

/** Collective. Connections that do not say what a rank says are closed, and no rank waits for them.
 * @param  address  where rank 0 listens (rendezvous.h)
 * @return          ARGUMENT, NOMEM; MISMATCH: ranks say different numbers of ranks; TIMEOUT: a rank
 *                  did not come, which rank 0 names; TRANSPORT */
tamis_status tam_star_open(const char *address, uint32_t rank, uint32_t nranks,
                           uint64_t deadline_ns, tam_star *out);

/** As tamis_callbacks.allgather; the context is a tam_star. */
tamis_status tam_star_gather(void *context, const void *send, void *recv, size_t bytes);

void tam_star_close(tam_star *star);

/** Which rank this process is, and of how many, as launchers say it. UNSUPPORTED: none does. */
tamis_status tam_star_place(uint32_t *rank, uint32_t *nranks);

#endif
