/* SPDX-License-Identifier: MIT
 *
 * The index codec bitmap (index_bitmap.c): one block a list, a word for each thread.
 */
#ifndef TAM_KERNELS_CODECS_INDEX_BITMAP_CUH
#define TAM_KERNELS_CODECS_INDEX_BITMAP_CUH

#include "kernels/codecs/index_codecs.cuh"

static __device__ __forceinline__ uint32_t bitmap_bytes(uint64_t span) {
    return (uint32_t)((span + 7) / 8);
}

static __device__ __forceinline__ uint32_t write_bitmap(const packing &p) {
    uint32_t bytes = bitmap_bytes(p.span), words = bytes / 4 + (bytes % 4 > 0);
    for (uint32_t w = threadIdx.x; w < words; w += TAM_BLOCK_THREADS) {
        uint32_t word = 0;
        uint64_t begin = 32 * (uint64_t)w, position;
        for (uint32_t i = entries_below(p, begin); i < p.count; i++) {
            position = position_of(p, i);
            if (position >= begin + 32)
                break;
            word |= 1u << (position - begin);
        }
        reinterpret_cast<uint32_t *>(p.codes)[w] = word; /* the capacity is whole words */
    }
    return bytes;
}

static __device__ __forceinline__ uint32_t read_bitmap(const packing &p) {
    uint32_t done = 0, faults = 0;
    for (uint32_t at = 0; at < p.bytes; at += 4 * TAM_BLOCK_THREADS) {
        uint32_t w = at / 4 + threadIdx.x, word = word_of(p, w);
        scan_sum sum = scan_pair((uint32_t)__popc(word), 0);
        uint32_t entry = done + high_of(sum.before);
        for (uint32_t rest = word; rest; rest &= rest - 1)
            faults |= put(p, entry++, 32 * (uint64_t)w + (uint32_t)__ffs((int)rest) - 1);
        done += high_of(sum.all);
    }
    bool good = p.bytes == bitmap_bytes(p.span) && done == p.count;
    return faults | (good ? 0 : 1u << TAM_REFUSED_CODE);
}

struct tam_list_bitmap {
    static __device__ __forceinline__ uint32_t write(const packing &p) {
        return write_bitmap(p);
    }

    static __device__ __forceinline__ uint32_t read(const packing &p) {
        return read_bitmap(p);
    }
};

static int tam_pack_bitmap(const tam_cuda_exchange *job, void *stream) {
    return tam_pack_alone<tam_list_bitmap>(job, stream);
}

static int tam_unpack_bitmap(const tam_cuda_exchange *job, void *stream) {
    return tam_launch_lists<tam_codes_alone<tam_list_bitmap>>(job, stream);
}

#endif
