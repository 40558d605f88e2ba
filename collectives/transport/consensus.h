/* SPDX-License-Identifier: MIT
 *
 * The records of a communicator: all ranks show each other a few words and judge them alike. It is
 * memory of the communicator, so that a rank without any left can still say so, and so that what
 * outlives its call stays allocated.
 */
#ifndef TAM_TRANSPORT_CONSENSUS_H
#define TAM_TRANSPORT_CONSENSUS_H

#include "collectives/transport/comm.h"

/** What every rank's entry begins with. */
typedef struct tam_consensus_head {
    uint64_t status; /* of this rank so far */
    char call[32];   /* the public call that it is in, "tamis_..."; rounds of one call look alike */
} tam_consensus_head;

/** Looks at what all ranks show, and at nothing else; the same answer on all of them. */
typedef tamis_status (*tam_consensus_judge)(const unsigned char *records, uint32_t nranks);

/**
 * Show what this rank has, see what the others have, judge. Ranks that are in different calls all
 * get TAMIS_E_MISMATCH with the names of both; what a rank sends in a step is no entry of a records
 * and gives TAMIS_E_PROTOCOL.
 *
 * @param  mine         [in]  begins with a tam_consensus_head
 * @param  bytes        [in]  at most TAM_RECORD_BYTES
 * @param  deadline_ns  [in]  as of a job
 * @return                    this rank's own failure, with its sentence; else that of the exchange;
 *                            else what `judge` says. comm->records then holds what was shown
 */
tamis_status tam_consensus_run(tamis_comm *comm, const void *mine, size_t bytes,
                               tam_consensus_judge judge, uint64_t deadline_ns);

/** For judges: the first failure, "rank 2 could not <what>: TAMIS_E_NOMEM". */
tamis_status tam_consensus_failure(const unsigned char *records, uint32_t nranks, const char *what);

static inline const void *tam_consensus_record(const unsigned char *records, uint32_t rank) {
    return records + (size_t)rank * TAM_RECORD_BYTES;
}

#endif
