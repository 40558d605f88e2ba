/* SPDX-License-Identifier: MIT
 *
 * How a transport is made with the help of another communicator: every rank says how it fares, so
 * that all go on or none does.
 */
#ifndef TAM_TRANSPORT_BOOTSTRAP_H
#define TAM_TRANSPORT_BOOTSTRAP_H

#include "collectives/transport/consensus.h"

enum { TAM_TOKEN_BYTES = 128 };

/**
 * Collective over `bootstrap`, on its records, so that a rank without memory can say so.
 *
 * @param  call    [in]      the public call that makes it
 * @param  status  [in]      how this rank fares; if badly, tamis_last_error is what it
 *                           tells the others and should name this rank
 * @param  token   [in,out]  unsigned char[TAM_TOKEN_BYTES]; rank 0's for all
 * @return OK if all ranks are well, else the same status on all: of a rank that failed by itself
 *         rather than of one that waited in vain
 */
tamis_status tam_bootstrap(tamis_comm *bootstrap, const char *call, tamis_status status,
                           void *token);

#endif
