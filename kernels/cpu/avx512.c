/* SPDX-License-Identifier: MIT
 *
 * The tile kernel for AVX-512 (F, DQ, BW, VL; BMI). Blocks of 64 entries. Few candidates are
 * written one by one, many by four compresses; a search first tests whether a block holds any. Each
 * write goes past what was found, and the next one overwrites that, so the lists need slack at
 * their end. The compress goes to a register: the form that stores is microcoded on Zen 4, 9 to 25
 * times slower.
 */
#include "kernels/cpu/tile.h"

#include "lib/contracts/device.h"
#include "lib/base/half.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    WIDTH = 16,
    VECTORS = 4,
    BLOCK = WIDTH * VECTORS,
    FEW = 8,  /* up to so many candidates of a block are written one by one */
    MANY = 40 /* with more candidates in a chunk, the next chunk compresses at once */
};
_Static_assert((int)FEW <= (int)TAM_TILE_SLACK, "lists end in slack");

/* What the inner loop keeps in registers. */
typedef struct cursor {
    __m512 scale, decay;
    __m512i threshold, step; /* step: 0 1 2 ... 15 */
    uint32_t *index, *magnitude;
    uint64_t nonfinite;
    bool select;
    bool many;          /* the previous chunk had more than MANY candidates */
    tam_optimizer rule; /* of an update: moments from the first element of the tile on */
} cursor;

INLINE __mmask16 mask_of(uint32_t left, uint32_t vector) {
    uint32_t before = vector * WIDTH;
    uint32_t here = left > before ? left - before : 0;
    return here >= WIDTH ? (__mmask16)0xffff : (__mmask16)((1u << here) - 1);
}

INLINE __m512 load(const float *from, bool whole, __mmask16 mask) {
    return whole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
}

INLINE void store(float *to, __m512 x, bool whole, __mmask16 mask) {
    if (whole)
        _mm512_storeu_ps(to, x);
    else
        _mm512_mask_storeu_ps(to, mask, x);
}

INLINE __m512i magnitude(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

INLINE bool reaches(const __m512i m[VECTORS], __m512i bound) {
    __m512i most = _mm512_max_epu32(_mm512_max_epu32(m[0], m[1]), _mm512_max_epu32(m[2], m[3]));
    return _mm512_cmpge_epu32_mask(most, bound) != 0;
}

/* Replace entries of s that are not finite by the decayed acc, a. */
INLINE void keep_finite(const __m512 a[VECTORS], cursor *c, __m512 s[VECTORS], __m512i m[VECTORS]) {
    for (int v = 0; v < VECTORS; v++) {
        __mmask16 bad = _mm512_cmpge_epu32_mask(m[v], _mm512_set1_epi32(TAM_INFINITE_BITS));
        s[v] = _mm512_mask_mov_ps(s[v], bad, a[v]);
        m[v] = magnitude(s[v]);
        c->nonfinite += (uint64_t)__builtin_popcount(bad);
    }
}

INLINE void append_many(const __m512i m[VECTORS], uint32_t base, cursor *c) {
    __m512i index = _mm512_add_epi32(_mm512_set1_epi32((int)base), c->step);
    for (int v = 0; v < VECTORS; v++) {
        __mmask16 hit = _mm512_cmpge_epu32_mask(m[v], c->threshold);
        int count = __builtin_popcount(hit);
        _mm512_storeu_si512(c->index, _mm512_maskz_compress_epi32(hit, index));
        _mm512_storeu_si512(c->magnitude, _mm512_maskz_compress_epi32(hit, m[v]));
        c->index += count;
        c->magnitude += count;
        index = _mm512_add_epi32(index, _mm512_set1_epi32(WIDTH));
    }
}

/* The mask as a number, by hand: when GCC 12 joins masks, it spills 16 bits and reads back 64. */
INLINE uint64_t bits_of(__mmask16 mask) {
    uint32_t bits;
    __asm__("kmovw %1, %0" : "=r"(bits) : "k"(mask));
    return bits;
}

/* If one entry in a hundred is a candidate, a branch on whether a block holds one is mispredicted
 * often. So FEW entries are always written; the next block overwrites those that are none. */
INLINE void append(const __m512i m[VECTORS], uint32_t base, cursor *c) {
    uint32_t magnitudes[BLOCK];
    uint64_t hits = 0;
    for (int v = 0; v < VECTORS; v++) {
        hits |= bits_of(_mm512_cmpge_epu32_mask(m[v], c->threshold)) << WIDTH * v;
        _mm512_storeu_si512(magnitudes + v * WIDTH, m[v]);
    }
    int count = __builtin_popcountll(hits);
    if (count > FEW) {
        append_many(m, base, c);
        return;
    }
#pragma GCC unroll 8
    for (int j = 0; j < FEW; j++) {
        uint32_t i = (uint32_t)__builtin_ctzll(hits | UINT64_C(1) << (BLOCK - 1));
        c->index[j] = base + i;
        c->magnitude[j] = magnitudes[i];
        hits &= hits - 1;
    }
    c->index += count;
    c->magnitude += count;
}

/* Mask of the lanes that are Inf or NaN. */
INLINE __mmask16 bad_of(__m512 x) {
    return _mm512_fpclass_ps_mask(x, 0x01 | 0x08 | 0x10 | 0x80);
}

/* What the rule makes of g, 16 elements from `at` on; the formulas of optimizer.h. */
INLINE __m512 made(const tam_optimizer *p, uint32_t at, bool whole, __mmask16 mask, __m512 g) {
    __m512 m0 = _mm512_setzero_ps(), m = g;
    if (p->first) {
        m0 = load(p->first + at, whole, mask);
        m = _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(p->keep1), m0),
                          _mm512_mul_ps(_mm512_set1_ps(p->take1), g));
    }
    if (!p->second) {
        store(p->first + at, _mm512_mask_mov_ps(m, bad_of(m), m0), whole, mask);
        return m;
    }
    __m512 v0 = load(p->second + at, whole, mask);
    __m512 v = _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(p->keep2), v0),
                             _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(p->take2), g), g));
    __m512 spread = _mm512_mul_ps(v, _mm512_set1_ps(p->correct2));
    __m512 u = _mm512_div_ps(_mm512_mul_ps(m, _mm512_set1_ps(p->correct1)),
                             _mm512_add_ps(_mm512_sqrt_ps(spread), _mm512_set1_ps(p->epsilon)));
    __mmask16 bad = bad_of(spread) | bad_of(u);
    if (p->first)
        store(p->first + at, _mm512_mask_mov_ps(m, bad, m0), whole, mask);
    store(p->second + at, _mm512_mask_mov_ps(v, bad, v0), whole, mask);
    return _mm512_mask_mov_ps(u, bad, _mm512_set1_ps(INFINITY));
}

