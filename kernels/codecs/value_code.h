/* SPDX-License-Identifier: MIT
 *
 * The codes of the value codecs one by one: what a code is, and what it stands for. A host encodes
 * and decodes blocks with it (kernels/codecs/value_*.c), a block of a device gives each
 * thread a value (kernels/cuda/value_codec.cuh). C11 and CUDA C++; without branches, so that loops
 * are vectorised.
 */
#ifndef TAM_KERNELS_CODECS_VALUE_CODE_H
#define TAM_KERNELS_CODECS_VALUE_CODE_H

#include "lib/base/half.h"

/** All bits where a value is finite, none where it is not: signed numbers are compared faster. */
TAM_SHARED uint32_t tam_value_finite(uint32_t bits) {
    return 0u - (uint32_t)((int32_t)(bits & 0x7fffffffu) < 0x7f800000);
}

/** What rounding takes from a value: all of it where NaN arrives, nothing if it is not finite. */
TAM_SHARED float tam_value_error(float value, float decoded) {
    float arrives = tam_float(tam_bits(decoded) & tam_value_finite(tam_bits(decoded)));
    return tam_float(tam_bits(value - arrives) & tam_value_finite(tam_bits(value)));
}

/* -- scales: of a block, bfloat16 ------------------------------------------------------------- */

/** The least bfloat16 that is not below x, a finite magnitude; its largest one for what exceeds it.
 * For what is divided by it 1 stands for 0. */
TAM_SHARED uint16_t tam_value_scale(float x) {
    uint32_t up = (tam_bits(x) + 0xffffu) >> 16;
    return (uint16_t)(up < 0x7f80u ? up : 0x7f7fu);
}

TAM_SHARED float tam_value_divisor(uint16_t scale) {
    return scale ? tam_bfloat16_widen(scale) : 1.0f;
}

/** Not negative, and finite. */
TAM_SHARED bool tam_value_scale_valid(uint16_t scale) {
    return scale < 0x7f80u;
}

/* -- int8: multiples of 1/127 of the block's largest magnitude, rounded to even; -128 is NaN -- */

TAM_SHARED uint16_t tam_int8_scale(float largest) {
    return tam_value_scale(largest / 127.0f);
}

/** Adding 1.5 * 2^23 rounds a small number to a whole one, ties to even, which then lies in the low
 * bits of the sum. */
TAM_SHARED int8_t tam_int8_code(float value, float divisor) {
    const float rounds = 12582912.0f;
    float quotient = value / divisor;
    quotient = quotient < 127.0f ? quotient : 127.0f;
    quotient = quotient > -127.0f ? quotient : -127.0f;
    uint32_t q = tam_bits(quotient + rounds) - tam_bits(rounds);
    uint32_t finite = tam_value_finite(tam_bits(value));
    return (int8_t)(int32_t)((q & finite) | (0x80u & ~finite));
}

TAM_SHARED float tam_int8_value(int8_t code, float scale) {
    uint32_t nan = code == -128 ? 0x7fc00000u : 0;
    return tam_float(tam_bits((float)code * scale) | nan);
}

/* -- fp4: a sign and an exponent (value_fp4.c) ------------------------------------------------ */

enum { TAM_FP4_SIGN = 8, TAM_FP4_NAN = 8 };

/* Half of the mantissa's range, added, carries into the exponent what is 3/4 of the next power of
 * two or more. Signed numbers, which are compared and chosen between without branches. */
TAM_SHARED int32_t tam_fp4_magnitude_(uint32_t bits) {
    int32_t exponent = (int32_t)((bits + 0x400000u) >> 23);
    int32_t least = (int32_t)bits >= 0x3c000000; /* 2^-7 */
    int32_t m = exponent > 120 ? exponent - 120 : least;
    return m < 7 ? m : 7;
}

TAM_SHARED uint32_t tam_fp4_code(float value, float divisor) {
    uint32_t bits = tam_bits(value), finite = tam_value_finite(bits);
    int32_t m = tam_fp4_magnitude_(tam_bits(value / divisor) & 0x7fffffffu);
    uint32_t sign = m > 0 ? bits >> 31 : 0u;
    return (((uint32_t)m | sign * TAM_FP4_SIGN) & finite) | (TAM_FP4_NAN & ~finite);
}

TAM_SHARED float tam_fp4_value(uint32_t code, float scale) {
    uint32_t m = code & 7u, sign = code >> 3 << 31;
    float level = tam_float(m ? (m + 120u) << 23 : 0u);
    uint32_t nan = code == TAM_FP4_NAN ? 0x7fc00000u : 0u;
    return tam_float(tam_bits(level * scale) | sign | nan);
}

/* -- fp2: a sign, and which of two magnitudes (value_fp2.c) ----------------------------------- */

enum { TAM_FP2_NAN_SCALE = 0x7fc0 };

TAM_SHARED uint16_t tam_fp2_mean(double sum, uint32_t count) {
    return count ? tam_bfloat16_clamp((float)(sum / (double)count)) : (uint16_t)0;
}

/** The high magnitude may be NaN. */
TAM_SHARED bool tam_fp2_scale_valid(uint16_t high) {
    return tam_value_scale_valid(high) || high == TAM_FP2_NAN_SCALE;
}

TAM_SHARED float tam_fp2_value(uint32_t code, float low, float high) {
    uint32_t is_high = 0u - (code & 1u), minus = code >> 1 << 31;
    return tam_float((tam_bits(high) & is_high) | (tam_bits(low) & ~is_high) | minus);
}

#endif
