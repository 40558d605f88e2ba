/* SPDX-License-Identifier: MIT
 *
 * Exchange quantized: every element of the residual travels quantized, and what rounding takes
 * stays. The error feedback of 1-bit SGD (Seide et al., Interspeech 2014) with the codes of
 * value_codecs.h, for values and for their sums. Packets carry headers alone, so that steps are
 * compared and ranks that are late are seen, as with sparse entries.
 */
#include "collectives/exchange/table.h"

#include "collectives/exchange/union_reduce.h"

static tam_packets quantized_choose_packets(const tam_bucket_view *v) {
    return (tam_packets){
        .rank = v->rank,
        .nranks = v->nranks,
        .index_codec = TAMIS_INDEX_U32, /* of empty lists */
        .config = v->config_hash,
    };
}

static tamis_status open_quantized(tam_bucket_view *view, void **out) {
    tam_packets packets = quantized_choose_packets(view);
    tam_union_reduce *u = NULL;
    size_t length = (size_t)view->layout->length;
    TAM_TRY(tam_union_reduce_open(view, &packets, length, &u));
    for (size_t i = 0; i < length; i++)
        u->sparse.indices[i] = (uint32_t)i;
    *out = u;
    return TAMIS_OK;
}

static tamis_status quantized_select_entries(void *self) {
    tam_select_result nothing = {0};
    tam_sparse_fill_header(self, &nothing);
    return TAMIS_OK;
}

static tamis_status run_quantized(void *self, tam_link *link) {
    tam_union_reduce *u = self;
    tam_bucket_view *v = u->sparse.view;
    bool stops;
    TAM_TRY(tam_sparse_gather(&u->sparse, link, &stops));
    if (stops)
        return TAMIS_OK;
    for (uint32_t rank = 0; rank < v->nranks; rank++)
        v->out.selected[rank] = (uint32_t)v->layout->length;
    return tam_union_reduce_run(u, link, (size_t)v->layout->length);
}

const tam_exchange tam_exchange_quantized = {
    .traits = TAM_TRAIT_SELECTS | TAM_TRAIT_HAS_RESIDUAL | TAM_TRAIT_TIMED,
    .open = open_quantized,
    .close = tam_union_reduce_close,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .select = quantized_select_entries,
    .run = run_quantized,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
};
