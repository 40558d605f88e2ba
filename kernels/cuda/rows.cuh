/* SPDX-License-Identifier: MIT
 *
 * Rows that are touched: those with an entry that is not 0.
 */
#ifndef TAM_CUDA_ROWS_CUH
#define TAM_CUDA_ROWS_CUH

#include "kernels/cuda/kernel.cuh"

/** A warp reads a row, four entries a lane at a time, until one is not 0. @return in all lanes */
static __device__ __forceinline__ bool tam_touches(const float *row, uint32_t length) {
    uint32_t lane = threadIdx.x % 32, found = 0;
    for (uint64_t at = 0; at < length && found == 0; at += 128) {
        uint32_t any = 0;
#pragma unroll
        for (uint32_t q = 0; q < 4; q++) {
            uint64_t i = at + 32 * q + lane;
            any |= i < length ? tam_magnitude_of(row[i]) : 0;
        }
        found = __ballot_sync(TAM_WARP, any > 0);
    }
    return found != 0;
}

#endif
