/* SPDX-License-Identifier: MIT
 *
 * Where the ranges of a union begin, once it is known how many entries each has: by the last block
 * of a launch.
 */
#ifndef TAM_CUDA_RANGES_CUH
#define TAM_CUDA_RANGES_CUH

#include "kernels/cuda/value_codec.cuh"

#include "lib/policy/shards.h"

/** Offsets of the ranges, and the length of the union. Every thread takes a run of ranges. */
static __device__ void tam_lay_out_ranges(const tam_cuda_exchange &x) {
    typedef cub::BlockScan<uint32_t, TAM_BLOCK_THREADS> scan;
    __shared__ typename scan::TempStorage space;
    uint64_t ranges = x.ranges.count;
    uint32_t first = (uint32_t)(ranges * threadIdx.x / TAM_BLOCK_THREADS);
    uint32_t end = (uint32_t)(ranges * (threadIdx.x + 1) / TAM_BLOCK_THREADS);
    uint32_t entries = 0, offset, all;
    for (uint32_t range = first; range < end; range++)
        entries += x.ranges.entries[range];
    scan(space).ExclusiveSum(entries, offset, all);
    for (uint32_t range = first; range < end; range++) {
        x.ranges.offsets[range] = offset;
        offset += x.ranges.entries[range];
    }
    if (threadIdx.x == 0) {
        x.ranges.offsets[ranges] = all;
        x.scratch->verdict.count = all;
    }
}

/* Rounded: who adds up which blocks of the union. */
static __device__ void tam_split_shards(const tam_cuda_exchange &x) {
    uint32_t count = x.scratch->verdict.count, nranks = x.packets.nranks;
    for (uint32_t r = threadIdx.x; r < nranks; r += TAM_BLOCK_THREADS) {
        tam_owned own[2];
        tam_shards_of(tam_blocks_of(count), 1, nranks, r, own);
        tam_cuda_shard *shard = &x.rounded.shards[r];
        for (uint32_t i = 0; i < 2; i++) {
            shard->begin[i] = (uint32_t)own[i].begin;
            shard->count[i] = (uint32_t)own[i].length;
        }
    }
}

/** All threads of the last block call this; the others have counted. */
static __device__ __forceinline__ void tam_begin_union(const tam_cuda_exchange &x) {
    tam_lay_out_ranges(x);
    __syncthreads();
    if (x.rounded.blocks > 0)
        tam_split_shards(x);
}

#endif
