/* SPDX-License-Identifier: MIT
 *
 * 16-bit gradients, converted from and to binary32. Narrowing rounds to nearest, ties to even;
 * values beyond the range of binary16 become infinite.
 */
#ifndef TAMIS_BENCH_HALF_H
#define TAMIS_BENCH_HALF_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tamis/tamis.h>

#define BENCH_GRADS "fp32|fp16|bf16" /* in the order of tamis_dtype */
#define BENCH_OR(NAME, name, ...) "|" #name
#define BENCH_VALUES "auto" TAMIS_VALUE_CODECS(BENCH_OR) /* in the order of tamis_value_codec */

/** Bytes of a value as it travels, scales included. @param type  AUTO: float32 */
static inline double bench_value_bytes(tamis_value_codec type) {
#define BENCH_BYTES(NAME, name, number, bits, scales, SUM)                                         \
    [number] = (bits) / 8.0 + (scales) / 256.0,
    static const double bytes[] = {[TAMIS_VALUE_AUTO] = 4, TAMIS_VALUE_CODECS(BENCH_BYTES)};
#undef BENCH_BYTES
    return bytes[type];
}

/** Bytes of a value among sums, where AUTO is chosen by the type of the values. */
static inline double bench_sum_bytes(tamis_value_codec sum, tamis_value_codec type) {
#define BENCH_SUM(NAME, name, number, bits, scales, SUM) [number] = TAMIS_VALUE_##SUM,
    static const tamis_value_codec of[] = {TAMIS_VALUE_CODECS(BENCH_SUM)};
#undef BENCH_SUM
    return bench_value_bytes(sum == TAMIS_VALUE_AUTO ? of[type] : sum);
}

static inline size_t bench_type_bytes(tamis_dtype type) {
    return type == TAMIS_DTYPE_FLOAT32 ? 4 : 2;
}

static inline uint16_t bench_bfloat16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float bench_bfloat16_to(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Scales x so that one unit is the last place of the result; rintf rounds ties to even. */
static inline uint16_t bench_float16_of(float x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float size = fabsf(x);
    int exponent;
    if (isnan(x))
        return sign | 0x7e00;
    if (size >= 65520.0f)
        return sign | 0x7c00;
    if (size < 0x1p-14f)
        return sign | (uint16_t)rintf(size * 0x1p24f);
    frexpf(size, &exponent); /* 1024 to 2048 units; 2048 carries into the exponent by itself */
    uint32_t units = (uint32_t)rintf(ldexpf(size, 11 - exponent));
    return (uint16_t)(sign + ((uint32_t)(exponent + 13) << 10) + units);
}

static inline float bench_float16_to(uint16_t half) {
    int exponent = half >> 10 & 31, units = half & 0x3ff;
    float size = exponent == 31 ? (units ? NAN : INFINITY)
                 : exponent     ? ldexpf((float)(1024 + units), exponent - 25)
                                : (float)units * 0x1p-24f;
    return half & 0x8000 ? -size : size;
}

/** out[i] = in[i] in the type. in may equal out. */
static inline void bench_narrow(tamis_dtype type, const float *in, size_t count, void *out) {
    uint16_t *halves = out;
    if (type == TAMIS_DTYPE_FLOAT32 && in != out)
        memcpy(out, in, count * sizeof *in);
    for (size_t i = 0; type != TAMIS_DTYPE_FLOAT32 && i < count; i++)
        halves[i] =
            type == TAMIS_DTYPE_FLOAT16 ? bench_float16_of(in[i]) : bench_bfloat16_of(in[i]);
}

static inline float bench_widened(tamis_dtype type, const void *in, size_t i) {
    return type == TAMIS_DTYPE_FLOAT32   ? ((const float *)in)[i]
           : type == TAMIS_DTYPE_FLOAT16 ? bench_float16_to(((const uint16_t *)in)[i])
                                         : bench_bfloat16_to(((const uint16_t *)in)[i]);
}

/** x rounded to the type. */
static inline float bench_rounded(tamis_dtype type, float x) {
    uint32_t memory;
    bench_narrow(type, &x, 1, &memory);
    return bench_widened(type, &memory, 0);
}

#endif
