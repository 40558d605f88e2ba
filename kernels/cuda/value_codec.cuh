/* SPDX-License-Identifier: MIT
 *
 * Value codecs on a device: a block of 256 values is a block of threads, a value each. The bytes
 * are those of the host (collectives/exchange/value_*.c), and so are the errors.
 */
#ifndef TAM_CUDA_VALUE_CODEC_CUH
#define TAM_CUDA_VALUE_CODEC_CUH

#include "kernels/cuda/packets.cuh"

#include "lib/base/value_codec.h"
#include "lib/base/value_code.h"

static_assert((int)TAM_BLOCK_THREADS == (int)TAM_VALUE_BLOCK, "a value is a thread");
static_assert(TAMIS_VALUE_END == 6,
              "a new value codec needs tam_value_encode_block and tam_value_in_block here; "
              "tam_put_codes wants bits that divide 8");

/* -- the block -------------------------------------------------------------------------------- */

/** The largest over the block, in all threads. */
static __device__ __forceinline__ uint32_t tam_block_most(uint32_t mine) {
    __shared__ uint32_t warps[TAM_BLOCK_WARPS];
    for (int with = 16; with > 0; with /= 2) {
        uint32_t other = __shfl_xor_sync(TAM_WARP, mine, with);
        mine = other > mine ? other : mine;
    }
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = mine;
    __syncthreads();
    for (uint32_t w = 0; w < TAM_BLOCK_WARPS; w++)
        mine = warps[w] > mine ? warps[w] : mine;
    __syncthreads();
    return mine;
}

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

/* -- encode ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ void tam_put_scale(unsigned char *out, uint16_t scale) {
    if (threadIdx.x == 0)
        *reinterpret_cast<uint16_t *>(out) = scale;
}

/** Codes of fewer than 8 bits, the first one lowest, of the first `count` threads. */
static __device__ __forceinline__ void tam_put_codes(unsigned char *out, uint32_t code,
                                                     uint32_t bits, uint32_t count) {
    uint32_t each = 8 / bits, i = threadIdx.x;
    for (uint32_t next = 1; next < each; next *= 2)
        code |= __shfl_down_sync(TAM_WARP, code, next) << next * bits;
    if (i % each == 0 && i < count)
        out[i / each] = (unsigned char)code;
}

static __device__ __forceinline__ float tam_round_bfloat16(float value, uint32_t count,
                                                           unsigned char *out) {
    uint16_t half = tam_bfloat16_clamp(value);
    if (threadIdx.x < count)
        reinterpret_cast<uint16_t *>(out)[threadIdx.x] = half;
    return tam_bfloat16_widen(half);
}

static __device__ __forceinline__ float tam_largest(float value) {
    uint32_t magnitude = tam_magnitude_of(value);
    return __uint_as_float(tam_block_most(magnitude & tam_value_finite(magnitude)));
}

static __device__ __forceinline__ float tam_round_int8(float value, uint32_t count,
                                                       unsigned char *out) {
    uint16_t scale = tam_int8_scale(tam_largest(value));
    int8_t code = tam_int8_code(value, tam_value_divisor(scale));
    tam_put_scale(out, scale);
    if (threadIdx.x < count)
        out[2 + threadIdx.x] = (unsigned char)code;
    return tam_int8_value(code, tam_bfloat16_widen(scale));
}

static __device__ __forceinline__ float tam_round_fp4(float value, uint32_t count,
                                                      unsigned char *out) {
    uint16_t scale = tam_value_scale(tam_largest(value));
    uint32_t code = tam_fp4_code(value, tam_value_divisor(scale));
    tam_put_scale(out, scale);
    tam_put_codes(out + 2, code, 4, count);
    return tam_fp4_value(code, tam_bfloat16_widen(scale));
}

static __device__ __forceinline__ float tam_round_fp2(float value, uint32_t count,
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
    tam_put_codes(out + 4, code, 2, count);
    return tam_fp2_value(code, tam_bfloat16_widen(scales[0]), tam_bfloat16_widen(scales[1]));
}

/** Encode a block of `count` values, one in each thread, zeros in the threads behind. All threads
 * must call it. `out` is even; float32: a multiple of 4. @return what arrives */
