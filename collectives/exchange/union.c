/* SPDX-License-Identifier: MIT
 *
 * Exchange union: the indices of all ranks are gathered, and every rank gives its values at their
 * union.
 */
#include "collectives/exchange/table.h"

#include "collectives/exchange/united.h"

static tamis_status open_union(tam_bucket_view *view, void **out) {
    tam_packets packets = tam_sparse_packets(view);
    tam_united *u = NULL;
    TAM_TRY(tam_united_open(view, &packets, tam_sparse_union(view, &packets), &u));
    *out = u;
    return TAMIS_OK;
}

static tamis_status run_union(void *self, tam_link *link) {
    tam_united *u = self;
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(&u->sparse, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(tam_sparse_unite(&u->sparse, &count));
    return tam_united_sum(u, link, count);
}

const tam_exchange tam_exchange_union = {
    .traits = TAM_TRAIT_PICKS | TAM_TRAIT_HAS_RESIDUAL | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED |
              TAM_TRAIT_DEVICE,
    .open = open_union,
    .close = tam_united_close,
    .limit = tam_sparse_limit,
    .collect = tam_nothing_to_send,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .pick = tam_sparse_pick,
    .run = run_union,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
    .skip = tam_nothing_to_do,
    .state_words = tam_nothing_words,
    .state = tam_nothing_state,
    .state_valid = tam_nothing_valid,
};
