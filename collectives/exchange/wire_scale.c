/* SPDX-License-Identifier: MIT
 *
 * The scale of a block, for the wire types that have one.
 */
#include "collectives/exchange/wire.h"

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

void tam_wire_put_scale(unsigned char *out, uint16_t scale) {
    memcpy(out, &scale, sizeof scale);
}

bool tam_wire_get_scale(const unsigned char *in, float *scale) {
    uint16_t half;
    memcpy(&half, in, sizeof half);
    *scale = tam_bfloat16_widen(half);
    return tam_wire_scale_valid(half);
}
