/* SPDX-License-Identifier: MIT
 *
 * The index codec rice (collectives/exchange/codec_rice.c) by one block of threads, 8,192 bits at a
 * time.
 */
#ifndef TAM_CUDA_RICE_CUH
#define TAM_CUDA_RICE_CUH

#include "kernels/cuda/packing.cuh"

/* Bits of a code: zeros, a one, `low` bits of the gap. */
static __device__ __forceinline__ void or_bits(const packing &p, uint64_t at, uint64_t bits) {
    uint32_t *words = reinterpret_cast<uint32_t *>(p.codes) + at / 32;
    bits <<= at % 32; /* 32 bits at most, so they reach two words */
    atomicOr(&words[0], (uint32_t)bits);
    if (bits >> 32)
        atomicOr(&words[1], (uint32_t)(bits >> 32));
}

static __device__ __forceinline__ uint32_t pack_rice(const packing &p) {
    uint32_t low = tam_rice_low(p.span, p.count);
    uint64_t done = 0, mask = (UINT64_C(1) << low) - 1;
    for (uint32_t w = threadIdx.x; w < p.room / 4; w += TAM_BLOCK_THREADS)
        reinterpret_cast<uint32_t *>(p.codes)[w] = 0;
    __syncthreads();
    for (uint32_t at = 0; at < p.count; at += TAM_BLOCK_THREADS) {
        uint32_t i = at + threadIdx.x, gap = i < p.count ? gap_before(p, i) : 0;
        uint64_t bits = i < p.count ? (uint64_t)(gap >> low) + 1 + low : 0;
        pair_sum sum = scan_pair(0, bits);
        if (bits > 0)
            or_bits(p, done + low_of(sum.before) + (gap >> low), 1 | (gap & mask) << 1);
        done += low_of(sum.all);
    }
    return (uint32_t)((done + 7) / 8);
}

/*
 * Where a code begins depends on all codes before it, so a list cannot simply be cut. But what a
 * word needs to know of them is little: how many of its first bits are low bits of a code that
 * ended its zeros before, at most 31. A word is thus a function from 32 numbers to 32 numbers: what
 * the word behind it must skip. Functions are joined by looking up one in the other, so warps join
 * their 32 words for all 32 numbers at once, a lane each, then 8 warps follow one another, and then
 * every word knows its own number (Ladner and Fischer, 1980: any finite automaton is a scan).
 */
struct skips {
    unsigned char word[TAM_BLOCK_THREADS][32]; /* of each word */
    unsigned char warp[TAM_BLOCK_WARPS][32];   /* of 32 words */
};

/* From the last bit to the first. If no code ends in the word, zeros go on behind it. */
static __device__ void find_skips(uint32_t word, uint32_t low, unsigned char skip[32]) {
    for (uint32_t bit = 32; bit-- > 0;) {
        uint32_t next = word >> bit & 1 ? bit + 1 + low : bit + 1;
        skip[bit] = (unsigned char)(next < 32 ? skip[next] : next - 32);
    }
}

/* @param  first  what the first word of the block skips; then, what the word behind the block does
 * @return        what this thread's word skips */
static __device__ uint32_t skip_of(uint32_t word, uint32_t low, uint32_t *first) {
    __shared__ skips s;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, skip = lane, own = 0;
    find_skips(word, low, s.word[threadIdx.x]);
    __syncthreads();
    for (uint32_t w = 0; w < 32; w++)
        skip = s.word[32 * warp + w][skip];
    s.warp[warp][lane] = (unsigned char)skip;
    __syncthreads();
    skip = *first;
    for (uint32_t w = 0; w < TAM_BLOCK_WARPS; w++) {
        own = w == warp ? skip : own;
        skip = s.warp[w][skip];
    }
    *first = skip;
    for (uint32_t w = 0; w < lane; w++)
        own = s.word[32 * warp + w][own];
    __syncthreads(); /* s is reused */
    return own;
}

/* The low bits behind a one at bit `at` of the list. */
static __device__ __forceinline__ uint32_t rice_low_bits(const packing &p, uint64_t at,
                                                         uint32_t low) {
    uint32_t w = (uint32_t)((at + 1) / 32);
    uint64_t bits = word_of(p, w) | (uint64_t)word_of(p, w + 1) << 32;
    return (uint32_t)(bits >> (at + 1) % 32) & (uint32_t)((UINT64_C(1) << low) - 1);
}

/* Visit the ends of zeros in a word: visit(bit). */
template <typename VISIT>
static __device__ __forceinline__ void visit_codes(uint32_t word, uint32_t skip, uint32_t low,
                                                   VISIT visit) {
    for (uint32_t bit = skip; bit < 32 && word >> bit;) {
        bit += (uint32_t)__ffs((int)(word >> bit)) - 1;
        visit(bit);
        bit += 1 + low;
    }
}

/* Of the codes before the one with number i whose one is bit `at`, i (1 + low) bits are not zeros
 * of a gap. So its position follows from `at`, i and the sum of all low bits up to its own. */
static __device__ __forceinline__ uint32_t unpack_rice(const packing &p) {
    uint32_t low = tam_rice_low(p.span, p.count < p.span ? p.count : (uint32_t)p.span);
    uint32_t done = 0, first = 0, faults = 0, end = 0; /* end: bits of the list, as far as read */
    uint64_t lows = 0;
    for (uint32_t at = 0; at < p.bytes; at += 4 * TAM_BLOCK_THREADS) {
        uint32_t w = at / 4 + threadIdx.x, word = word_of(p, w), entries = 0;
        uint32_t skip = skip_of(word, low, &first);
        uint64_t sums = 0;
        visit_codes(word, skip, low, [&](uint32_t bit) {
            entries++;
            sums += rice_low_bits(p, 32 * (uint64_t)w + bit, low);
        });
        pair_sum sum = scan_pair(entries, sums);
        uint32_t entry = done + high_of(sum.before);
        uint64_t before = lows + low_of(sum.before);
        visit_codes(word, skip, low, [&](uint32_t bit) {
            uint64_t one = 32 * (uint64_t)w + bit;
            before += rice_low_bits(p, one, low);
            faults |= put(p, entry, ((one - (uint64_t)entry * (1 + low)) << low) + before + entry);
            entry++;
            if (entry == p.count)
                end = (uint32_t)((one + 1 + low + 7) / 8);
        });
        done += high_of(sum.all);
        lows += low_of(sum.all);
    }
    bool ends = __syncthreads_count(end == p.bytes && end > 0) == (p.count > 0);
    bool good = done == p.count && ends && (p.count > 0 || p.bytes == 0);
    return faults | (good ? 0 : 1u << TAM_REFUSED_CODE);
}

#endif
