/* SPDX-License-Identifier: MIT */
#ifndef TAM_KERNELS_CODECS_VALUE_FLOAT32_CUH
#define TAM_KERNELS_CODECS_VALUE_FLOAT32_CUH

#include "kernels/codecs/value_codecs.cuh"

static __device__ __forceinline__ float tam_encode_float32(float value, uint32_t count,
                                                           unsigned char *out) {
    if (threadIdx.x < count)
        reinterpret_cast<float *>(out)[threadIdx.x] = value;
    return value;
}

static __device__ __forceinline__ bool tam_valid_float32(const unsigned char *) {
    return true;
}

static __device__ __forceinline__ float tam_decode_float32(const unsigned char *block, uint32_t i) {
    return reinterpret_cast<const float *>(block)[i];
}

#endif
