/* SPDX-License-Identifier: MIT
 *
 * Shards of a vector: who sums which part of it, and so keeps what rounding the sum takes. Virtual
 * rank v (plan.h) owns the shard whose number is v with its bits reversed:
 *
 *     shard   0 1 2 3 4 5 6 7
 *     vrank   0 4 2 6 1 5 3 7
 *
 * so that the virtual ranks that are equal modulo 2^j, which a stage tells apart, own one run of
 * memory. A virtual rank that a rank has besides its primary one makes two shards of half the
 * length, so that all ranks sum as much. Nothing of it depends on the plan. C11 and CUDA C++.
 */
#ifndef TAM_POLICY_SHARDS_H
#define TAM_POLICY_SHARDS_H

#include "lib/base/tree.h"

/** The virtual rank of a shard, and the shard of a virtual rank; nvranks: a power of two. */
TAM_SHARED uint32_t tam_shards_reverse(uint32_t vrank, uint32_t nvranks) {
    uint32_t out = 0;
    for (uint32_t bit = 1; bit < nvranks; bit *= 2, vrank /= 2)
        out = 2 * out + vrank % 2;
    return out;
}

/* Shards before this one whose virtual ranks are below `own`. For every bit of `shard` that is set
 * there is a run of smaller numbers: they share the bits above it, lack it, and have any bits
 * below. With the bits reversed, these are every `step`-th virtual rank from `first` on. */
TAM_SHARED uint64_t tam_shards_own_(uint32_t shard, uint32_t nvranks, uint32_t own) {
    uint64_t count = 0;
    if (shard == nvranks)
        return own;
    for (uint32_t bit = nvranks / 2; bit > 0; bit /= 2) {
        uint32_t step = nvranks / bit, first = tam_shards_reverse(shard / (2 * bit), step / 2);
        if ((shard & bit) != 0 && own > first)
            count += (own - first + step - 1) / step;
    }
    return count;
}

/** Where a shard of so many units begins; of shard number nvranks: the end. Cost: log2(nranks).
 * @param units  of a vector, so at most 2^32 */
TAM_SHARED uint64_t tam_shards_begin(uint64_t units, uint32_t nranks, uint32_t shard) {
    uint32_t own = tam_tree_own(nranks), nvranks = 2 * nranks - own;
    uint64_t before = shard + tam_shards_own_(shard, nvranks, own);
    return units * before / ((uint64_t)nvranks + own);
}

typedef struct tam_owned {
    size_t begin, length;
} tam_owned;

/** The runs that a rank owns, in the order of its virtual ranks, where `count` elements are
 * divided between blocks alone: the last block may be shorter. With one run the second is empty.
 * @return 1 or 2 */
TAM_SHARED uint32_t tam_shards_of(size_t count, size_t block, uint32_t nranks, uint32_t rank,
                                  tam_owned out[2]) {
    uint32_t own = tam_tree_own(nranks), nvranks = 2 * nranks - own;
    uint32_t first = tam_tree_vrank(rank, own), nruns = rank < own ? 1 : 2;
    uint64_t units = count / block + (count % block > 0);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t shard = i < nruns ? tam_shards_reverse(first + i, nvranks) : 0;
        uint64_t begin = block * tam_shards_begin(units, nranks, shard);
        uint64_t end = i < nruns ? block * tam_shards_begin(units, nranks, shard + 1) : begin;
        out[i].begin = (size_t)(begin < count ? begin : count);
        out[i].length = (size_t)(end < count ? end : count) - out[i].begin;
    }
    return nruns;
}

/** Most blocks that a rank owns of so many, and of any number that is less. */
TAM_SHARED uint64_t tam_shards_most(uint64_t blocks, uint32_t nranks) {
    uint64_t halves = 2 * (uint64_t)nranks;
    if (tam_tree_own(nranks) == nranks)
        return (blocks + nranks - 1) / nranks;
    return 2 * ((blocks + halves - 1) / halves);
}

#endif
