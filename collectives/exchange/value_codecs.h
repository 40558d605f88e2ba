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
#ifndef TAM_EXCHANGE_VALUE_CODECS_H
#define TAM_EXCHANGE_VALUE_CODECS_H

#include "lib/base/base.h"
#include "lib/base/value_codec.h"
#include "lib/base/value_code.h"

/** @param  type  not AUTO */
const tam_value_codec *tam_value_codec_of(tamis_value_codec type);

/** What AUTO stands for: float32; of sums a codec that costs little beside that of the values. */
tamis_value_codec tam_value_codec_resolve(tamis_value_codec type);
tamis_value_codec tam_sum_codec_resolve(tamis_value_codec sum, tamis_value_codec type);

/** @param  errors  [out]  value - decoded; the value where NaN arrives in its place, 0 where it is
 *                         not finite itself. May be `values`, and NULL if nobody asks */
void tam_value_encode(const tam_value_codec *codec, const float *values, size_t count, void *out,
                      float *errors);

/* -- what rows share -------------------------------------------------------------------------- */

/** Largest magnitude among the finite values. */
float tam_value_largest(const float *values, size_t count);

void tam_value_put_scale(unsigned char *out, uint16_t scale);
/** @return false: it is negative or not finite */
bool tam_value_get_scale(const unsigned char *in, float *scale);

#define TAM_VALUE_ROW(NAME, name, number) extern const tam_value_codec tam_value_##name;
TAMIS_VALUE_CODECS(TAM_VALUE_ROW)
#undef TAM_VALUE_ROW

#endif
