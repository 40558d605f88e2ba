/* SPDX-License-Identifier: MIT
 *
 * The tile kernel for AVX2. Blocks of 64 entries: one test finds whether a block holds a candidate;
 * if so, eight compresses follow without further branches, by permutations from a table. Each
 * writes a whole vector at the cursor, so the lists need slack at their end. With smaller blocks
 * the test would be mispredicted half the time when a few per cent are candidates.
 */
#include "kernels/cpu/tail.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    WIDTH = 8,
    VECTORS = 8,
    BLOCK = WIDTH * VECTORS,
    LINE = 16,  /* floats of a cache line */
    AHEAD = 768 /* floats: 3 KiB */
};

INLINE __m256i magnitude(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* Magnitudes at or over under + 1. The comparison is signed; the top bit is never set. */
INLINE uint32_t over(__m256i m, __m256i under) {
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(m, under)));
}

INLINE bool reaches(const __m256 s[VECTORS], __m256i under) {
    __m256i most = magnitude(s[0]);
    for (int v = 1; v < VECTORS; v++)
        most = _mm256_max_epi32(most, magnitude(s[v]));
    __m256i hit = _mm256_cmpgt_epi32(most, under);
    return !_mm256_testz_si256(hit, hit);
}

/* The decayed residual, before anything is added. */
INLINE __m256 remember(const float *acc, __m256 decay) {
    return _mm256_mul_ps(decay, _mm256_loadu_ps(acc));
}

/* Replace entries of s that are not finite by the decayed acc. @return how many */
static uint64_t avx2_keep_finite(const float *acc, __m256 decay, __m256 s[VECTORS]) {
    __m256i under = _mm256_set1_epi32(TAM_INFINITE_BITS - 1);
    uint64_t bad = 0;
    for (int v = 0; v < VECTORS; v++) {
        __m256i m = magnitude(s[v]);
        __m256 mask = _mm256_castsi256_ps(_mm256_cmpgt_epi32(m, under));
        bad += (uint64_t)__builtin_popcount(over(m, under));
        s[v] = _mm256_blendv_ps(s[v], remember(acc + v * WIDTH, decay), mask);
    }
    return bad;
}

/* Row m of the table: the positions of the set bits of m, one a byte, then zeros. */
#define PLACE(m, i)                                                                                \
    ((m) >> (i)&1 ? (uint64_t)(i) << 8 * __builtin_popcount((m) & ((1u << (i)) - 1)) : 0)
#define ROW(m)                                                                                     \
    (PLACE(m, 0) | PLACE(m, 1) | PLACE(m, 2) | PLACE(m, 3) | PLACE(m, 4) | PLACE(m, 5) |           \
     PLACE(m, 6) | PLACE(m, 7))
#define ROWS4(m) ROW(m), ROW((m) + 1), ROW((m) + 2), ROW((m) + 3)
#define ROWS16(m) ROWS4(m), ROWS4((m) + 4), ROWS4((m) + 8), ROWS4((m) + 12)
#define ROWS64(m) ROWS16(m), ROWS16((m) + 16), ROWS16((m) + 32), ROWS16((m) + 48)

static const uint64_t compress[256] = {ROWS64(0u), ROWS64(64u), ROWS64(128u), ROWS64(192u)};

INLINE void append(const __m256 s[VECTORS], __m256i under, uint32_t base, tam_tile_out *out) {
    __m256i index =
        _mm256_add_epi32(_mm256_set1_epi32((int)base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    size_t count = out->count;
    for (int v = 0; v < VECTORS; v++) {
        __m256i m = magnitude(s[v]);
        uint32_t hit = over(m, under);
        __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&compress[hit]));
        _mm256_storeu_si256((__m256i *)(out->index + count),
                            _mm256_permutevar8x32_epi32(index, order));
        _mm256_storeu_si256((__m256i *)(out->magnitude + count),
                            _mm256_permutevar8x32_epi32(m, order));
        count += (size_t)__builtin_popcount(hit);
        index = _mm256_add_epi32(index, _mm256_set1_epi32(WIDTH));
    }
    out->count = count;
}

/* All ones in lanes that are Inf or NaN. */
INLINE __m256 bad_of(__m256 x) {
    return _mm256_castsi256_ps(
        _mm256_cmpgt_epi32(magnitude(x), _mm256_set1_epi32(TAM_INFINITE_BITS - 1)));
}

