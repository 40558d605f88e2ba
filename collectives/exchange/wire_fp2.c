/* SPDX-License-Identifier: MIT
 *
 * fp2: a sign, and which of two magnitudes: the mean of those from the block's mean on, and the
 * mean of those below it. Bit 0 says high, bit 1 minus; four codes to a byte, the first one lowest.
 * In a block that holds NaN or Inf the high magnitude is NaN, and all that is finite is low.
 */
#include "collectives/exchange/wire.h"

#include "lib/base/half.h"

#include <math.h>

enum { NAN_SCALE = 0x7fc0 };

/* In binary64, and one after the other: the same on all machines. */
typedef struct sums {
    double low, high;
    size_t nhigh;
} sums;

static float magnitude_of(float value) {
    return tam_float(tam_bits(value) & 0x7fffffffu);
}

static bool is_finite(float magnitude) {
    return tam_bits(magnitude) < 0x7f800000u;
}

/* From where on values are high: their mean, or Inf if one of them is not finite. */
static float border_of(const float *values, size_t count) {
    double sum = 0.0;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        sum += (double)magnitude_of(values[i]);
        finite = finite && is_finite(magnitude_of(values[i]));
    }
    return finite ? (float)(sum / (double)count) : INFINITY;
}

/* NaN is not below Inf. */
static bool is_high(float value, float border) {
    return !(magnitude_of(value) < border);
}

static sums split(const float *values, size_t count, float border) {
    sums s = {0};
    for (size_t i = 0; i < count; i++) {
        double m = (double)magnitude_of(values[i]);
        bool high = is_high(values[i], border);
        s.low += high ? 0.0 : m;
        s.high += high ? m : 0.0;
        s.nhigh += high;
    }
    return s;
}

static uint16_t mean_of(double sum, size_t count) {
    return count ? tam_bfloat16_clamp((float)(sum / (double)count)) : 0;
}

static void encode_fp2(const float *values, size_t count, unsigned char *out) {
    float border = border_of(values, count);
    sums s = split(values, count, border);
    tam_wire_put_scale(out, mean_of(s.low, count - s.nhigh));
    tam_wire_put_scale(out + 2, is_finite(border) ? mean_of(s.high, s.nhigh) : NAN_SCALE);
    memset(out + 4, 0, (count + 3) / 4);
    for (size_t i = 0; i < count; i++) {
        uint32_t minus = tam_bits(values[i]) >> 31, high = is_high(values[i], border);
        out[4 + i / 4] |= (unsigned char)((minus << 1 | high) << 2 * (i % 4));
    }
}

static bool decode_fp2(const unsigned char *in, size_t count, float *values) {
    float low, high;
    if (!tam_wire_get_scale(in, &low) ||
        (!tam_wire_get_scale(in + 2, &high) && tam_bits(high) != (uint32_t)NAN_SCALE << 16))
        return false;
    for (size_t i = 0; i < count; i++) {
        uint32_t code = in[4 + i / 4] >> 2 * (i % 4) & 3u;
        values[i] = tam_float(tam_bits(code & 1u ? high : low) | code >> 1 << 31);
    }
    return true;
}

const tam_wire tam_wire_fp2 = {
    .name = "fp2",
    .bits = 2,
    .scale_bytes = 4,
    .encode = encode_fp2,
    .decode = decode_fp2,
};
