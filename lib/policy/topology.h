/* SPDX-License-Identifier: MIT
 *
 * Parts that are runs of blocks and hand blocks to their neighbours (ExDyna). With P = 3 and eight
 * blocks; the rest of the vector always belongs to the last part:
 *
 *     block             0  1  2  3  4  5  6  7  rest
 *     part             |   0    |   1    |  2       |      3 3 2 blocks; found 90, 20, 40
 *     after the step   |  0  |    1      |  2       |      2 4 2
 *
 * All ranks compute this from counts that all know, with *, / and comparisons: the same bits
 * everywhere.
 */
#ifndef TAM_POLICY_TOPOLOGY_H
#define TAM_POLICY_TOPOLOGY_H

#include "lib/base/base.h"

typedef struct tam_topology {
    uint64_t n;
    uint32_t nparts;
    uint32_t nblocks; /* 0: the vector is too short for blocks; nothing moves */
    uint32_t least;   /* blocks that a part keeps: a fourth of an even part, rounded up */
    uint64_t block;   /* elements of a block */
    uint64_t *blocks; /* [nparts] number of blocks of each part; saved with the state */
    uint64_t *loads;  /* [nparts] entries found in each part, before a move */
} tam_topology;

/** @param  block  elements; 0: 1024 blocks, of a multiple of 32 elements or of fewer than 32 */
tamis_status tam_topology_open(uint64_t n, uint32_t nparts, uint64_t block, tam_topology *out);
void tam_topology_close(tam_topology *topology);

/**
 * Walk over neighbouring parts c and c + 1. If one found more than 1.05 times the average and the
 * other less than 0.95238, the first hands a block to the other, unless it has no more than
 * `least`; the estimated load of the block moves with it. The caller sets `loads`; the walk
 * overwrites it.
 *
 * @param  found  all parts together
 * @return        whether anything moved
 *
 * Source: ExDyna (arXiv 2402.13781), block-based partitioning and its adjustment; constants and
 * their rounding as in its public code.
 */
bool tam_topology_move(tam_topology *topology, uint64_t found);

/** The end of part `part`, given its begin. */
uint64_t tam_topology_end(const tam_topology *topology, uint32_t part, uint64_t begin);

/** Most elements that one part can have. */
uint64_t tam_topology_most(const tam_topology *topology);

/** Whether these may be the blocks of the parts. */
bool tam_topology_valid(const tam_topology *topology, const uint64_t *blocks);

#endif
