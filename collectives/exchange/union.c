/* SPDX-License-Identifier: MIT
 *
 * Exchange union: the indices of all ranks are gathered, and every rank gives its values at their
 * union.
 *
 * Values sent as bfloat16 are rounded twice, and both errors stay in residuals. At a union index
 * of a slice that rank 1 sums, with 3 ranks,
 *
 *     rank 0   gives bf16(v0), keeps v0 - bf16(v0)
 *     rank 1   gives bf16(v1), keeps v1 - bf16(v1) + (S - bf16(S)),
 *              S = bf16(v0) + bf16(v1) + bf16(v2)
 *     rank 2   gives bf16(v2), keeps v2 - bf16(v2)                   result bf16(S)
 *
 * so what is applied and what is kept sum to v0 + v1 + v2, whether the result is the sum or, after
 * a division, the mean.
 */
#include "collectives/exchange/table.h"

#include "collectives/exchange/sparse.h"
#include "lib/base/half.h"

typedef struct united {
    tam_sparse sparse; /* first */
    uint16_t *halves;  /* [most] values sent in 16 bits; else NULL */
} united;

static void close_union(void *self, bool lingers) {
    united *u = self;
    if (!u)
        return;
    tam_sparse_close(&u->sparse, lingers);
    if (!lingers)
        tam_free(u->halves);
    tam_free(u);
}

static tamis_status open_halves(united *u) {
    if (!u->sparse.errors)
        return TAMIS_OK;
    u->halves = tam_alloc_array(u->sparse.most, sizeof u->halves[0]);
    return u->halves ? TAMIS_OK
                     : tam_fail(TAMIS_E_NOMEM, "no memory to round %zu entries", u->sparse.most);
}

static tamis_status open_union(tam_bucket_view *view, void **out) {
    united *u = tam_alloc(sizeof *u);
    if (!u)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    u->sparse.view = view;
    u->sparse.slots = tam_sparse_slots(view);
    tamis_status status = tam_sparse_open(&u->sparse);
    if (status == TAMIS_OK)
        status = open_halves(u);
    if (status != TAMIS_OK) {
        close_union(u, false);
        return status;
    }
    *out = u;
    return TAMIS_OK;
}

/* Read what this rank gives at the union, and sum it over ranks. */
static tamis_status sum(united *u, tam_link *link, size_t count) {
    tam_sparse *s = &u->sparse;
    tam_bucket_view *v = s->view;
    const tam_transport *t = link->transport;
    TAM_TRY(v->device->gather(v->kernels, v->acc, s->indices, count, s->values));
    v->out.given_sum = tam_sparse_squares(s->values, count);
    if (!s->errors)
        return t->allreduce_sum(link->self, s->values, count, &link->call);
    tam_sparse_round(s->values, count, u->halves, s->errors);
    TAM_TRY(t->allreduce_sum_bfloat16(link->self, u->halves, count, s->errors, &link->call));
    v->out.given_sum -= tam_sparse_squares(s->errors, count);
    tam_widen(TAMIS_DTYPE_BFLOAT16, u->halves, count, s->values);
    return TAMIS_OK;
}

static tamis_status run(void *self, tam_link *link) {
    united *u = self;
    tam_sparse *s = &u->sparse;
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(s, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(tam_sparse_unite(s, &count));
    TAM_TRY(sum(u, link, count));
    tam_sparse_tell(s, count, (tam_entries){s->indices, s->errors, count});
    return TAMIS_OK;
}

const tam_exchange tam_exchange_union = {
    .traits = TAM_TRAIT_PICKS | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED | TAM_TRAIT_DEVICE,
    .open = open_union,
    .close = close_union,
    .limit = tam_sparse_limit,
    .collect = tam_nothing_to_send,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .pick = tam_sparse_pick,
    .run = run,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
    .skip = tam_nothing_to_do,
    .state_words = tam_nothing_words,
    .state = tam_nothing_state,
    .state_valid = tam_nothing_valid,
};
