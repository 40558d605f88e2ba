/* SPDX-License-Identifier: MIT
 *
 * Walks over chosen indices. Their number lies in device memory; the grid is bounded by `most`.
 */
#include "kernels/cuda/kernel.cuh"

#include "lib/base/half.h"

static const uint32_t BLOCKS_MOST = 2048;

static uint32_t blocks_for(uint32_t most) {
    uint32_t blocks = most / TAM_BLOCK_THREADS + 1;
    return blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST;
}

static __device__ uint64_t first_of(void) {
    return (uint64_t)blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x;
}

static __device__ uint64_t stride_of(void) {
    return (uint64_t)gridDim.x * TAM_BLOCK_THREADS;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    gather(const float *acc, const uint32_t *indices, const uint32_t *count, float *values) {
    uint32_t end = *count;
    for (uint64_t i = first_of(); i < end; i += stride_of())
        values[i] = acc[indices[i]];
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    clear(float *acc, const uint32_t *indices, const uint32_t *count) {
    uint32_t end = *count;
    for (uint64_t i = first_of(); i < end; i += stride_of())
        acc[indices[i]] = 0.0f;
}

/* The group that holds an element: the last that begins at or before it. */
static __device__ uint32_t group_of(const tam_cuda_grid &grid, uint32_t index) {
    uint32_t first = 0, end = grid.ngroups;
    while (end - first > 1) {
        uint32_t middle = first + (end - first) / 2;
        if (grid.groups[middle].begin <= index)
            first = middle;
        else
            end = middle;
    }
    return first;
}

static __device__ void store(void *to, tamis_type type, uint64_t at, float value) {
    switch (type) {
    case TAMIS_TYPE_FLOAT16:
        static_cast<uint16_t *>(to)[at] = tam_float16_narrow(value);
        break;
    case TAMIS_TYPE_BFLOAT16:
        static_cast<uint16_t *>(to)[at] = tam_bfloat16_narrow(value);
        break;
    default:
        static_cast<float *>(to)[at] = value;
        break;
    }
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    apply(const tam_cuda_accumulate target, const uint32_t *indices, const uint32_t *count,
          float divisor, float *values) {
    tam_cuda_source to = target.source ? *target.source : tam_cuda_source{};
    uint32_t end = *count;
    for (uint64_t i = first_of(); i < end; i += stride_of()) {
        uint32_t index = indices[i];
        float value = values[i] = __fdiv_rn(values[i], divisor);
        if (to.grad) {
            store(to.grad, target.type, index, value);
        } else if (to.grads) {
            uint32_t segment = target.grid.groups[group_of(target.grid, index)].segment;
            store(to.grads[segment], target.type, index - target.seg_begin[segment], value);
        }
    }
}

static __global__ void set_source(tam_cuda_source *to, const tam_cuda_source value) {
    if (threadIdx.x == 0)
        *to = value;
}

extern "C" int tam_launch_source(tam_cuda_source *to, tam_cuda_source value, void *stream) {
    return tam_launch(set_source, 1, stream, to, value);
}

extern "C" int tam_launch_gather(const float *acc, const uint32_t *indices, const uint32_t *count,
                                 uint32_t most, float *values, void *stream) {
    return tam_launch(gather, blocks_for(most), stream, acc, indices, count, values);
}

extern "C" int tam_launch_apply(const tam_cuda_accumulate *target, const uint32_t *indices,
                                const uint32_t *count, uint32_t most, float divisor, float *values,
                                void *stream) {
    return tam_launch(apply, blocks_for(most), stream, *target, indices, count, divisor, values);
}

extern "C" int tam_launch_clear(float *acc, const uint32_t *indices, const uint32_t *count,
                                uint32_t most, void *stream) {
    return tam_launch(clear, blocks_for(most), stream, acc, indices, count);
}
