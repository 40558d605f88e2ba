/* SPDX-License-Identifier: MIT
 *
 * The place where processes find each other, TAMIS_RENDEZVOUS: "host:port" or "[address]:port", an
 * address that one of them listens at.
 */
#ifndef TAM_TRANSPORT_RENDEZVOUS_H
#define TAM_TRANSPORT_RENDEZVOUS_H

#include "lib/base/base.h"

/** Listen at an address of this host. ARGUMENT, TRANSPORT, with a sentence that names
 * TAMIS_RENDEZVOUS. */
tamis_status tam_rendezvous_listen(const char *place, int *listener);

/** Connect, within seconds. ARGUMENT as above.
 * @param  socket  [out]  -1: nobody listens there now */
tamis_status tam_rendezvous_dial(const char *place, uint64_t until_ns, int *socket);

#endif