/* One block, of job->length - at entries unless it is whole. @param s  [out]  the new acc */
INLINE void accumulate_block(const tam_tile_job *job, uint32_t at, tam_tile_end end, bool update,
                             bool whole, cursor *c, __m512 s[VECTORS]) {
    float *acc = job->acc + at, *grad = job->grad + at;
    uint32_t left = job->length - at;
    __m512 a[VECTORS], b[VECTORS]; /* b: what the pass leaves in the gradient */
    __m512i m[VECTORS];
    __mmask16 mask[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        mask[v] = whole ? 0xffff : mask_of(left, (uint32_t)v);
        a[v] = _mm512_mul_ps(c->decay, load(acc + v * WIDTH, whole, mask[v]));
        b[v] = end == TAM_TILE_RESTORES ? load(job->before + at + v * WIDTH, whole, mask[v])
                                        : _mm512_setzero_ps();
        s[v] = load(grad + v * WIDTH, whole, mask[v]);
        if (end == TAM_TILE_RESTORES)
            s[v] = _mm512_sub_ps(b[v], s[v]);
        s[v] = _mm512_mul_ps(c->scale, s[v]);
        if (update)
            s[v] = made(&c->rule, at + (uint32_t)v * WIDTH, whole, mask[v], s[v]);
        s[v] = _mm512_add_ps(a[v], s[v]);
        if (!whole) /* past the end: 0 * scale need not be 0 */
            s[v] = _mm512_maskz_mov_ps(mask[v], s[v]);
        m[v] = magnitude(s[v]);
    }
    if (reaches(m, _mm512_set1_epi32(TAM_INFINITE_BITS)))
        keep_finite(a, c, s, m);
    if (c->select && c->many)
        append_many(m, job->base + at, c);
    else if (c->select)
        append(m, job->base + at, c);
    for (int v = 0; v < VECTORS; v++) {
        store(acc + v * WIDTH, s[v], whole, mask[v]);
        if (end != TAM_TILE_KEEPS)
            store(grad + v * WIDTH, b[v], whole, mask[v]);
    }
}

INLINE void square(const __m512 s[VECTORS], __m512 u[VECTORS]) {
    for (int v = 0; v < VECTORS; v++)
        u[v] = _mm512_add_ps(u[v], _mm512_mul_ps(s[v], s[v]));
}

/* u[l] += u[l + 64], then 32, ... 1; see tile.h. */
INLINE float fold(const __m512 u[2 * VECTORS]) {
    __m512 a = _mm512_add_ps(_mm512_add_ps(u[0], u[4]), _mm512_add_ps(u[2], u[6]));
    __m512 b = _mm512_add_ps(_mm512_add_ps(u[1], u[5]), _mm512_add_ps(u[3], u[7]));
    __m512 w16 = _mm512_add_ps(a, b);
    __m256 w8 = _mm256_add_ps(_mm512_castps512_ps256(w16), _mm512_extractf32x8_ps(w16, 1));
    __m128 w4 = _mm_add_ps(_mm256_castps256_ps128(w8), _mm256_extractf128_ps(w8, 1));
    __m128 w2 = _mm_add_ps(w4, _mm_movehl_ps(w4, w4));
    return _mm_cvtss_f32(_mm_add_ss(w2, _mm_movehdup_ps(w2)));
}

