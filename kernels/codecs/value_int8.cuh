/* SPDX-License-Identifier: MIT */
#ifndef TAM_KERNELS_CODECS_VALUE_INT8_CUH
#define TAM_KERNELS_CODECS_VALUE_INT8_CUH

#include "kernels/codecs/value_codecs.cuh"

static __device__ __forceinline__ float tam_encode_int8(float value, uint32_t count,
                                                        unsigned char *out) {
    uint16_t scale = tam_int8_scale(tam_largest(value));
    int8_t code = tam_int8_code(value, tam_value_divisor(scale));
    tam_put_scale(out, scale);
    if (threadIdx.x < count)
        out[2 + threadIdx.x] = (unsigned char)code;
    return tam_int8_value(code, tam_bfloat16_widen(scale));
}

static __device__ __forceinline__ bool tam_valid_int8(const unsigned char *block) {
    return tam_value_scale_valid(tam_scale_at(block, 0));
}

static __device__ __forceinline__ float tam_decode_int8(const unsigned char *block, uint32_t i) {
    return tam_int8_value((int8_t)block[2 + i], tam_scale_of(block));
}

#endif
