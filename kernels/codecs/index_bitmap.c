/* SPDX-License-Identifier: MIT
 *
 * bitmap: bit p % 8 of byte p / 8 says whether position p was selected.
 */
#include "kernels/codecs/index_codecs.h"

enum { WORD = 8 }; /* bytes that are read together */

static uint64_t index_bitmap_bytes(uint64_t span, uint64_t count) {
    (void)count;
    return (span + 7) / 8;
}

static size_t bitmap_encode(const uint32_t *positions, size_t count, uint64_t span,
                            unsigned char *out) {
    size_t bytes = (size_t)index_bitmap_bytes(span, count);
    memset(out, 0, bytes);
    for (size_t i = 0; i < count; i++)
        out[positions[i] / 8] |= (unsigned char)(1u << positions[i] % 8);
    return bytes;
}

/* Up to 8 bytes, little-endian. */
static uint64_t index_bitmap_word_at(const unsigned char *in, size_t bytes) {
    uint64_t word = 0;
    for (size_t i = 0; i < WORD && i < bytes; i++)
        word |= (uint64_t)in[i] << 8 * i;
    return word;
}

static bool bitmap_decode(const unsigned char *in, size_t bytes, uint64_t span, size_t count,
                          uint32_t *positions) {
    size_t done = 0;
    if (bytes != index_bitmap_bytes(span, count))
        return false;
    for (size_t at = 0; at < bytes; at += WORD) {
        uint64_t word = index_bitmap_word_at(in + at, bytes - at);
        if ((size_t)__builtin_popcountll(word) > count - done)
            return false;
        for (; word; word &= word - 1)
            positions[done++] = (uint32_t)(8 * at) + (uint32_t)__builtin_ctzll(word);
    }
    return done == count && (count == 0 || positions[count - 1] < span);
}

const tam_index_codec tam_index_bitmap = {
    .name = "bitmap",
    .worth = 1.0,
    .index_s = 2e-9,
    .position_s = 0.35e-9,
    .on_device = TAM_INDEX_ASKED,
    .bytes = index_bitmap_bytes,
    .encode = bitmap_encode,
    .decode = bitmap_decode,
};
