/* SPDX-License-Identifier: MIT */
#include "kernels/codecs/index_codecs.h"

static uint64_t u32_bytes(uint64_t span, uint64_t count) {
    return 4 * (count < span ? count : span);
}

const tam_index_codec tam_index_u32 = {.name = "u32", .worth = 1.0, .bytes = u32_bytes};

#define ROW(NAME, name, number) [number] = &tam_index_##name,
static const tam_index_codec *const rows[TAMIS_INDEX_END] = {TAMIS_INDEX_CODECS(ROW)};

const tam_index_codec *tam_index_codec_of(tamis_index_codec index_codec) {
    return rows[index_codec];
}

tamis_index_codec tam_index_codec_choose(uint64_t span, uint64_t count, bool thrifty) {
    tamis_index_codec best = TAMIS_INDEX_U32;
    for (tamis_index_codec f = best; f < TAMIS_INDEX_END && count > 0; f++) {
        double worth = thrifty ? 1.0 : rows[f]->worth;
        double bytes = worth * (double)rows[f]->bytes(span, count);
        best = bytes < (double)rows[best]->bytes(span, count) ? f : best;
    }
    return best;
}
