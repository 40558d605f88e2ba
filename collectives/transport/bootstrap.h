/* SPDX-License-Identifier: MIT
 *
 * How a transport is made with the help of another communicator: every rank shows its status, so
 * either all continue or none does.
 */
#ifndef TAM_TRANSPORT_BOOTSTRAP_H
#define TAM_TRANSPORT_BOOTSTRAP_H

#include "collectives/transport/handshake.h"

enum { TAM_TOKEN_BYTES = 128 };

/**
 * Collective over `bootstrap`, on its records, so that a rank without memory can report it.
 *
 * @param  call    [in]      the public call that makes it
 * @param  status  [in]      of this rank; after a failure tamis_last_error is shown to the others
 *                           and should name this rank
 * @param  token   [in,out]  unsigned char[TAM_TOKEN_BYTES]; becomes rank 0's on all
 * @return OK if no rank failed, else the same status on all: that of a rank with a failure of its
 *         own rather than of one that timed out waiting
 */
tamis_status tam_bootstrap(tamis_comm *bootstrap, const char *call, tamis_status status,
                           void *token);

#endif
