/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/codec.h"

static uint64_t u32_bytes(uint64_t span, uint64_t count) {
    return 4 * (count < span ? count : span);
}

static const tam_codec u32 = {.name = "u32", .bytes = u32_bytes};

static const tam_codec *const rows[] = {
    [TAMIS_INDEX_U32] = &u32,
    [TAMIS_INDEX_BLOCK16] = &tam_codec_block16,
    [TAMIS_INDEX_GAP8] = &tam_codec_gap8,
    [TAMIS_INDEX_BITMAP] = &tam_codec_bitmap,
};

const tam_codec *tam_codec_of(tamis_index_format format) {
    return rows[format];
}

tamis_index_format tam_codec_choose(uint64_t span, uint64_t count) {
    tamis_index_format best = TAMIS_INDEX_U32;
    if (tam_codec_block16.bytes(span, count) < rows[best]->bytes(span, count))
        best = TAMIS_INDEX_BLOCK16;
    if (3 * tam_codec_gap8.bytes(span, count) <= 2 * rows[best]->bytes(span, count))
        best = TAMIS_INDEX_GAP8;
    if (tam_codec_bitmap.bytes(span, count) < rows[best]->bytes(span, count))
        best = TAMIS_INDEX_BITMAP;
    return count > 0 ? best : TAMIS_INDEX_U32;
}
