/* SPDX-License-Identifier: MIT
 *
 * Messages between ranks that are threads of this process, for tamis_comm_create_callback: whoever
 * comes second of sender and receiver copies. A message may be damaged on its way.
 */
#ifndef TEST_MAIL_H
#define TEST_MAIL_H

#include "lib/base/p2p.h"

#include <stdint.h>
#include <tamis/tamis.h>

typedef struct mail mail;

/** @param  flip  number of the message that is damaged, counted from 1; 0: none */
mail *mail_create(uint32_t nranks, uint64_t flip);
void mail_destroy(mail *m);

/** What `rank` gives to tamis_comm_create_callback. */
tamis_callbacks mail_callbacks(mail *m, uint32_t rank);

/** Communicators of all ranks. */
void mail_comms(mail *m, tamis_comm **comms);

/** The same as a p2p contract, and a rank's end of it: its `self`, which no close frees. */
extern const tam_p2p mail_p2p;
void *mail_end(mail *m, uint32_t rank);

/** Messages that came so far, and bytes. */
uint64_t mail_count(mail *m, uint64_t *bytes);

#endif
