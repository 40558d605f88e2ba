/* SPDX-License-Identifier: MIT */
#ifndef TAM_KERNELS_CODECS_VALUE_FP2_CUH
#define TAM_KERNELS_CODECS_VALUE_FP2_CUH

#include "kernels/codecs/value_codecs.cuh"

/** Sums of the magnitudes below the border and of the others: value i in lane i mod 8,
 * then lane after lane, as value_fp2.c. In all threads. */
static __device__ __forceinline__ void tam_block_split(float magnitude, float border,
                                                       double sums[2]) {
    __shared__ float all[TAM_BLOCK_THREADS];
    __shared__ double lanes[16];
    all[threadIdx.x] = magnitude;
    __syncthreads();
    if (threadIdx.x < 16) {
        bool high = threadIdx.x / 8 == 1;
        double sum = 0.0;
        for (uint32_t i = threadIdx.x % 8; i < TAM_BLOCK_THREADS; i += 8) {
            bool below = all[i] < border;
            sum += below == high ? 0.0 : (double)all[i];
        }
        lanes[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t which = 0; which < 2; which++) { /* sums stay in registers */
        sums[which] = 0.0;
        for (uint32_t j = 0; j < 8; j++)
            sums[which] += lanes[8 * which + j];
    }
    __syncthreads();
}

static __device__ __forceinline__ float tam_encode_fp2(float value, uint32_t count,
                                                       unsigned char *out) {
    const float infinite = __uint_as_float(TAM_INFINITE_BITS);
    float magnitude = __uint_as_float(tam_magnitude_of(value)), border = infinite;
    bool inside = threadIdx.x < count;
    bool finite = __syncthreads_count(tam_value_finite(tam_bits_of(value)) == 0) == 0;
    double sums[2];
    if (finite) { /* uniform in the block */
        tam_block_split(magnitude, border, sums);
        border = (float)(sums[0] / (double)count);
    }
    uint32_t high = !(magnitude < border), nhigh = (uint32_t)__syncthreads_count(high && inside);
    tam_block_split(magnitude, border, sums);
    uint16_t scales[2] = {tam_fp2_mean(sums[0], count - nhigh),
                          finite ? tam_fp2_mean(sums[1], nhigh) : (uint16_t)TAM_FP2_NAN_SCALE};
    uint32_t code = inside ? high | tam_bits_of(value) >> 31 << 1 : 0;
    tam_put_scale(out, scales[0]);
    tam_put_scale(out + 2, scales[1]);
    tam_put_codes<2>(out + 4, code, count);
    return tam_fp2_value(code, tam_bfloat16_widen(scales[0]), tam_bfloat16_widen(scales[1]));
}

static __device__ __forceinline__ bool tam_valid_fp2(const unsigned char *block) {
    return tam_value_scale_valid(tam_scale_at(block, 0)) &&
           tam_fp2_scale_valid(tam_scale_at(block, 2));
}

static __device__ __forceinline__ float tam_decode_fp2(const unsigned char *block, uint32_t i) {
    return tam_fp2_value(block[4 + i / 4] >> 2 * (i % 4) & 3u, tam_scale_of(block),
                         tam_bfloat16_widen(tam_scale_at(block, 2)));
}

#endif
