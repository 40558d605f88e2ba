/* SPDX-License-Identifier: MIT
 *
 * A gradient as it lies: its types, the place of a chunk, to floats. One warp takes one chunk of
 * the grid at a time; a lane takes four neighbours, if both sides are aligned for that.
 */
#ifndef TAM_CUDA_WIDEN_CUH
#define TAM_CUDA_WIDEN_CUH

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/exchange.h"
#include "lib/base/half.h"

static __device__ __forceinline__ uint32_t tam_warp_of_grid(void) {
    return blockIdx.x * TAM_BLOCK_WARPS + threadIdx.x / 32;
}

static __device__ __forceinline__ uint32_t tam_warps_of_grid(void) {
    return gridDim.x * TAM_BLOCK_WARPS;
}

/* -- types of gradients: four neighbours at once, or one -------------------------------------- */

struct tam_as_float32 {
    using element = float;
    using row = float4;
    static __device__ __forceinline__ void widen(row x, float to[4]) {
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    static __device__ __forceinline__ row narrow(const float x[4]) {
        return make_float4(x[0], x[1], x[2], x[3]);
    }
    static __device__ __forceinline__ float widen(element x) {
        return x;
    }
    static __device__ __forceinline__ element narrow(float x) {
        return x;
    }
};

/* Two elements in a word, the first in its lower half. */
template <float (*WIDEN)(uint16_t), uint16_t (*NARROW)(float)> struct tam_as_bits16 {
    using element = unsigned short;
    using row = uint2;
    static __device__ __forceinline__ void widen(row x, float to[4]) {
        to[0] = WIDEN((uint16_t)x.x), to[1] = WIDEN((uint16_t)(x.x >> 16));
        to[2] = WIDEN((uint16_t)x.y), to[3] = WIDEN((uint16_t)(x.y >> 16));
    }
    static __device__ __forceinline__ row narrow(const float x[4]) {
        row to;
        to.x = NARROW(x[0]) | (uint32_t)NARROW(x[1]) << 16;
        to.y = NARROW(x[2]) | (uint32_t)NARROW(x[3]) << 16;
        return to;
    }
    static __device__ __forceinline__ float widen(element x) {
        return WIDEN(x);
    }
    static __device__ __forceinline__ element narrow(float x) {
        return NARROW(x);
    }
};

using tam_as_float16 = tam_as_bits16<tam_float16_widen, tam_float16_narrow>;
using tam_as_bfloat16 = tam_as_bits16<tam_bfloat16_widen, tam_bfloat16_clamp>;

/* -- the gradient of a chunk ------------------------------------------------------------------ */

template <typename ELEMENT>
static __device__ __forceinline__ ELEMENT *tam_gradient_of(const tam_cuda_accumulate &target,
                                                           const tam_cuda_chunk &chunk) {
    void *flat = target.source->grad;
    if (flat)
        return static_cast<ELEMENT *>(flat) + chunk.begin;
    uint32_t segment = target.grid.groups[chunk.group].segment;
    return static_cast<ELEMENT *>(target.source->grads[segment]) +
           (chunk.begin - target.seg_begin[segment]);
}

/* Rows of four that can be moved at once; the elements after them are moved one by one. */
template <typename TYPE>
static __device__ __forceinline__ uint32_t tam_rows_of(const typename TYPE::element *grad,
                                                       const float *values, uint32_t length) {
    bool aligned = tam_aligned(grad, sizeof(typename TYPE::row)) && tam_aligned(values, 16);
    return aligned ? length / 4 : 0;
}

/* TAM_CUDA_ABSENT is a signalling NaN. The product makes such a NaN quiet, so no gradient looks
 * absent. A rank whose exchange is broken sends absent values, so all ranks refuse the step. */
static __device__ __forceinline__ float tam_scale_or_absent(float x, float scale, bool broken) {
    return broken ? __uint_as_float(TAM_CUDA_ABSENT) : __fmul_rn(x, scale);
}

/** What a message has of a chunk. */
struct tam_widened {
    float *to;
    uint32_t position; /* of `to` in the message, for its check */
};

/** A chunk, scaled, in floats. All lanes call it. @return this lane's part of the sum
 * tam_sum_bytes of the message, if it is SUMMED */
template <typename TYPE, bool SUMMED>
static __device__ __forceinline__ uint64_t tam_widen_chunk(const typename TYPE::element *from,
                                                           uint32_t length, float scale,
                                                           bool broken, tam_widened out) {
    uint32_t lane = threadIdx.x % 32, nrows = tam_rows_of<TYPE>(from, out.to, length);
    uint64_t sum = 0;
#pragma unroll 4
    for (uint32_t i = lane; i < nrows; i += 32) {
        float x[4];
        TYPE::widen(__ldcs(reinterpret_cast<const typename TYPE::row *>(from) + i), x);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            x[c] = tam_scale_or_absent(x[c], scale, broken);
            if (SUMMED)
                sum += tam_sum_word(TAM_SUM_VALUES, out.position + 4 * i + c, tam_bits_of(x[c]));
        }
        reinterpret_cast<float4 *>(out.to)[i] = make_float4(x[0], x[1], x[2], x[3]);
    }
    for (uint32_t i = 4 * nrows + lane; i < length; i += 32) {
        float x = tam_scale_or_absent(TYPE::widen(__ldcs(from + i)), scale, broken);
        if (SUMMED)
            sum += tam_sum_word(TAM_SUM_VALUES, out.position + i, tam_bits_of(x));
        out.to[i] = x;
    }
    return sum;
}

/** Zeros into the whole gradient. */
template <typename ELEMENT>
static __device__ void tam_clear_all(const tam_cuda_accumulate &target) {
    for (uint32_t c = tam_warp_of_grid(); c < target.grid.nchunks; c += tam_warps_of_grid()) {
        tam_cuda_chunk chunk = tam_chunk_of(target.grid, c);
        ELEMENT *to = tam_gradient_of<ELEMENT>(target, chunk);
        for (uint32_t i = threadIdx.x % 32; i < chunk.length; i += 32)
            to[i] = ELEMENT();
    }
}

#endif
