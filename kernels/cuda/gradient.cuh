/* SPDX-License-Identifier: MIT
 *
 * Writing a result: to one flat gradient, or to one for each segment.
 */
#ifndef TAM_CUDA_GRADIENT_CUH
#define TAM_CUDA_GRADIENT_CUH

#include "kernels/cuda/kernel.cuh"

#include "lib/base/half.h"

/** The segment that holds an element: that of the last group which begins at or before it. */
static __device__ __forceinline__ uint32_t tam_segment_of(const tam_cuda_grid &grid,
                                                          uint32_t index) {
    uint32_t first = 0, end = grid.ngroups;
    while (end - first > 1) {
        uint32_t middle = first + (end - first) / 2;
        if (grid.groups[middle].begin <= index)
            first = middle;
        else
            end = middle;
    }
    return grid.groups[first].segment;
}

/** Set the gradient at `index` to value, rounded to its type. @param source  *target.source, or a
 * copy in registers */
static __device__ __forceinline__ void tam_write_gradient(const tam_cuda_accumulate &target,
                                                          const tam_cuda_source &source,
                                                          uint32_t index, float value) {
    void *to = source.grad;
    if (!to) {
        uint32_t segment = tam_segment_of(target.grid, index);
        to = source.grads[segment];
        index -= target.seg_begin[segment];
    }
    if (target.type == TAMIS_DTYPE_FLOAT32)
        static_cast<float *>(to)[index] = value;
    else
        static_cast<uint16_t *>(to)[index] = target.type == TAMIS_DTYPE_FLOAT16
                                                 ? tam_float16_narrow(value)
                                                 : tam_bfloat16_clamp(value);
}

#endif