static __device__ __forceinline__ float tam_value_encode_block(const tam_cuda_value_codec &codec,
                                                               float value, uint32_t count,
                                                               unsigned char *out) {
    switch (codec.type) {
    case TAMIS_VALUE_BFLOAT16:
        return tam_round_bfloat16(value, count, out);
    case TAMIS_VALUE_INT8:
        return tam_round_int8(value, count, out);
    case TAMIS_VALUE_FP4:
        return tam_round_fp4(value, count, out);
    case TAMIS_VALUE_FP2:
        return tam_round_fp2(value, count, out);
    case TAMIS_VALUE_AUTO:
    case TAMIS_VALUE_FLOAT32:
    case TAMIS_VALUE_END:
        break;
    }
    if (threadIdx.x < count)
        reinterpret_cast<float *>(out)[threadIdx.x] = value;
    return value;
}

/* -- decode: any value by itself -------------------------------------------------------------- */

static __device__ __forceinline__ uint16_t tam_scale_at(const unsigned char *block, uint32_t at) {
    return *reinterpret_cast<const uint16_t *>(block + at);
}

/** Whether the scales of a block are those of an encoder. */
static __device__ __forceinline__ bool tam_value_valid(const tam_cuda_value_codec &codec,
                                                       const unsigned char *block) {
    if (codec.scale_bytes == 0)
        return true;
    return tam_value_scale_valid(tam_scale_at(block, 0)) &&
           (codec.type != TAMIS_VALUE_FP2 || tam_fp2_scale_valid(tam_scale_at(block, 2)));
}

/** Value i of a block. */
static __device__ __forceinline__ float tam_value_in_block(const tam_cuda_value_codec &codec,
                                                           const unsigned char *block, uint32_t i) {
    switch (codec.type) {
    case TAMIS_VALUE_BFLOAT16:
        return tam_bfloat16_widen(tam_scale_at(block, 2 * i));
    case TAMIS_VALUE_INT8:
        return tam_int8_value((int8_t)block[2 + i], tam_bfloat16_widen(tam_scale_at(block, 0)));
    case TAMIS_VALUE_FP4:
        return tam_fp4_value(block[2 + i / 2] >> 4 * (i % 2) & 15u,
                             tam_bfloat16_widen(tam_scale_at(block, 0)));
    case TAMIS_VALUE_FP2:
        return tam_fp2_value(block[4 + i / 4] >> 2 * (i % 4) & 3u,
                             tam_bfloat16_widen(tam_scale_at(block, 0)),
                             tam_bfloat16_widen(tam_scale_at(block, 2)));
    case TAMIS_VALUE_AUTO:
    case TAMIS_VALUE_FLOAT32:
    case TAMIS_VALUE_END:
        break;
    }
    return reinterpret_cast<const float *>(block)[i];
}

/* -- encoded buffers -------------------------------------------------------------------------- */

/** Bytes of the first `count` values of an encoded buffer. */
static __device__ __forceinline__ uint32_t
tam_value_encoded_bytes(const tam_cuda_value_codec &codec, uint32_t count) {
    return (uint32_t)tam_value_bytes_of(codec.bits, codec.scale_bytes, count);
}

static __device__ __forceinline__ uint32_t
tam_value_block_bytes(const tam_cuda_value_codec &codec) {
    return tam_value_encoded_bytes(codec, TAM_VALUE_BLOCK);
}

/** From one block of a message to the next: words can be read. */
static __device__ __forceinline__ uint32_t tam_value_stride(const tam_cuda_value_codec &codec) {
    return (uint32_t)tam_header_round(tam_value_block_bytes(codec));
}

static __device__ __forceinline__ uint32_t tam_blocks_of(uint32_t count) {
    return count / TAM_VALUE_BLOCK + (count % TAM_VALUE_BLOCK > 0);
}

/** Value i of an encoded buffer. */
static __device__ __forceinline__ float tam_value_at(const tam_cuda_value_codec &codec,
                                                     const unsigned char *encoded, uint32_t i) {
    const unsigned char *block =
        encoded + (uint64_t)(i / TAM_VALUE_BLOCK) * tam_value_block_bytes(codec);
    return tam_value_in_block(codec, block, i % TAM_VALUE_BLOCK);
}

#endif
