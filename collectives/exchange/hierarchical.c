/* SPDX-License-Identifier: MIT
 *
 * Hierarchical: another exchange, among fewer ranks. With N nodes of G ranks each, rank a G + g is
 * rank g of node a. First each node sums its gradients, shard by shard. Then the N ranks of an
 * inter-node group, those with the same g, do the rest of the step on their shard, as if there were
 * no other ranks:
 *
 *     collect  all-to-all in the node: shard g of every gradient to rank g, added (lib/base/tree.h)
 *     run      the other exchange in the inter-node group: N ranks, n / G elements; then
 *              packets in the node: indices, sums of every shard; all ranks hold the whole result
 *
 * Two nodes of two ranks, shards of one run, k = 4; x.y = shard y of rank x:
 *
 *     collect  rank 0   sends 0.1 to 1   gets 1.0   sums 0.0 + 1.0       ranks 2, 3 likewise
 *              rank 1   sends 0.0 to 0   gets 0.1   sums 0.1 + 1.1
 *     inter    ranks 0 and 2 on shard 0: two entries; ranks 1 and 3 on shard 1: two entries
 *     intra    rank 0   sends its two to 1, gets two; all ranks hold the same four
 *
 * An inter-node group alone cannot know whether a step is skipped: the node decides, the same on
 * all nodes.
 */
#include "collectives/exchange/gradient.h"
#include "collectives/exchange/merge.h"
#include "collectives/exchange/node.h"
#include "collectives/exchange/packet.h"
#include "collectives/exchange/table.h"
#include "collectives/transport/subcomm.h"

typedef struct hierarchical {
    tam_bucket_view *view;
    const tam_exchange *row; /* exchange of the inter-node group, */
    void *inner;             /* and its state */
    tam_subcomm intra, inter;
    tam_node sums;
    tam_packets packets; /* results of the shards. Counters: of the group, and its norm; words:
                            entries of each of its ranks, the first node whose sum was not finite */
    float counters[TAM_COUNTERS + 1];
    uint32_t *owners;    /* [G] 0, 1, 2, ... */
    size_t *cursors;     /* [G] */
    tam_list *lists;     /* [G] */
    tam_strided *ranges; /* [G] */
    uint32_t *indices;   /* [whole_k_max] the result, elements of the bucket */
    float *values;       /* of the result */
    float *decoded;      /* [G * TAM_MERGE_BLOCK] */
} hierarchical;

/* -- memory ----------------------------------------------------------------------------------- */

static tamis_status hierarchical_open_result(hierarchical *h) {
    const tam_node_shard *shard = h->view->node_shard;
    size_t most = (size_t)h->view->whole_k_max;
    h->owners = tam_alloc_array(shard->nlocal, sizeof h->owners[0]);
    h->lists = tam_alloc_array(shard->nlocal, sizeof h->lists[0]);
    h->ranges = tam_alloc_array(shard->nlocal, sizeof h->ranges[0]);
    h->indices = tam_alloc_array(most, sizeof h->indices[0]);
    h->values = tam_alloc_array(most, sizeof h->values[0]);
    h->decoded = tam_alloc_array((size_t)shard->nlocal * TAM_MERGE_BLOCK, sizeof h->decoded[0]);
    h->cursors = tam_alloc_array(shard->nlocal, sizeof h->cursors[0]);
    if (!h->owners || !h->lists || !h->cursors || !h->ranges || !h->indices || !h->values ||
        !h->decoded)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a result of %zu entries", most);
    for (uint32_t g = 0; g < shard->nlocal; g++) {
        h->owners[g] = g;
        h->ranges[g] = tam_strided_of(&shard->division, g);
    }
    return TAMIS_OK;
}

static tamis_status open_packets(hierarchical *h) {
    const tam_bucket_view *v = h->view;
    const tam_node_shard *shard = v->node_shard;
    tamis_index_codec index_codec = v->config->index_codec;
    uint64_t span = tam_own_max(&shard->division);
    h->packets = (tam_packets){
        .rank = shard->local,
        .nranks = shard->nlocal,
        .first = v->comm_rank - shard->local,
        .stride = 1,
        .ncounters = TAM_COUNTERS + 1,
        .nwords = v->nranks + 1,
        .capacity = tam_budget_max(&shard->division, v->whole_k_max),
        .with_values = true,
        .value_codec =
            tam_value_codec_of(TAMIS_VALUE_FLOAT32), /* results are the same on all ranks already */
        .index_codec =
            index_codec != TAMIS_INDEX_AUTO
                ? index_codec
                : tam_index_codec_choose(span, tam_budget_max(&shard->division, v->whole_k), false),
        .span = span,
        .ranges = h->ranges,
    };
    return tam_packets_open(&h->packets);
}

/* Sub-communicators hold a copy of a message for every member. Opened after the inter-node
 * exchange, which has set the message sizes in the view. */
