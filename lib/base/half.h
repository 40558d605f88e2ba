/* SPDX-License-Identifier: MIT
 *
 * 16-bit floats: IEEE binary16 and bfloat16, to binary32 and back, by integer operations. The bits
 * do not depend on the processor, its rounding mode or whether it flushes denormals. C11 and CUDA
 * C++.
 *
 *     binary16    seeeeemm mmmmmmmm              bias 15, 2^-24 to 65504
 *     bfloat16    seeeeeee emmmmmmm              the upper half of a binary32
 *     binary32    seeeeeee emmmmmmm mmmmmmmm mmmmmmmm
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; what exceeds the format becomes
 * infinite; NaN stays NaN.
 */
#ifndef TAM_BASE_HALF_H
#define TAM_BASE_HALF_H

#include "lib/base/numbers.h"

#include <stdbool.h>
#include <stddef.h>
#include <tamis/tamis.h>

/** Bytes of an element. */
TAM_SHARED size_t tam_type_bytes(tamis_dtype type) {
    return type == TAMIS_DTYPE_FLOAT32 ? 4 : 2;
}

/** Without branches, so that loops over it are vectorised. */
TAM_SHARED float tam_float16_widen(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t rebias = (magnitude >= 0x7c00 ? 224u : 112u) << 23; /* Inf, NaN: to the top */
    uint32_t normal = (magnitude << 13) + rebias;
    /* A subnormal half is a multiple of 2^-24; the product is exact and a normal number. */
    uint32_t small = tam_bits((float)(int32_t)magnitude * 5.9604644775390625e-8f);
    uint32_t select = 0u - (uint32_t)(magnitude < 0x400);
    return tam_float(sign | (small & select) | (normal & ~select));
}

TAM_SHARED float tam_bfloat16_widen(uint16_t half) {
    return tam_float((uint32_t)half << 16);
}

/* x >> shift, rounded to nearest, ties to even; without a branch. */
TAM_SHARED uint32_t tam_half_round_(uint32_t x, uint32_t shift) {
    uint32_t odd = x >> shift & 1;
    return (x + (1u << (shift - 1)) - 1 + odd) >> shift;
}

TAM_SHARED uint16_t tam_float16_narrow(float x) {
    uint32_t bits = tam_bits(x), sign = bits >> 16 & 0x8000u, m = bits & 0x7fffffffu;
    uint32_t half;
    if (m > 0x7f800000u) /* NaN, quiet */
        half = 0x7e00u | (m >> 13 & 0x1ffu);
    else if (m >= 0x47800000u) /* 2^16; from 65520 on the carry below gives the same */
        half = 0x7c00u;
    else if (m >= 0x38800000u) /* 2^-14: normal */
        half = tam_half_round_(m - (112u << 23), 13);
    else if (m >= 0x33000000u) /* 2^-25: subnormal, a count of 2^-24 */
        half = tam_half_round_((m & 0x7fffffu) | 0x800000u, 126 - (m >> 23));
    else
        half = 0;
    return (uint16_t)(sign | half);
}

TAM_SHARED uint16_t tam_bfloat16_narrow(float x) {
    uint32_t bits = tam_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* NaN, quiet: its payload must not round to Inf */
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)tam_half_round_(bits, 16);
}

/** Convert, but a finite number that exceeds the format becomes the largest finite one. */
TAM_SHARED uint16_t tam_bfloat16_clamp(float x) {
    uint16_t half = tam_bfloat16_narrow(x);
    bool exceeds = (half & 0x7fffu) == 0x7f80u && (tam_bits(x) & 0x7fffffffu) < 0x7f800000u;
    return (uint16_t)(half - exceeds);
}

/** to[i] = from[i], as float. */
static inline void tam_widen(tamis_dtype type, const void *from, size_t count, float *to) {
    const uint16_t *half = (const uint16_t *)from;
    if (type == TAMIS_DTYPE_FLOAT32)
        memcpy(to, from, count * sizeof to[0]);
    for (size_t i = 0; type == TAMIS_DTYPE_FLOAT16 && i < count; i++)
        to[i] = tam_float16_widen(half[i]);
    for (size_t i = 0; type == TAMIS_DTYPE_BFLOAT16 && i < count; i++)
        to[i] = tam_bfloat16_widen(half[i]);
}

/** to[i] = from[i], rounded to `type`. A finite number stays finite as bfloat16, whose range is
 * nearly that of binary32, but may become infinite as binary16. */
static inline void tam_narrow(const float *from, size_t count, tamis_dtype type, void *to) {
    uint16_t *half = (uint16_t *)to;
    if (type == TAMIS_DTYPE_FLOAT32)
        memcpy(to, from, count * sizeof from[0]);
    for (size_t i = 0; type == TAMIS_DTYPE_FLOAT16 && i < count; i++)
        half[i] = tam_float16_narrow(from[i]);
    for (size_t i = 0; type == TAMIS_DTYPE_BFLOAT16 && i < count; i++)
        half[i] = tam_bfloat16_clamp(from[i]);
}

#endif
