/* SPDX-License-Identifier: MIT
 *
 * Parts that are runs of blocks and hand blocks on to their neighbours (ExDyna). With P = 3, eight
 * blocks and what is left over, which belongs to the last part for good:
 *
 *     block             0  1  2  3  4  5  6  7  rest
 *     part             |   0    |   1    |  2       |      3 3 2 blocks; found 90, 20, 40
 *     after the step   |  0  |    1      |  2       |      2 4 2
 *
 * Computed on all ranks alike from counts that all know: *, / and comparisons, so the same bits
 * everywhere.
 */
#ifndef TAM_POLICY_TOPOLOGY_H
#define TAM_POLICY_TOPOLOGY_H

#include "lib/base/base.h"

typedef struct tam_topology {
    uint64_t n;
    uint32_t nparts;
    uint32_t nblocks; /* 0: too short to be divided so; nothing moves */
    uint32_t least;   /* blocks that a part keeps: a fourth of an even share, not rounded down */
    uint64_t block;   /* elements */
    uint64_t *blocks; /* [nparts] of each part; saved with the state */
    uint64_t *loads;  /* [nparts] entries found in each part, before a move */
} tam_topology;

/** @param  block  elements; 0: 1024 blocks of a multiple of 32 elements, or of fewer than 32 */
tamis_status tam_topology_open(uint64_t n, uint32_t nparts, uint64_t block, tam_topology *out);
void tam_topology_close(tam_topology *topology);

/**
 * Walk over neighbouring parts c and c + 1: where one found more than 1.05 of the average and the
 * other less than 0.95238, the first hands a block to the other, unless it has no more than
 * `least`; what the block may hold moves from load to load. `loads` is set, and overwritten.
 *
 * @param  found  all parts together
 * @return        whether anything moved
 *
 * Source: ExDyna (arXiv 2402.13781), block-based partitioning and its adjustment; constants and
 * their rounding as in its public code.
 */
bool tam_topology_move(tam_topology *topology, uint64_t found);

/** Where part `part` ends, given where it begins. */
uint64_t tam_topology_end(const tam_topology *topology, uint32_t part, uint64_t begin);

/** Most elements that one part can have. */
uint64_t tam_topology_most(const tam_topology *topology);

/** Whether these may be the blocks of the parts. */
bool tam_topology_valid(const tam_topology *topology, const uint64_t *blocks);

#endif
