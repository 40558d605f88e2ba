/* SPDX-License-Identifier: MIT */
#include "kernels/codecs/value_codecs.h"

#define ROW(NAME, name, number, ...) [number] = &tam_value_##name,
static const tam_value_codec *const rows[TAMIS_VALUE_END] = {TAMIS_VALUE_CODECS(ROW)};

const tam_value_codec *tam_value_codec_of(tamis_value_codec type) {
    return rows[type];
}

tamis_value_codec tam_value_codec_resolve(tamis_value_codec type) {
    return type == TAMIS_VALUE_AUTO ? TAMIS_VALUE_FLOAT32 : type;
}

/* A sum travels once where its values travel from all ranks, so it can afford twice the bits. */
#define SUM_OF(NAME, name, number, bits, scale_bytes, SUM) [number] = TAMIS_VALUE_##SUM,
static const tamis_value_codec sum_of[TAMIS_VALUE_END] = {TAMIS_VALUE_CODECS(SUM_OF)};

tamis_value_codec tam_sum_codec_resolve(tamis_value_codec sum, tamis_value_codec type) {
    return sum != TAMIS_VALUE_AUTO ? sum : sum_of[tam_value_codec_resolve(type)];
}

/* -- encoded buffers -------------------------------------------------------------------------- */

static size_t block_at(size_t at, size_t count) {
    return count - at < TAM_VALUE_BLOCK ? count - at : TAM_VALUE_BLOCK;
}

/* Into memory of its own first: `errors` may be `values`. */
static void keep_errors(const tam_value_codec *codec, const unsigned char *sent,
                        const float *values, size_t count, float *errors) {
    float decoded[TAM_VALUE_BLOCK], left[TAM_VALUE_BLOCK];
    codec->decode(sent, count, decoded);
    for (size_t i = 0; i < count; i++)
        left[i] = tam_value_error(values[i], decoded[i]);
    memcpy(errors, left, count * sizeof left[0]);
}

void tam_value_encode(const tam_value_codec *codec, const float *values, size_t count, void *out,
                      float *errors) {
    unsigned char *to = out;
    for (size_t at = 0; at < count; at += TAM_VALUE_BLOCK) {
        size_t length = block_at(at, count);
        codec->encode(values + at, length, to);
        if (errors)
            keep_errors(codec, to, values + at, length, errors + at);
        to += tam_value_bytes(codec, length);
    }
}

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
