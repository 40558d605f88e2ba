/* SPDX-License-Identifier: MIT
 *
 * The tile kernel for 64-bit Arm, all of which have these vectors (Advanced SIMD). Blocks of 64
 * entries: one test finds whether a block holds a candidate; if so, sixteen compresses follow
 * without further branches, by permutations from a table. Each writes a whole vector at the cursor,
 * so the lists need slack at their end.
 */
#include "kernels/cpu/tail.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

enum { WIDTH = 4, VECTORS = 16, BLOCK = WIDTH * VECTORS };

INLINE uint32x4_t magnitude(float32x4_t x) {
    return vreinterpretq_u32_f32(vabsq_f32(x));
}

INLINE bool reaches(const float32x4_t s[VECTORS], uint32_t threshold) {
    uint32x4_t most = magnitude(s[0]);
    for (int v = 1; v < VECTORS; v++)
        most = vmaxq_u32(most, magnitude(s[v]));
    return vmaxvq_u32(most) >= threshold;
}

/* All ones in lanes that are Inf or NaN. */
INLINE uint32x4_t bad_of(float32x4_t x) {
    return vcgeq_u32(magnitude(x), vdupq_n_u32(TAM_INFINITE_BITS));
}

/* The decayed residual, before anything is added. */
INLINE float32x4_t remember(const float *acc, float decay) {
    return vmulq_n_f32(vld1q_f32(acc), decay);
}

/* Replace entries of s that are not finite by the decayed acc. @return how many */
static uint64_t neon_keep_finite(const float *acc, float decay, float32x4_t s[VECTORS]) {
    uint64_t bad = 0;
    for (int v = 0; v < VECTORS; v++) {
        uint32x4_t mask = bad_of(s[v]);
        bad += vaddvq_u32(vshrq_n_u32(mask, 31));
        s[v] = vbslq_f32(mask, remember(acc + v * WIDTH, decay), s[v]);
    }
    return bad;
}

/* Row m of the table: the bytes of the lanes that are set bits of m, then anything. */
#define LANE(i) 4 * (i), 4 * (i) + 1, 4 * (i) + 2, 4 * (i) + 3
static const uint8_t compress[16][16] = {
    {0},
    {LANE(0)},
    {LANE(1)},
    {LANE(0), LANE(1)},
    {LANE(2)},
    {LANE(0), LANE(2)},
    {LANE(1), LANE(2)},
    {LANE(0), LANE(1), LANE(2)},
    {LANE(3)},
    {LANE(0), LANE(3)},
    {LANE(1), LANE(3)},
    {LANE(0), LANE(1), LANE(3)},
    {LANE(2), LANE(3)},
    {LANE(0), LANE(2), LANE(3)},
    {LANE(1), LANE(2), LANE(3)},
    {LANE(0), LANE(1), LANE(2), LANE(3)},
};

INLINE void store_lanes(uint32_t *to, uint32x4_t x, uint8x16_t order) {
    vst1q_u8((uint8_t *)to, vqtbl1q_u8(vreinterpretq_u8_u32(x), order));
}

INLINE void append(const float32x4_t s[VECTORS], uint32_t threshold, uint32_t base,
                   tam_tile_out *out) {
    static const uint32_t steps[WIDTH] = {0, 1, 2, 3}, bits[WIDTH] = {1, 2, 4, 8};
    uint32x4_t index = vaddq_u32(vdupq_n_u32(base), vld1q_u32(steps)), bit = vld1q_u32(bits);
    size_t count = out->count;
    for (int v = 0; v < VECTORS; v++) {
        uint32x4_t m = magnitude(s[v]);
        uint32_t hit = vaddvq_u32(vandq_u32(vcgeq_u32(m, vdupq_n_u32(threshold)), bit));
        uint8x16_t order = vld1q_u8(compress[hit]);
        store_lanes(out->index + count, index, order);
        store_lanes(out->magnitude + count, m, order);
        count += (size_t)__builtin_popcount(hit);
        index = vaddq_u32(index, vdupq_n_u32(WIDTH));
    }
    out->count = count;
}

/* What the rule makes of g, 4 elements from `at` on; the formulas of optimizer.h. */
INLINE float32x4_t made(const tam_optimizer *p, uint32_t at, float32x4_t g) {
    float32x4_t m0 = vdupq_n_f32(0.0f), m = g;
    if (p->first) {
        m0 = vld1q_f32(p->first + at);
        m = vaddq_f32(vmulq_n_f32(m0, p->keep1), vmulq_n_f32(g, p->take1));
    }
    if (!p->second) {
        vst1q_f32(p->first + at, vbslq_f32(bad_of(m), m0, m));
        return m;
    }
    float32x4_t v0 = vld1q_f32(p->second + at);
    float32x4_t v = vaddq_f32(vmulq_n_f32(v0, p->keep2), vmulq_f32(vmulq_n_f32(g, p->take2), g));
    float32x4_t spread = vmulq_n_f32(v, p->correct2);
    float32x4_t u = vdivq_f32(vmulq_n_f32(m, p->correct1),
                              vaddq_f32(vsqrtq_f32(spread), vdupq_n_f32(p->epsilon)));
    uint32x4_t bad = vorrq_u32(bad_of(spread), bad_of(u));
    if (p->first)
        vst1q_f32(p->first + at, vbslq_f32(bad, m0, m));
    vst1q_f32(p->second + at, vbslq_f32(bad, v0, v));
    return vbslq_f32(bad, vdupq_n_f32(INFINITY), u);
}

