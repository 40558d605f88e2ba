/* SPDX-License-Identifier: MIT
 *
 * gap8: how many positions are skipped before each, in bytes; 255 means: skip 255, no position yet.
 */
#include "kernels/codecs/index_codecs.h"

#include "kernels/codecs/index_code.h"

static uint64_t gap8_bytes(uint64_t span, uint64_t count) {
    uint64_t listed = count < span ? count : span;
    return listed + (span - listed) / TAM_GAP8_ON;
}

static size_t gap8_encode(const uint32_t *positions, size_t count, uint64_t span,
                          unsigned char *out) {
    unsigned char *at = out;
    uint32_t next = 0;
    (void)span;
    for (size_t i = 0; i < count; i++) {
        uint32_t gap = positions[i] - next;
        for (; gap >= TAM_GAP8_ON; gap -= TAM_GAP8_ON)
            *at++ = TAM_GAP8_ON;
        *at++ = (unsigned char)gap;
        next = positions[i] + 1;
    }
    return (size_t)(at - out);
}

/* No branch on the escape, which could not be predicted: every byte writes a position, which stays
 * if the byte ends a gap. Positions beyond the span, perhaps beyond 32 bits, are found at the end.
 */
static bool gap8_decode(const unsigned char *in, size_t bytes, uint64_t span, size_t count,
                        uint32_t *positions) {
    uint64_t next = 0;
    size_t done = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (done == count)
            return false;
        positions[done] = (uint32_t)(next + in[i]);
        next += in[i] + (in[i] != TAM_GAP8_ON);
        done += in[i] != TAM_GAP8_ON;
    }
    return done == count && next <= span;
}

const tam_index_codec tam_index_gap8 = {
    .name = "gap8",
    .worth = 1.5,
    .index_s = 5e-9,
    .on_device = TAM_INDEX_ASKED,
    .bytes = gap8_bytes,
    .encode = gap8_encode,
    .decode = gap8_decode,
};
