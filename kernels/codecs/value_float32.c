/* SPDX-License-Identifier: MIT
 *
 * float32: values as they are.
 */
#include "kernels/codecs/value_codecs.h"

static void encode_float32(const float *values, size_t count, unsigned char *out) {
    memcpy(out, values, count * sizeof values[0]);
}

static bool decode_float32(const unsigned char *in, size_t count, float *values) {
    memcpy(values, in, count * sizeof values[0]);
    return true;
}

const tam_value_codec tam_value_float32 = {
    TAM_VALUE_CODEC(float32),
    .encode = encode_float32,
    .decode = decode_float32,
};
