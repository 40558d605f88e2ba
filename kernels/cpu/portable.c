/* SPDX-License-Identifier: MIT
 *
 * The tile kernel in plain C: the reference for the others, and the fallback where they cannot run.
 * Written so that compilers vectorise the dense loops; entries are visited one by one only in
 * blocks that hold a candidate or a non-finite value.
 */
#include "kernels/cpu/tile.h"

#include "lib/base/base.h"
#include "lib/contracts/device.h"
#include "lib/base/half.h"
#include "lib/base/numbers.h"
#include "lib/policy/update_rule.h"

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 32, STRIP = 4 };

/* As int32_t, for which plain SSE2 has a comparison; magnitudes never have the top bit. */
static int32_t magnitude(float x) {
    return (int32_t)tam_magnitude(x);
}

/* s = decay * acc + scale * grad. @return whether anything is at or over the threshold */
INLINE bool add(const float *acc, const float *grad, float decay, float scale, uint32_t length,
                int32_t threshold, float *restrict s) {
    int32_t hit = 0;
    for (uint32_t l = 0; l < length; l++) {
        s[l] = decay * acc[l] + scale * grad[l];
        hit |= magnitude(s[l]) >= threshold;
    }
    return hit != 0;
}

INLINE bool any(const float *acc, uint32_t length, int32_t threshold) {
    int32_t hit = 0;
    for (uint32_t l = 0; l < length; l++)
        hit |= magnitude(acc[l]) >= threshold;
    return hit != 0;
}

static uint64_t portable_keep_finite(const float *acc, float decay, uint32_t length, float *s) {
    uint64_t bad = 0;
    for (uint32_t l = 0; l < length; l++) {
        if (tam_magnitude(s[l]) >= TAM_INFINITE_BITS) {
            s[l] = decay * acc[l];
            bad++;
        }
    }
    return bad;
}

/* A branch per entry would be mispredicted often, so every entry is written and most are
 * overwritten. The lists have slack for that. */
INLINE void append_strip(const float *s, uint32_t length, uint32_t base, uint32_t threshold,
                         tam_tile_out *out) {
    size_t count = out->count;
    for (uint32_t l = 0; l < length; l++) {
        uint32_t m = tam_magnitude(s[l]);
        out->index[count] = base + l;
        out->magnitude[count] = m;
        count += m >= threshold;
    }
    out->count = count;
}

INLINE void append(const float *s, uint32_t length, uint32_t base, uint32_t threshold,
                   tam_tile_out *out) {
    uint32_t l = 0;
    if (threshold >= TAM_INFINITE_BITS)
        return;
    for (; l + STRIP <= length; l += STRIP) {
        if (any(s + l, STRIP, (int32_t)threshold))
            append_strip(s + l, STRIP, base + l, threshold, out);
    }
    append_strip(s + l, length - l, base + l, threshold, out);
}

static float square(float x) {
    return x * x;
}

INLINE void fold(float *u, uint32_t half) {
    for (uint32_t l = 0; l < half; l++)
        u[l] += u[l + half];
}

/* Sum of squares of a chunk, in the order that tile.h fixes. */
static float portable_sum_chunk(const float *s) {
    enum { L = TAM_TILE_LANES };
    float u[L];
    for (uint32_t l = 0; l < L; l++)
        u[l] = ((square(s[l]) + square(s[l + L])) + square(s[l + 2 * L])) + square(s[l + 3 * L]);
    fold(u, 64);
    fold(u, 32);
    fold(u, 16);
    fold(u, 8);
    fold(u, 4);
    fold(u, 2);
    return u[0] + u[1];
}

static float portable_sum_tail(const float *s, uint32_t length) {
    float padded[TAM_TILE_CHUNK] = {0};
    memcpy(padded, s, length * sizeof s[0]);
    return portable_sum_chunk(padded);
}

/* What the rule makes of the gradient. One loop for each kind: a test inside the loop would keep
 * compilers from vectorising it. */