static tamis_status open_subcomms(hierarchical *h) {
    const tam_bucket_view *v = h->view;
    const tam_node_shard *shard = v->node_shard;
    size_t sums = tam_subcomm_sum_bytes(v->result_max, v->nranks),
           headers = v->nranks * v->gather_max;
    h->intra = (tam_subcomm){.first = v->comm_rank - shard->local,
                             .stride = 1,
                             .count = shard->nlocal,
                             .member = shard->local,
                             .nranks = v->comm_nranks,
                             .bytes = shard->nlocal * h->packets.header_step};
    h->inter = (tam_subcomm){.first = shard->local,
                             .stride = shard->nlocal,
                             .count = v->nranks,
                             .member = v->rank,
                             .nranks = v->comm_nranks,
                             .bytes = sums > headers ? sums : headers};
    TAM_TRY(tam_subcomm_open(&h->intra));
    return tam_subcomm_open(&h->inter);
}

/* The result is applied by kernels of the whole bucket. */
static tamis_status hierarchical_open_all(hierarchical *h) {
    tam_bucket_view *v = h->view;
    TAM_TRY(v->device->open(&v->node_shard->division.grid, 0, v->config->threads,
                            &v->gradient_kernels));
    TAM_TRY(h->row->open(v, &h->inner));
    TAM_TRY(tam_node_open(v, &h->sums));
    TAM_TRY(hierarchical_open_result(h));
    TAM_TRY(open_packets(h));
    TAM_TRY(open_subcomms(h));
    v->result_max = (size_t)v->whole_k_max;
    v->staging_floats = v->config->device == TAMIS_DEVICE_CPU ? 0 : TAM_GRADIENT_PIECE;
    v->decides = false;
    return TAMIS_OK;
}

static void close_hierarchical(void *self, bool in_flight) {
    hierarchical *h = self;
    if (!h)
        return;
    h->row->close(h->inner, in_flight);
    tam_node_close(&h->sums, in_flight);
    tam_subcomm_close(&h->intra, in_flight);
    tam_subcomm_close(&h->inter, in_flight);
    if (!in_flight)
        tam_packets_close(&h->packets);
    if (h->view->gradient_kernels != h->view->kernels)
        h->view->device->close(h->view->gradient_kernels);
    h->view->gradient_kernels = h->view->kernels;
    tam_free(h->owners);
    tam_free(h->lists);
    tam_free(h->ranges);
    tam_free(h->indices);
    tam_free(h->values);
    tam_free(h->decoded);
    tam_free(h->cursors);
    tam_free(h);
}

static tamis_status open_hierarchical(tam_bucket_view *view, void **out) {
    hierarchical *h = tam_alloc(sizeof *h);
    if (!h)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    h->view = view;
    h->row = tam_exchange_flat(view->division->scheme.exchange);
    tamis_status status = hierarchical_open_all(h);
    if (status != TAMIS_OK) {
        close_hierarchical(h, false);
        return status;
    }
    *out = h;
    return TAMIS_OK;
}

static void limit(void *self) {
    hierarchical *h = self;
    const tam_bucket_view *v = h->view;
    tam_exchange_limit(h->row, h->inner);
    tam_packets_limit(&h->packets, tam_budget_max(&v->node_shard->division, v->whole_k));
}

/* -- before the inter-node exchange ----------------------------------------------------------- */

static tamis_status hierarchical_collect(void *self, tam_link *link) {
    hierarchical *h = self;
    tam_link intra = tam_subcomm_link(&h->intra, link);
    TAM_TRY(tam_node_sum(&h->sums, &intra));
    link->call.wire_bytes = intra.call.wire_bytes;
    return TAMIS_OK;
}

static tamis_status hierarchical_accumulate(void *self) {
    hierarchical *h = self;
    tam_bucket_view *v = h->view;
    const tam_accumulate pass = tam_node_pass(&h->sums);
    TAM_TRY(v->device->accumulate(v->kernels, &pass, &v->accumulated));
    return v->target.clear ? tam_gradient_clear(v) : TAMIS_OK;
}

static tamis_status hierarchical_plan(void *self, tam_link *link) {
    hierarchical *h = self;
    return tam_exchange_send(h->row->plan, h->inner, link);
}

static tamis_status hierarchical_select_entries(void *self) {
    hierarchical *h = self;
    return tam_exchange_do(h->row->select, h->inner);
}

/* -- behind it -------------------------------------------------------------------------------- */

/* Header, counters and words: what the inter-node group knows of its own step. */
static void fill_header(hierarchical *h) {
    const tam_bucket_view *v = h->view;
    const tam_outcome *out = &v->out;
    float *counters = tam_packet_own_counters(&h->packets);
    uint32_t *words = tam_packet_own_words(&h->packets);
    h->packets.step = v->step;
    h->packets.last_result = v->last_result;
    tam_packet_begin(&h->packets)->count = (uint32_t)out->local.count;
    tam_counter_set(counters, TAM_COUNTER_DEFERRED, (uint32_t)out->deferred);
    tam_counter_set(counters, TAM_COUNTER_CANDIDATES, (uint32_t)out->candidates);
    tam_counter_set(counters, TAM_COUNTER_NONFINITE,
                    out->nonfinite < UINT32_MAX ? (uint32_t)out->nonfinite : UINT32_MAX);
    counters[TAM_COUNTER_UNKNOWN] = 0.0f;
    counters[TAM_COUNTER_RESCANS] = (float)out->rescans;
    counters[TAM_COUNTERS] = (float)out->norm;
    for (uint32_t a = 0; a < out->headers.nranks; a++)
        words[a] = tam_header_at(&out->headers, a)->count;
    words[v->nranks] = out->bad_first;
}

