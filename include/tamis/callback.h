/* SPDX-License-Identifier: MIT
 *
 * tamis/callback.h - communicators over the caller's own network.
 *
 *     tamis_callbacks net = TAMIS_CALLBACKS_INIT;
 *     net.rank = rank;
 *     net.nranks = nranks;
 *     net.allgather = my_allgather;                  or post, test and cancel
 *     tamis_comm_create_callback(&net, NULL, &comm);
 *
 * Threads      The functions are called from the thread that calls into the library, one at a time
 *              per communicator.
 */
#ifndef TAMIS_CALLBACK_H
#define TAMIS_CALLBACK_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TAMIS_TICKETS = 80 }; /* messages of a rank in flight, at most */

/** A message to another rank or from it. */
typedef struct tamis_message {
    uint32_t ticket;        /* below TAMIS_TICKETS; no two messages in flight have the same */
    uint32_t peer, channel; /* channel: 0 or 1 */
    int sends;
    void *memory; /* stays until the message is complete or withdrawn */
    size_t bytes; /* of a receive: the most that may come */
} tamis_message;

/**
 * The caller's own network: an all-gather, or messages between two ranks, with which the library
 * can run on any launcher. All functions are called from the thread that calls into the library.
 *
 * `allgather` takes `bytes` bytes of `send` from every rank and leaves nranks * bytes bytes in
 * `recv`, rank after rank. It may block (its own deadline is the caller's duty), and returns
 * TAMIS_OK or a status: one that loses the communicator is passed on, any other becomes
 * TAMIS_E_TRANSPORT.
 *
 * `post`, `test` and `cancel`, all or none, come in place of it, and return at once. Sends match
 * receives of the same two ranks and channel in the order in which both were posted. `test` lists
 * messages that became complete since the last call: their tickets, and the bytes that came.
 * `cancel` withdraws a message, whose memory is not used any more when it returns. Statuses as
 * above. The library waits, by its deadline, and more than 8 ranks exchange in stages.
 */
typedef struct tamis_callbacks {
    size_t size;
    uint32_t rank, nranks;
    tamis_status (*allgather)(void *context, const void *send, void *recv, size_t bytes);
    void *context;
    tamis_status (*post)(void *context, const tamis_message *message);
    tamis_status (*test)(void *context, uint32_t tickets[TAMIS_TICKETS],
                         size_t bytes[TAMIS_TICKETS], uint32_t *count);
    void (*cancel)(void *context, uint32_t ticket);
} tamis_callbacks;

#define TAMIS_CALLBACKS_INIT TAMIS_INIT(tamis_callbacks, )

/**
 * Make a communicator over the caller's network.
 *
 * Cost:       with an all-gather alone, values cost nranks / 2 times the bytes that MPI needs
 * Errors:     ARGUMENT, NOMEM; nothing is lost. With messages also TIMEOUT, TRANSPORT, PROTOCOL
 */
TAMIS_CHECKED tamis_status tamis_comm_create_callback(const tamis_callbacks *callbacks,
                                                      const tamis_comm_config *config,
                                                      tamis_comm **out);

#ifdef __cplusplus
}
#endif

#endif
