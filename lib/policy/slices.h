/* SPDX-License-Identifier: MIT
 *
 * Slices of a vector: who sums which part of it, and so keeps what rounding the sum takes. Place v
 * (plan.h) owns the slice whose number is v with its bits reversed:
 *
 *     slice   0 1 2 3 4 5 6 7
 *     place   0 4 2 6 1 5 3 7
 *
 * so that the places that are equal modulo 2^j, which a stage tells apart, own one run of memory. A
 * place that a rank plays besides its own makes two slices of half the length, so that all ranks
 * sum as much. Nothing of it depends on the plan.
 */
#ifndef TAM_POLICY_SLICES_H
#define TAM_POLICY_SLICES_H

#include <stddef.h>
#include <stdint.h>

/** The place of a slice, and the slice of a place; nplaces: a power of two. */
uint32_t tam_slices_reverse(uint32_t place, uint32_t nplaces);

/** Where a slice of so many units begins; of slice number nplaces: the end. Cost: log2(nranks). */
size_t tam_slices_begin(size_t units, uint32_t nranks, uint32_t slice);

typedef struct tam_owned {
    size_t begin, length;
} tam_owned;

/** The runs that a rank owns, in the order of its places, where `count` elements are cut between
 * blocks alone: the last block may be shorter.
 * @return 1 or 2 */
uint32_t tam_slices_of(size_t count, size_t block, uint32_t nranks, uint32_t rank,
                       tam_owned out[2]);

#endif