/* The gradient, or what a step has changed. */
INLINE float32x4_t take(const float *grad, const float *before, bool restores) {
    float32x4_t g = vld1q_f32(grad);
    return restores ? vsubq_f32(vld1q_f32(before), g) : g;
}

/* What the pass leaves in the gradient. */
INLINE void leave(const tam_tile_job *job, uint32_t at, bool restores) {
    if (restores)
        memcpy(job->grad + at, job->before + at, BLOCK * sizeof job->grad[0]);
    else if (job->clear)
        memset(job->grad + at, 0, BLOCK * sizeof job->grad[0]);
}

/* One block. @param s  [out]  the new acc */
INLINE void accumulate_block(const tam_tile_job *job, const tam_optimizer *rule, uint32_t at,
                             bool restores, tam_tile_out *out, float32x4_t s[VECTORS]) {
    float *acc = job->acc + at, *grad = job->grad + at;
    const float *before = restores ? job->before + at : grad;
    for (int v = 0; v < VECTORS; v++) {
        float32x4_t g =
            vmulq_n_f32(take(grad + v * WIDTH, before + v * WIDTH, restores), job->scale);
        if (rule)
            g = made(rule, at + (uint32_t)v * WIDTH, g);
        s[v] = vaddq_f32(remember(acc + v * WIDTH, job->decay), g);
    }
    if (reaches(s, job->threshold)) {
        if (reaches(s, TAM_INFINITE_BITS))
            out->nonfinite += neon_keep_finite(acc, job->decay, s);
        if (job->threshold < TAM_INFINITE_BITS)
            append(s, job->threshold, job->base + at, out);
    }
    for (int v = 0; v < VECTORS; v++)
        vst1q_f32(acc + v * WIDTH, s[v]);
    leave(job, at, restores);
}

/* Add the squares of a block, which is half a row of its chunk. */
INLINE void square(const float32x4_t s[VECTORS], float32x4_t u[VECTORS]) {
    for (int v = 0; v < VECTORS; v++)
        u[v] = vaddq_f32(u[v], vmulq_f32(s[v], s[v]));
}

/* u[l] += u[l + 64], then 32, ... 1; see tile.h. */
INLINE float fold(float32x4_t u[2 * VECTORS]) {
    for (int half = VECTORS; half > 0; half /= 2) {
        for (int v = 0; v < half; v++)
            u[v] = vaddq_f32(u[v], u[v + half]);
    }
    float32x2_t w2 = vadd_f32(vget_low_f32(u[0]), vget_high_f32(u[0]));
    return vget_lane_f32(w2, 0) + vget_lane_f32(w2, 1);
}

INLINE float accumulate_chunk(const tam_tile_job *job, const tam_optimizer *rule, uint32_t at,
                              bool restores, tam_tile_out *out) {
    float32x4_t s[VECTORS], u[2 * VECTORS];
    memset(u, 0, sizeof u);
#pragma GCC unroll 1
    for (uint32_t i = 0; i < TAM_TILE_CHUNK; i += 2 * BLOCK) {
        accumulate_block(job, rule, at + i, restores, out, s);
        square(s, u);
        accumulate_block(job, rule, at + i + BLOCK, restores, out, s);
        square(s, u + VECTORS);
    }
    return fold(u);
}

static float neon_sum_tail(const float *s, uint32_t length) {
    float padded[TAM_TILE_CHUNK] = {0};
    float32x4_t x[VECTORS], u[2 * VECTORS];
    memset(u, 0, sizeof u);
    memcpy(padded, s, length * sizeof s[0]);
    for (uint32_t i = 0; i < TAM_TILE_CHUNK; i += BLOCK) {
        for (int v = 0; v < VECTORS; v++)
            x[v] = vld1q_f32(padded + i + v * WIDTH);
        square(x, u + i / BLOCK % 2 * VECTORS);
    }
    return fold(u);
}

INLINE void accumulate(const tam_tile_job *job, const tam_optimizer *rule, bool restores,
                       tam_tile_out *out) {
    uint32_t at = 0, begin;
    for (; at + TAM_TILE_CHUNK <= job->length; at += TAM_TILE_CHUNK)
        out->sum += (double)accumulate_chunk(job, rule, at, restores, out);
    if (at == job->length)
        return;
    for (begin = at; at + BLOCK <= job->length; at += BLOCK) {
        float32x4_t s[VECTORS];
        accumulate_block(job, rule, at, restores, out, s);
    }
    tam_tail_accumulate(job, rule, at, out);
    out->sum += (double)neon_sum_tail(job->acc + begin, job->length - begin);
}

static void neon_search(const tam_tile_job *job, tam_tile_out *out) {
    uint32_t at = 0;
    if (job->threshold >= TAM_INFINITE_BITS)
        return;
    for (; at + BLOCK <= job->length; at += BLOCK) {
        float32x4_t s[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            s[v] = vld1q_f32(job->acc + at + v * WIDTH);
        if (reaches(s, job->threshold))
            append(s, job->threshold, job->base + at, out);
    }
    tam_tail_search(job, at, out);
}

void tam_tile_neon(const tam_tile_job *job, tam_tile_out *out) {
    if (!job->grad) {
        neon_search(job, out);
    } else if (job->before) {
        accumulate(job, NULL, true, out);
    } else if (job->optimizer) {
        const tam_optimizer rule = tam_tile_rule(job);
        accumulate(job, &rule, false, out);
    } else {
        accumulate(job, NULL, false, out);
    }
}

void tam_widen_neon(tamis_dtype type, const void *from, size_t count, float *to) {
    tam_widen(type, from, count, to);
}
