/* SPDX-License-Identifier: MIT
 *
 * A team: some ranks of a transport, as a transport of their own. Of N nodes with G ranks each,
 * rank after rank, there are teams of two kinds; two nodes of two ranks:
 *
 *     nodes     | 0 1 | 2 3 |        first a G, stride 1, G members
 *     columns   | 0 2 | 1 3 |        first g, stride G, N members
 *
 * A call of a team is a fixed number of all-to-alls of the whole transport, in which a rank has
 * nothing for those outside its team: nothing travels that need not, and deadlines, poison and
 * faults are those of the transport. Parts of a sum carry checksums, for a damaged part would make
 * a sum that is wrong and the same everywhere. Some transports let all their ranks meet in a call,
 * so all teams of one kind make the same calls in the same order; counts may differ from team to
 * team.
 */
#ifndef TAM_TRANSPORT_TEAM_H
#define TAM_TRANSPORT_TEAM_H

#include "lib/base/transport.h"

#include <stdbool.h>

typedef struct tam_team {
    const tam_transport *transport; /* the whole, as of the last link */
    void *self;
    uint32_t first, stride, count; /* member i is rank first + i * stride */
    uint32_t member, nranks;       /* this rank's number in the team; ranks of the whole */
    size_t *send_at, *recv_at;     /* [nranks + 1] runs of the whole */
    size_t *slices;                /* [2 * (count + 1)] runs of the team */
    char *room;                    /* [room_bytes] */
    size_t room_bytes;
} tam_team;

/** Room for sums of so many values. */
size_t tam_team_sum_room(size_t count, uint32_t nmembers);

/** `out` carries first, stride, count, member, nranks and room_bytes in. The room must hold sums,
 * and count times what a member gathers. */
tamis_status tam_team_open(tam_team *out);

/** @param lingers  the transport may still use what it was given, which stays */
void tam_team_close(tam_team *team, bool lingers);

/** The team as a link, which counts bytes on from those of the whole. */
tam_link tam_team_link(tam_team *team, const tam_link *whole);

#endif
