/* SPDX-License-Identifier: MIT
 *
 * The network of a world: messages are brought to a rank when it gets its turn.
 */
#ifndef EXPLORE_NET_H
#define EXPLORE_NET_H

#include "tests/explore/world.h"

#include <tamis/callback.h>

enum { LANES = 2 };

typedef struct net net;

/** @param list  [nranks] of the world's ranks */
net *net_create(world *w, uint32_t generation, const uint32_t *list, uint32_t nranks);
void net_destroy(net *n);

/** Callbacks of one of its ranks. @return false: it is not in the list */
bool net_callbacks(net *n, uint32_t id, tamis_callbacks *out);

uint32_t net_nranks(const net *n);
uint32_t net_rank(const net *n, uint32_t nth);

/** From how many places something could be brought to a rank now. */
uint32_t net_count(const net *n, uint32_t id);

/** Hold back what comes from the `nth` of these, until net_release. */
void net_hold(net *n, uint32_t id, uint32_t nth);

/** @return whether anything was held back */
bool net_release(net *n);

/** Bring all that can be brought. */
void net_bring(net *n, uint32_t id);

#endif
