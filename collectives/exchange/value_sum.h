/* SPDX-License-Identifier: MIT
 *
 * Sums over ranks of values that travel encoded, and whose sums come back in another codec. For 3
 * ranks, of which rank 1 owns a shard:
 *
 *     rank 0   sends Q(v0), keeps v0 - Q(v0)
 *     rank 1   sends Q(v1), keeps v1 - Q(v1) + (S - R(S)),   S = Q(v0) + Q(v1) + Q(v2)
 *     rank 2   sends Q(v2), keeps v2 - Q(v2)                 result R(S)
 *
 * so that the result and what is kept sum to v0 + v1 + v2. (Of fp2, what would be kept beyond
 * float32 becomes its largest number.) Sums are added in float32, in the order of lib/base/tree.h;
 * Q and R are of value_codecs.h. Blocks are counted over all values, and shards, which end where
 * blocks do, are those of lib/policy/shards.h: so the bits are the same in all ways.
 *
 *     staged      partial sums travel as float32, and are rounded once, by the owner
 *     by owners   an all-to-all brings them all values of their shard, an all-gather their sums
 *     by all      an all-gather brings all values to all, who add everything: where an all-to-all
 *                 would send as much
 *
 * Eight bytes of checksum follow what a rank sends, but for stages, whose messages have one.
 */
#ifndef TAM_EXCHANGE_VALUE_SUM_H
#define TAM_EXCHANGE_VALUE_SUM_H

#include "lib/base/base.h"
#include "lib/contracts/value_codec.h"
#include "lib/contracts/transport.h"

typedef enum tam_sum_way { TAM_SUM_STAGED, TAM_SUM_BY_OWNERS, TAM_SUM_BY_ALL } tam_sum_way;

typedef struct tam_value_sum {
    const tam_value_codec *up, *down; /* of values, of sums */
    uint32_t nranks;
    uint32_t first, stride; /* rank i of the link is the communicator's first + i * stride */
    tam_sum_way way;
    unsigned char *encoded;     /* of all values, then of all sums */
    unsigned char *send, *recv; /* but for stages */
    size_t *send_at, *recv_at;  /* by owners, [nranks + 1] */
    size_t piece;               /* by all: values that travel at a time, a multiple of a block */
    size_t gathers;             /* the most bytes that a rank gives to one all-gather */
    float *decoded;             /* [nranks] blocks */
} tam_value_sum;

/** Takes all memory that sums of at most `most` values need. Set all down to `way` before; close it
 * in any case. */
tamis_status tam_value_sum_open(tam_value_sum *sum, size_t most);
/** @param  in_flight  the transport may still use what it was given, which stays */
void tam_value_sum_close(tam_value_sum *sum, bool in_flight);

/** Whether values or sums are rounded: else nobody needs `errors`. */
static inline bool tam_value_sum_quantizes(const tam_value_sum *sum) {
    return tam_value_quantizes(sum->up) || tam_value_quantizes(sum->down);
}

/**
 * values[i] = R(sum over ranks of Q(values[i])); the same bits on all ranks.
 *
 * @param  errors  [out]  what this rank keeps; may be NULL where nothing is rounded
 *
 * Bytes:  by owners (P - 1) / P * (bytes of the values + bytes of the sums); stages add those of
 *         partial sums, 4 bytes a value and 1 / r - 1 / P of them, r the first radix. float32 both
 *         ways: as the transport's own sum
 * Errors: PROTOCOL where what came was damaged
 */
tamis_status tam_value_sum_run(tam_value_sum *sum, tam_link *link, float *values, size_t count,
                               float *errors);

#endif
