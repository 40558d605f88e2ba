/* SPDX-License-Identifier: MIT */
#include "collectives/transport/sum.h"

#include "lib/transport/tag.h"
#include "lib/base/tree.h"

/* In a gather of their own, whose length is the same whatever the ranks sum. */
static tamis_status gather_tags(tam_gather_chunk gather, void *self, uint32_t nranks,
                                tam_call *call) {
    const void *received;
    TAM_TRY(gather(self, call->tag, sizeof *call->tag, &received, call));
    for (uint32_t r = 0; r < nranks; r++)
        TAM_TRY(tam_tag_check(call, r, (const tam_tag *)received + r));
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
        tam_tree_add_up(gathered, length, nranks, length, values + at);
    }
    return TAMIS_OK;
}
