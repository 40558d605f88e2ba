/* SPDX-License-Identifier: MIT
 *
 * rice: how many positions are passed over since the last one, in bits. The low r bits of a gap g
 * travel as they are, behind g >> r zeros and a one (Golomb 1966, Rice 1979). Bits fill bytes from
 * the lowest on, and the last byte ends in zeros. Both sides know r: it makes the most bits that
 * such a list can take the fewest,
 *
 *     count (r + 1) + (span - count) / 2^r
 *
 * 1.01 bytes an index for random ones of 1 %, 0.63 for 8 %; 1.07 and 0.68 in fixed packets.
 */
#include "kernels/codecs/index_codecs.h"

#include "kernels/codecs/index_code.h"

static uint64_t rice_bytes(uint64_t span, uint64_t count) {
    uint64_t listed = count < span ? count : span;
    return (tam_rice_most_bits(span, listed, tam_rice_low(span, listed)) + 7) / 8;
}

/* -- out -------------------------------------------------------------------------------------- */

typedef struct writer {
    unsigned char *at;
    uint64_t bits; /* not yet written, lowest first */
    uint32_t held; /* how many; less than 32 between calls */
} writer;

/* @param  length  at most 32 */
static void index_rice_put(writer *w, uint64_t bits, uint32_t length) {
    w->bits |= bits << w->held;
    w->held += length;
    if (w->held < 32)
        return;
    uint32_t word = (uint32_t)w->bits;
    memcpy(w->at, &word, sizeof word);
    w->at += sizeof word;
    w->bits >>= 32;
    w->held -= 32;
}

static void put_rest(writer *w) {
    for (uint32_t at = 0; at < w->held; at += 8)
        *w->at++ = (unsigned char)(w->bits >> at);
}

/* Nearly always in one piece. */
static void put_gap(writer *w, uint32_t gap, uint32_t low) {
    uint64_t code = 1 | (gap & ((UINT64_C(1) << low) - 1)) << 1;
    uint32_t zeros = gap >> low;
    for (; zeros + low >= 32 && zeros > 0; zeros -= zeros < 32 ? zeros : 32)
        index_rice_put(w, 0, zeros < 32 ? zeros : 32);
    index_rice_put(w, code << zeros, zeros + low + 1);
}

static size_t rice_encode(const uint32_t *positions, size_t count, uint64_t span,
                          unsigned char *out) {
    uint32_t low = tam_rice_low(span, count), next = 0;
    writer w = {.at = out};
    for (size_t i = 0; i < count; i++) {
        put_gap(&w, positions[i] - next, low);
        next = positions[i] + 1;
    }
    put_rest(&w);
    return (size_t)(w.at - out);
}

/* -- in --------------------------------------------------------------------------------------- */

enum { WINDOW = 56 }; /* bits that a window surely holds */

typedef struct reader {
    const unsigned char *in;
    size_t bytes;
    uint64_t at; /* the bit that is read next */
} reader;

/* The bits from the next one on, lowest first, zeros past the end. Nothing of it depends on how
 * many bits were read before, so the processor waits for little between two gaps. */
static uint64_t window(const reader *r) {
    size_t byte = (size_t)(r->at / 8);
    uint64_t bits = 0;
    if (byte + sizeof bits <= r->bytes)
        memcpy(&bits, r->in + byte, sizeof bits);
    else if (byte < r->bytes)
        memcpy(&bits, r->in + byte, r->bytes - byte);
    return bits >> (r->at % 8);
}

/* @return false: the bytes end, or the gap is longer than any */
static bool get_gap(reader *r, uint32_t low, uint64_t *out) {
    uint64_t zeros = 0, bits;
    for (bits = window(r); bits == 0; bits = window(r)) {
        zeros += WINDOW;
        r->at += WINDOW;
        if (r->at / 8 >= r->bytes || zeros << low > UINT32_MAX)
            return false;
    }
    uint32_t run = (uint32_t)__builtin_ctzll(bits);
    r->at += run + 1;
    bits = run < WINDOW - TAM_RICE_LOW_MOST ? bits >> (run + 1) : window(r);
    *out = (zeros + run) << low | (bits & ((UINT64_C(1) << low) - 1));
    r->at += low;
    return (r->at + 7) / 8 <= r->bytes;
}

static bool rice_decode(const unsigned char *in, size_t bytes, uint64_t span, size_t count,
                        uint32_t *positions) {
    uint32_t low = tam_rice_low(span, count < span ? count : span);
    reader r = {.in = in, .bytes = bytes};
    uint64_t next = 0, gap;
    for (size_t i = 0; i < count; i++) {
        if (!get_gap(&r, low, &gap) || gap >= span - next)
            return false;
        positions[i] = (uint32_t)(next + gap);
        next += gap + 1;
    }
    return (r.at + 7) / 8 == bytes && window(&r) == 0;
}

const tam_index_codec tam_index_rice = {
    .name = "rice",
    .worth = 2.0,
    .index_s = 9e-9,
    .on_device = TAM_INDEX_SLOW_LINK,
    .bytes = rice_bytes,
    .encode = rice_encode,
    .decode = rice_decode,
};
