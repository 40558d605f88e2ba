/* SPDX-License-Identifier: MIT
 *
 * Value codecs: how float32 values become bytes. All but float32 and bfloat16 share a scale among a
 * block of 256 consecutive values; the last block may be shorter:
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
#ifndef TAM_CONTRACTS_VALUE_CODEC_H
#define TAM_CONTRACTS_VALUE_CODEC_H

#include "lib/base/numbers.h"

#include <stdbool.h>
#include <stddef.h>
#include <tamis/tamis.h>

enum {
    TAM_VALUE_BLOCK = 256,
    TAM_VALUE_FEW_BITS = 8 /* whoever sends values like this pays for bytes: of indices, too */
};

typedef struct tam_value_codec {
    const char *name;     /* this and the next two: TAM_VALUE_CODEC */
    uint32_t bits;        /* of a value; float32 alone has 32, all others quantize */
    uint32_t scale_bytes; /* before the codes of a block */

    /** A block of 1 to TAM_VALUE_BLOCK values. `out` need not be aligned. Writes all of its
     * tam_value_bytes, zeros in the bits behind the last code, and the same bytes on every machine:
     * IEEE operations in a fixed order, nothing of libm that rounds. Finite values raise no
     * floating-point exception but inexact and underflow. */
    void (*encode)(const float *values, size_t count, unsigned char *out);
    /** Bears any bytes. What encode wrote comes back finite where the value was, NaN where it was
     * not; what it differs by (tam_value_encode's errors) is finite, too, even for FLT_MAX.
     * @return false: a scale was refused, `values` are undefined */
    bool (*decode)(const unsigned char *in, size_t count, float *values);
} tam_value_codec;

/** Whether values lose bits. */
static inline bool tam_value_quantizes(const tam_value_codec *codec) {
    return codec->bits < 32;
}

/** Bytes of an encoded buffer, which are the same whatever its values are. */
TAM_SHARED size_t tam_value_bytes_of(uint32_t bits, uint32_t scale_bytes, size_t count) {
    size_t blocks = count / TAM_VALUE_BLOCK, rest = count % TAM_VALUE_BLOCK;
    return blocks * (scale_bytes + TAM_VALUE_BLOCK * bits / 8) +
           (rest ? scale_bytes + (rest * bits + 7) / 8 : 0);
}

static inline size_t tam_value_bytes(const tam_value_codec *codec, size_t count) {
    return tam_value_bytes_of(codec->bits, codec->scale_bytes, count);
}

/** @param  type  not AUTO */
const tam_value_codec *tam_value_codec_of(tamis_value_codec type);

/** What AUTO stands for: float32; of sums a codec that costs little beside that of the values. */
tamis_value_codec tam_value_codec_resolve(tamis_value_codec type);
tamis_value_codec tam_sum_codec_resolve(tamis_value_codec sum, tamis_value_codec type);

/** @param  errors  [out]  value - decoded; the value where NaN arrives in its place, 0 where it is
 *                         not finite itself. May be `values`, and NULL if nobody asks */
void tam_value_encode(const tam_value_codec *codec, const float *values, size_t count, void *out,
                      float *errors);

/** @return false: these are not bytes of this codec */
bool tam_value_decode(const tam_value_codec *codec, const void *in, size_t count, float *values);

/** Two errors of fp2, which are as large as the values, may exceed float32: an Inf would never
 * leave the residual again. */
TAM_SHARED float tam_value_add_errors(float a, float b) {
    const float most = 3.40282346638528859811704183484516925e38f;
    float sum = a + b;
    return sum > most ? most : sum < -most ? -most : sum;
}

#endif
