/* SPDX-License-Identifier: MIT
 *
 * The scale of a block, for the value codecs that have one.
 */
#include "kernels/codecs/value_codecs.h"

/* Magnitudes are ordered as their bits are. */
float tam_value_largest(const float *values, size_t count) {
    int32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = tam_bits(values[i]) & 0x7fffffffu;
        int32_t magnitude = (int32_t)(bits & tam_value_finite(bits));
        most = magnitude > most ? magnitude : most;
    }
    return tam_float((uint32_t)most);
}

void tam_value_put_scale(unsigned char *out, uint16_t scale) {
    memcpy(out, &scale, sizeof scale);
}

bool tam_value_get_scale(const unsigned char *in, float *scale) {
    uint16_t half;
    memcpy(&half, in, sizeof half);
    *scale = tam_bfloat16_widen(half);
    return tam_value_scale_valid(half);
}
