/* SPDX-License-Identifier: MIT
 *
 * int8: whole multiples of 1/127 of the block's largest magnitude, rounded to even. -128 is NaN.
 */
#include "kernels/codecs/value_codecs.h"

static void encode_int8(const float *values, size_t count, unsigned char *out) {
    uint16_t scale = tam_int8_scale(tam_value_largest(values, count));
    float divisor = tam_value_divisor(scale);
    int8_t codes[TAM_VALUE_BLOCK];
    for (size_t i = 0; i < count; i++)
        codes[i] = tam_int8_code(values[i], divisor);
    tam_value_put_scale(out, scale);
    memcpy(out + 2, codes, count);
}

static bool decode_int8(const unsigned char *in, size_t count, float *values) {
    const int8_t *codes = (const int8_t *)(in + 2);
    float scale;
    if (!tam_value_get_scale(in, &scale))
        return false;
    for (size_t i = 0; i < count; i++)
        values[i] = tam_int8_value(codes[i], scale);
    return true;
}

const tam_value_codec tam_value_int8 = {
    TAM_VALUE_CODEC(int8),
    .encode = encode_int8,
    .decode = decode_int8,
};
