/* SPDX-License-Identifier: MIT */
#include "collectives/transport/sum.h"

#include "lib/base/tag.h"
#include "lib/base/half.h"

static void add_up(const float *gathered, uint32_t nranks, size_t length, float *values) {
    for (size_t i = 0; i < length; i++) {
        float sum = gathered[i];
        for (uint32_t r = 1; r < nranks; r++)
            sum += gathered[r * length + i];
        values[i] = sum;
    }
}

/* In a gather of their own, whose length is the same whatever the ranks sum. */
static tamis_status gather_tags(tam_gather_chunk gather, void *self, uint32_t nranks,
                                tam_call *call) {
    const void *came;
    TAM_TRY(gather(self, call->tag, sizeof *call->tag, &came, call));
    for (uint32_t r = 0; r < nranks; r++)
        TAM_TRY(tam_tag_hear(call, r, (const tam_tag *)came + r));
    return TAMIS_OK;
}

tamis_status tam_sum_by_gather(tam_gather_chunk gather, void *self, uint32_t nranks, size_t chunk,
                               float *values, size_t count, tam_call *call) {
    if (call->tag)
        TAM_TRY(gather_tags(gather, self, nranks, call));
    for (size_t at = 0; at < count; at += chunk) {
        size_t length = count - at < chunk ? count - at : chunk;
        const void *gathered;
        TAM_TRY(gather(self, values + at, length * sizeof values[0], &gathered, call));
        add_up(gathered, nranks, length, values + at);
    }
    return TAMIS_OK;
}

/* -- bfloat16 --------------------------------------------------------------------------------- */

void tam_sums_add(const uint16_t *from, size_t count, bool first, float *sums) {
    if (first)
        tam_widen(TAMIS_DTYPE_BFLOAT16, from, count, sums);
    for (size_t i = 0; !first && i < count; i++)
        sums[i] += tam_bfloat16_widen(from[i]);
}

void tam_sums_round(const float *sums, size_t count, uint16_t *values, float *lost) {
    for (size_t i = 0; i < count; i++)
        values[i] = tam_bfloat16_clamp(sums[i]);
    for (size_t i = 0; lost && i < count; i++)
        lost[i] += tam_bfloat16_error(sums[i], values[i]);
}

/* Sum part of a chunk, within this rank's slice or outside it. @param lost  NULL: outside */
static void add_up_bfloat16(const uint16_t *gathered, size_t stride, uint32_t nranks, size_t length,
                            uint16_t *values, float *lost) {
    float sums[TAM_SUMS];
    for (size_t at = 0; at < length; at += TAM_SUMS) {
        size_t count = length - at < TAM_SUMS ? length - at : TAM_SUMS;
        for (uint32_t r = 0; r < nranks; r++)
            tam_sums_add(gathered + r * stride + at, count, r == 0, sums);
        tam_sums_round(sums, count, values + at, lost ? lost + at : NULL);
    }
}

static size_t clip(size_t x, size_t low, size_t high) {
    return x < low ? low : x > high ? high : x;
}

tamis_status tam_sum_by_gather_bfloat16(tam_gather_chunk gather, void *self, uint32_t rank,
                                        uint32_t nranks, size_t chunk, uint16_t *values,
                                        size_t count, float *lost, tam_call *call) {
    size_t own = tam_slice_begin(count, rank, nranks);
    size_t own_end = tam_slice_begin(count, rank + 1, nranks);
    for (size_t at = 0; at < count; at += chunk) {
        size_t length = count - at < chunk ? count - at : chunk;
        const void *came;
        TAM_TRY(gather(self, values + at, length * sizeof values[0], &came, call));
        /* before this rank's slice, in it, after it */
        const size_t borders[] = {at, clip(own, at, at + length), clip(own_end, at, at + length),
                                  at + length};
        for (int i = 0; i < 3; i++)
            add_up_bfloat16((const uint16_t *)came + (borders[i] - at), length, nranks,
                            borders[i + 1] - borders[i], values + borders[i],
                            i == 1 ? lost + borders[i] : NULL);
    }
    return TAMIS_OK;
}
