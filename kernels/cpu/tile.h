/* SPDX-License-Identifier: MIT
 *
 * The tile kernel: one pass over a run of at most 2^16 elements. Four versions (portable C, AVX2,
 * AVX-512, NEON) give the same bits; the portable one is the reference.
 *
 *     a = decay * acc[i]                    multiply, then add, each rounded to nearest
 *     s = a + scale * grad[i]         or a + the optimizer's step, see optimizer.h
 *                                     or a + scale * (before[i] - grad[i])
 *     if s is not finite:  s = a, count it
 *     acc[i] = s;  grad[i] = 0 if asked, or before[i]
 *     if bits(|s|) >= threshold: append (base + i, bits(|s|)), NaN and Inf in acc included
 *     sum of s * s in the order below
 *
 * Order of the sum of squares. Lane l of a chunk of 512 elements adds, in binary32,
 *     u[l] = ((s[l]^2 + s[l+128]^2) + s[l+256]^2) + s[l+384]^2          l = 0..127
 * then halves fold: u[l] += u[l+64], u[l+32], ..., u[l+1]; u[0] is the chunk's sum. Chunks are
 * added in order in binary64. Elements past the end count as +0. A warp of 32 threads with four
 * elements each can do the same.
 *
 * Order of the sum of a group, from those of its tiles. Lane j of 256 adds, in binary64, from 0,
 * the sums of the group's tiles j, j + 256, j + 512, ...; then halves fold: u[j] += u[j+128],
 * u[j+64], ..., u[j+1]; u[0] is the group's sum. A block of 256 threads can do the same.
 */
#ifndef TAM_CPU_TILE_H
#define TAM_CPU_TILE_H

#include "lib/contracts/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum {
    TAM_TILE_CHUNK = 512,
    TAM_TILE_LANES = 128,
    TAM_GROUP_LANES = 256,
    TAM_TILE_SLACK = 64 /* a kernel may write so many entries past the last candidate */
};

typedef struct tam_tile_job {
    float *acc;
    float *grad; /* NULL: acc is only searched, not changed (decay, scale, clear are ignored) */
    float decay, scale;
    bool clear;
    const tam_optimizer *optimizer; /* NULL: the gradient is added as it is */
    uint32_t length;
    uint32_t base;       /* index of the first element */
    uint32_t threshold;  /* magnitude bits, 1 to TAM_INFINITE_BITS; the latter: no candidates */
    const float *before; /* NULL; else without `clear` and `optimizer` */
} tam_tile_job;

/** Candidates are appended at index[count], magnitude[count]; there is room for `length` entries
 * and TAM_TILE_SLACK beyond. */
typedef struct tam_tile_out {
    uint32_t *index;
    uint32_t *magnitude;
    size_t count;       /* [in,out] */
    uint64_t nonfinite; /* [in,out] entries where s was not finite; a search does not change it */
    double sum;         /* [in,out] of squares, chunk by chunk; a search does not change it */
} tam_tile_out;

/** What a pass leaves in the gradient. A constant where it is used, so that no kernel asks. */
typedef enum tam_tile_end { TAM_TILE_KEEPS, TAM_TILE_CLEARS, TAM_TILE_RESTORES } tam_tile_end;

/** The optimizer of a job, with moments that begin at the first element of the tile. */
static inline tam_optimizer tam_tile_rule(const tam_tile_job *job) {
    tam_optimizer rule = *job->optimizer;
    rule.first = rule.first ? rule.first + job->base : NULL;
    rule.second = rule.second ? rule.second + job->base : NULL;
    return rule;
}

typedef void (*tam_tile_kernel)(const tam_tile_job *job, tam_tile_out *out);

/** As tam_widen of half.h: one loop, compiled for each level. */
typedef void (*tam_tile_widen)(tamis_dtype type, const void *from, size_t count, float *to);

/** One instruction set level. */
typedef struct tam_tile_level {
    const char *name; /* "portable", "avx2", "avx512", "neon" */
    tam_tile_kernel run;
    tam_tile_widen widen;
    bool (*available)(void);
    const char *needs; /* for messages: what the processor must have */
} tam_tile_level;

/** Levels from the plainest to the fastest, NULL-terminated by a row without a name. */
extern const tam_tile_level tam_tile_levels[];

/** The fastest level available here, or the one named by the setting TAMIS_CPU. */
const tam_tile_level *tam_tile_best(void);

void tam_tile_portable(const tam_tile_job *job, tam_tile_out *out);
void tam_tile_avx2(const tam_tile_job *job, tam_tile_out *out);
void tam_tile_avx512(const tam_tile_job *job, tam_tile_out *out);
void tam_tile_neon(const tam_tile_job *job, tam_tile_out *out);
void tam_widen_portable(tamis_dtype type, const void *from, size_t count, float *to);
void tam_widen_avx2(tamis_dtype type, const void *from, size_t count, float *to);
void tam_widen_avx512(tamis_dtype type, const void *from, size_t count, float *to);
void tam_widen_neon(tamis_dtype type, const void *from, size_t count, float *to);

#endif
