/* SPDX-License-Identifier: MIT
 *
 * Where the candidates of the pass go: into the pool, those of a chunk side by side and ascending.
 */
#ifndef TAM_CUDA_CANDIDATES_CUH
#define TAM_CUDA_CANDIDATES_CUH

#include "kernels/cuda/kernel.cuh"

#include "kernels/cuda/chunk.cuh"

/* A warp takes batches of the pool; its cursor is where the next candidate goes. Batches begin at
 * multiples of their length, so the cursor says how much of one is left: at a multiple, nothing. */
static const uint32_t TAM_POOL_FULL = UINT32_MAX; /* only count, write nothing */

/* Make `count` entries from *at on the warp's. The same in all lanes. After the pool is full a warp
 * takes no more of it, so the pool's cursor cannot wrap. */
static __device__ bool tam_reserve_candidates(const tam_cuda_accumulate &job, uint32_t count,
                                              uint32_t *at) {
    uint32_t left = (0u - *at) % TAM_BATCH;
    if (count > left && *at != TAM_POOL_FULL) {
        uint32_t batch = 0;
        if (threadIdx.x % 32 == 0)
            batch = atomicAdd(&job.found->pool_used, (uint32_t)TAM_BATCH);
        batch = __shfl_sync(TAM_WARP, batch, 0);
        *at = batch + TAM_BATCH <= job.candidates.pool_capacity ? batch : TAM_POOL_FULL;
    }
    return *at != TAM_POOL_FULL;
}

/* For TAM_VECTOR: byte j of the result is the number of hits of row j in lower lanes; byte j of
 * *all, in all lanes. Bytes cannot overflow: a row has 128 elements. */
static __device__ uint32_t tam_count_before(uint32_t hits, uint32_t *all) {
    uint32_t lane = threadIdx.x % 32, own = 0, before;
    for (uint32_t j = 0; j < 4; j++)
        own |= (uint32_t)__popc(hits >> 4 * j & 15u) << 8 * j;
    before = own;
    for (uint32_t step = 1; step < 32; step *= 2) {
        uint32_t other = __shfl_up_sync(TAM_WARP, before, step);
        before += lane >= step ? other : 0;
    }
    *all = __shfl_sync(TAM_WARP, before, 31);
    return before - own;
}

/* Reads the magnitude back, which costs little: it need not stay in a register. */
static __device__ void tam_put_candidate(const tam_cuda_accumulate &job, uint32_t at,
                                         uint32_t index) {
    job.candidates.pool_index[at] = index;
    job.candidates.pool_magnitude[at] = tam_magnitude_of(job.acc[index]);
}

/* Write the hits (bit r: register r) in the order of their elements. @return their number */
static __device__ uint32_t tam_append_rows(const tam_cuda_accumulate &job, uint32_t begin,
                                           uint32_t hits, uint32_t *cursor) {
    uint32_t lane = threadIdx.x % 32, all, before = tam_count_before(hits, &all);
    uint32_t count = (all & 255u) + (all >> 8 & 255u) + (all >> 16 & 255u) + (all >> 24);
    if (!tam_reserve_candidates(job, count, cursor))
        return count;
    for (uint32_t left = hits; left != 0; left &= left - 1) {
        uint32_t r = (uint32_t)__ffs((int)left) - 1, j = r / 4, at = *cursor;
        for (uint32_t row = 0; row < j; row++)
            at += all >> 8 * row & 255u;
        at += (before >> 8 * j & 255u) + (uint32_t)__popc(hits >> 4 * j & ((1u << r % 4) - 1));
        tam_put_candidate(job, at, begin + tam_element_of<TAM_VECTOR>(lane, r));
    }
    *cursor += count;
    return count;
}

/* Append candidates of the other mapping, where lanes' elements of one register are neighbours. */
static __device__ uint32_t tam_append_columns(const tam_cuda_accumulate &job, uint32_t begin,
                                              uint32_t hits, uint32_t *cursor) {
    uint32_t lane = threadIdx.x % 32, count = 0;
    for (uint32_t r = 0; r < 16; r++)
        count += (uint32_t)__popc(__ballot_sync(TAM_WARP, hits >> r & 1));
    if (!tam_reserve_candidates(job, count, cursor))
        return count;
#pragma unroll 1
    for (uint32_t r = 0; r < 16; r++) {
        uint32_t column = __ballot_sync(TAM_WARP, hits >> r & 1);
        if (hits >> r & 1)
            tam_put_candidate(job, *cursor + (uint32_t)__popc(column & ((1u << lane) - 1)),
                              begin + tam_element_of<TAM_PART>(lane, r));
        *cursor += (uint32_t)__popc(column);
    }
    return count;
}

#endif
