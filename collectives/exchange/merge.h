/* SPDX-License-Identifier: MIT
 *
 * Merge the packets of all ranks into one ascending list without duplicates.
 */
#ifndef TAM_EXCHANGE_MERGE_H
#define TAM_EXCHANGE_MERGE_H

#include "collectives/exchange/packet.h"
#include "lib/contracts/device.h"
#include "lib/base/tree.h"

/** Ascending indices. */
typedef struct tam_list {
    const uint32_t *indices;
    size_t count;
} tam_list;

/**
 * Exclusive ownership: interleave the lists tile by tile; each index lies in a tile of its sender.
 *
 * Tiles of TAM_PART_COMMON are taken whole. `owner_of_part` maps parts to ranks at this step.
 *
 * @param  lists    [scratch]  [nranks]
 *
 * Cost:    O(count + tiles)        Errors:  PROTOCOL if a sender may not select one of its indices,
 *                                           or they do not ascend
 */
tamis_status tam_merge_exclusive(const tam_packets *packets, const tam_grid *grid,
                                 const uint32_t *owner_of_part, tam_list *lists, uint32_t *indices,
                                 size_t *count);

/**
 * All ranks select everywhere: merge the lists; equal indices become one.
 *
 * @param  lists    [scratch]  [nranks]
 * @param  scratch  [scratch]  uint32[as many as `indices`]
 *
 * Cost:    O(sum of counts * log P)   Errors:  PROTOCOL as above
 */
tamis_status tam_merge_shared(const tam_packets *packets, uint64_t n, tam_list *lists,
                              uint32_t *scratch, uint32_t *indices, size_t *count);

/** Add what rank r has for some of the indices, which follow those of the call before, to their
 * sums (tam_tree_add). @return false: its values are refused */
typedef bool (*tam_add_list)(void *self, uint32_t r, const uint32_t *indices, size_t count,
                             tam_tree_sum *sums);

/** values[i] = sum of the values for indices[i], in the order of lib/base/tree.h, where ranks
 * without a value are skipped. @param  indices  the union of the lists
 * @return  1 + the rank whose values are refused, or 0 */
uint32_t tam_merge_add_up(tam_add_list add, void *self, uint32_t nranks, const uint32_t *indices,
                          size_t count, float *values);

enum { TAM_MERGE_BLOCK = TAM_VALUE_BLOCK }; /* values that are decoded at a time */

/** pairs: the same of the values in packets.
 * @param  cursors  [scratch]  [nranks]
 * @param  decoded     [scratch]  [nranks * TAM_MERGE_BLOCK]
 * Errors:  PROTOCOL where the values of a rank cannot be decoded */
tamis_status tam_merge_sum_pairs(const tam_packets *packets, const uint32_t *indices, size_t count,
                                 size_t *cursors, float *decoded, float *values);

#endif
