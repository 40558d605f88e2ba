/* SPDX-License-Identifier: MIT
 *
 * Fuzz target of the index decoders. Input:
 *
 *     | codec | span, 4 bytes | count, 2 bytes | bytes of an encoding |
 *
 * Buffers are exactly as large as the decoder may touch, for AddressSanitizer. An accepted input
 * must decode to an ascending list below the span whose encoding is the input, byte for byte. The
 * same bytes then serve as the gaps of a list, which must survive encoding and decoding.
 *
 * clang -fsanitize=fuzzer adds a main that searches for new paths; replay.c adds one for other
 * compilers.
 */
#include "lib/contracts/index_codec.h"

#include <stdlib.h>

enum { HEAD = 7 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void insist(bool holds) {
    if (!holds)
        abort();
}

static void *take(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    insist(memory != NULL);
    return memory;
}

/* Decode arbitrary bytes. */
static void try_decode(const tam_index_codec *codec, const uint8_t *data, size_t bytes,
                       uint64_t span, size_t count) {
    unsigned char *in = take(bytes);
    uint32_t *out = take(count * sizeof *out);
    memcpy(in, data, bytes);
    if (codec->decode(in, bytes, span, count, out)) {
        for (size_t i = 0; i < count; i++)
            insist(out[i] < span && (i == 0 || out[i - 1] < out[i]));
        uint64_t most = codec->bytes(span, count);
        insist(bytes <= most);
        unsigned char *again = take((size_t)most);
        insist(codec->encode(out, count, span, again) == bytes);
        insist(memcmp(again, in, bytes) == 0);
        free(again);
    }
    free(out);
    free(in);
}

/* Each byte skips that many positions; 255 is followed by 16 more bits. */
static size_t read_list(const uint8_t *data, size_t bytes, uint64_t span, uint32_t *out) {
    uint64_t next = 0;
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t gap = data[i];
        if (gap == 255 && i + 2 < bytes) {
            gap += 256u * data[i + 1] + data[i + 2];
            i += 2;
        }
        if (next + gap >= span)
            break;
        out[count++] = (uint32_t)(next + gap);
        next += gap + 1;
    }
    return count;
}

static void try_both_ways(const tam_index_codec *codec, const uint8_t *data, size_t bytes,
                          uint64_t span) {
    uint32_t *list = take(bytes * sizeof *list);
    size_t count = read_list(data, bytes, span, list);
    uint64_t most = codec->bytes(span, count);
    if (most <= 1u << 20) { /* long spans take a bitmap too large to make */
        unsigned char *in = take((size_t)most);
        uint32_t *out = take(count * sizeof *out);
        size_t used = codec->encode(list, count, span, in);
        insist(used <= most && codec->decode(in, used, span, count, out));
        insist(memcmp(out, list, count * sizeof *out) == 0);
        free(out);
        free(in);
    }
    free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { FIRST = TAMIS_INDEX_U32 + 1, CODECS = TAMIS_INDEX_END - FIRST };
    uint32_t span;
    uint16_t count;
    if (size < HEAD)
        return 0;
    const tam_index_codec *codec = tam_index_codec_of(FIRST + data[0] % CODECS);
    memcpy(&span, data + 1, sizeof span);
    memcpy(&count, data + 5, sizeof count);
    span = span ? span : 1;
    try_decode(codec, data + HEAD, size - HEAD, span, count);
    try_both_ways(codec, data + HEAD, size - HEAD, span);
    return 0;
}
