/* SPDX-License-Identifier: MIT
 *
 * Which rank selects where: division of the vector into groups, parts and tiles, and the rotation.
 *
 * At step t rank r selects in part (t + r) mod P, so part p belongs to rank (p - t) mod P, and no
 * rank selects among the same entries for ever. With P = 3 and six blocks, ownership cyclic:
 *
 *     block   0 1 2 3 4 5
 *     part    0 1 2 0 1 2
 *     step 0  0 1 2 0 1 2     owner
 *     step 1  2 0 1 2 0 1
 *     step 2  1 2 0 1 2 0
 *
 * With a leader there is one part, the whole vector, which belongs to rank t mod P.
 */
#ifndef TAM_POLICY_GRID_H
#define TAM_POLICY_GRID_H

#include "lib/contracts/device.h"
#include "lib/policy/layout.h"
#include "lib/policy/strided.h"
#include "lib/policy/scheme.h"
#include "lib/policy/topology.h"

typedef struct tam_division {
    tam_grid grid;
    tam_scheme scheme;
    uint32_t nranks;
    uint32_t block;        /* elements */
    uint32_t *part_sizes;  /* [nranks] elements of each part; bins: unknown, 0 */
    tam_topology topology; /* balanced: determines tam_tile.part; else empty */
} tam_division;

/**
 * Blocks of cyclic ownership that the division of n elements has at least: 64 a rank where these
 * have 512 elements or more; else as many of 512 as there are, but 8 a rank, of 32 or more.
 *
 * Many blocks make the parts of the ranks even, also where neighbouring segments differ; blocks
 * below 512 elements cost more time than their elements do (docs/algorithm.md).
 */
uint64_t tam_blocks_wished(uint64_t n, uint32_t nranks);

/** The block of cyclic ownership: the largest power of two, 32 to 4096, that gives so many. */
uint32_t tam_block_of(uint64_t n, uint32_t nranks);

/** @param  block  0: chosen here */
tamis_status tam_division_open(const tamis_layout *layout, tam_scheme scheme, uint32_t nranks,
                               uint32_t block, tam_division *out);
void tam_division_close(tam_division *division);

/** Set the parts of the next step, after a step that found `found` entries, topology.loads in each
 * part. Ownership balanced only. */
void tam_division_balance(tam_division *division, uint64_t found);

/** Set the parts of the tiles from topology.blocks. */
void tam_division_follow(tam_division *division);

/** The part in which `rank` selects at `step`; TAM_PART_ALL for ownership `all`. */
uint32_t tam_part_of(const tam_division *division, uint64_t step, uint32_t rank);

/** The elements of a part; bins, whose parts change from step to step, and `all`: the whole vector.
 */
tam_strided tam_strided_of(const tam_division *division, uint32_t part);

/** The rank that selects in `part` at `step`. */
uint32_t tam_owner_of(const tam_division *division, uint64_t step, uint32_t part);

/** The elements that `rank` owns at `step`, when the parts are lined up by rank: `before` to
 * `upto` - 1. `all`: every one. */
void tam_budget_span(const tam_division *division, uint64_t step, uint32_t rank, uint64_t *before,
                     uint64_t *upto);

/** Entries that `rank` selects at `step` so that all ranks together select k: in proportion to what
 * it owns, floor(k upto / n) - floor(k before / n), so never more than it owns. `all`: k. */
size_t tam_budget_of(const tam_division *division, uint64_t step, uint32_t rank, uint64_t k);

/** The largest tam_budget_of, for any rank and step. */
size_t tam_budget_max(const tam_division *division, uint64_t k);

/** Most elements that one rank can own. */
size_t tam_own_max(const tam_division *division);

#endif
