/* SPDX-License-Identifier: MIT
 *
 * What all ranks sent, added up in the order of lib/base/tree.h, four neighbours at a time.
 */
#ifndef TAM_CUDA_SUMS_CUH
#define TAM_CUDA_SUMS_CUH

#include "kernels/cuda/kernel.cuh"

#include "kernels/cuda/exchange.h"
#include "lib/base/tree.h"

static __device__ __forceinline__ bool tam_absent(float x) {
    return tam_bits_of(x) == TAM_CUDA_ABSENT;
}

/* Tests explicitly: an addition does not preserve the bits of a NaN. */
static __device__ __forceinline__ float tam_add(float sum, float x) {
    return tam_absent(sum) || tam_absent(x) ? __uint_as_float(TAM_CUDA_ABSENT) : __fadd_rn(sum, x);
}

static __device__ __forceinline__ float4 tam_add(float4 a, float4 b) {
    return make_float4(tam_add(a.x, b.x), tam_add(a.y, b.y), tam_add(a.z, b.z), tam_add(a.w, b.w));
}

/* What the ranks sent for the own shard, four entries at a time. */
struct tam_received {
    const float4 *first; /* of rank 0; those of the others lie `shard_length` apart */
    uint64_t shard_length;
    uint32_t nranks, own; /* own: tam_tree_own(nranks) */
};

/* The sum of a subtree of 2^LEVEL virtual ranks, in registers. Only the second of two neighbours
 * can be a virtual rank without a real one, so no larger subtree is empty. */
template <uint32_t LEVEL>
static __device__ __forceinline__ float4 tam_add_subtree(const tam_received &g, uint64_t at,
                                                         uint32_t vrank) {
    if constexpr (LEVEL == 0) {
        uint32_t rank = vrank < g.own ? vrank : (vrank + g.own) / 2;
        return g.first[rank * g.shard_length + at];
    } else {
        float4 sum = tam_add_subtree<LEVEL - 1>(g, at, vrank);
        if (LEVEL == 1 && vrank >= g.own)
            return sum;
        return tam_add(sum, tam_add_subtree<LEVEL - 1>(g, at, vrank + (1u << (LEVEL - 1))));
    }
}

/* Subtrees of eight virtual ranks, from a stack of partial sums: where a binary counter of them
 * carries, two are added. */
static __device__ __forceinline__ float4 tam_add_many(const tam_received &g, uint64_t at) {
    float4 parts[TAM_TREE_PARTS];
    uint32_t vranks = 2 * g.nranks - g.own, count = 0;
    for (uint32_t eighth = 0; eighth < vranks / 8; eighth++) {
        float4 sum = tam_add_subtree<3>(g, at, 8 * eighth);
        for (uint32_t carry = eighth; carry % 2 == 1; carry /= 2)
            sum = tam_add(parts[--count], sum);
        parts[count++] = sum;
    }
    return parts[0];
}

static __device__ __forceinline__ float4 tam_add_ranks(const tam_received &g, uint64_t at) {
    if (g.nranks == 1)
        return tam_add_subtree<0>(g, at, 0);
    if (g.nranks == 2)
        return tam_add_subtree<1>(g, at, 0);
    if (g.nranks <= 4)
        return tam_add_subtree<2>(g, at, 0);
    return g.nranks <= 8 ? tam_add_subtree<3>(g, at, 0) : tam_add_many(g, at);
}

#endif
