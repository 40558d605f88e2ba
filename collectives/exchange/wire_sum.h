/* SPDX-License-Identifier: MIT
 *
 * Sums over ranks of values that travel in a wire type, and whose sums come back in another: made
 * of the all-to-all and the all-gather of any transport. Of 3 ranks, whose slice 1 rank 1 sums:
 *
 *     rank 0   sends Q(v0), keeps v0 - Q(v0)
 *     rank 1   sends Q(v1), keeps v1 - Q(v1) + (S - R(S)),   S = Q(v0) + Q(v1) + Q(v2)
 *     rank 2   sends Q(v2), keeps v2 - Q(v2)                 result R(S)
 *
 * so that the result and what is kept sum to v0 + v1 + v2. (Of fp2, what would be kept beyond
 * float32 becomes its largest number.) Sums are added in float32, in the order of lib/base/tree.h;
 * Q and R are of wire.h. Blocks are counted from the begin of a slice, so the bits are the same
 * whether slices are summed by their owners or, where an all-to-all would send as much as an
 * all-gather does, everything by everybody. Eight bytes of checksum follow the values of a slice.
 */
#ifndef TAM_EXCHANGE_WIRE_SUM_H
#define TAM_EXCHANGE_WIRE_SUM_H

#include "collectives/exchange/wire.h"
#include "lib/base/transport.h"

typedef struct tam_wire_sum {
    const tam_wire_type *up, *down; /* of values, of sums */
    uint32_t nranks;
    uint32_t first, stride; /* rank i of the link is the communicator's first + i * stride */
    bool gathers;           /* everybody adds up everything */
    bool steady;            /* each sum makes as many calls, however many values it has */
    size_t piece;           /* values of a slice that travel at a time, a multiple of a block */
    size_t most;            /* of a slice */
    unsigned char *send, *recv;
    size_t *send_at, *recv_at; /* [nranks + 1] */
    float *sums;               /* [piece] */
    float *came;               /* [nranks] blocks */
} tam_wire_sum;

/** Takes all memory that sums of at most `most` values need. Set all but pieces and memory before;
 * close it in any case. */
tamis_status tam_wire_sum_open(tam_wire_sum *sum, size_t most);
/** @param  lingers  the transport may still use what it was given, which stays */
void tam_wire_sum_close(tam_wire_sum *sum, bool lingers);

/** The most bytes that a rank gives to one all-gather. */
size_t tam_wire_sum_gathers(const tam_wire_sum *sum);

/** Whether values or sums are rounded: else nobody needs `errors`. */
static inline bool tam_wire_sum_rounds(const tam_wire_sum *sum) {
    return tam_wire_rounds(sum->up) || tam_wire_rounds(sum->down);
}

/**
 * values[i] = R(sum over ranks of Q(values[i])); the same bits on all ranks.
 *
 * @param  errors  [out]  what this rank keeps; may be NULL where nothing is rounded
 *
 * Bytes:  about (P - 1) / P * (bytes of the values + bytes of the sums); float32 both ways: as the
 *         transport's own sum
 * Errors: PROTOCOL where what came was damaged
 */
tamis_status tam_wire_sum_run(tam_wire_sum *sum, tam_link *link, float *values, size_t count,
                              float *errors);

#endif
