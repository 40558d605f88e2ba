/* SPDX-License-Identifier: MIT */
#include "lib/base/value_codec.h"

bool tam_value_decode(const tam_value_codec *codec, const void *in, size_t count, float *values) {
    const unsigned char *from = in;
    for (size_t at = 0; at < count; at += TAM_VALUE_BLOCK) {
        size_t length = count - at < TAM_VALUE_BLOCK ? count - at : TAM_VALUE_BLOCK;
        if (!codec->decode(from, length, values + at))
            return false;
        from += tam_value_bytes(codec, length);
    }
    return true;
}