/* Add up what all inter-node groups say. */
static void add_up_groups(hierarchical *h) {
    tam_bucket_view *v = h->view;
    tam_outcome *out = &v->out;
    uint32_t nlocal = v->node_shard->nlocal, bad_node = v->nranks;
    tam_packets_total(&h->packets, h->counters);
    out->deferred = tam_counter_get(h->counters, TAM_COUNTER_DEFERRED);
    out->candidates = tam_counter_get(h->counters, TAM_COUNTER_CANDIDATES);
    out->nonfinite = tam_counter_get(h->counters, TAM_COUNTER_NONFINITE);
    out->rescans = tam_counter_whole(h->counters[TAM_COUNTER_RESCANS]);
    out->norm = h->counters[TAM_COUNTERS];
    for (uint32_t g = 0; g < nlocal; g++) {
        const uint32_t *words = tam_packet_words_of(&h->packets, g);
        bad_node = words[v->nranks] < bad_node ? words[v->nranks] : bad_node;
        for (uint32_t a = 0; a < v->nranks; a++)
            out->selected[a * nlocal + g] = words[a];
    }
    out->bad_first = bad_node * nlocal;
    out->bad_ranks = nlocal;
    if (out->nonfinite > 0 && v->config->nonfinite != TAMIS_NONFINITE_DROP)
        v->skipped = true;
}

/* Send the sums of this rank's shard to the node, and get those of the other shards. */
static tamis_status hierarchical_gather_results(hierarchical *h, tam_link *link) {
    tam_bucket_view *v = h->view;
    tam_outcome *out = &v->out;
    const tam_entries *local = &out->local;
    size_t count;
    h->packets.config = tam_view_config(v, v->whole_k);
    fill_header(h);
    tam_strided_locate(&h->ranges[v->node_shard->local], local->indices, local->count,
                       tam_packet_own_indices(&h->packets));
    memcpy(tam_packet_own_values(&h->packets), local->values,
           local->count * sizeof local->values[0]);
    TAM_TRY(tam_packets_exchange(&h->packets, link));
    TAM_TRY(tam_merge_exclusive(&h->packets, &v->node_shard->division.grid, h->owners, h->lists,
                                h->indices, &count));
    TAM_TRY(tam_merge_sum_pairs(&h->packets, h->indices, count, h->cursors, h->decoded, h->values));
    out->result = (tam_entries){h->indices, h->values, count};
    add_up_groups(h);
    return TAMIS_OK;
}

/* Ranks already waited for each other in the sum of their node, and each node at its own time, so
 * it is unknown when they began. */
static tamis_status run_hierarchical(void *self, tam_link *link) {
    hierarchical *h = self;
    h->view->began_us = 0;
    tam_link inter = tam_subcomm_link(&h->inter, link);
    TAM_TRY(h->row->run(h->inner, &inter));
    link->call.wire_bytes = inter.call.wire_bytes;
    tam_link intra = tam_subcomm_link(&h->intra, link);
    TAM_TRY(hierarchical_gather_results(h, &intra));
    link->call.wire_bytes = intra.call.wire_bytes;
    return TAMIS_OK;
}

/* -- the end: that of the inter-node exchange, which applies the whole result ----------------- */

static uint64_t hierarchical_drop(void *self) {
    hierarchical *h = self;
    return h->row->drop(h->inner);
}

static tamis_status hierarchical_apply(void *self) {
    hierarchical *h = self;
    return tam_exchange_do(h->row->apply, h->inner);
}

static tamis_status hierarchical_skip(void *self) {
    hierarchical *h = self;
    return tam_exchange_do(h->row->skip, h->inner);
}

const tam_exchange tam_exchange_hierarchical = {
    .traits = TAM_TRAIT_SELECTS | TAM_TRAIT_HAS_RESIDUAL | TAM_TRAIT_LEARNS | TAM_TRAIT_COLLECTS,
    .on_device = TAM_ON_DEVICE_NODES,
    .open = open_hierarchical,
    .close = close_hierarchical,
    .limit = limit,
    .collect = hierarchical_collect,
    .accumulate = hierarchical_accumulate,
    .plan = hierarchical_plan,
    .select = hierarchical_select_entries,
    .run = run_hierarchical,
    .drop = hierarchical_drop,
    .apply = hierarchical_apply,
    .skip = hierarchical_skip,
};
