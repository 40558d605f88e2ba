/* SPDX-License-Identifier: MIT
 *
 * int8: whole multiples of 1/127 of the block's largest magnitude, rounded to even. -128 is NaN.
 */
#include "collectives/exchange/wire.h"

#include "lib/base/half.h"

/* Adding 1.5 * 2^23 rounds a small number to a whole one, ties to even, which then lies in the low
 * bits of the sum. */
#define ROUNDS 12582912.0f

static void encode_int8(const float *values, size_t count, unsigned char *out) {
    uint16_t scale = tam_wire_scale(tam_wire_largest(values, count) / 127.0f);
    float divisor = tam_wire_divisor(scale);
    signed char codes[TAM_WIRE_BLOCK];
    for (size_t i = 0; i < count; i++) {
        float quotient = values[i] / divisor;
        quotient = quotient < 127.0f ? quotient : 127.0f;
        quotient = quotient > -127.0f ? quotient : -127.0f;
        uint32_t q = tam_bits(quotient + ROUNDS) - tam_bits(ROUNDS);
        uint32_t finite = tam_wire_finite(tam_bits(values[i]));
        codes[i] = (signed char)(int32_t)((q & finite) | (0x80u & ~finite));
    }
    tam_wire_put_scale(out, scale);
    memcpy(out + 2, codes, count);
}

static bool decode_int8(const unsigned char *in, size_t count, float *values) {
    const signed char *codes = (const signed char *)(in + 2);
    float scale;
    if (!tam_wire_get_scale(in, &scale))
        return false;
    for (size_t i = 0; i < count; i++) {
        uint32_t nan = codes[i] == -128 ? 0x7fc00000u : 0;
        values[i] = tam_float(tam_bits((float)codes[i] * scale) | nan);
    }
    return true;
}

const tam_wire_type tam_wire_int8 = {
    .name = "int8",
    .bits = 8,
    .scale_bytes = 2,
    .encode = encode_int8,
    .decode = decode_int8,
};
