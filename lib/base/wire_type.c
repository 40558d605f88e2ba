/* SPDX-License-Identifier: MIT */
#include "lib/base/wire_type.h"

bool tam_wire_decode(const tam_wire_type *wire, const void *in, size_t count, float *values) {
    const unsigned char *from = in;
    for (size_t at = 0; at < count; at += TAM_WIRE_BLOCK) {
        size_t length = count - at < TAM_WIRE_BLOCK ? count - at : TAM_WIRE_BLOCK;
        if (!wire->decode(from, length, values + at))
            return false;
        from += tam_wire_bytes(wire, length);
    }
    return true;
}
