/* SPDX-License-Identifier: MIT
 *
 * A wire type: how float32 values become bytes, block by block. Its rows, and what their bytes are,
 * are in collectives/exchange/wire.h.
 */
#ifndef TAM_BASE_WIRE_TYPE_H
#define TAM_BASE_WIRE_TYPE_H

#include "lib/base/numbers.h"

#include <stdbool.h>
#include <stddef.h>

enum { TAM_WIRE_BLOCK = 256 };

typedef struct tam_wire_type {
    const char *name;     /* as in TAMIS_WIRE_TYPES */
    uint32_t bits;        /* of a value; float32 alone has 32, all others round */
    uint32_t scale_bytes; /* before the codes of a block */

    /** A block of 1 to TAM_WIRE_BLOCK values. `out` need not be aligned. Writes all of its
     * tam_wire_bytes, zeros in the bits behind the last code, and the same bytes on every machine:
     * IEEE operations in a fixed order, nothing of libm that rounds. Finite values raise no
     * floating-point exception but inexact and underflow. */
    void (*encode)(const float *values, size_t count, unsigned char *out);
    /** Bears any bytes. What encode wrote comes back finite where the value was, NaN where it was
     * not; what it differs by (tam_wire_encode's errors) is finite, too, even for FLT_MAX.
     * @return false: a scale was refused, `values` are undefined */
    bool (*decode)(const unsigned char *in, size_t count, float *values);
} tam_wire_type;

/** Whether anything is lost on the way. */
static inline bool tam_wire_rounds(const tam_wire_type *wire) {
    return wire->bits < 32;
}

/** Bytes of a list, which are the same whatever its values are. */
TAM_SHARED size_t tam_wire_bytes_of(uint32_t bits, uint32_t scale_bytes, size_t count) {
    size_t blocks = count / TAM_WIRE_BLOCK, rest = count % TAM_WIRE_BLOCK;
    return blocks * (scale_bytes + TAM_WIRE_BLOCK * bits / 8) +
           (rest ? scale_bytes + (rest * bits + 7) / 8 : 0);
}

static inline size_t tam_wire_bytes(const tam_wire_type *wire, size_t count) {
    return tam_wire_bytes_of(wire->bits, wire->scale_bytes, count);
}

/** @return false: these are not bytes of this type */
bool tam_wire_decode(const tam_wire_type *wire, const void *in, size_t count, float *values);

#endif
