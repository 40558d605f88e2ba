/* SPDX-License-Identifier: MIT
 *
 * Wire types: how float32 values become bytes. All but float32 and bfloat16 share a scale among a
 * block of 256 consecutive values of a list; the last block of a list may be shorter:
 *
 *     int8    | scale, 2 | q q q ...        |   q * scale, q from -127 to 127
 *     fp4     | scale, 2 | mm mm ...        |   sign and one of 0, 2^-6, ..., 2^-1, 1, times scale
 *     fp2     | low, 2 | high, 2 | 4 4 4 .. |   sign and one of low, high
 *
 * Scales are bfloat16. So decoded values have at most 15 significant bits and are exact, and what
 * rounding takes, value - decoded, is exact in float32 for int8 and fp4, whose decoded value lies
 * within a factor of 2 of the value or is 0. For fp2 it is rounded once.
 *
 * What is not finite arrives as NaN: a code of its own in int8 (-128) and fp4 (-0), the high
 * magnitude in fp2. A finite value that exceeds the type becomes the largest one, and the
 * difference is an error.
 *
 * Every byte is a code, so a decoder has only scales to refuse: those that are negative or, but for
 * fp2's, not finite. It reads as many bytes as the count says, and writes as many values.
 */
#ifndef TAM_EXCHANGE_WIRE_H
#define TAM_EXCHANGE_WIRE_H

#include "lib/base/base.h"

enum { TAM_WIRE_BLOCK = 256 };

typedef struct tam_wire_type {
    const char *name;     /* as in TAMIS_WIRE_TYPES */
    uint32_t bits;        /* of a value; float32 alone has 32, all others round */
    uint32_t scale_bytes; /* before the codes of a block */

    /** A block of 1 to TAM_WIRE_BLOCK values. `out` need not be aligned. Writes all of its
     * tam_wire_bytes, zeros in the bits behind the last code, and the same bytes on every machine:
     * IEEE operations in a fixed order, nothing of libm that rounds. Finite values raise no
     * floating-point exception but inexact and underflow. */
    void (*encode)(const float *values, size_t count, unsigned char *out);
    /** Bears any bytes. What encode wrote comes back finite where the value was, NaN where it was
     * not; what it differs by (tam_wire_encode's errors) is finite, too, even for FLT_MAX.
     * @return false: a scale was refused, `values` are undefined */
    bool (*decode)(const unsigned char *in, size_t count, float *values);
} tam_wire_type;

/** @param  type  not AUTO */
const tam_wire_type *tam_wire_of(tamis_wire_type type);

/** What AUTO stands for: float32; of sums a type that costs little beside that of the values. */
tamis_wire_type tam_wire_resolve(tamis_wire_type type);
tamis_wire_type tam_wire_resolve_sum(tamis_wire_type sum, tamis_wire_type type);

/** Whether anything is lost on the way. */
static inline bool tam_wire_rounds(const tam_wire_type *wire) {
    return wire->bits < 32;
}

/** Bytes of a list, which are the same whatever its values are. */
static inline size_t tam_wire_bytes(const tam_wire_type *wire, size_t count) {
    size_t blocks = count / TAM_WIRE_BLOCK, rest = count % TAM_WIRE_BLOCK;
    return blocks * (wire->scale_bytes + TAM_WIRE_BLOCK * wire->bits / 8) +
           (rest ? wire->scale_bytes + (rest * wire->bits + 7) / 8 : 0);
}

/** @param  errors  [out]  value - decoded; the value where NaN arrives in its place, 0 where it is
 *                         not finite itself. May be `values`, and NULL if nobody asks */
void tam_wire_encode(const tam_wire_type *wire, const float *values, size_t count, void *out,
                     float *errors);
/** @return false: these are not bytes of this type */
bool tam_wire_decode(const tam_wire_type *wire, const void *in, size_t count, float *values);

/* -- what rows share -------------------------------------------------------------------------- */

/** All bits where a value is finite, none where it is not. Without branches and compared as signed
 * numbers, so that loops over it are vectorised. */
static inline uint32_t tam_wire_finite(uint32_t bits) {
    return 0u - (uint32_t)((int32_t)(bits & 0x7fffffffu) < 0x7f800000);
}

/** Largest magnitude among the finite values. */
float tam_wire_largest(const float *values, size_t count);

/** The least bfloat16 that is not below x, a finite magnitude; its largest one for what exceeds it.
 * For what is divided by it 1 stands for 0. */
uint16_t tam_wire_scale(float x);
float tam_wire_divisor(uint16_t scale);

void tam_wire_put_scale(unsigned char *out, uint16_t scale);
/** @return false: it is negative or not finite */
bool tam_wire_get_scale(const unsigned char *in, float *scale);

#define TAM_WIRE_ROW(NAME, name, number) extern const tam_wire_type tam_wire_##name;
TAMIS_WIRE_TYPES(TAM_WIRE_ROW)
#undef TAM_WIRE_ROW

#endif
