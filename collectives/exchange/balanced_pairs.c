/* SPDX-License-Identifier: MIT
 *
 * Exchange balanced-pairs (messages: ok_topk.h): pairs are sent to the owners of regions, the
 * largest sums to all. A rank's entries leave its residual only where the sum is selected.
 */
#include "collectives/exchange/ok_topk.h"
#include "collectives/exchange/sparse.h"
#include "collectives/exchange/table.h"

typedef struct balanced {
    tam_sparse sparse; /* first */
    tam_ok_topk ok_topk;
} balanced;

/* -- memory ----------------------------------------------------------------------------------- */

static void close_balanced(void *self, bool in_flight) {
    balanced *b = self;
    if (!b)
        return;
    tam_sparse_close(&b->sparse, in_flight);
    if (!in_flight)
        tam_ok_topk_close(&b->ok_topk);
    tam_free(b);
}

/* Only headers are gathered as packets; pairs of 32-bit indices are sent by ok_topk.c. */
static tam_packets balanced_pairs_choose_packets(const tam_bucket_view *v) {
    tam_packets packets = tam_sparse_packets(v);
    packets.growing = packets.headers_only = packets.with_values = true;
    packets.nwords = tam_ok_topk_header_words(v->nranks);
    packets.index_codec = v->index_codec == TAMIS_INDEX_AUTO ? TAMIS_INDEX_U32 : v->index_codec;
    return packets;
}

static tamis_status open_balanced(tam_bucket_view *view, void **out) {
    balanced *b = tam_alloc(sizeof *b);
    if (!b)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    b->sparse.view = view;
    b->sparse.packets = balanced_pairs_choose_packets(view);
    b->sparse.most =
        tam_ok_topk_most(view->nranks, view->division->grid.n, b->sparse.packets.capacity);
    b->sparse.packets.beside =
        tam_ok_topk_bytes(view->nranks, view->division->grid.n, b->sparse.packets.capacity);
    tamis_status status = tam_sparse_open(&b->sparse);
    if (status == TAMIS_OK)
        status = tam_ok_topk_open(view->rank, view->nranks, view->division->grid.n,
                                  b->sparse.packets.capacity, &b->ok_topk);
    if (status != TAMIS_OK) {
        close_balanced(b, false);
        return status;
    }
    *out = b;
    return TAMIS_OK;
}

static uint64_t *balanced_pairs_state(void *self) {
    return ((balanced *)self)->ok_topk.state;
}

static size_t state_words(uint32_t nranks) {
    return tam_ok_topk_words(nranks);
}

static bool state_valid(const tam_bucket_view *v, const uint64_t *words) {
    return tam_ok_topk_valid(words, v->nranks, v->division->grid.n);
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status balanced_pairs_select_entries(void *self) {
    balanced *b = self;
    tam_packets *packets = &b->sparse.packets;
    TAM_TRY(tam_sparse_select(&b->sparse));
    tam_ok_topk_divide(&b->ok_topk, tam_packet_own_indices(packets),
                       tam_packet_own_header(packets)->count, tam_packet_own_words(packets));
    return tam_sparse_select_values(&b->sparse);
}

static tamis_status run_balanced(void *self, tam_link *link) {
    balanced *b = self;
    tam_sparse *s = &b->sparse;
    tam_bucket_view *v = s->view;
    uint32_t *own = tam_packet_own_indices(&s->packets);
    float *values = tam_packet_own_values(&s->packets);
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(s, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(
        tam_ok_topk_exchange(&b->ok_topk, &s->packets, v->k, link, s->indices, s->values, &count));
    size_t sent =
        tam_ok_topk_sent(s->indices, count, own, values, tam_packet_own_header(&s->packets)->count);
    v->out.sent_sum = tam_sparse_squares(values, sent);
    tam_sparse_report(s, count, (tam_entries){own, NULL, sent});
    return TAMIS_OK;
}

/* Also sets threshold and borders of the next step. */
static tamis_status balanced_pairs_apply(void *self) {
    balanced *b = self;
    const tam_bucket_view *v = b->sparse.view;
    TAM_TRY(tam_sparse_apply(self));
    tam_ok_topk_learn(&b->ok_topk, &b->sparse.packets, v->k, v->out.result.count);
    return TAMIS_OK;
}

const tam_exchange tam_exchange_balanced_pairs = {
    .traits = TAM_TRAIT_SELECTS | TAM_TRAIT_HAS_RESIDUAL | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED,
    .open = open_balanced,
    .close = close_balanced,
    .limit = tam_sparse_limit,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .select = balanced_pairs_select_entries,
    .run = run_balanced,
    .drop = tam_sparse_drop,
    .apply = balanced_pairs_apply,
    .state_words = state_words,
    .state = balanced_pairs_state,
    .state_valid = state_valid,
};
