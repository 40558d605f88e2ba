/* SPDX-License-Identifier: MIT
 *
 * Exchange union: the indices of all ranks are gathered, and every rank sends its values at
 * their union.
 */
#include "collectives/exchange/table.h"

#include "collectives/exchange/union_reduce.h"

static tamis_status open_union(tam_bucket_view *view, void **out) {
    tam_packets packets = tam_sparse_packets(view);
    tam_union_reduce *u = NULL;
    TAM_TRY(tam_union_reduce_open(view, &packets, tam_sparse_union(view, &packets), &u));
    *out = u;
    return TAMIS_OK;
}

static tamis_status run_union(void *self, tam_link *link) {
    tam_union_reduce *u = self;
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(&u->sparse, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(tam_sparse_build_union(&u->sparse, &count));
    return tam_union_reduce_run(u, link, count);
}

const tam_exchange tam_exchange_union = {
    .traits = TAM_TRAIT_SELECTS | TAM_TRAIT_HAS_RESIDUAL | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED,
    .on_device = TAM_ON_DEVICE_PACKETS,
    .open = open_union,
    .close = tam_union_reduce_close,
    .limit = tam_sparse_limit,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .select = tam_sparse_select,
    .run = run_union,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
};