/* A chunk of 512. Not unrolled further: prefetchers track the strides of few instructions only. */
INLINE float accumulate_chunk(const tam_tile_job *job, uint32_t begin, tam_tile_end end,
                              bool update, cursor *c) {
    __m512 s[VECTORS], u[2 * VECTORS];
    const uint32_t *first = c->index;
    for (int v = 0; v < 2 * VECTORS; v++)
        u[v] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (uint32_t at = begin; at < begin + TAM_TILE_CHUNK; at += 2 * BLOCK) {
        accumulate_block(job, at, end, update, true, c, s);
        square(s, u);
        accumulate_block(job, at + BLOCK, end, update, true, c, s);
        square(s, u + VECTORS);
    }
    c->many = c->index - first > MANY;
    return fold(u);
}

/* The last entries of a tile, fewer than a chunk. */
INLINE float accumulate_tail(const tam_tile_job *job, uint32_t begin, tam_tile_end end, bool update,
                             cursor *c) {
    __m512 u[2 * VECTORS];
    for (int v = 0; v < 2 * VECTORS; v++)
        u[v] = _mm512_setzero_ps();
    for (uint32_t at = begin; at < job->length; at += BLOCK) {
        __m512 s[VECTORS];
        accumulate_block(job, at, end, update, false, c, s);
        square(s, (at - begin) / BLOCK % 2 ? u + VECTORS : u);
    }
    return fold(u);
}

INLINE cursor begin(const tam_tile_job *job, const tam_tile_out *out, bool update) {
    return (cursor){
        .rule = update ? tam_tile_rule(job) : (tam_optimizer){0},
        .scale = _mm512_set1_ps(job->scale),
        .decay = _mm512_set1_ps(job->decay),
        .threshold = _mm512_set1_epi32((int)job->threshold),
        .step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        .index = out->index + out->count,
        .magnitude = out->magnitude + out->count,
        .select = job->threshold < TAM_INFINITE_BITS,
    };
}

INLINE void accumulate(const tam_tile_job *job, tam_tile_out *out, tam_tile_end end, bool update) {
    cursor c = begin(job, out, update);
    double sum = out->sum;
    uint32_t at = 0;
    for (; at + TAM_TILE_CHUNK <= job->length; at += TAM_TILE_CHUNK)
        sum += (double)accumulate_chunk(job, at, end, update, &c);
    if (at < job->length)
        sum += (double)accumulate_tail(job, at, end, update, &c);
    out->sum = sum;
    out->nonfinite += c.nonfinite;
    out->count = (size_t)(c.index - out->index);
}

INLINE void search_block(const float *acc, uint32_t base, bool whole, uint32_t left, cursor *c) {
    __m512i m[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        m[v] = magnitude(load(acc + v * WIDTH, whole, mask_of(left, (uint32_t)v)));
    if (reaches(m, c->threshold))
        append_many(m, base, c);
}

static void avx512_search(const tam_tile_job *job, tam_tile_out *out) {
    cursor c = begin(job, out, false);
    if (!c.select)
        return;
    uint32_t at = 0;
    for (; at + BLOCK <= job->length; at += BLOCK)
        search_block(job->acc + at, job->base + at, true, 0, &c);
    if (at < job->length)
        search_block(job->acc + at, job->base + at, false, job->length - at, &c);
    out->count = (size_t)(c.index - out->index);
}

static void avx512_accumulate_keep(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, out, TAM_TILE_KEEPS, false);
}

static void avx512_accumulate_clear(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, out, TAM_TILE_CLEARS, false);
}

static void avx512_accumulate_restore(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, out, TAM_TILE_RESTORES, false);
}

static void avx512_update_keep(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, out, TAM_TILE_KEEPS, true);
}

static void avx512_update_clear(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, out, TAM_TILE_CLEARS, true);
}

void tam_tile_avx512(const tam_tile_job *job, tam_tile_out *out) {
    if (!job->grad)
        avx512_search(job, out);
    else if (job->before)
        avx512_accumulate_restore(job, out);
    else if (job->optimizer && job->clear)
        avx512_update_clear(job, out);
    else if (job->optimizer)
        avx512_update_keep(job, out);
    else if (job->clear)
        avx512_accumulate_clear(job, out);
    else
        avx512_accumulate_keep(job, out);
}

void tam_widen_avx512(tamis_dtype type, const void *from, size_t count, float *to) {
    tam_widen(type, from, count, to);
}
