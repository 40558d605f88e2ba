/* SPDX-License-Identifier: MIT
 *
 * Processes that come to a job that runs. A rank of it listens, and looks between steps who waits.
 * It then gathers for those whom it has offered a rank, as rank 0 of a star would:
 *
 *     newcomer                       rank that listens
 *     greeting   ---------------->
 *                <----------------   offer: which rank it is to be
 *     its bytes  ---------------->                             |  as often as
 *                <----------------   those of all ranks        |  tam_star_gather
 */
#ifndef TAM_TRANSPORT_NEWCOMERS_H
#define TAM_TRANSPORT_NEWCOMERS_H

#include "collectives/transport/star.h"

enum { TAM_NEWCOMERS = 32 }; /* that a rank takes in at once */

typedef struct tam_newcomers tam_newcomers;

/** What a newcomer is to be. */
typedef struct tam_offer {
    uint64_t magic;
    uint64_t left_ns;            /* until the attempt ends */
    uint32_t rank, nranks, nold; /* nold of them are there already */
    uint32_t member, nmembers;   /* of control (ucx_mesh.h) */
    uint32_t unused;
} tam_offer;

/* -- ranks of the job ------------------------------------------------------------------------- */

/** Listen (rendezvous.h). ARGUMENT, TRANSPORT, NOMEM. */
tamis_status tam_newcomers_open(const char *place, tam_newcomers **out);

/** Take those who have come, and forget those who have gone. @return how many wait */
uint32_t tam_newcomers_look(tam_newcomers *n);

/** Make an offer to each of those that the last look found. */
void tam_newcomers_offer(tam_newcomers *n, tam_offer first);

/** Bytes of each, [count * bytes]; zeros of those that do not give them in time, now or before. */
void tam_newcomers_take(tam_newcomers *n, void *bytes, size_t length, uint64_t until_ns);

/** Bytes for each, all the same. */
void tam_newcomers_give(tam_newcomers *n, void *bytes, size_t length, uint64_t until_ns);

/** End the connections of those who had an offer. */
void tam_newcomers_dismiss(tam_newcomers *n);

void tam_newcomers_close(tam_newcomers *n);

/* -- a newcomer ------------------------------------------------------------------------------- */

/** Come to a job and wait for its offer. ARGUMENT, NOMEM, TIMEOUT.
 * @param  star  [out]  for tam_star_gather, until the attempt ends */
tamis_status tam_newcomer_come(const char *place, uint64_t deadline_ns, tam_offer *offer,
                               tam_star *star);

#endif
