/* SPDX-License-Identifier: MIT
 *
 * Common to all kernels: the vendor's headers, the launch, small helpers. Tests replace the
 * vendor's headers by one that runs the same code on the CPU (TAM_CUDA_EMULATED names it).
 */
#ifndef TAM_CUDA_KERNEL_CUH
#define TAM_CUDA_KERNEL_CUH

#include "kernels/cuda/view.h"
#include "lib/base/header.h"

#ifdef TAM_CUDA_EMULATED
#include TAM_CUDA_EMULATED
#else
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/** Enqueue. @return a cudaError_t: of this launch only, not an earlier error */
template <typename... Parameters, typename... Arguments>
static int tam_launch(void (*kernel)(Parameters...), unsigned blocks, void *stream,
                      Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(TAM_BLOCK_THREADS);
    config.stream = static_cast<cudaStream_t>(stream);
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}
#endif

/* What streams through once: global memory, though the pointer may have been read from memory, in
 * the order of the program, as by __ldcs and __stcs, but without their hint. With `evict first` the
 * pass had 0.86 of the copy rate, without it 0.96 (H200). */
#ifdef TAM_CUDA_EMULATED
template <typename T> static T tam_load(const T *from) {
    return *emulate_aligned("tam_load", from);
}
template <typename T> static void tam_store(T *to, T x) {
    *emulate_aligned("tam_store", to) = x;
}
#else
static __device__ __forceinline__ float4 tam_load(const float4 *from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from));
    return x;
}
static __device__ __forceinline__ uint2 tam_load(const uint2 *from) {
    uint2 x;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}
static __device__ __forceinline__ float tam_load(const float *from) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(from));
    return x;
}
static __device__ __forceinline__ unsigned short tam_load(const unsigned short *from) {
    unsigned short x;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(from));
    return x;
}
static __device__ __forceinline__ void tam_store(float4 *to, float4 x) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z),
                 "f"(x.w)
                 : "memory");
}
static __device__ __forceinline__ void tam_store(uint2 *to, uint2 x) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
}
static __device__ __forceinline__ void tam_store(float *to, float x) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
static __device__ __forceinline__ void tam_store(unsigned short *to, unsigned short x) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(x) : "memory");
}
#endif

/* All lanes of a warp take part in every warp-wide call: a kernel never leaves one early. */
#define TAM_WARP 0xffffffffu

static __device__ __forceinline__ uint32_t tam_bits_of(float x) {
    return __float_as_uint(x);
}

static __device__ __forceinline__ uint32_t tam_magnitude_of(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

/** The key of an entry: |acc| * weight, one rounding; as integer, larger is larger. */
static __device__ __forceinline__ uint32_t tam_key_of(uint32_t magnitude, float weight) {
    return tam_magnitude_of(__fmul_rn(__uint_as_float(magnitude), weight));
}

static __device__ __forceinline__ bool tam_owns_part(uint32_t mine, uint32_t part) {
    return part == mine || (mine == TAM_PART_ALL && part != TAM_PART_COMMON);
}

/** Number of this thread in its launch, and how many there are. */
static __device__ __forceinline__ uint64_t tam_thread_of_grid(void) {
    return (uint64_t)blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x;
}

static __device__ __forceinline__ uint64_t tam_threads_of_grid(void) {
    return (uint64_t)gridDim.x * TAM_BLOCK_THREADS;
}

/** Release and acquire among the blocks of a device. __threadfence() is sequentially consistent, of
 * which nothing here has need. */
static __device__ __forceinline__ void tam_fence(void) {
#ifdef TAM_CUDA_EMULATED
    __threadfence();
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

/** Whether this call is the last of so many; its block then sees what the others wrote before
 * theirs. All threads must call it. */
static __device__ __forceinline__ bool tam_last_of(uint32_t calls, uint32_t *ticket) {
    __shared__ uint32_t before;
    __syncthreads();
    if (threadIdx.x == 0) { /* after the barrier, its fences cover the writes of the whole block */
        tam_fence();
        before = atomicAdd(ticket, 1u);
        if (before == calls - 1)
            tam_fence();
    }
    __syncthreads();
    return before == calls - 1;
}

/** Whether this block is the last of its launch to call this. */
static __device__ __forceinline__ bool tam_last_block(uint32_t *ticket) {
    return tam_last_of(gridDim.x, ticket);
}

#endif
