/* SPDX-License-Identifier: MIT
 *
 * Exchange auto: which buckets are dense. What cannot be dense is not: sparse results, and what a
 * CUDA device computes, of which the model knows nothing.
 */
#include "collectives/reducer/reducer.h"

#include "collectives/exchange/codec.h"
#include "collectives/exchange/slot.h"
#include "lib/policy/cost.h"

static tam_costs costs_of(const tamis_reducer *r) {
    tam_link_model link = tam_reducer_link(r);
    tam_costs costs = r->comm->costs;
    if (!tam_reducer_measures(r))
        tam_costs_of_link(&link, r->comm->nranks, &costs);
    return costs;
}

/* Indices as they are likely to travel: a slot of the picks that are aimed at, of one rank's part. */
static uint64_t slot_bytes(const tamis_reducer *r, uint64_t n, uint64_t k) {
    bool undivided = tam_scheme_undivided(r->scheme);
    uint64_t ranks = undivided ? 1 : r->comm->nranks;
    uint64_t picks = (k + ranks - 1) / ranks, span = (n + ranks - 1) / ranks;
    tamis_index_format format = r->config.index_format;
    if (format == TAMIS_INDEX_AUTO)
        format = tam_codec_choose(span, picks);
    return sizeof(tam_slot_header) + tam_codec_of(format)->bytes(span, picks);
}

static void choose(tam_bucket *b, uint64_t n, const tam_costs *costs) {
    const tamis_reducer *r = b->reducer;
    uint64_t k = b->k;
    bool shared = r->scheme.ownership == TAM_OWN_ALL; /* lists that need not overlap */
    uint64_t entries = shared && k < n / r->comm->nranks ? k * r->comm->nranks : shared ? n : k;
    tam_cost_case c = {n, entries, slot_bytes(r, n, k), r->comm->nranks};
    bool dense = tam_cost_prefers_dense(costs, &c);
    b->scheme.exchange = dense ? TAM_EXCHANGE_DENSE : TAM_EXCHANGE_UNION;
    b->predicted_s = dense ? tam_cost_dense(costs, &c) : tam_cost_union(costs, &c);
    if (r->comm->rank == 0)
        tam_log(TAM_INFO,
                "bucket %u of %u elements: %s; expected in us: union %.1f with %llu entries, dense "
                "%.1f",
                b->index, (unsigned)n, dense ? "dense" : "union", 1e6 * tam_cost_union(costs, &c),
                (unsigned long long)entries, 1e6 * tam_cost_dense(costs, &c));
}

void tam_buckets_choose(tamis_reducer *r) {
    const tam_costs costs = costs_of(r);
    uint64_t *chosen = &r->agreement.fields[TAM_FIELD_DENSE_BUCKETS];
    for (uint32_t i = 0, ordinary = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (tam_scheme_rows(b->scheme))
            continue;
        b->scheme = tam_scheme_sparse(r->scheme);
        if (tam_reducer_chooses(r))
            choose(b, r->lengths[ordinary++], &costs);
        bool dense = tam_scheme_dense(b->scheme);
        r->ndense += dense;
        *chosen |= tam_scheme_auto(r->scheme) && dense ? UINT64_C(1) << i : 0;
    }
}
