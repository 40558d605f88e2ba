/* SPDX-License-Identifier: MIT
 *
 * A team: some ranks of a transport, as a transport of their own. With N nodes of G ranks each,
 * numbered node after node, there are two kinds of teams. Two nodes of two ranks:
 *
 *     nodes     | 0 1 | 2 3 |        first a G, stride 1, G members
 *     columns   | 0 2 | 1 3 |        first g, stride G, N members
 *
 * A team's call is a fixed number of all-to-alls of the whole transport, in which a rank sends
 * nothing to ranks outside its team. So no byte is sent needlessly, and deadlines, poison and
 * faults are those of the transport. Parts of a sum carry checksums, for a damaged part would make
 * a sum that is wrong but the same on all ranks. In some transports a call is a barrier for all
 * ranks, so all teams of one kind must make the same calls in the same order. Counts may differ
 * from team to team.
 */
#ifndef TAM_TRANSPORT_TEAM_H
#define TAM_TRANSPORT_TEAM_H

#include "lib/base/transport.h"

#include <stdbool.h>

typedef struct tam_team {
    const tam_transport *transport; /* the whole one, of the last link */
    void *self;
    uint32_t first, stride, count; /* member i is rank first + i * stride */
    uint32_t member, nranks;       /* this rank's number in the team; ranks of the transport */
    size_t *send_at, *recv_at;     /* [nranks + 1] runs for all ranks of the transport */
    size_t *slices;                /* [2 * (count + 1)] runs for the team's members */
    char *room;                    /* [room_bytes] */
    size_t room_bytes;
} tam_team;

/** Bytes of room that sums of `count` values need. */
size_t tam_team_sum_room(size_t count, uint32_t nmembers);

/** Set first, stride, count, member, nranks and room_bytes before. The room must hold sums, and
 * `count` copies of what a member gathers. */
tamis_status tam_team_open(tam_team *out);

/** @param in_flight  the transport may still use its buffers, which are not freed */
void tam_team_close(tam_team *team, bool in_flight);

/** The team as a link, whose byte count continues that of the whole. */
tam_link tam_team_link(tam_team *team, const tam_link *whole);

#endif
