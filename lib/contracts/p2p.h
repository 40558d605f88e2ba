/* SPDX-License-Identifier: MIT
 *
 * The point-to-point contract (p2p): messages between two ranks, from and to host memory. What all
 * ranks do together is made of them by collectives/coll.
 *
 * A p2p link knows nothing of collectives. The caller numbers its messages in flight by tickets
 * below TAM_P2P_TICKETS and never uses one twice at a time. Messages from one rank to another on
 * one channel match receives in the order in which both were posted. All calls come from one thread
 * at a time and return at once; only the caller waits.
 */
#ifndef TAM_CONTRACTS_P2P_H
#define TAM_CONTRACTS_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum { TAM_P2P_TICKETS = 80, TAM_P2P_CHANNELS = 2 };

/** A message to send or to receive. Its memory must stay until it is complete or was withdrawn or,
 * where it stays in flight, for ever after a failure. */
typedef struct tam_message {
    uint32_t peer, channel;
    bool sends;
    void *memory;
    size_t bytes; /* of a receive: the most that may come */
} tam_message;

typedef struct tam_done {
    uint32_t ticket;
    size_t bytes; /* that came */
} tam_done;

typedef struct tam_p2p {
    const char *name;
    bool stays_in_flight; /* withdrawn messages may still use their memory */

    /** STATE where the link can no longer be called. NULL: it always can. Any thread. */
    tamis_status (*usable)(const void *self);

    tamis_status (*post)(void *self, uint32_t ticket, const tam_message *message);

    /** Which messages have become complete since the last call.
     * @param  done  [out]  [TAM_P2P_TICKETS], `count` of them */
    tamis_status (*test)(void *self, tam_done *done, uint32_t *count);

    /** A message that has not become complete: withdraw it if possible. */
    void (*cancel)(void *self, uint32_t ticket);

    /** Wake up calls that block elsewhere, as tam_transport.abort. Any thread. */
    void (*abort)(void *self, tamis_status status, const char *cause);

    /** As tam_transport.silence. */
    bool (*silence)(void *self);

    /** Free everything. `clean` is 0 after a failure: do not free what may still be in use.
     * @return whether no message can use its memory any more */
    bool (*close)(void *self, int clean);
} tam_p2p;

#endif
