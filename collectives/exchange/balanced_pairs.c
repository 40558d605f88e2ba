/* SPDX-License-Identifier: MIT
 *
 * Exchange balanced-pairs (messages: regions.h): pairs are sent to the owners of regions, the
 * largest sums to all. A rank's picks leave its residual only where the sum survives.
 */
#include "collectives/exchange/regions.h"
#include "collectives/exchange/sparse.h"
#include "collectives/exchange/table.h"

typedef struct balanced {
    tam_sparse sparse; /* first */
    tam_regions regions;
} balanced;

/* -- memory ----------------------------------------------------------------------------------- */

static void close_balanced(void *self, bool lingers) {
    balanced *b = self;
    if (!b)
        return;
    tam_sparse_close(&b->sparse, lingers);
    if (!lingers)
        tam_regions_close(&b->regions);
    tam_free(b);
}

/* Only heads are gathered as slots; pairs of 32-bit indices are sent by regions.c. */
static tam_slots choose_slots(const tam_bucket_view *v) {
    tam_slots slots = tam_sparse_slots(v);
    slots.growing = slots.heads_only = slots.with_values = true;
    slots.nwords = tam_regions_head_words(v->nranks);
    slots.format = v->format == TAMIS_INDEX_AUTO ? TAMIS_INDEX_U32 : v->format;
    return slots;
}

static tamis_status open_balanced(tam_bucket_view *view, void **out) {
    balanced *b = tam_alloc(sizeof *b);
    if (!b)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    b->sparse.view = view;
    b->sparse.slots = choose_slots(view);
    b->sparse.most =
        tam_regions_most(view->nranks, view->division->grid.n, b->sparse.slots.capacity);
    b->sparse.slots.beside =
        tam_regions_bytes(view->nranks, view->division->grid.n, b->sparse.slots.capacity);
    tamis_status status = tam_sparse_open(&b->sparse);
    if (status == TAMIS_OK)
        status = tam_regions_open(view->rank, view->nranks, view->division->grid.n,
                                  b->sparse.slots.capacity, &b->regions);
    if (status != TAMIS_OK) {
        close_balanced(b, false);
        return status;
    }
    *out = b;
    return TAMIS_OK;
}

static uint64_t *state(void *self) {
    return ((balanced *)self)->regions.state;
}

static size_t state_words(uint32_t nranks) {
    return tam_regions_words(nranks);
}

static bool state_valid(const tam_bucket_view *v, const uint64_t *words) {
    return tam_regions_valid(words, v->nranks, v->division->grid.n);
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status pick(void *self) {
    balanced *b = self;
    tam_slots *slots = &b->sparse.slots;
    TAM_TRY(tam_sparse_pick(&b->sparse));
    tam_regions_divide(&b->regions, tam_slot_own_indices(slots), tam_slot_own_head(slots)->count,
                       tam_slot_own_words(slots));
    return tam_sparse_pick_values(&b->sparse);
}

static tamis_status run_balanced(void *self, tam_link *link) {
    balanced *b = self;
    tam_sparse *s = &b->sparse;
    tam_bucket_view *v = s->view;
    uint32_t *own = tam_slot_own_indices(&s->slots);
    float *values = tam_slot_own_values(&s->slots);
    size_t count;
    bool stops;
    TAM_TRY(tam_sparse_gather(s, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(
        tam_regions_exchange(&b->regions, &s->slots, v->k, link, s->indices, s->values, &count));
    size_t given =
        tam_regions_given(s->indices, count, own, values, tam_slot_own_head(&s->slots)->count);
    v->out.given_sum = tam_sparse_squares(values, given);
    tam_sparse_tell(s, count, (tam_entries){own, NULL, given});
    return TAMIS_OK;
}

/* Also sets threshold and borders of the next step. */
static tamis_status apply(void *self) {
    balanced *b = self;
    const tam_bucket_view *v = b->sparse.view;
    TAM_TRY(tam_sparse_apply(self));
    tam_regions_learn(&b->regions, &b->sparse.slots, v->k, v->out.result.count);
    return TAMIS_OK;
}

const tam_exchange tam_exchange_regions = {
    .traits = TAM_TRAIT_PICKS | TAM_TRAIT_KEEPS | TAM_TRAIT_LEARNS | TAM_TRAIT_TIMED,
    .open = open_balanced,
    .close = close_balanced,
    .limit = tam_sparse_limit,
    .collect = tam_nothing_to_send,
    .accumulate = tam_sparse_accumulate,
    .plan = tam_sparse_plan,
    .pick = pick,
    .run = run_balanced,
    .drop = tam_sparse_drop,
    .apply = apply,
    .skip = tam_nothing_to_do,
    .state_words = state_words,
    .state = state,
    .state_valid = state_valid,
};