INLINE void make_adam(const tam_optimizer *p, float scale, uint32_t length,
                      const float *restrict grad, float *restrict first, float *restrict second,
                      float *restrict to) {
    for (uint32_t l = 0; l < length; l++)
        to[l] = tam_optimizer_adam(p, scale * grad[l], first ? &first[l] : NULL, &second[l]);
}

INLINE void make_momentum(const tam_optimizer *p, float scale, uint32_t length,
                          const float *restrict grad, float *restrict first, float *restrict to) {
    for (uint32_t l = 0; l < length; l++)
        to[l] = tam_optimizer_momentum(p, scale * grad[l], &first[l]);
}

static void portable_make(const tam_tile_job *job, uint32_t at, uint32_t length, float *to) {
    const tam_optimizer p = tam_tile_rule(job);
    const float *grad = job->grad + at;
    if (p.second && p.first)
        make_adam(&p, job->scale, length, grad, p.first + at, p.second + at, to);
    else if (p.second)
        make_adam(&p, job->scale, length, grad, NULL, p.second + at, to);
    else
        make_momentum(&p, job->scale, length, grad, p.first + at, to);
}

INLINE void make_moved(const tam_tile_job *job, uint32_t at, uint32_t length, float *to) {
    const float *before = job->before + at, *grad = job->grad + at, scale = job->scale;
    for (uint32_t l = 0; l < length; l++)
        to[l] = scale * (before[l] - grad[l]);
}

/* What the pass leaves in the gradient. */
INLINE void end_block(const tam_tile_job *job, uint32_t at, uint32_t length) {
    if (job->before)
        memcpy(job->grad + at, job->before + at, length * sizeof job->grad[0]);
    else if (job->clear)
        memset(job->grad + at, 0, length * sizeof job->grad[0]);
}

INLINE void accumulate_block(const tam_tile_job *job, uint32_t at, uint32_t length,
                             tam_tile_out *out) {
    float s[BLOCK], made[BLOCK];
    float *acc = job->acc + at;
    bool makes = job->optimizer || job->before;
    if (job->before)
        make_moved(job, at, length, made);
    else if (job->optimizer)
        portable_make(job, at, length, made);
    if (add(acc, makes ? made : job->grad + at, job->decay, makes ? 1.0f : job->scale, length,
            (int32_t)job->threshold, s)) {
        if (any(s, length, (int32_t)TAM_INFINITE_BITS))
            out->nonfinite += portable_keep_finite(acc, job->decay, length, s);
        append(s, length, job->base + at, job->threshold, out);
    }
    memcpy(acc, s, length * sizeof s[0]);
    end_block(job, at, length);
}

static void portable_accumulate(const tam_tile_job *job, tam_tile_out *out) {
    for (uint32_t at = 0; at < job->length; at += TAM_TILE_CHUNK) {
        uint32_t end = tam_min_u32(job->length, at + TAM_TILE_CHUNK), i = at;
        for (; i + BLOCK <= end; i += BLOCK)
            accumulate_block(job, i, BLOCK, out);
        if (i < end)
            accumulate_block(job, i, end - i, out);
        out->sum +=
            (double)(end - at == TAM_TILE_CHUNK ? portable_sum_chunk(job->acc + at)
                                                : portable_sum_tail(job->acc + at, end - at));
    }
}

static void portable_search(const tam_tile_job *job, tam_tile_out *out) {
    for (uint32_t at = 0; at < job->length; at += BLOCK) {
        uint32_t length = tam_min_u32(job->length - at, BLOCK);
        if (any(job->acc + at, length, (int32_t)job->threshold))
            append(job->acc + at, length, job->base + at, job->threshold, out);
    }
}

void tam_tile_portable(const tam_tile_job *job, tam_tile_out *out) {
    if (job->grad)
        portable_accumulate(job, out);
    else
        portable_search(job, out);
}

void tam_widen_portable(tamis_dtype type, const void *from, size_t count, float *to) {
    tam_widen(type, from, count, to);
}
