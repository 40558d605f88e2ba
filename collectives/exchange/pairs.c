/* SPDX-License-Identifier: MIT
 *
 * Exchange pairs: (index, value) of all picks are gathered, and every rank gives only what it
 * picked. If values are rounded, the error stays in the residual of the rank that picked.
 */
#include "collectives/exchange/sparse.h"
#include "collectives/exchange/table.h"

static void close_pairs(void *self, bool lingers) {
    if (self)
        tam_sparse_close(self, lingers);
    tam_free(self);
}

static tamis_status open_pairs(tam_bucket_view *view, void **out) {
    tam_sparse *s = tam_alloc(sizeof *s);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    s->view = view;
    s->slots = tam_sparse_slots(view);
    s->slots.with_values = true;
    s->rounds = tam_wire_rounds(s->slots.wire);
    s->way = tam_sparse_way(view, false);
    s->most = tam_sparse_union(view, &s->slots);
    tamis_status status = tam_sparse_open(s);
    if (status != TAMIS_OK) {
        close_pairs(s, false);
        return status;
    }
    *out = s;
    return TAMIS_OK;
}

static tamis_status pick(void *self) {
    TAM_TRY(tam_sparse_pick(self));
    return tam_sparse_pick_values(self);
}

static tamis_status run_pairs(void *self, tam_link *link) {
    tam_sparse *s = self;
    tam_entries given = {tam_slot_own_indices(&s->slots), s->errors,
                         tam_slot_own_head(&s->slots)->count};
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(s, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(tam_sparse_unite(s, &count));
    TAM_TRY(tam_merge_sum_pairs(&s->slots, s->indices, count, s->cursors, s->came, s->values));
    tam_sparse_tell(s, count, given);
    return TAMIS_OK;
}

const tam_exchange tam_exchange_pairs = {
    .traits =
        TAM_TRAIT_PICKS | TAM_TRAIT_KEEPS | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED | TAM_TRAIT_DEVICE,
    .open = open_pairs,
    .close = close_pairs,
    .limit = tam_sparse_limit,
    .collect = tam_nothing_to_send,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .pick = pick,
    .run = run_pairs,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
    .skip = tam_nothing_to_do,
    .state_words = tam_nothing_words,
    .state = tam_nothing_state,
    .state_valid = tam_nothing_valid,
};
