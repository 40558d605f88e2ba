/* SPDX-License-Identifier: MIT
 *
 * What value codecs share on a device. A block of 256 values is a block of threads, a value each.
 * Each value_<name>.cuh has three functions; bytes and errors are those of value_<name>.c:
 *
 *     tam_encode_<name>(value, count, out)   all threads, zeros in those from `count` on. `out` is
 *                                            even; float32: a multiple of 4. @return what arrives
 *     tam_valid_<name>(block)                whether its scales are those of an encoder
 *     tam_decode_<name>(block, i)            value i, in any thread
 */
#ifndef TAM_KERNELS_CODECS_VALUE_CODECS_CUH
#define TAM_KERNELS_CODECS_VALUE_CODECS_CUH

#include "kernels/codecs/value_code.h"
#include "kernels/cuda/packets.cuh"

#include "lib/contracts/value_codec.h"

static_assert((int)TAM_BLOCK_THREADS == (int)TAM_VALUE_BLOCK, "a value is a thread");

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

static __device__ __forceinline__ float tam_largest(float value) {
    uint32_t magnitude = tam_magnitude_of(value);
    return __uint_as_float(tam_block_most(magnitude & tam_value_finite(magnitude)));
}

static __device__ __forceinline__ void tam_put_scale(unsigned char *out, uint16_t scale) {
    if (threadIdx.x == 0)
        *reinterpret_cast<uint16_t *>(out) = scale;
}

/** Codes of BITS, fewer than 8, the first one lowest, of the first `count` threads. */
template <uint32_t BITS>
static __device__ __forceinline__ void tam_put_codes(unsigned char *out, uint32_t code,
                                                     uint32_t count) {
    static_assert(8 % BITS == 0, "a code lies in one byte");
    uint32_t each = 8 / BITS, i = threadIdx.x;
    for (uint32_t next = 1; next < each; next *= 2)
        code |= __shfl_down_sync(TAM_WARP, code, next) << next * BITS;
    if (i % each == 0 && i < count)
        out[i / each] = (unsigned char)code;
}

static __device__ __forceinline__ uint16_t tam_scale_at(const unsigned char *block, uint32_t at) {
    return *reinterpret_cast<const uint16_t *>(block + at);
}

static __device__ __forceinline__ float tam_scale_of(const unsigned char *block) {
    return tam_bfloat16_widen(tam_scale_at(block, 0));
}

#endif
