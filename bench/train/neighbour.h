/* SPDX-License-Identifier: MIT
 *
 * The rank with the same number in the next or previous stage. Messages both ways have one size:
 * the values between the two stages for a micro-batch, or their gradient.
 *
 *     sent in place,                     received ahead into separate memory, [slots][bytes],
 *     one message in flight per slot     taken from there in the order of sending
 *
 * As receives are always posted, a message never waits for its receiver, and neither rank can block
 * the other.
 */
#ifndef TAMIS_TRAIN_NEIGHBOUR_H
#define TAMIS_TRAIN_NEIGHBOUR_H

#include "bench/common/group.h"

typedef struct neighbour {
    bench_group *world;
    uint32_t rank;
    size_t bytes, slots;
    char *arrivals;                /* [slots][bytes] */
    bench_message *coming, *going; /* [slots] */
    uint64_t taken;
    double waited_s; /* inside take and sent, since open */
} neighbour;

void neighbour_open(bench_group *world, uint32_t rank, size_t bytes, size_t slots, neighbour *out);
void neighbour_close(neighbour *n);

/** Send the bytes at `data`, which must stay unchanged until neighbour_sent. */
void neighbour_send(neighbour *n, size_t slot, const void *data);

/** Wait until the last message of a slot has left, if there is one. */
void neighbour_sent(neighbour *n, size_t slot);

/** Whether the next message has arrived. */
bool neighbour_arrived(neighbour *n);

/** Wait for the next message and copy it. */
void neighbour_take(neighbour *n, void *out);

#endif