/* What the rule makes of g, 8 elements from `at` on; the formulas of optimizer.h. */
INLINE __m256 made(const tam_optimizer *p, uint32_t at, __m256 g) {
    __m256 m0 = _mm256_setzero_ps(), m = g;
    if (p->first) {
        m0 = _mm256_loadu_ps(p->first + at);
        m = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(p->keep1), m0),
                          _mm256_mul_ps(_mm256_set1_ps(p->take1), g));
    }
    if (!p->second) {
        _mm256_storeu_ps(p->first + at, _mm256_blendv_ps(m, m0, bad_of(m)));
        return m;
    }
    __m256 v0 = _mm256_loadu_ps(p->second + at);
    __m256 v = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(p->keep2), v0),
                             _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(p->take2), g), g));
    __m256 spread = _mm256_mul_ps(v, _mm256_set1_ps(p->correct2));
    __m256 u = _mm256_div_ps(_mm256_mul_ps(m, _mm256_set1_ps(p->correct1)),
                             _mm256_add_ps(_mm256_sqrt_ps(spread), _mm256_set1_ps(p->epsilon)));
    __m256 bad = _mm256_or_ps(bad_of(spread), bad_of(u));
    if (p->first)
        _mm256_storeu_ps(p->first + at, _mm256_blendv_ps(m, m0, bad));
    _mm256_storeu_ps(p->second + at, _mm256_blendv_ps(v, v0, bad));
    return _mm256_blendv_ps(u, _mm256_set1_ps(INFINITY), bad);
}

/* The block AHEAD. So much is computed between two loads that few of them are under way at a time,
 * and the processor's own prefetching ends with each page. May lie past the end of the memory. */
INLINE void prefetch(const float *block) {
    for (uintptr_t v = 0; v < BLOCK / LINE; v++)
        __builtin_prefetch((const void *)((uintptr_t)(block + v * LINE) + AHEAD * sizeof *block));
}

/* The gradient, or what a step has changed. */
INLINE __m256 take(const float *grad, const float *before, tam_tile_end end) {
    __m256 g = _mm256_loadu_ps(grad);
    return end == TAM_TILE_RESTORES ? _mm256_sub_ps(_mm256_loadu_ps(before), g) : g;
}

/* What the pass leaves in the gradient. */
INLINE void leave(float *grad, const float *before, tam_tile_end end) {
    if (end == TAM_TILE_CLEARS)
        _mm256_storeu_ps(grad, _mm256_setzero_ps());
    if (end == TAM_TILE_RESTORES)
        _mm256_storeu_ps(grad, _mm256_loadu_ps(before));
}

/* One block. @param s  [out]  the new acc */
INLINE void accumulate_block(const tam_tile_job *job, const tam_optimizer *rule, uint32_t at,
                             tam_tile_end end, tam_tile_out *out, __m256 s[VECTORS]) {
    float *acc = job->acc + at, *grad = job->grad + at;
    const float *before = end == TAM_TILE_RESTORES ? job->before + at : grad;
    const __m256 scale = _mm256_set1_ps(job->scale), decay = _mm256_set1_ps(job->decay);
    const __m256i under = _mm256_set1_epi32((int)job->threshold - 1);
    if (!rule) { /* an update computes rather than waits */
        prefetch(acc);
        prefetch(grad);
        if (end == TAM_TILE_RESTORES)
            prefetch(before);
    }
    for (int v = 0; v < VECTORS; v++) {
        __m256 g = _mm256_mul_ps(scale, take(grad + v * WIDTH, before + v * WIDTH, end));
        if (rule)
            g = made(rule, at + (uint32_t)v * WIDTH, g);
        s[v] = _mm256_add_ps(remember(acc + v * WIDTH, decay), g);
    }
    if (reaches(s, under)) {
        if (reaches(s, _mm256_set1_epi32(TAM_INFINITE_BITS - 1)))
            out->nonfinite += avx2_keep_finite(acc, decay, s);
        if (job->threshold < TAM_INFINITE_BITS)
            append(s, under, job->base + at, out);
    }
    for (int v = 0; v < VECTORS; v++) {
        _mm256_storeu_ps(acc + v * WIDTH, s[v]);
        leave(grad + v * WIDTH, before + v * WIDTH, end);
    }
}

/* Add the squares of a block, which is half a row of its chunk. u stays in the cache: 16 registers
 * cannot hold it. */
INLINE void square(const __m256 s[VECTORS], bool first_row, __m256 u[VECTORS]) {
    for (int v = 0; v < VECTORS; v++) {
        __m256 x = _mm256_mul_ps(s[v], s[v]);
        u[v] = first_row ? x : _mm256_add_ps(u[v], x);
    }
}

