/* SPDX-License-Identifier: MIT
 *
 * fp2: a sign, and which of two magnitudes: the mean of those from the block's mean on, and the
 * mean of those below it. Bit 0 says high, bit 1 minus; four codes to a byte, the first one lowest.
 * In a block that holds NaN or Inf the high magnitude is NaN, and all that is finite is low.
 */
#include "kernels/codecs/value_codecs.h"

#include <math.h>

enum { LANES = 8 };

/* A block, with zeros behind it up to a whole number of lanes. */
typedef struct magnitudes {
    float all[TAM_VALUE_BLOCK], low[TAM_VALUE_BLOCK], high[TAM_VALUE_BLOCK];
    unsigned char is_high[TAM_VALUE_BLOCK];
    size_t count, padded, nhigh;
} magnitudes;

/* In binary64, value i in lane i % 8, then lane after lane: the same on all machines. */
static double sum_of(const float *values, size_t padded) {
    double lanes[LANES] = {0}, sum = 0.0;
    for (size_t i = 0; i < padded; i += LANES) {
        for (size_t j = 0; j < LANES; j++)
            lanes[j] += (double)values[i + j];
    }
    for (size_t j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

/* @return whether all are finite */
static bool take_magnitudes(const float *values, magnitudes *m) {
    uint32_t finite = UINT32_MAX;
    for (size_t i = 0; i < m->count; i++) {
        finite &= tam_value_finite(tam_bits(values[i]));
        m->all[i] = tam_float(tam_bits(values[i]) & 0x7fffffffu);
    }
    for (size_t i = m->count; i < m->padded; i++)
        m->all[i] = 0.0f;
    return finite != 0;
}

/* NaN is not below the border, Inf, either. */
static void value_fp2_split(float border, magnitudes *m) {
    int32_t nhigh = 0;
    for (size_t i = 0; i < m->padded; i++) {
        uint32_t low = 0u - (uint32_t)(m->all[i] < border), bits = tam_bits(m->all[i]);
        m->low[i] = tam_float(bits & low);
        m->high[i] = tam_float(bits & ~low);
        m->is_high[i] = (unsigned char)(1u + low);
        nhigh += (int32_t)(1u + low);
    }
    for (size_t i = m->count; i < m->padded; i++)
        nhigh -= m->is_high[i];
    m->nhigh = (size_t)nhigh;
}

static uint16_t mean_of(const float *values, size_t padded, size_t count) {
    return tam_fp2_mean(sum_of(values, padded), (uint32_t)count);
}

static void encode_fp2(const float *values, size_t count, unsigned char *out) {
    magnitudes m = {.count = count, .padded = (count + LANES - 1) / LANES * LANES};
    bool finite = take_magnitudes(values, &m);
    value_fp2_split(finite ? (float)(sum_of(m.all, m.padded) / (double)count) : INFINITY, &m);
    tam_value_put_scale(out, mean_of(m.low, m.padded, count - m.nhigh));
    tam_value_put_scale(out + 2, finite ? mean_of(m.high, m.padded, m.nhigh) : TAM_FP2_NAN_SCALE);
    unsigned char *codes = m.is_high;
    for (size_t i = 0; i < count; i++)
        codes[i] = (unsigned char)(codes[i] | tam_bits(values[i]) >> 31 << 1);
    for (size_t i = count; i < m.padded; i++)
        codes[i] = 0;
    for (size_t i = 0; i < (count + 3) / 4; i++)
        out[4 + i] = (unsigned char)(codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 |
                                     codes[4 * i + 3] << 6);
}

static bool decode_fp2(const unsigned char *in, size_t count, float *values) {
    unsigned char codes[TAM_VALUE_BLOCK];
    float low, high;
    if (!tam_value_get_scale(in, &low) ||
        (!tam_value_get_scale(in + 2, &high) && !tam_fp2_scale_valid(tam_bits(high) >> 16)))
        return false;
    for (size_t i = 0; i < (count + 3) / 4; i++) {
        for (size_t j = 0; j < 4; j++)
            codes[4 * i + j] = in[4 + i] >> 2 * j & 3u;
    }
    for (size_t i = 0; i < count; i++)
        values[i] = tam_fp2_value(codes[i], low, high);
    return true;
}

const tam_value_codec tam_value_fp2 = {
    TAM_VALUE_CODEC(fp2),
    .encode = encode_fp2,
    .decode = decode_fp2,
};
