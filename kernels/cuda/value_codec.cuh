/* SPDX-License-Identifier: MIT
 *
 * Value codecs on a device, by the type of a step. A row of TAMIS_VALUE_CODECS without device
 * functions does not compile: kernels/codecs/value_codecs.cuh says which.
 */
#ifndef TAM_CUDA_VALUE_CODEC_CUH
#define TAM_CUDA_VALUE_CODEC_CUH

#include "kernels/codecs/value_bfloat16.cuh"
#include "kernels/codecs/value_float32.cuh"
#include "kernels/codecs/value_fp2.cuh"
#include "kernels/codecs/value_fp4.cuh"
#include "kernels/codecs/value_int8.cuh"

/** Return f_<name>(...) of the codec. AUTO stands for no other row here: float32. */
#define TAM_OF_VALUE_CODEC(type, CASE)                                                             \
    switch ((tamis_value_codec)(type)) {                                                           \
        TAMIS_VALUE_CODECS(CASE)                                                                   \
    case TAMIS_VALUE_AUTO:                                                                         \
    case TAMIS_VALUE_END:                                                                          \
        break;                                                                                     \
    }

/** Encode a block of `count` values, one in each thread. @return what arrives */
static __device__ __forceinline__ float tam_value_encode_block(const tam_cuda_value_codec &codec,
                                                               float value, uint32_t count,
                                                               unsigned char *out) {
#define TAM_CASE(NAME, name, ...)                                                                  \
    case TAMIS_VALUE_##NAME:                                                                       \
        return tam_encode_##name(value, count, out);
    TAM_OF_VALUE_CODEC(codec.type, TAM_CASE)
#undef TAM_CASE
    return tam_encode_float32(value, count, out);
}

/** Whether the scales of a block are those of an encoder. */
static __device__ __forceinline__ bool tam_value_valid(const tam_cuda_value_codec &codec,
                                                       const unsigned char *block) {
#define TAM_CASE(NAME, name, ...)                                                                  \
    case TAMIS_VALUE_##NAME:                                                                       \
        return tam_valid_##name(block);
    TAM_OF_VALUE_CODEC(codec.type, TAM_CASE)
#undef TAM_CASE
    return tam_valid_float32(block);
}

/** Value i of a block. */
static __device__ __forceinline__ float tam_value_in_block(const tam_cuda_value_codec &codec,
                                                           const unsigned char *block, uint32_t i) {
#define TAM_CASE(NAME, name, ...)                                                                  \
    case TAMIS_VALUE_##NAME:                                                                       \
        return tam_decode_##name(block, i);
    TAM_OF_VALUE_CODEC(codec.type, TAM_CASE)
#undef TAM_CASE
    return tam_decode_float32(block, i);
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
