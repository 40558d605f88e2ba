/* SPDX-License-Identifier: MIT
 *
 * The device contract: the mathematics of a step. The reducer calls it, kernels implement it.
 *
 * The flat vector is divided into tiles. A tile is a run within one block, one group and one part.
 *
 *     elements   0 ............................................................. n-1
 *     groups     |------- 0 -------|-- 1 --|--------------- 2 ---------------|  budget, norms
 *     parts      |   A   |   B   |   C   |   A   |   B   |   C   |   A   |   B |  ownership
 *     tiles      |   0   | 1 | 2 | 3 | 4 |   5   |   6   | ...
 *
 * In each step a rank selects in the tiles whose part is its own. Every device gives the same
 * bits: it multiplies, then adds, each rounded; compares magnitudes as integers; adds squares in
 * the fixed order of tile.h; breaks ties by lowest index.
 */
#ifndef TAM_CONTRACTS_DEVICE_H
#define TAM_CONTRACTS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

#define TAM_PART_ALL UINT32_MAX          /* as `mine`: the rank owns all tiles but common ones */
#define TAM_PART_COMMON (UINT32_MAX - 1) /* of a tile: all ranks take it whole, unsent */
#define TAM_INFINITE_BITS 0x7f800000u    /* magnitude bits from here on are Inf and NaN */

typedef struct tam_tile {
    uint32_t begin, length;
    uint32_t group;
    uint32_t part; /* changes between steps only for ownership `bins` and `balanced` */
} tam_tile;

/** A run of the vector with one budget: a segment, or a piece of one. */
typedef struct tam_group {
    uint32_t begin, length;
    uint32_t segment;
    uint32_t first_tile, ntiles;
} tam_group;

/** The vector and its division; fixed for the life of a reducer but for tam_tile.part. */
typedef struct tam_grid {
    uint64_t n;
    tam_tile *tiles;
    tam_group *groups;
    uint32_t ntiles, ngroups;
} tam_grid;

/** Candidates of the own tiles: every entry at or over its threshold, index ascending. Valid until
 * the next accumulate or select. */
typedef struct tam_candidates {
    uint32_t *index;     /* [capacity], owned by the device */
    uint32_t *magnitude; /* bits of |acc| */
    size_t count;
    bool complete; /* false: more than capacity; the list is useless, the count 0 */
} tam_candidates;

/** What a gradient becomes before it is added; formulas in optimizer.h. */
typedef struct tam_optimizer {
    tamis_update_rule rule;
    float *first, *second; /* [n] moments, memory of the device; NULL: not needed */
    float keep1, take1;    /* factors on the first moment and on the new gradient */
    float keep2, take2;    /* the same for the second */
    float correct1, correct2;
    float epsilon;
} tam_optimizer;

typedef struct tam_accumulate {
    float *acc;                 /* [in,out] residual in, accumulated gradient out */
    void *grad;                 /* flat gradient, or NULL: then by segment */
    void *const *grads;         /* gradient of each segment */
    tamis_dtype type;           /* of the gradient; 16 bits are widened exactly */
    const uint32_t *seg_begin;  /* first element of each segment */
    float decay, scale;         /* factors on what acc holds, and on the gradient */
    bool clear;                 /* set the gradient to zero in the same pass */
    uint32_t mine;              /* part to take candidates from, or TAM_PART_ALL */
    const uint32_t *thresholds; /* per group, magnitude bits; TAM_INFINITE_BITS: no candidates */
    const tam_optimizer *optimizer; /* NULL: the gradient is added as it is */
    const float *const *before;     /* NULL, or parameters of each segment before a step of the
                                       caller's optimizer; `grads` hold those after it, of float32,
                                       and end as they were before */
    const float *rates;             /* with before: of that step, per segment */
    uint64_t agreed;                /* for headers, where the device writes them */
} tam_accumulate;

#define TAM_SEGMENT_UNKNOWN UINT32_MAX

typedef struct tam_accumulated {
    tam_candidates candidates;
    double *group_sums;         /* [ngroups] sum of acc squared, owned by the device */
    uint64_t nonfinite;         /* entries dropped because acc would not be finite */
    uint32_t nonfinite_segment; /* that has the first of them; TAM_SEGMENT_UNKNOWN: not known */
} tam_accumulated;

