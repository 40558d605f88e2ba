/* SPDX-License-Identifier: MIT
 *
 * The place where processes find each other, TAMIS_RENDEZVOUS: "host:port" or "[address]:port", an
 * address that one of them listens at, or a folder that all see (its name has a '/'), into which
 * the one that listens writes its addresses. Whoever may write into the folder is trusted.
 */
#ifndef TAM_TRANSPORT_RENDEZVOUS_H
#define TAM_TRANSPORT_RENDEZVOUS_H

#include "lib/base/base.h"

/** Listen. ARGUMENT, TRANSPORT, with a sentence that names TAMIS_RENDEZVOUS. */
tamis_status tam_rendezvous_listen(const char *place, int *listener);

/** Listen no more. What was written is removed, unless another process has since written there. */
void tam_rendezvous_end(const char *place, int listener);

/** Connect, within seconds. ARGUMENT as above.
 * @param  socket  [out]  -1: nobody listens there now */
tamis_status tam_rendezvous_dial(const char *place, uint64_t until_ns, int *socket);

#endif
