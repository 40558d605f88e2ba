/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/scan.h"

enum { RUN = 64, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* The next own tile at or after *t; NULL past the end. */
static const tam_tile *next_own(const tam_scope *scope, uint32_t *t) {
    for (; *t < scope->span.end; ++*t) {
        const tam_tile *tile = &scope->grid->tiles[*t];
        if (tam_owns(scope->mine, tile))
            return tile;
    }
    return NULL;
}

#define FOR_OWN_TILES(scope, t, tile)                                                              \
    for (uint32_t t = (scope)->span.first; (tile = next_own(scope, &t)) != NULL; t++)

/* Which entries of a group take part; the walk counts the ties left down. */
typedef struct filter {
    const tam_scope *scope;
    uint32_t group;
    tam_cutoff left;
} filter;

static void filter_enter(filter *f, uint32_t group) {
    if (group == f->group)
        return;
    f->group = group;
    f->left = f->scope->only ? f->scope->only[group] : (tam_cutoff){0, SIZE_MAX};
}

static filter filter_begin(const tam_scope *scope) {
    return (filter){.scope = scope, .group = UINT32_MAX};
}

size_t tam_scan_length(const tam_scope *scope) {
    size_t length = 0;
    const tam_tile *tile;
    FOR_OWN_TILES(scope, t, tile) {
        length += tile->length;
    }
    return length;
}

size_t tam_scan_count(const tam_scope *scope) {
    if (!scope->only)
        return tam_scan_length(scope);
    size_t count = 0;
    filter f = filter_begin(scope);
    const tam_tile *tile;
    FOR_OWN_TILES(scope, t, tile) {
        filter_enter(&f, tile->group);
        for (uint32_t i = 0; i < tile->length; i++)
            count += tam_chosen(tam_magnitude(scope->acc[tile->begin + i]), f.left.key,
                                &f.left.ties) != 0;
    }
    return count;
}

void tam_scan_keys(const tam_scope *scope, uint32_t *keys) {
    const tam_tile *tile;
    FOR_OWN_TILES(scope, t, tile) {
        float weight = tam_weight(scope->weights, tile->group);
        for (uint32_t i = 0; i < tile->length; i++)
            keys[i] = tam_key(tam_magnitude(scope->acc[tile->begin + i]), weight);
        keys += tile->length;
    }
}

size_t tam_scan_sample(const tam_scope *scope, size_t stride, size_t most, uint32_t *keys) {
    size_t at = 0, next = 0, count = 0; /* positions among the own entries */
    const tam_tile *tile;
    FOR_OWN_TILES(scope, t, tile) {
        float weight = tam_weight(scope->weights, tile->group);
        for (; next < at + tile->length; next += RUN * stride) {
            size_t i = next - at, end = i + RUN < tile->length ? i + RUN : tile->length;
            for (; i < end && count < most; i++)
                keys[count++] = tam_key(tam_magnitude(scope->acc[tile->begin + i]), weight);
        }
        at += tile->length;
    }
    return count;
}

/* Count the digit at `shift` of all keys that agree with `prefix` in the bits above the digit. */
static void scan_count_digit(const tam_scope *scope, uint32_t prefix, int shift,
                             uint32_t histogram[DIGITS]) {
    filter f = filter_begin(scope);
    const tam_tile *tile;
    memset(histogram, 0, DIGITS * sizeof histogram[0]);
    FOR_OWN_TILES(scope, t, tile) {
        float weight = tam_weight(scope->weights, tile->group);
        filter_enter(&f, tile->group);
        for (uint32_t i = 0; i < tile->length; i++) {
            uint32_t magnitude = tam_magnitude(scope->acc[tile->begin + i]);
            uint32_t key = tam_key(magnitude, weight);
            if (tam_chosen(magnitude, f.left.key, &f.left.ties) &&
                (uint64_t)(key ^ prefix) >> (shift + DIGIT_BITS) == 0)
                histogram[key >> shift & (DIGITS - 1)]++;
        }
    }
}

tam_cutoff tam_scan_kth(const tam_scope *scope, size_t k) {
    uint32_t histogram[DIGITS], prefix = 0;
    for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        scan_count_digit(scope, prefix, shift, histogram);
        prefix |= tam_kth_bucket(histogram, DIGITS, &k) << shift;
    }
    return (tam_cutoff){prefix, k};
}

void tam_scan_emit(const tam_scope *scope, tam_cutoff cutoff, size_t k, uint32_t *indices) {
    size_t count = 0;
    filter f = filter_begin(scope);
    const tam_tile *tile;
    FOR_OWN_TILES(scope, t, tile) {
        float weight = tam_weight(scope->weights, tile->group);
        filter_enter(&f, tile->group);
        for (uint32_t i = 0; i < tile->length && count < k; i++) {
            uint32_t magnitude = tam_magnitude(scope->acc[tile->begin + i]);
            bool in = tam_chosen(magnitude, f.left.key, &f.left.ties) &&
                      tam_chosen(tam_key(magnitude, weight), cutoff.key, &cutoff.ties);
            indices[count] = tile->begin + i;
            count += in;
        }
        if (count == k)
            return;
    }
}
