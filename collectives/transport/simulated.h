/* SPDX-License-Identifier: MIT
 *
 * A simulated network in one thread, with a virtual clock: the state machines of thousands of ranks
 * run on it, message by message. For tests and for bench/scale; not part of the library.
 *
 * LogGP, with the numbers of a tam_net: a message costs its sender and its receiver half of
 * message_s and of the copies; then it waits for its sender's link, for the cable of the node if it
 * leaves it, travels for a latency, and waits for its receiver's link. Random numbers follow from
 * the seed, so a run can be repeated.
 */
#ifndef TAM_TRANSPORT_SIMULATED_H
#define TAM_TRANSPORT_SIMULATED_H

#include "lib/base/base.h"
#include "lib/contracts/p2p.h"
#include "lib/policy/plan.h"

typedef struct tam_sim_config {
    uint32_t nranks;
    tam_net net;
    size_t held;     /* bytes of a message that really travel; 0: all. The rest only takes time. */
    double jitter;   /* latencies are longer by a random part, so much on average */
    double loss;     /* part of the messages between nodes that are sent again, */
    double resend_s; /* after so long */
    bool has_dead;
    uint32_t dead; /* a rank that does nothing */
    uint64_t seed;
    uint64_t flip; /* message number, counted from 1, of which a bit is flipped; 0: none */
} tam_sim_config;

typedef struct tam_sim tam_sim;

tamis_status tam_sim_open(const tam_sim_config *config, tam_sim **out);
void tam_sim_close(tam_sim *sim);

/** A rank's end: the `self` of its p2p link. */
extern const tam_p2p tam_sim_p2p;
void *tam_sim_end(tam_sim *sim, uint32_t rank);

/** What a rank does when something came. */
typedef tamis_status (*tam_sim_advance)(void *context, uint32_t rank, bool *done);

/** Run until all ranks are done. STATE if they wait for messages that nobody sent.
 * @param  seconds  [out]  of virtual time, until the last rank was done */
tamis_status tam_sim_run(tam_sim *sim, tam_sim_advance advance, void *context, double *seconds);

/** Messages and bytes that left nodes, and the most messages that were in flight at once. */
typedef struct tam_sim_counts {
    uint64_t messages, bytes, far_messages, far_bytes, most_in_flight;
} tam_sim_counts;

tam_sim_counts tam_sim_counted(const tam_sim *sim);

#endif
