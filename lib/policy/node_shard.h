/* SPDX-License-Identifier: MIT
 *
 * What a rank holds of a bucket. If the ranks of a node divide a bucket among themselves, it is
 * divided into chunks and each chunk into G runs; shard g is the g-th run of every chunk. So a
 * chunk of a gradient is sent in place, its sum is computed in cache, and every shard has parts of
 * all layers. G = 2, runs of 3, 14 elements:
 *
 *     element   0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13
 *     shard     0 0 0 1 1 1 | 0 0 0 1  1  1 |  0  0
 *
 * This is ownership cyclic among the G ranks of a node, without rotation. With G = 1 a rank holds
 * the whole bucket in one run.
 */
#ifndef TAM_POLICY_NODE_SHARD_H
#define TAM_POLICY_NODE_SHARD_H

#include "lib/policy/grid.h"

enum {
    TAM_NODE_SHARD_RUN = 65536
}; /* elements of a run, at most, where there are several shards */

typedef struct tam_node_shard {
    uint32_t local, nlocal; /* g, G */
    tam_division division;  /* of the bucket: part g is shard g, in every step */
    tamis_layout *layout;   /* of the own shard: the parts of segments that it holds */
} tam_node_shard;

/** Errors: UNSUPPORTED if a shard would be empty, NOMEM. Close it in any case. */
tamis_status tam_node_shard_open(const tamis_layout *whole, uint32_t local, uint32_t nlocal,
                                 tam_node_shard *out);
void tam_node_shard_close(tam_node_shard *shard);

/** The budget of the own shard of k entries of the bucket, in proportion to its length. */
uint64_t tam_node_shard_budget(const tam_node_shard *shard, uint64_t k);

#endif
