/* SPDX-License-Identifier: MIT
 *
 * Radix selection fitted to the range of the keys. Candidates are just above their threshold, so
 * the usual digits (exponent first) would put nearly all of them into a few buckets. Buckets of
 * equal width between the smallest and the largest key leave about a hundredth after one round.
 */
#include "kernels/cpu/kth.h"

#include <string.h>

enum { BUCKETS = 2048 };

static void find_range(const uint32_t *keys, size_t count, uint32_t *lo, uint32_t *hi) {
    /* As int32_t, for which every instruction set has a comparison; the top bit is never set. */
    int32_t least = INT32_MAX, most = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t key = (int32_t)keys[i];
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    *lo = (uint32_t)least;
    *hi = (uint32_t)most;
}

/* Two histograms: neighbours often fall into the same bucket, and the second increment would wait
 * for the first. */
static void count_buckets(const uint32_t *keys, size_t count, uint32_t lo, int shift,
                          uint32_t histogram[BUCKETS]) {
    uint32_t other[BUCKETS] = {0};
    size_t i = 0;
    memset(histogram, 0, BUCKETS * sizeof histogram[0]);
    for (; i + 2 <= count; i += 2) {
        histogram[(keys[i] - lo) >> shift]++;
        other[(keys[i + 1] - lo) >> shift]++;
    }
    if (i < count)
        histogram[(keys[i] - lo) >> shift]++;
    for (uint32_t b = 0; b < BUCKETS; b++)
        histogram[b] += other[b];
}

uint32_t tam_kth_bucket(const uint32_t *histogram, uint32_t buckets, size_t *k) {
    uint32_t bucket = buckets - 1;
    for (; bucket > 0 && histogram[bucket] < *k; bucket--)
        *k -= histogram[bucket];
    return bucket;
}

/* Keys of one bucket, order kept. `out` may be `keys`. */
static size_t filter(const uint32_t *keys, size_t count, uint32_t lo, uint32_t width,
                     uint32_t *out) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t key = keys[i];
        out[kept] = key;
        kept += key - lo < width;
    }
    return kept;
}

tam_cutoff tam_kth(const uint32_t *keys, size_t count, size_t k, uint32_t *spare) {
    uint32_t histogram[BUCKETS], lo, hi;
    for (;;) {
        int shift = 0;
        find_range(keys, count, &lo, &hi);
        while ((hi - lo) >> shift >= BUCKETS)
            shift++;
        count_buckets(keys, count, lo, shift, histogram);
        uint32_t bucket = tam_kth_bucket(histogram, BUCKETS, &k);
        if (shift == 0)
            return (tam_cutoff){lo + bucket, k};
        count = filter(keys, count, lo + (bucket << shift), 1u << shift, spare);
        keys = spare;
    }
}
