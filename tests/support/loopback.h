/* SPDX-License-Identifier: MIT
 *
 * Messages between ranks that are threads of this process, for tamis_comm_create_callback: whoever
 * comes second of sender and receiver copies. A message may be damaged on its way.
 */
#ifndef TEST_LOOPBACK_H
#define TEST_LOOPBACK_H

#include "lib/contracts/p2p.h"

#include <stdint.h>
#include <tamis/callback.h>
#include <tamis/tamis.h>

typedef struct loopback loopback;

/** @param  flip  number of the message that is damaged, counted from 1; 0: none */
loopback *loopback_create(uint32_t nranks, uint64_t flip);
void loopback_destroy(loopback *m);

/** What `rank` gives to tamis_comm_create_callback. */
tamis_callbacks loopback_callbacks(loopback *m, uint32_t rank);

/** Communicators of all ranks. */
void loopback_comms(loopback *m, tamis_comm **comms);

/** The loopback as a p2p contract, and a rank's end of it: its `self`, which no close frees. */
extern const tam_p2p loopback_p2p;
void *loopback_end(loopback *m, uint32_t rank);

/** Messages that came so far, and bytes. */
uint64_t loopback_count(loopback *m, uint64_t *bytes);

#endif
