/* SPDX-License-Identifier: MIT
 *
 * The scale of a block, for the wire types that have one.
 */
#include "collectives/exchange/wire.h"

#include "lib/base/half.h"

/* Magnitudes are ordered as their bits are. */
float tam_wire_largest(const float *values, size_t count) {
    int32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = tam_bits(values[i]) & 0x7fffffffu;
        int32_t magnitude = (int32_t)(bits & tam_wire_finite(bits));
        most = magnitude > most ? magnitude : most;
    }
    return tam_float((uint32_t)most);
}

uint16_t tam_wire_scale(float x) {
    uint32_t up = (tam_bits(x) + 0xffffu) >> 16;
    return (uint16_t)(up < 0x7f80u ? up : 0x7f7fu);
}

float tam_wire_divisor(uint16_t scale) {
    return scale ? tam_bfloat16_widen(scale) : 1.0f;
}

void tam_wire_put_scale(unsigned char *out, uint16_t scale) {
    memcpy(out, &scale, sizeof scale);
}

bool tam_wire_get_scale(const unsigned char *in, float *scale) {
    uint16_t half;
    memcpy(&half, in, sizeof half);
    *scale = tam_bfloat16_widen(half);
    return half < 0x7f80u;
}
