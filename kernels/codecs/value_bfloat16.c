/* SPDX-License-Identifier: MIT
 *
 * bfloat16: the upper half of a float32, rounded to even; what is finite stays so.
 */
#include "kernels/codecs/value_codecs.h"

static void encode_bfloat16(const float *values, size_t count, unsigned char *out) {
    uint16_t halves[TAM_VALUE_BLOCK];
    for (size_t i = 0; i < count; i++)
        halves[i] = tam_bfloat16_clamp(values[i]);
    memcpy(out, halves, count * sizeof halves[0]);
}

static bool decode_bfloat16(const unsigned char *in, size_t count, float *values) {
    uint16_t halves[TAM_VALUE_BLOCK];
    memcpy(halves, in, count * sizeof halves[0]);
    for (size_t i = 0; i < count; i++)
        values[i] = tam_bfloat16_widen(halves[i]);
    return true;
}

const tam_value_codec tam_value_bfloat16 = {
    TAM_VALUE_CODEC(bfloat16),
    .encode = encode_bfloat16,
    .decode = decode_bfloat16,
};
