/* SPDX-License-Identifier: MIT */
#ifndef TAM_KERNELS_CODECS_VALUE_FP4_CUH
#define TAM_KERNELS_CODECS_VALUE_FP4_CUH

#include "kernels/codecs/value_codecs.cuh"

static __device__ __forceinline__ float tam_encode_fp4(float value, uint32_t count,
                                                       unsigned char *out) {
    uint16_t scale = tam_value_scale(tam_largest(value));
    uint32_t code = tam_fp4_code(value, tam_value_divisor(scale));
    tam_put_scale(out, scale);
    tam_put_codes<4>(out + 2, code, count);
    return tam_fp4_value(code, tam_bfloat16_widen(scale));
}

static __device__ __forceinline__ bool tam_valid_fp4(const unsigned char *block) {
    return tam_value_scale_valid(tam_scale_at(block, 0));
}

static __device__ __forceinline__ float tam_decode_fp4(const unsigned char *block, uint32_t i) {
    return tam_fp4_value(block[2 + i / 2] >> 4 * (i % 2) & 15u, tam_scale_of(block));
}

#endif
