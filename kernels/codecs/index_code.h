/* SPDX-License-Identifier: MIT
 *
 * What host (kernels/codecs/index_*.c) and device (kernels/cuda/pack.cu) both must know of
 * the index codecs; lib/contracts/index_codec.h shows their bytes. C11 and CUDA C++.
 */
#ifndef TAM_KERNELS_CODECS_INDEX_CODE_H
#define TAM_KERNELS_CODECS_INDEX_CODE_H

#include "lib/base/numbers.h"

enum {
    TAM_BLOCK16_BITS = 16,   /* of a position inside its block */
    TAM_BLOCK16_MORE = 0x80, /* of a byte of a count: another follows */
    TAM_GAP8_ON = 255,       /* skip so many positions, and read on */
    TAM_RICE_LOW_MOST = 31
};

TAM_SHARED uint64_t tam_block16_blocks(uint64_t span) {
    return (span + (1u << TAM_BLOCK16_BITS) - 1) >> TAM_BLOCK16_BITS;
}

/** Bits of a rice code beyond the gaps' low bits, at most. */
TAM_SHARED uint64_t tam_rice_most_bits(uint64_t span, uint64_t count, uint32_t low) {
    return count * (low + 1) + ((span - count) >> low);
}

/** How many low bits of a gap travel as they are. More cost more at each index and less at each
 * gap: the sum falls, then rises. */
TAM_SHARED uint32_t tam_rice_low(uint64_t span, uint64_t count) {
    uint32_t low = 0;
    while (low < TAM_RICE_LOW_MOST &&
           tam_rice_most_bits(span, count, low + 1) < tam_rice_most_bits(span, count, low))
        low++;
    return low;
}

#endif
