/* SPDX-License-Identifier: MIT
 *
 * How kernels walk the chunks of the grid, and how a warp holds one in registers: see
 * accumulate.cu.
 */
#ifndef TAM_CUDA_CHUNK_CUH
#define TAM_CUDA_CHUNK_CUH

#include "kernels/cuda/kernel.cuh"

/** Numbers first to end - 1. */
struct tam_run {
    uint32_t first, end;
};

/** The part of block b: runs are contiguous and ascend with b. */
static __device__ __forceinline__ tam_run tam_run_of(uint32_t first, uint32_t end, uint32_t b,
                                                     uint32_t blocks) {
    uint64_t count = end - first;
    return {first + (uint32_t)(count * b / blocks), first + (uint32_t)(count * (b + 1) / blocks)};
}

/** The chunks of the pass's runs `runs.first` to `runs.end` - 1; runs.first < grid.nruns. */
static __device__ __forceinline__ tam_run tam_chunks_of(const tam_cuda_grid &grid, tam_run runs) {
    return {runs.first * grid.run, runs.end < grid.nruns ? runs.end * grid.run : grid.nchunks};
}

/** One load of 16 bytes. */
static __device__ __forceinline__ tam_cuda_chunk tam_chunk_of(const tam_cuda_grid &grid,
                                                              uint32_t number) {
    uint4 x = __ldg(reinterpret_cast<const uint4 *>(grid.chunks) + number);
    return {x.x, x.y, x.z, x.w};
}

static __device__ __forceinline__ bool tam_aligned(const void *memory, size_t bytes) {
    return (reinterpret_cast<uintptr_t>(memory) & (bytes - 1)) == 0;
}

/** How a chunk is read: in vectors of four; whole, but not aligned for vectors; shorter, with a
 * test for every element. */
enum tam_form { TAM_VECTOR, TAM_WHOLE, TAM_PART };

/** The element, from the chunk's begin, that register r of a lane holds. */
template <tam_form FORM>
static __device__ __forceinline__ uint32_t tam_element_of(uint32_t lane, uint32_t r) {
    return r / 4 * 128 + (FORM == TAM_VECTOR ? 4 * lane + r % 4 : r % 4 * 32 + lane);
}

/** Whether the chunk has that element. */
template <tam_form FORM>
static __device__ __forceinline__ bool tam_inside(uint32_t element, uint32_t length) {
    return FORM != TAM_PART || element < length;
}

/** @param x  elements past the end are 0 */
template <tam_form FORM>
static __device__ __forceinline__ void tam_load_chunk(const float *from, uint32_t length,
                                                      float x[16]) {
    uint32_t lane = threadIdx.x % 32;
    if (FORM == TAM_VECTOR) {
        const float4 *rows = reinterpret_cast<const float4 *>(from);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            float4 row = tam_load(rows + 32 * j + lane);
            x[4 * j] = row.x, x[4 * j + 1] = row.y, x[4 * j + 2] = row.z, x[4 * j + 3] = row.w;
        }
    } else {
#pragma unroll
        for (uint32_t r = 0; r < 16; r++) {
            uint32_t i = tam_element_of<FORM>(lane, r);
            x[r] = tam_inside<FORM>(i, length) ? tam_load(from + i) : 0.0f;
        }
    }
}

/** counts[0] + ... + counts[b - 1], in all threads of the block. */
static __device__ __forceinline__ uint32_t tam_sum_before(const uint32_t *counts, uint32_t b) {
    using reduce = cub::BlockReduce<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename reduce::TempStorage memory;
    __shared__ uint32_t all;
    uint32_t sum = 0;
    for (uint32_t i = threadIdx.x; i < b; i += TAM_BLOCK_THREADS)
        sum += counts[i];
    __syncthreads(); /* all threads have read the result of an earlier call */
    sum = reduce(memory).Sum(sum);
    if (threadIdx.x == 0)
        all = sum;
    __syncthreads();
    return all;
}

#endif
