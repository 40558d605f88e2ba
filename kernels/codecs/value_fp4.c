/* SPDX-License-Identifier: MIT
 *
 * fp4: a sign and an exponent. Magnitude m = 1 to 7 is 2^(m - 7) of the block's largest, m = 0 is
 * zero; a value takes the nearest one, of two that are as near the larger:
 *
 *     of the largest   0      2^-7      3/4 2^-5     3/4 2^-4 ...    3/4      1
 *     m                |  0   |    1    |     2      |     ...   6   |    7   |
 *
 * The sign is bit 3, and 8, which would be -0, is NaN. Two codes to a byte, the first one low.
 */
#include "kernels/codecs/value_codecs.h"

static void encode_fp4(const float *values, size_t count, unsigned char *out) {
    unsigned char codes[TAM_VALUE_BLOCK];
    uint16_t scale = tam_value_scale(tam_value_largest(values, count));
    float divisor = tam_value_divisor(scale);
    tam_value_put_scale(out, scale);
    for (size_t i = 0; i < count; i++)
        codes[i] = (unsigned char)tam_fp4_code(values[i], divisor);
    if (count % 2)
        codes[count] = 0;
    for (size_t i = 0; i < (count + 1) / 2; i++)
        out[2 + i] = (unsigned char)(codes[2 * i] | codes[2 * i + 1] << 4);
}

static bool decode_fp4(const unsigned char *in, size_t count, float *values) {
    unsigned char codes[TAM_VALUE_BLOCK];
    float scale;
    if (!tam_value_get_scale(in, &scale))
        return false;
    for (size_t i = 0; i < (count + 1) / 2; i++) {
        codes[2 * i] = in[2 + i] & 15u;
        codes[2 * i + 1] = in[2 + i] >> 4;
    }
    for (size_t i = 0; i < count; i++)
        values[i] = tam_fp4_value(codes[i], scale);
    return true;
}

const tam_value_codec tam_value_fp4 = {
    TAM_VALUE_CODEC(fp4),
    .encode = encode_fp4,
    .decode = decode_fp4,
};
