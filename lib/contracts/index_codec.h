/* SPDX-License-Identifier: MIT
 *
 * Index codecs: how an ascending list of positions becomes bytes. A position numbers an element
 * among those that its rank may select from (lib/policy/strided.h). `span` is how many there are,
 * `count` how many were listed. The list 3, 5, 300, 65537 of span 70000:
 *
 *     u32      | 3 | 5 | 300 | 65537 |               4 bytes each
 *
 *     block16  | 3 1 || 3 5 300 | 1 |                a count for each 65,536 positions, seven bits
 *              counts  low 16 bits                   a byte; then the low 16 bits of each
 *
 *     gap8     | 3 1 255 39 255 ... 255 205 |        positions skipped since the last, a byte each;
 *                    ^^^^^^ 294 = 255 + 39           255: add 255 and read on
 *
 *     bitmap   | 00101000 00000000 ... |             a bit for every position, lowest first
 *
 *                bytes, at most                                       bytes, p = count / span
 *     u32        4 count                                              known beforehand
 *     block16    2 count + b + min(b, count / 128)                    known but for the size of the
 *                        + min(b, count / 16384), b = span / 65536    counts
 *     gap8       count + (span - count) / 255                         random positions:
 *                                                                     count / (1 - (1 - p)^255)
 *     bitmap     span / 8                                             known beforehand
 *
 *     rice     see index_rice.c                      most known beforehand, 4 % above the least
 *
 * Fixed packets always have room for the longest encoding of their limit. There bitmap and block16
 * lose nothing, but gap8 pays for the longest possible gaps: at p = 1 %, 1.39 bytes an index, where
 * random positions need 1.08. Growing packets are only as long as the longest list sent.
 *
 * Lists and encodings correspond one to one: whatever bytes a decoder is given, it accepts only
 * what its encoder writes.
 */
#ifndef TAM_CONTRACTS_INDEX_CODEC_H
#define TAM_CONTRACTS_INDEX_CODEC_H

#include "lib/base/base.h"

typedef struct tam_index_codec {
    const char *name;

    /** For tam_index_codec_choose: chosen if `worth` times its bytes are fewer than those of the
     * best row before it. 1: as soon as it is smaller; 1.5: if it saves a third. */
    double worth;

    /** For exchange auto alone, which chooses by time: seconds beyond u32 to number, pack and read
     * a list, for each of its indices and for each position of the span. Measured in a step, on one
     * machine: docs/exchange.md. */
    double index_s, position_s;

    /** Where a CUDA device runs the steps, AUTO takes this codec: */
    enum tam_index_on_device {
        TAM_INDEX_FAST = 0,  /* always: all multiprocessors pack it */
        TAM_INDEX_SLOW_LINK, /* if a byte costs more than to pack and read this codec */
        TAM_INDEX_ASKED      /* never: one block of threads packs a list */
    } on_device;

    /** Most bytes that `count` of `span` positions can take. Never less for more of either; a count
     * above span counts as span, so it is constant from there on. */
    uint64_t (*bytes)(uint64_t span, uint64_t count);

    /** NULL for u32: packets hold the list itself.
     * @param  positions  [in]  ascending, below span
     * @return                  bytes written to `out`, at most bytes(span, count) */
    size_t (*encode)(const uint32_t *positions, size_t count, uint64_t span, unsigned char *out);

    /** Reads in[bytes] and writes at most positions[count], whatever `in` holds. NULL for u32.
     * @return  whether the bytes encode `count` ascending positions below span */
    bool (*decode)(const unsigned char *in, size_t bytes, uint64_t span, size_t count,
                   uint32_t *positions);
} tam_index_codec;

/** @param  format  not AUTO */
const tam_index_codec *tam_index_codec_of(tamis_index_codec index_codec);

/** The codec with the fewest bytes at worst, of equal ones the first row; but those that take long
 * to read only if they are `worth` it: gap8 if it takes less than two thirds of u32 and block16. So
 * block16 up to about 1.2 % of the span, gap8 up to about 12 %, then bitmap.
 * @param  thrifty  bytes are all that counts: rice */
tamis_index_codec tam_index_codec_choose(uint64_t span, uint64_t count, bool thrifty);

#endif
