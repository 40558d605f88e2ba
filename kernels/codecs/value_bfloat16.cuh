/* SPDX-License-Identifier: MIT */
#ifndef TAM_KERNELS_CODECS_VALUE_BFLOAT16_CUH
#define TAM_KERNELS_CODECS_VALUE_BFLOAT16_CUH

#include "kernels/codecs/value_codecs.cuh"

static __device__ __forceinline__ float tam_encode_bfloat16(float value, uint32_t count,
                                                            unsigned char *out) {
    uint16_t half = tam_bfloat16_clamp(value);
    if (threadIdx.x < count)
        reinterpret_cast<uint16_t *>(out)[threadIdx.x] = half;
    return tam_bfloat16_widen(half);
}

static __device__ __forceinline__ bool tam_valid_bfloat16(const unsigned char *) {
    return true;
}

static __device__ __forceinline__ float tam_decode_bfloat16(const unsigned char *block,
                                                            uint32_t i) {
    return tam_bfloat16_widen(tam_scale_at(block, 2 * i));
}

#endif
