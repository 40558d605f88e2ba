/* SPDX-License-Identifier: MIT
 *
 * Exchange auto: which buckets are dense, and the index codec of the others. Sparse output and the
 * buckets of a CUDA device are never dense, for the cost model does not cover these.
 */
#include "collectives/reducer/reducer.h"

#include "lib/base/hash.h"
#include "lib/contracts/index_codec.h"
#include "lib/contracts/value_codec.h"
#include "collectives/exchange/table.h"
#include "lib/policy/cost.h"

static tam_costs choose_costs_of(const tamis_reducer *r) {
    const tam_model model = tam_reducer_model(r);
    tam_costs costs = r->comm->costs;
    if (!tam_reducer_calibrates(r))
        tam_costs_of_net(&model.net, &model.plan, &costs);
    return costs;
}

/* The expected lists of a bucket: `count` lists, each of `entries` positions out of `span`. */
typedef struct lists {
    uint64_t span, entries, count;
} lists;

static lists lists_of(const tamis_reducer *r, uint64_t n, uint64_t k) {
    uint64_t parts = tam_scheme_undivided(r->scheme) ? 1 : r->comm->nranks;
    return (lists){(n + parts - 1) / parts, (k + parts - 1) / parts, r->comm->nranks};
}

/* Seconds until every rank has read all lists. */
static double lists_s(const lists *l, tamis_index_codec index_codec, const tam_costs *costs) {
    const tam_index_codec *codec = tam_index_codec_of(index_codec);
    uint64_t bytes = sizeof(tam_header) + codec->bytes(l->span, l->entries);
    double packing_s = (double)l->entries * codec->index_s + (double)l->span * codec->position_s;
    return tam_curve_at(&costs->gather, (double)bytes) + (double)l->count * packing_s;
}

static tamis_index_codec fastest(const lists *l, const tam_costs *costs) {
    tamis_index_codec best = TAMIS_INDEX_U32;
    for (tamis_index_codec f = best; f < TAMIS_INDEX_END; f++)
        best = lists_s(l, f, costs) < lists_s(l, best, costs) ? f : best;
    return best;
}

/* Bytes of a value and of its sum as they travel, of two floats. In stages partial sums are floats.
 */
static double share_of_float(const tamis_reducer *r) {
    const tamis_reducer_config *c = &r->config;
    tamis_value_codec up = tam_value_codec_resolve(c->value_codec);
    tamis_value_codec down = tam_sum_codec_resolve(c->sum_codec, up);
    size_t many = 64 * TAM_VALUE_BLOCK; /* so that scales count */
    double values = (double)tam_value_bytes(tam_value_codec_of(up), many) / (4.0 * (double)many);
    double sums = (double)tam_value_bytes(tam_value_codec_of(down), many) / (4.0 * (double)many);
    double partial = r->comm->transport->encoded ? tam_plan_encoded_partial(&r->comm->stages) : 0.0;
    return 0.5 * (values * (1.0 - partial) + partial + sums);
}

/* The configured codec must change no result, so it does not affect which buckets are dense. */
static void choose(tam_bucket *b, uint64_t n, const tam_costs *costs) {
    const tamis_reducer *r = b->reducer;
    uint64_t k = b->view.whole_k;
    bool shared = r->scheme.ownership == TAM_OWN_ALL; /* assumes that lists do not overlap */
    uint64_t entries = shared && k < n / r->comm->nranks ? k * r->comm->nranks : shared ? n : k;
    lists all = lists_of(r, n, k);
    tamis_index_codec asked = r->config.index_codec, usual = fastest(&all, costs);
    tam_cost_case c = {n, entries, r->comm->nranks, lists_s(&all, usual, costs),
                       (double)entries * share_of_float(r)};
    bool dense = tam_cost_prefers_dense(costs, &c);
    b->view.index_codec = asked == TAMIS_INDEX_AUTO ? usual : asked;
    c.lists_s = lists_s(&all, b->view.index_codec, costs);
    b->scheme.exchange = dense ? TAM_EXCHANGE_DENSE : TAM_EXCHANGE_UNION;
    b->predicted_s = dense ? tam_cost_dense(costs, &c) : tam_cost_union(costs, &c);
    if (r->comm->rank == 0)
        tam_log(TAM_INFO,
                "bucket %u of %u elements: %s; expected in us: union %.1f with %llu entries as %s, "
                "dense %.1f",
                b->view.index, (unsigned)n, dense ? "dense" : "union",
                1e6 * tam_cost_union(costs, &c), (unsigned long long)entries,
                tam_index_codec_of(b->view.index_codec)->name, 1e6 * tam_cost_dense(costs, &c));
}

/* What all ranks compare. */
static void choose_describe(const tam_bucket *b, uint64_t *fields) {
    uint64_t choice[] = {fields[TAM_FACT_BUCKET_CODECS], b->view.index_codec};
    if (tam_scheme_dense(b->scheme))
        fields[TAM_FACT_DENSE_BUCKETS] |= UINT64_C(1) << b->view.index;
    else
        fields[TAM_FACT_BUCKET_CODECS] = tam_hash(choice, sizeof choice);
}

static void choose_scheme(tam_bucket *b, uint64_t length, const tam_costs *costs) {
    tamis_reducer *r = b->reducer;
    b->scheme = tam_scheme_sparse(r->scheme);
    if (!tam_reducer_chooses(r))
        return;
    choose(b, length, costs);
    choose_describe(b, r->handshake.fields);
}

void tam_buckets_choose(tamis_reducer *r) {
    const tam_costs costs = choose_costs_of(r);
    r->traits = UINT32_MAX;
    r->on_device = true;
    for (uint32_t i = 0, ordinary = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        b->view.index_codec = r->config.index_codec;
        if (!tam_segment_has_sparse_rows(
                r->layout, b->first_segment)) /* buckets with rows already have a scheme */
            choose_scheme(b, r->lengths[ordinary++], &costs);
        b->exchange = r->nranks < r->comm->nranks ? &tam_exchange_hierarchical
                                                  : tam_exchange_flat(b->scheme.exchange);
        r->traits &= b->exchange->traits;
        r->on_device = r->on_device && b->exchange->on_device != TAM_ON_DEVICE_NOT;
    }
}
