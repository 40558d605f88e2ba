/* SPDX-License-Identifier: MIT
 *
 * Exchange union: the indices of all ranks are gathered, and every rank gives its values at their
 * union.
 */
#include "collectives/exchange/table.h"

#include "collectives/exchange/sparse.h"
#include "collectives/exchange/wire_sum.h"

typedef struct united {
    tam_sparse sparse; /* first */
    tam_wire_sum sum;
} united;

static void close_union(void *self, bool lingers) {
    united *u = self;
    if (!u)
        return;
    tam_sparse_close(&u->sparse, lingers);
    tam_wire_sum_close(&u->sum, lingers);
    tam_free(u);
}

static tam_wire_sum choose_sum(const tam_bucket_view *v) {
    tamis_wire_type up = tam_wire_resolve(v->config->wire_type);
    tamis_wire_type down = tam_wire_resolve_sum(v->config->wire_type_sum, up);
    return (tam_wire_sum){.up = tam_wire_of(up),
                          .down = tam_wire_of(down),
                          .nranks = v->nranks,
                          .gathers = v->gathers};
}

static tamis_status open_union(tam_bucket_view *view, void **out) {
    united *u = tam_alloc(sizeof *u);
    if (!u)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    u->sum = choose_sum(view);
    u->sparse.view = view;
    u->sparse.slots = tam_sparse_slots(view);
    u->sparse.rounds = tam_wire_sum_rounds(&u->sum);
    tamis_status status = tam_sparse_open(&u->sparse);
    if (status == TAMIS_OK)
        status = tam_wire_sum_open(&u->sum, u->sparse.most);
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
    TAM_TRY(v->device->gather(v->kernels, v->acc, s->indices, count, s->values));
    v->out.given_sum = tam_sparse_squares(s->values, count);
    TAM_TRY(tam_wire_sum_run(&u->sum, link, s->values, count, s->errors));
    if (s->errors)
        v->out.given_sum -= tam_sparse_squares(s->errors, count);
    return TAMIS_OK;
}

static tamis_status run_union(void *self, tam_link *link) {
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
    .run = run_union,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
    .skip = tam_nothing_to_do,
    .state_words = tam_nothing_words,
    .state = tam_nothing_state,
    .state_valid = tam_nothing_valid,
};
