/* SPDX-License-Identifier: MIT
 *
 * What the rows of value codecs share on a host. lib/contracts/value_codec.h has the contract.
 */
#ifndef TAM_KERNELS_CODECS_VALUE_CODECS_H
#define TAM_KERNELS_CODECS_VALUE_CODECS_H

#include "kernels/codecs/value_code.h"
#include "lib/base/base.h"
#include "lib/contracts/value_codec.h"

/** Name, bits and bytes of scales, as the row of TAMIS_VALUE_CODECS has them. */
#define TAM_VALUE_CODEC(codec)                                                                     \
    .name = #codec, .bits = TAM_VALUE_BITS_##codec, .scale_bytes = TAM_VALUE_SCALE_##codec

enum {
#define TAM_VALUE_SIZES(NAME, name, number, bits, scale_bytes, SUM)                                \
    TAM_VALUE_BITS_##name = (bits), TAM_VALUE_SCALE_##name = (scale_bytes),
    TAMIS_VALUE_CODECS(TAM_VALUE_SIZES)
#undef TAM_VALUE_SIZES
};

/** Largest magnitude among the finite values. */
float tam_value_largest(const float *values, size_t count);

void tam_value_put_scale(unsigned char *out, uint16_t scale);
/** @return false: it is negative or not finite */
bool tam_value_get_scale(const unsigned char *in, float *scale);

#define TAM_VALUE_ROW(NAME, name, ...) extern const tam_value_codec tam_value_##name;
TAMIS_VALUE_CODECS(TAM_VALUE_ROW)
#undef TAM_VALUE_ROW

#endif