/* u[l] += u[l + 64], then 32, ... 1; see tile.h. */
INLINE float fold(const __m256 u[2 * VECTORS]) {
    __m256 w[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        w[v] = _mm256_add_ps(u[v], u[v + VECTORS]);
    __m256 a = _mm256_add_ps(_mm256_add_ps(w[0], w[4]), _mm256_add_ps(w[2], w[6]));
    __m256 b = _mm256_add_ps(_mm256_add_ps(w[1], w[5]), _mm256_add_ps(w[3], w[7]));
    __m256 w8 = _mm256_add_ps(a, b);
    __m128 w4 = _mm_add_ps(_mm256_castps256_ps128(w8), _mm256_extractf128_ps(w8, 1));
    __m128 w2 = _mm_add_ps(w4, _mm_movehl_ps(w4, w4));
    return _mm_cvtss_f32(_mm_add_ss(w2, _mm_movehdup_ps(w2)));
}

INLINE float accumulate_chunk(const tam_tile_job *job, const tam_optimizer *rule, uint32_t at,
                              tam_tile_end end, tam_tile_out *out) {
    __m256 s[VECTORS], u[2 * VECTORS];
    if (rule) /* the loop is so long that compilers do not see that the first row sets u */
        memset(u, 0, sizeof u);
#pragma GCC unroll 1
    for (uint32_t i = 0; i < TAM_TILE_CHUNK; i += 2 * BLOCK) {
        accumulate_block(job, rule, at + i, end, out, s);
        square(s, i == 0, u);
        accumulate_block(job, rule, at + i + BLOCK, end, out, s);
        square(s, i == 0, u + VECTORS);
    }
    return fold(u);
}

static float avx2_sum_tail(const float *s, uint32_t length) {
    float padded[TAM_TILE_CHUNK] = {0};
    __m256 x[VECTORS], u[2 * VECTORS];
    memcpy(padded, s, length * sizeof s[0]);
    for (uint32_t i = 0; i < TAM_TILE_CHUNK; i += BLOCK) {
        for (int v = 0; v < VECTORS; v++)
            x[v] = _mm256_loadu_ps(padded + i + v * WIDTH);
        square(x, i < 2 * BLOCK, u + i / BLOCK % 2 * VECTORS);
    }
    return fold(u);
}

INLINE void accumulate(const tam_tile_job *job, const tam_optimizer *rule, tam_tile_out *out,
                       tam_tile_end end) {
    uint32_t at = 0, begin;
    for (; at + TAM_TILE_CHUNK <= job->length; at += TAM_TILE_CHUNK)
        out->sum += (double)accumulate_chunk(job, rule, at, end, out);
    if (at == job->length)
        return;
    for (begin = at; at + BLOCK <= job->length; at += BLOCK) {
        __m256 s[VECTORS];
        accumulate_block(job, rule, at, end, out, s);
    }
    tam_tail_accumulate(job, rule, at, out);
    out->sum += (double)avx2_sum_tail(job->acc + begin, job->length - begin);
}

static void avx2_search(const tam_tile_job *job, tam_tile_out *out) {
    const __m256i under = _mm256_set1_epi32((int)job->threshold - 1);
    uint32_t at = 0;
    if (job->threshold >= TAM_INFINITE_BITS)
        return;
    for (; at + BLOCK <= job->length; at += BLOCK) {
        __m256 s[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            s[v] = _mm256_loadu_ps(job->acc + at + v * WIDTH);
        if (reaches(s, under))
            append(s, under, job->base + at, out);
    }
    tam_tail_search(job, at, out);
}

static void avx2_accumulate_keep(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, NULL, out, TAM_TILE_KEEPS);
}

static void avx2_accumulate_clear(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, NULL, out, TAM_TILE_CLEARS);
}

static void avx2_accumulate_restore(const tam_tile_job *job, tam_tile_out *out) {
    accumulate(job, NULL, out, TAM_TILE_RESTORES);
}

static void avx2_update_keep(const tam_tile_job *job, tam_tile_out *out) {
    const tam_optimizer rule = tam_tile_rule(job);
    accumulate(job, &rule, out, TAM_TILE_KEEPS);
}

static void avx2_update_clear(const tam_tile_job *job, tam_tile_out *out) {
    const tam_optimizer rule = tam_tile_rule(job);
    accumulate(job, &rule, out, TAM_TILE_CLEARS);
}

void tam_tile_avx2(const tam_tile_job *job, tam_tile_out *out) {
    if (!job->grad)
        avx2_search(job, out);
    else if (job->before)
        avx2_accumulate_restore(job, out);
    else if (job->optimizer && job->clear)
        avx2_update_clear(job, out);
    else if (job->optimizer)
        avx2_update_keep(job, out);
    else if (job->clear)
        avx2_accumulate_clear(job, out);
    else
        avx2_accumulate_keep(job, out);
}

void tam_widen_avx2(tamis_dtype type, const void *from, size_t count, float *to) {
    tam_widen(type, from, count, to);
}
