/* SPDX-License-Identifier: MIT
 *
 * The index codec gap8 (index_gap8.c): one block a list.
 */
#ifndef TAM_KERNELS_CODECS_INDEX_GAP8_CUH
#define TAM_KERNELS_CODECS_INDEX_GAP8_CUH

#include "kernels/codecs/index_codecs.cuh"

static __device__ __forceinline__ uint32_t write_gap8(const packing &p) {
    uint32_t done = 0;
    for (uint32_t at = 0; at < p.count; at += TAM_BLOCK_THREADS) {
        uint32_t i = at + threadIdx.x, gap = i < p.count ? gap_before(p, i) : 0;
        uint32_t bytes = i < p.count ? 1 + gap / TAM_GAP8_ON : 0;
        scan_sum sum = scan_pair(0, bytes);
        unsigned char *out = p.codes + done + low_of(sum.before);
        for (; gap >= TAM_GAP8_ON; gap -= TAM_GAP8_ON)
            *out++ = TAM_GAP8_ON;
        if (bytes > 0)
            *out = (unsigned char)gap;
        done += (uint32_t)low_of(sum.all);
    }
    return done;
}

/* Every byte moves on; those that end a gap are entries. */
static __device__ __forceinline__ uint32_t read_gap8(const packing &p) {
    uint32_t done = 0, faults = 0;
    uint64_t next = 0;
    for (uint32_t at = 0; at < p.bytes; at += 4 * TAM_BLOCK_THREADS) {
        uint32_t w = at / 4 + threadIdx.x, word = word_of(p, w), entries = 0, moves = 0;
        uint32_t length = 4 * w < p.bytes ? p.bytes - 4 * w : 0;
        length = length < 4 ? length : 4;
        for (uint32_t i = 0; i < length; i++) {
            uint32_t byte = word >> 8 * i & 255u;
            entries += byte != TAM_GAP8_ON;
            moves += byte + (byte != TAM_GAP8_ON);
        }
        scan_sum sum = scan_pair(entries, moves);
        uint64_t place = next + low_of(sum.before);
        uint32_t entry = done + high_of(sum.before);
        for (uint32_t i = 0; i < length; i++) {
            uint32_t byte = word >> 8 * i & 255u;
            if (byte != TAM_GAP8_ON)
                faults |= put(p, entry++, place + byte);
            place += byte + (byte != TAM_GAP8_ON);
        }
        done += high_of(sum.all);
        next += low_of(sum.all);
    }
    bool ends = p.bytes == 0 || p.codes[p.bytes - 1] != TAM_GAP8_ON;
    return faults | (ends && done == p.count && next <= p.span ? 0 : 1u << TAM_REFUSED_CODE);
}

struct tam_list_gap8 {
    static __device__ __forceinline__ uint32_t write(const packing &p) {
        return write_gap8(p);
    }

    static __device__ __forceinline__ uint32_t read(const packing &p) {
        return read_gap8(p);
    }
};

static int tam_pack_gap8(const tam_cuda_exchange *job, void *stream) {
    return tam_pack_alone<tam_list_gap8>(job, stream);
}

static int tam_unpack_gap8(const tam_cuda_exchange *job, void *stream) {
    return tam_launch_lists<tam_codes_alone<tam_list_gap8>>(job, stream);
}

#endif
