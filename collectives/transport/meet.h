/* SPDX-License-Identifier: MIT
 *
 * How a transport is made with the help of another communicator: every rank says how it fares, so
 * that all go on or none does.
 */
#ifndef TAM_TRANSPORT_MEET_H
#define TAM_TRANSPORT_MEET_H

#include "collectives/transport/comm.h"

enum { TAM_TOKEN_BYTES = 128 };

/**
 * Collective over `bootstrap`. Works in its memory, so that a rank without memory can say so.
 *
 * @param  what    [in]      for the sentence: what does not come to be
 * @param  status  [in]      how this rank fares; if badly, tamis_last_error is what it
 *                           tells the others and should name this rank
 * @param  token   [in,out]  unsigned char[TAM_TOKEN_BYTES]; rank 0's for all
 * @return OK if all ranks are well, else the same status on all: of a rank that failed by itself
 *         rather than of one that waited in vain
 */
tamis_status tam_meet(tamis_comm *bootstrap, const char *what, tamis_status status, void *token);

#endif
