/* SPDX-License-Identifier: MIT
 *
 * block16: a count for each block of 65,536 positions, then the low 16 bits of each position.
 *
 *     | count of block 0 | of block 1 | ... || low 16 bits of position 0 | of position 1 | ... |
 *       1 to 3 bytes, 7 bits each, lowest      2 bytes each, no alignment
 *       first; the top bit: more follow
 *
 * An empty block is one byte. No sum is carried from one position to the next, so compilers
 * vectorise both directions.
 */
#include "kernels/codecs/index_codecs.h"

#include "kernels/codecs/index_code.h"
#include "lib/base/numbers.h"

/* Counts from 128 on need a second byte, from 16384 on a third: that bounds how many blocks do. */
static uint64_t block16_bytes(uint64_t span, uint64_t count) {
    uint64_t blocks = tam_block16_blocks(span), listed = tam_min(count, span);
    return 2 * listed + blocks + tam_min(blocks, listed >> 7) + tam_min(blocks, listed >> 14);
}

static unsigned char *write_count(size_t count, unsigned char *out) {
    for (; count >= TAM_BLOCK16_MORE; count >>= 7)
        *out++ = (unsigned char)(count | TAM_BLOCK16_MORE);
    *out++ = (unsigned char)count;
    return out;
}

/* @return where reading continues; NULL: not a count below 2^21 in the form written above */
static const unsigned char *read_count(const unsigned char *in, const unsigned char *end,
                                       size_t *count) {
    *count = 0;
    for (unsigned shift = 0; shift < 21 && in < end; shift += 7) {
        unsigned char byte = *in++;
        *count |= (size_t)(byte & (TAM_BLOCK16_MORE - 1)) << shift;
        if (!(byte & TAM_BLOCK16_MORE))
            return byte || shift == 0 ? in : NULL;
    }
    return NULL;
}

static size_t block16_encode(const uint32_t *positions, size_t count, uint64_t span,
                             unsigned char *out) {
    unsigned char *at = out;
    size_t done = 0;
    for (uint64_t b = 0, blocks = tam_block16_blocks(span); b < blocks; b++) {
        size_t before = done;
        while (done < count && positions[done] >> TAM_BLOCK16_BITS == b)
            done++;
        at = write_count(done - before, at);
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t low = (uint16_t)positions[i];
        memcpy(at + 2 * i, &low, sizeof low);
    }
    return (size_t)(at - out) + 2 * count;
}

/* @return whether they ascend */
static bool index_block16_widen(const unsigned char *lows, size_t count, uint32_t base,
                                uint32_t *positions) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t low;
        memcpy(&low, lows + 2 * i, sizeof low);
        positions[i] = base | low;
    }
    for (size_t i = 1; i < count; i++)
        bad |= positions[i] <= positions[i - 1];
    return !bad;
}

static bool block16_decode(const unsigned char *in, size_t bytes, uint64_t span, size_t count,
                           uint32_t *positions) {
    if (count > bytes / 2)
        return false;
    const unsigned char *lows = in + (bytes - 2 * count);
    size_t done = 0, here;
    for (uint64_t b = 0, blocks = tam_block16_blocks(span); b < blocks; b++) {
        in = read_count(in, lows, &here);
        if (!in || here > count - done)
            return false;
        const unsigned char *from = lows + 2 * done;
        if (!index_block16_widen(from, here, (uint32_t)(b << TAM_BLOCK16_BITS), positions + done))
            return false;
        done += here;
    }
    return in == lows && done == count && (count == 0 || positions[count - 1] < span);
}

const tam_index_codec tam_index_block16 = {
    .name = "block16",
    .worth = 1.0,
    .index_s = 2e-9,
    .bytes = block16_bytes,
    .encode = block16_encode,
    .decode = block16_decode,
};
