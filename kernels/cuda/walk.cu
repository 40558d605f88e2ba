/* SPDX-License-Identifier: MIT
 *
 * Walks over chosen indices, whose number is in device memory (the grid is bounded by `most`), and
 * walks over all entries that only count or mark.
 */
#include "kernels/cuda/gradient.cuh"

#include "kernels/cuda/rows.cuh"

static const uint32_t BLOCKS_MAX = 2048;

static uint32_t walk_blocks_for(uint32_t most) {
    uint32_t blocks = most / TAM_BLOCK_THREADS + 1;
    return blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    walk_gather(const float *acc, const uint32_t *indices, const uint32_t *count, float *values) {
    uint32_t end = *count;
    for (uint64_t i = tam_thread_of_grid(); i < end; i += tam_threads_of_grid())
        values[i] = acc[indices[i]];
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    walk_put(float *acc, const uint32_t *indices, const uint32_t *count, const float *values) {
    uint32_t end = *count;
    for (uint64_t i = tam_thread_of_grid(); i < end; i += tam_threads_of_grid())
        acc[indices[i]] = values ? values[i] : 0.0f;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    walk_apply(const tam_cuda_accumulate target, const uint32_t *indices, const uint32_t *count,
               float divisor, float *values) {
    tam_cuda_source source = target.source ? *target.source : tam_cuda_source{};
    uint32_t end = *count;
    for (uint64_t i = tam_thread_of_grid(); i < end; i += tam_threads_of_grid()) {
        uint32_t index = indices[i];
        float value = values[i] = __fdiv_rn(values[i], divisor);
        if (target.source)
            tam_write_gradient(target, source, index, value);
    }
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    count_reaching(const float *acc, uint64_t n, uint32_t threshold, uint64_t *count) {
    using reduce = cub::BlockReduce<uint64_t, TAM_BLOCK_THREADS>;
    __shared__ typename reduce::TempStorage memory;
    uint64_t mine = 0;
    for (uint64_t i = tam_thread_of_grid(); i < n; i += tam_threads_of_grid())
        mine += tam_magnitude_of(__ldcs(acc + i)) >= threshold;
    mine = reduce(memory).Sum(mine);
    if (threadIdx.x == 0 && mine > 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(count), (unsigned long long)mine);
}

/* A warp takes a row. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    mark_rows(const float *acc, uint32_t length, uint32_t nrows, unsigned char *marks) {
    uint32_t warps = gridDim.x * TAM_BLOCK_WARPS;
    for (uint64_t r = blockIdx.x * TAM_BLOCK_WARPS + threadIdx.x / 32; r < nrows; r += warps) {
        bool found = tam_touches(acc + r * length, length);
        if (threadIdx.x % 32 == 0)
            marks[r] = found;
    }
}

static __global__ void set_source(tam_cuda_source *to, const tam_cuda_source value) {
    if (threadIdx.x == 0)
        *to = value;
}

extern "C" int tam_launch_source(tam_cuda_source *to, tam_cuda_source value, void *stream) {
    return tam_launch(set_source, 1, stream, to, value);
}

struct pointers {
    void *of[TAM_POINTERS];
};

static __global__ void set_pointers(void **to, const pointers values, uint32_t count) {
    if (threadIdx.x < count)
        to[threadIdx.x] = values.of[threadIdx.x];
}

extern "C" int tam_launch_pointers(void **to, void *const *values, uint32_t count, void *stream) {
    pointers copy = {};
    for (uint32_t i = 0; i < count; i++)
        copy.of[i] = values[i];
    return tam_launch(set_pointers, 1, stream, to, copy, count);
}

extern "C" int tam_launch_count_reaching(const float *acc, uint64_t n, uint32_t threshold,
                                         uint32_t blocks, uint64_t *count, void *stream) {
    return tam_launch(count_reaching, blocks, stream, acc, n, threshold, count);
}

extern "C" int tam_launch_mark_rows(const float *acc, uint32_t length, uint32_t nrows,
                                    unsigned char *marks, void *stream) {
    uint32_t blocks = nrows / TAM_BLOCK_WARPS + 1;
    return tam_launch(mark_rows, blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX, stream, acc, length,
                      nrows, marks);
}

extern "C" int tam_launch_gather(const float *acc, const uint32_t *indices, const uint32_t *count,
                                 uint32_t most, float *values, void *stream) {
    return tam_launch(walk_gather, walk_blocks_for(most), stream, acc, indices, count, values);
}

extern "C" int tam_launch_apply(const tam_cuda_accumulate *target, const uint32_t *indices,
                                const uint32_t *count, uint32_t most, float divisor, float *values,
                                void *stream) {
    return tam_launch(walk_apply, walk_blocks_for(most), stream, *target, indices, count, divisor,
                      values);
}

extern "C" int tam_launch_put(float *acc, const uint32_t *indices, const uint32_t *count,
                              uint32_t most, const float *values, void *stream) {
    return tam_launch(walk_put, walk_blocks_for(most), stream, acc, indices, count, values);
}
