/* SPDX-License-Identifier: MIT
 *
 * Counter-based random numbers: the value depends on (key, counter) alone, so it is the same for
 * any number of ranks and any order of generation. SplitMix64 (Steele, Lea, Flood, 2014).
 */
#ifndef TAMIS_BENCH_RANDOM_H
#define TAMIS_BENCH_RANDOM_H

#include <math.h>
#include <stdint.h>

static inline uint64_t bench_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t bench_random(uint64_t key, uint64_t counter) {
    return bench_mix(key + (counter + 1) * 0x9e3779b97f4a7c15u);
}

/** A separate key for each purpose and sub-stream of a seed. */
static inline uint64_t bench_key(uint64_t seed, uint64_t purpose, uint64_t stream) {
    return bench_mix(bench_mix(bench_mix(seed) + purpose) + stream);
}

/** Uniform in (0, 1). */
static inline double bench_uniform(uint64_t key, uint64_t counter) {
    return ((double)(bench_random(key, counter) >> 12) + 0.5) * 0x1p-52;
}

/** Standard normal (Box-Muller; two uniforms per value). */
static inline double bench_normal(uint64_t key, uint64_t counter) {
    double u = bench_uniform(key, 2 * counter), v = bench_uniform(key, 2 * counter + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
