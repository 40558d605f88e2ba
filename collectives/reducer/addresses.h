/* SPDX-License-Identifier: MIT
 *
 * Where the gradients of a step lie that were given by segment, to find those that overlap.
 *
 * Gradients come to where they were in the step before, as a rule, and were then found to be apart:
 * as long as all do, nothing is compared. Else they are sorted as they come, in blocks:
 *
 *     order    [ block 2 | block 0 | block 1 ]           the first of each is found by bisection
 *     blocks   [ 40 48 . . | 64 72 80 . | 8 16 24 32 ]   a full block is split in two
 *
 * So one costs some ten comparisons and a move within a block, whatever order they come in. (In one
 * sorted array, 10^5 segments in the order of a backward pass took 14 us each.)
 */
#ifndef TAM_REDUCER_ADDRESSES_H
#define TAM_REDUCER_ADDRESSES_H

#include "lib/policy/layout.h"

enum { TAM_ADDRESS_BLOCK = 64 };

typedef struct tam_address_block {
    uint32_t count;
    tam_pair pairs[TAM_ADDRESS_BLOCK]; /* [count] address, segment; ascending */
} tam_address_block;

typedef struct tam_addresses {
    const tamis_layout *layout;
    size_t element_bytes;
    uint64_t *usual;           /* [nsegments] of a step before, valid if has_usual */
    bool has_usual, at_usual;  /* all of this step are there, so the blocks are empty */
    tam_address_block *blocks; /* at least half full, but for the only one */
    uint32_t *order;           /* of blocks: nblocks by address, then those that are free */
    uint32_t nblocks, count;   /* count: of pairs */
} tam_addresses;

/** @return false: no memory; to be closed all the same */
bool tam_addresses_open(tam_addresses *a, const tamis_layout *layout, size_t element_bytes);
void tam_addresses_close(tam_addresses *a);

/** A step begins. */
void tam_addresses_begin(tam_addresses *a);

bool tam_addresses_is_usual(const tam_addresses *a, uint32_t segment, const void *grad);

/** Sort what has come in this step, before one is added that is not where it usually is. */
void tam_addresses_leave_usual(tam_addresses *a, const bool *ready);

/** Add one.
 * @param  ready  [nsegments] what has come in this step
 * @return        ARGUMENT: it overlaps another, and is not added */
tamis_status tam_addresses_add(tam_addresses *a, uint32_t segment, const void *grad,
                               const bool *ready);

/** Take back those of segments that are not ready. */
void tam_addresses_withdraw(tam_addresses *a, const bool *ready);

#endif
