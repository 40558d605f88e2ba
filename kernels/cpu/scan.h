/* SPDX-License-Identifier: MIT
 *
 * Walks over the own tiles that need no list of candidates: slow, but correct for every input.
 */
#ifndef TAM_CPU_SCAN_H
#define TAM_CPU_SCAN_H

#include "kernels/cpu/kth.h"
#include "kernels/cpu/sweep.h"
#include "lib/base/base.h"

/** The entries to select from: tiles of `span` that part `mine` owns. */
typedef struct tam_scope {
    const tam_grid *grid;
    const float *acc;
    tam_span span;
    uint32_t mine;
    const float *weights;   /* per group, key = |acc| * weight; NULL: all 1 */
    const tam_cutoff *only; /* per group: entries that take part; NULL: all */
} tam_scope;

/** The key of an entry; one rounding. */
static inline uint32_t tam_key(uint32_t magnitude, float weight) {
    return tam_magnitude(tam_float(magnitude) * weight);
}

static inline float tam_weight(const float *weights, uint32_t group) {
    return weights ? weights[group] : 1.0f;
}

/** Number of elements of the own tiles; ignores `only`. */
size_t tam_scan_length(const tam_scope *scope);

/** Number of entries that take part. */
size_t tam_scan_count(const tam_scope *scope);

/** Keys of all own entries, uint32_t[tam_scan_length]; ignores `only`. */
void tam_scan_keys(const tam_scope *scope, uint32_t *keys);

/**
 * Keys of runs of neighbours, one run of every `stride`, at most `most` keys; ignores `only`.
 *
 * @return  number of keys
 */
size_t tam_scan_sample(const tam_scope *scope, size_t stride, size_t most, uint32_t *keys);

/** The cutoff that chooses k of the entries that take part. @param k  1 to their number */
tam_cutoff tam_scan_kth(const tam_scope *scope, size_t k);

/** Indices of the k entries that the cutoff chooses among those that take part, ascending. */
void tam_scan_emit(const tam_scope *scope, tam_cutoff cutoff, size_t k, uint32_t *indices);

#endif
