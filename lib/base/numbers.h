/* SPDX-License-Identifier: MIT
 *
 * Arithmetic that gives the same bits everywhere, in code that host and accelerator both compile:
 * +, -, *, / in binary64, each rounded, no libm. Compile without contraction to fused multiply-adds
 * (-ffp-contract=off, nvcc -fmad=false).
 */
#ifndef TAM_BASE_NUMBERS_H
#define TAM_BASE_NUMBERS_H

#include <stdint.h>
#include <string.h>

/** Begins a function that host and accelerator share. */
#if defined(__CUDACC__)
#define TAM_SHARED static __host__ __device__ inline
#else
#define TAM_SHARED static inline
#endif

#define TAM_LN2 0.69314718055994530942

TAM_SHARED uint64_t tam_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

TAM_SHARED uint64_t tam_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

TAM_SHARED uint32_t tam_min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/** `a` where the two are equal, or one is NaN. */
TAM_SHARED double tam_min_double(double a, double b) {
    return b < a ? b : a;
}

/** `a` where the two are equal, or one is NaN. */
TAM_SHARED double tam_max_double(double a, double b) {
    return b > a ? b : a;
}

/** The nearest number from low to high; NaN stays NaN. */
TAM_SHARED double tam_clip_double(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

TAM_SHARED uint32_t tam_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TAM_SHARED float tam_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TAM_SHARED uint64_t tam_bits64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TAM_SHARED double tam_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/** A random number that depends on key and counter alone: SplitMix64 (Steele, Lea, Flood, 2014). */
TAM_SHARED uint64_t tam_random(uint64_t key, uint64_t counter) {
    uint64_t x = key + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

TAM_SHARED double tam_power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/** Logarithm and power of two, to about 1e-7: the same bits on every processor and library, which
 * libm does not promise. x > 0 */
TAM_SHARED double tam_log2(double x) {
    double lift = 0.0;
    if (tam_bits64(x) >> 52 == 0) { /* subnormal */
        lift = 54.0;
        x *= 18014398509481984.0;
    }
    int exponent = (int)(tam_bits64(x) >> 52) - 1023;
    double m = x / tam_power_of_two(exponent); /* [1, 2) */
    /* ln m = 2 atanh(z), z = (m - 1) / (m + 1) <= 1/3 */
    double z = (m - 1.0) / (m + 1.0), z2 = z * z, power = z, sum = 0.0;
    for (int i = 1; i < 20; i += 2) {
        sum += power / i;
        power *= z2;
    }
    return exponent + 2.0 * sum / TAM_LN2 - lift;
}

/** |x| <= 1000 */
TAM_SHARED double tam_exp2(double x) {
    int whole = (int)x - ((int)x > x);                       /* floor */
    double y = (x - whole) * TAM_LN2, term = 1.0, sum = 1.0; /* y in [0, ln 2] */
    for (int i = 1; i < 14; i++) {
        term *= y / i;
        sum += term;
    }
    return sum * tam_power_of_two(whole);
}

#endif
