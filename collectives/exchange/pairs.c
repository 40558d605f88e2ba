/* SPDX-License-Identifier: MIT
 *
 * Exchange pairs: (index, value) of all selected entries are gathered, and every rank sends only
 * what it selected. If values are rounded, the error stays in the residual of the rank that
 * selected.
 */
#include "collectives/exchange/sparse.h"
#include "collectives/exchange/table.h"

static void close_pairs(void *self, bool in_flight) {
    if (self)
        tam_sparse_close(self, in_flight);
    tam_free(self);
}

static tamis_status open_pairs(tam_bucket_view *view, void **out) {
    tam_sparse *s = tam_alloc(sizeof *s);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    s->view = view;
    s->packets = tam_sparse_packets(view);
    s->packets.with_values = true;
    s->quantizes = tam_value_quantizes(s->packets.value_codec);
    s->way = tam_sparse_way(view, false);
    s->most = tam_sparse_union(view, &s->packets);
    tamis_status status = tam_sparse_open(s);
    if (status != TAMIS_OK) {
        close_pairs(s, false);
        return status;
    }
    *out = s;
    return TAMIS_OK;
}

static tamis_status pairs_select_entries(void *self) {
    TAM_TRY(tam_sparse_select(self));
    return tam_sparse_select_values(self);
}

static tamis_status run_pairs(void *self, tam_link *link) {
    tam_sparse *s = self;
    tam_entries sent = {tam_packet_own_indices(&s->packets), s->errors,
                        tam_packet_own_header(&s->packets)->count};
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(s, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(tam_sparse_build_union(s, &count));
    TAM_TRY(tam_merge_sum_pairs(&s->packets, s->indices, count, s->cursors, s->decoded, s->values));
    tam_sparse_report(s, count, sent);
    return TAMIS_OK;
}

const tam_exchange tam_exchange_pairs = {
    .traits = TAM_TRAIT_SELECTS | TAM_TRAIT_HAS_RESIDUAL | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED,
    .on_device = TAM_ON_DEVICE_PACKETS,
    .open = open_pairs,
    .close = close_pairs,
    .limit = tam_sparse_limit,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .select = pairs_select_entries,
    .run = run_pairs,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
};
