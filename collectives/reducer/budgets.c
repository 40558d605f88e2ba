/* SPDX-License-Identifier: MIT
 *
 * How many entries a step sends, and how many of them each bucket gets.
 */
#include "collectives/reducer/reducer.h"

#include "lib/base/fenv.h"

#include <math.h>

bool tam_buckets_by_norm(const tamis_reducer *r) {
    return tam_ordinary_buckets(r) > 1 && r->config.bucket_budget == TAMIS_BUCKET_BUDGET_NORM &&
           r->traits & TAM_TRAIT_SELECTS;
}

static bool is_sparse_rows(const tamis_reducer *r, uint32_t bucket) {
    return tam_segment_has_sparse_rows(r->layout, r->buckets[bucket].first_segment);
}

/* Divide k among the buckets whose segments have no rows. */
static void divide_k(tamis_reducer *r, const double *norms) {
    double own[TAM_BUCKETS_MAX];
    uint32_t count = 0, used = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        if (!is_sparse_rows(r, i))
            own[count++] = norms ? norms[i] : 0.0;
    }
    tam_bucket_budgets(r->k, count, r->lengths, norms ? own : NULL, r->budgets + count, r->budgets);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        if (!is_sparse_rows(r, i))
            r->buckets[i].view.whole_k = r->budgets[used++];
    }
}

void tam_buckets_budget_first(tamis_reducer *r) {
    divide_k(r, NULL);
}

void tam_buckets_budget(tamis_reducer *r) {
    const double *norms = tam_buckets_by_norm(r) && r->has_norms ? r->norms : NULL;
    divide_k(r, norms);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        b->view.k = tam_node_shard_budget(&b->node_shard, b->view.whole_k);
        tam_control_set_target(&b->control, tam_bucket_threshold_k(b));
        if (b->exchanged)
            tam_exchange_limit(b->exchange, b->exchanged);
    }
}

uint64_t tam_bucket_most(const tam_bucket *b, uint64_t k) {
    const tamis_reducer *r = b->reducer;
    if (b->layout->nrow_segments > 0) /* it has no budget */
        return 0;
    return tam_bucket_budget_max(k, b->layout->length, r->layout->ordinary, r->config.bucket_budget,
                                 tam_ordinary_buckets(r));
}

/* -- density ---------------------------------------------------------------------------------- */

uint64_t tam_reducer_entries(double density, uint64_t length) {
    double k = floor(density * (double)length);
    return k >= 1.0 ? (uint64_t)k : length > 0;
}

void tam_reducer_take_density(tamis_reducer *r, double density) {
    r->density = density;
    r->k = tam_reducer_entries(density, r->layout->ordinary);
    tam_update_follow(r);
}

double tamis_reducer_density(const tamis_reducer *r) {
    return r ? r->density : 0.0;
}

tamis_status tamis_reducer_set_density(tamis_reducer *r, double density) {
    TAM_FENV_HELD();
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_set_density: reducer is NULL");
    if (r->started)
        return tam_fail(TAMIS_E_STATE, "tamis_reducer_set_density: a step is under way; call "
                                       "tamis_reducer_wait first");
    TAM_TRY(tam_refuse(r, "tamis_reducer_set_density"));
    if (!tam_positive_upto(density, r->config.density_max))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_reducer_set_density: %.9g is not in (0, density_max = %.9g]",
                        density, r->config.density_max);
    uint64_t k = tam_reducer_entries(density, r->layout->ordinary);
    if (k < tam_ordinary_buckets(r))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_reducer_set_density: %g gives %llu entries for %u buckets, each of "
                        "which needs one",
                        density, (unsigned long long)k, tam_ordinary_buckets(r));
    tam_slowdown_bound(&r->slowdown, density);
    if (k == r->k) {
        r->density = density;
        return TAMIS_OK;
    }
    TAM_TRY(r->driver->quiesce(r));
    tam_reducer_take_density(r, density);
    tam_buckets_budget(r);
    return r->driver->reload(r);
}