typedef enum tam_select_kind {
    TAM_SELECT_TOTAL,  /* the k entries with the largest |acc| * weight of their group */
    TAM_SELECT_GROUPS, /* in every own group the budgets[group] entries with the largest |acc| */
    TAM_SELECT_ALL     /* every entry at or over the threshold; if more than k, the k largest */
} tam_select_kind;

typedef struct tam_select_job {
    tam_select_kind kind;
    const float *acc;
    uint32_t mine;
    size_t k;                         /* count of TOTAL, upper limit of ALL and GROUPS */
    const float *weights;             /* TOTAL: per group; NULL: all 1 */
    const uint32_t *budgets;          /* GROUPS */
    uint32_t threshold;               /* ALL: magnitude bits, then without candidates; 0: those of
                                         the last accumulate */
    float floor_key;                  /* TOTAL: candidates are complete only for keys above this */
    const tam_candidates *candidates; /* NULL: search the own tiles; GROUPS: ignored, NULL */
} tam_select_job;

typedef struct tam_select_result {
    size_t count;      /* indices written, ascending */
    size_t candidates; /* considered */
    size_t deferred;   /* not chosen only because of the limit k (ALL, GROUPS) */
    float key;         /* smallest key chosen; 0 if none */
    bool rescanned;    /* the candidates did not suffice */
} tam_select_result;

/**
 * Contract. open may fail with NOMEM; on a CPU no other call can fail. Gradient, acc and memory
 * from alloc are on the device; all else (indices, values, results) is host memory. A call returns
 * when its results are complete.
 */
typedef struct tam_device {
    const char *name;

    /** @param capacity  candidates that one step may take; @param threads  at least 1 */
    tamis_status (*open)(const tam_grid *grid, size_t capacity, uint32_t threads, void **out);
    void (*close)(void *self);

    /** Memory for vectors that the kernels read and write: 64-byte aligned, zeroed. */
    void *(*alloc)(void *self, size_t bytes);
    void (*release)(void *self, void *memory);

    /** Copy to host memory, and from it. */
    tamis_status (*read)(void *self, const void *device, size_t bytes, void *host);
    tamis_status (*write)(void *self, const void *host, size_t bytes, void *device);

    /** Whether `memory` may be a gradient; if not, the sentence begins with `what`. No function:
     * all may. */
    tamis_status (*check)(void *self, const void *memory, const char *what);

    /** Later calls run after the work that the caller's `stream` holds now. */
    tamis_status (*follow)(void *self, void *stream);

    /** One pass: acc = decay * acc + scale * grad, or decay * acc + what `optimizer` makes of
     * scale * grad. Computes group sums and candidates, keeps non-finite entries out. With `before`
     * the gradient is (before - grad) * (1 / rate), or 0 where the rate is; on a CPU only. */
    tamis_status (*accumulate)(void *self, const tam_accumulate *job, tam_accumulated *out);

    /** Count the entries of acc, in all tiles, with magnitude bits >= `threshold`, not 0. */
    tamis_status (*count)(void *self, const float *acc, uint32_t threshold, uint64_t *out);

    /** marks[r] = 1 if any of the `length` entries of row r of acc is not 0, else 0. */
    tamis_status (*mark)(void *self, const float *acc, uint32_t length, uint32_t nrows,
                         unsigned char *marks);

    /** Candidates -> chosen indices, ascending. Exact: the result depends on acc alone. */
    tamis_status (*select)(void *self, const tam_select_job *job, uint32_t *indices,
                           tam_select_result *out);

    /** values[i] = acc[indices[i]] */
    tamis_status (*gather)(void *self, const float *acc, const uint32_t *indices, size_t count,
                           float *values);

    /** values[i] /= divisor; grad[indices[i]] = values[i] if a gradient is given, rounded to
     * nearest even if it has 16 bits. With `before`, where the rate is not 0: grad[indices[i]] -=
     * rate * values[i], multiplied and subtracted with one rounding each. */
    tamis_status (*apply)(void *self, const tam_accumulate *target, const uint32_t *indices,
                          size_t count, float divisor, float *values);

    /** acc[indices[i]] = values[i]; NULL: 0. Not part of apply: `pairs` clears fewer entries. */
    tamis_status (*put)(void *self, float *acc, const uint32_t *indices, size_t count,
                        const float *values);
} tam_device;

#endif
