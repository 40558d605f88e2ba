/* SPDX-License-Identifier: MIT
 *
 * A value codec: how float32 values become bytes, block by block. Its rows, and what their bytes
 * are, are in collectives/exchange/value_codecs.h.
 */
#ifndef TAM_BASE_VALUE_CODEC_H
#define TAM_BASE_VALUE_CODEC_H

#include "lib/base/numbers.h"

#include <stdbool.h>
#include <stddef.h>

enum { TAM_VALUE_BLOCK = 256 };

typedef struct tam_value_codec {
    const char *name;     /* as in TAMIS_VALUE_CODECS */
    uint32_t bits;        /* of a value; float32 alone has 32, all others quantize */
    uint32_t scale_bytes; /* before the codes of a block */

    /** A block of 1 to TAM_VALUE_BLOCK values. `out` need not be aligned. Writes all of its
     * tam_value_bytes, zeros in the bits behind the last code, and the same bytes on every machine:
     * IEEE operations in a fixed order, nothing of libm that rounds. Finite values raise no
     * floating-point exception but inexact and underflow. */
    void (*encode)(const float *values, size_t count, unsigned char *out);
    /** Bears any bytes. What encode wrote comes back finite where the value was, NaN where it was
     * not; what it differs by (tam_value_encode's errors) is finite, too, even for FLT_MAX.
     * @return false: a scale was refused, `values` are undefined */
    bool (*decode)(const unsigned char *in, size_t count, float *values);
} tam_value_codec;

/** Whether values lose bits. */
static inline bool tam_value_quantizes(const tam_value_codec *codec) {
    return codec->bits < 32;
}

/** Bytes of an encoded buffer, which are the same whatever its values are. */
TAM_SHARED size_t tam_value_bytes_of(uint32_t bits, uint32_t scale_bytes, size_t count) {
    size_t blocks = count / TAM_VALUE_BLOCK, rest = count % TAM_VALUE_BLOCK;
    return blocks * (scale_bytes + TAM_VALUE_BLOCK * bits / 8) +
           (rest ? scale_bytes + (rest * bits + 7) / 8 : 0);
}

static inline size_t tam_value_bytes(const tam_value_codec *codec, size_t count) {
    return tam_value_bytes_of(codec->bits, codec->scale_bytes, count);
}

/** @return false: these are not bytes of this codec */
bool tam_value_decode(const tam_value_codec *codec, const void *in, size_t count, float *values);

#endif
