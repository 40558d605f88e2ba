/* SPDX-License-Identifier: MIT
 *
 * Index codecs: how an ascending list of positions becomes bytes. A position is where an element
 * lies among those in which its rank may select (lib/policy/strided.h); `span` is how many there
 * are, `count` how many were picked. The list 3, 5, 300, 65537 of span 70000:
 *
 *     u32      | 3 | 5 | 300 | 65537 |               4 bytes each
 *
 *     block16  | 3 1 || 3 5 300 | 1 |                for each 65,536 positions how many, seven bits
 *              counts  low 16 bits                   a byte; then the low 16 bits of each
 *
 *     gap8     | 3 1 255 39 255 ... 255 205 |        positions passed over since the last, a byte
 *                    ^^^^^^ 294 = 255 + 39           each; 255: add 255 and read on
 *
 *     bitmap   | 00101000 00000000 ... |             a bit for every position, lowest first
 *
 *                bytes, at most                                       bytes, p = count / span
 *     u32        4 count                                              known beforehand
 *     block16    2 count + b + min(b, count / 128)                    known but for the size of the
 *                        + min(b, count / 16384), b = span / 65536    counts
 *     gap8       count + (span - count) / 255                         random picks:
 *                                                                     count / (1 - (1 - p)^255)
 *     bitmap     span / 8                                             known beforehand
 *
 * Fixed slots carry the most that their limit can take, so bitmap and block16 lose nothing there;
 * gap8 pays for the longest gaps that there could be: at p = 1 % 1.39 bytes an index, of which
 * random picks need 1.08. Growing slots carry the longest list as it is.
 *
 * Every encoding has one list and every list one encoding: a decoder accepts what its encoder
 * writes, and nothing else, whatever bytes it is given.
 */
#ifndef TAM_EXCHANGE_CODEC_H
#define TAM_EXCHANGE_CODEC_H

#include "lib/base/base.h"

typedef struct tam_codec {
    const char *name;

    /** Chosen only where it takes so many times fewer bytes than the others. */
    double worth;

    /** What a list takes beyond u32, to be numbered, packed and read, for each of its picks and for
     * each position of the span. In a step, on one machine: docs/exchange.md. */
    double pick_s, position_s;

    /** Most bytes that `count` of `span` positions can take; grows with both. count > span: as for
     * span. */
    uint64_t (*bytes)(uint64_t span, uint64_t count);

    /** NULL for u32: slots hold the list itself.
     * @param  positions  [in]  ascending, below span
     * @return                  bytes written to `out`, at most bytes(span, count) */
    size_t (*encode)(const uint32_t *positions, size_t count, uint64_t span, unsigned char *out);

    /** Reads in[bytes], writes at most positions[count], whatever is in `in`. NULL for u32.
     * @return  whether these are the bytes of `count` ascending positions below span */
    bool (*decode)(const unsigned char *in, size_t bytes, uint64_t span, size_t count,
                   uint32_t *positions);
} tam_codec;

/** @param  format  not AUTO */
const tam_codec *tam_codec_of(tamis_index_format format);

/** The format that takes the fewest bytes at most; but gap8, which is read byte after byte, only
 * where it takes less than two thirds of the others. So block16 up to about 1.2 % of the span, gap8
 * up to about 12 %, then bitmap. */
tamis_index_format tam_codec_choose(uint64_t span, uint64_t count);

#define TAM_CODEC_ROW(NAME, name, number) extern const tam_codec tam_codec_##name;
TAMIS_INDEX_FORMATS(TAM_CODEC_ROW)
#undef TAM_CODEC_ROW

#endif
