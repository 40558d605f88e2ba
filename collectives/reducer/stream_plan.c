/* SPDX-License-Identifier: MIT
 *
 * What a device needs to know to run the steps of a bucket by itself: from the reducer's options to
 * the plan of its kernels and messages.
 */
#include "collectives/reducer/reducer.h"

#ifdef TAM_HAVE_CUDA

#include "collectives/reducer/stream.h"

#include "collectives/exchange/sparse.h"
#include "kernels/cuda/parameters.h"

/* -- capacity --------------------------------------------------------------------------------- */

/* No union exceeds what all ranks send, or the length of the vector. */
static uint32_t union_max(const tam_bucket *b, uint64_t capacity) {
    uint64_t sent = capacity * b->reducer->nranks, n = b->division.grid.n;
    return (uint32_t)(sent < n ? sent : n);
}

static uint64_t bytes_of_indices(tamis_index_codec index, uint64_t span, uint64_t capacity) {
    return tam_header_round((size_t)tam_index_codec_of(index)->bytes(span, capacity));
}

/* For whole_k entries of a bucket, at most. */
static tam_cuda_capacity stream_plan_capacity_of(const tam_bucket *b, tamis_index_codec index,
                                                 uint64_t whole_k) {
    const tam_division *whole = &b->node_shard.division;
    uint64_t most = tam_budget_max(whole, whole_k), n = whole->grid.n;
    uint64_t capacity = tam_selection_most(&b->view, most), all = most * b->node_shard.nlocal;
    return (tam_cuda_capacity){
        .packet_capacity = (uint32_t)capacity,
        .union_max = union_max(b, capacity),
        .index_bytes = bytes_of_indices(index, tam_own_max(&b->division), capacity),
        .result_capacity = (uint32_t)most,
        .result_max = (uint32_t)(all < n ? all : n),
    };
}

tamis_status tam_stream_resize(const tam_bucket *b, uint64_t k) {
    const tamis_reducer *r = b->reducer;
    const tam_cuda_capacity capacity =
        stream_plan_capacity_of(b, b->view.index_codec, tam_bucket_most(b, k));
    return tam_cuda_step_resize(r->inflight->steps[b->view.index], &capacity);
}

/* -- plans ------------------------------------------------------------------------------------ */

static tam_cuda_span span_of(const tam_division *division, uint64_t step, uint32_t rank) {
    uint64_t before, upto;
    tam_budget_span(division, step, rank, &before, &upto);
    return (tam_cuda_span){(uint32_t)before, (uint32_t)upto};
}

static tam_cuda_whole stream_plan_whole_of(const tamis_reducer *r) {
    return (tam_cuda_whole){
        .nbuckets = r->nbuckets,
        .nrow_segments = r->layout->nrow_segments,
        .by_norm = tam_buckets_by_norm(r),
        .lengths = r->lengths,
    };
}

static tam_cuda_update update_of(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    return (tam_cuda_update){
        .moments = r->first || r->second,
        .corrects = r->second != NULL,
        .masked = b->view.masked,
        .matches = tam_update_has_norm_matching(r),
        .scale_most = tam_update_scale_most(r),
    };
}

/* What does not depend on the kind of the step. */
static tam_cuda_plan stream_plan_of(const tam_bucket *b, const tam_cuda_whole *whole) {
    const tamis_reducer *r = b->reducer;
    return (tam_cuda_plan){
        .whole = whole,
        .first = tam_stream_leader(r),
        .bucket = b->view.index,
        .begin = (uint32_t)b->view.begin,
        .grid = &b->division.grid,
        .among = {.first = b->node_shard.local,
                  .stride = b->node_shard.nlocal,
                  .count = r->nranks,
                  .member = r->rank},
        .rank = r->rank,
        .nranks = r->nranks,
        .type = r->config.grad_dtype,
        .divisor = (float)tam_divisor_of_sums(r),
        .update = update_of(b),
        .nonfinite = r->config.nonfinite,
        .sum_order = r->config.sum_order,
        .timeout_ns = r->comm->timeout_ns,
    };
}

static tam_cuda_value_codec stream_plan_value_codec_of(tamis_value_codec type) {
    const tam_value_codec *row = tam_value_codec_of(type);
    return (tam_cuda_value_codec){.type = type, .bits = row->bits, .scale_bytes = row->scale_bytes};
}

/* rice takes a byte less an entry than block16 and, as estimated, up to 0.1 ns more to pack and
 * read (docs/cuda.md): it surely pays where a byte costs 0.16 ns, below 50 Gbit/s. */
static bool pays_for_rice(const tam_bucket *b) {
    return tam_reducer_link(b->reducer).seconds_per_byte > 8.0 / 50e9;
}

/* As where the host drives, but for lists that take the device long: those that one block of
 * threads packs are for whoever asks for them, rice is for links that are not fast. */
static tamis_index_codec stream_plan_choose_index_codec(const tam_bucket *b,
                                                        const tam_packets *packets) {
    enum tam_index_on_device on_device = tam_index_codec_of(packets->index_codec)->on_device;
    if (b->view.index_codec != TAMIS_INDEX_AUTO || on_device == TAM_INDEX_FAST ||
        (on_device == TAM_INDEX_SLOW_LINK && pays_for_rice(b)))
        return packets->index_codec;
    uint64_t words = tam_index_codec_of(TAMIS_INDEX_U32)->bytes(packets->span, packets->capacity);
    uint64_t bytes =
        tam_index_codec_of(TAMIS_INDEX_BLOCK16)->bytes(packets->span, packets->capacity);
    return bytes < words ? TAMIS_INDEX_BLOCK16 : TAMIS_INDEX_U32;
}

static tam_cuda_codecs stream_plan_indices_of(const tam_bucket *b, const tam_packets *packets) {
    tamis_index_codec index = stream_plan_choose_index_codec(b, packets);
    return (tam_cuda_codecs){
        .index = index,
        .index_bytes = bytes_of_indices(index, packets->span, packets->capacity),
        .span = packets->span,
    };
}

/* As many bytes in packets as where the host drives, and the same blocks of values. */
static tam_cuda_codecs codecs_of(const tam_bucket *b, const tam_strided *parts) {
    const tamis_reducer_config *c = &b->reducer->config;
    const tam_packets packets = tam_sparse_packets(&b->view);
    tamis_value_codec up = tam_value_codec_resolve(c->value_codec);
    tam_cuda_codecs codecs = stream_plan_indices_of(b, &packets);
    codecs.parts = parts;
    codecs.up = stream_plan_value_codec_of(up);
    codecs.down = stream_plan_value_codec_of(tam_sum_codec_resolve(c->sum_codec, up));
    return codecs;
}

/* Packets list rows, which every rank may list; values are not rounded, norms not sent. */
static void plan_rows(const tam_bucket *b, tam_strided *parts, tam_cuda_plan *plan) {
    uint32_t length = b->layout->rows[0], count = (uint32_t)b->layout->length / length;
    uint32_t asked = b->reducer->config.rows_capacity, most = asked < count ? asked : count;
    tamis_index_codec index_codec = b->view.index_codec;
    const tam_packets packets = {
        .index_codec = index_codec != TAMIS_INDEX_AUTO ? index_codec
                                                       : tam_index_codec_choose(count, most, false),
        .span = count,
        .capacity = most,
    };
    for (uint32_t part = 0; part < plan->nranks; part++)
        parts[part] = (tam_strided){0, count, count, count};
    plan->codecs = stream_plan_indices_of(b, &packets);
    plan->codecs.parts = parts;
    plan->row_length = length;
    plan->packet_capacity = most;
    plan->union_max = union_max(b, (uint64_t)most * length);
}

/* Tables of a plan, which the step copies. */
typedef struct tables {
    tam_cuda_span *spans;     /* [nranks] */
    tam_strided *parts;       /* [nranks] */
    tam_strided *node_shards; /* [nlocal] */
    tam_cuda_node node;
} tables;

/* The whole bucket has kernels of its own, as where the host drives. */
static tamis_status describe_node(tam_bucket *b, const tam_cuda_capacity *capacity, tables *t) {
    tam_bucket_view *v = &b->view;
    const tam_node_shard *shard = &b->node_shard;
    const tam_division *whole = &shard->division;
    TAM_TRY(v->device->open(&whole->grid, 0, v->config->threads, &v->gradient_kernels));
    for (uint32_t g = 0; g < shard->nlocal; g++)
        t->node_shards[g] = tam_strided_of(whole, g);
    t->node = (tam_cuda_node){
        .device = v->gradient_kernels,
        .grid = &whole->grid,
        .node_shards = t->node_shards,
        .among = {.first = v->comm_rank - shard->local,
                  .stride = 1,
                  .count = shard->nlocal,
                  .member = shard->local},
        .own = span_of(whole, 0, shard->local),
        .run = whole->block,
        .packet_capacity = capacity->result_capacity,
        .result_max = capacity->result_max,
    };
    return TAMIS_OK;
}

static tamis_status open_step(tam_bucket *b, tables *t) {
    tamis_reducer *r = b->reducer;
    tam_cuda_step **step = &r->inflight->steps[b->view.index];
    bool exact = tam_scheme_exact_count(b->scheme);
    const tam_cuda_whole whole = stream_plan_whole_of(r);
    tam_cuda_plan plan = stream_plan_of(b, &whole);
    for (uint32_t i = 0; i < plan.nranks; i++) {
        t->spans[i] = span_of(&b->division, i, plan.rank);
        t->parts[i] = tam_strided_of(&b->division, i);
    }
    plan.codecs = codecs_of(b, t->parts);
    const tam_cuda_capacity capacity =
        stream_plan_capacity_of(b, plan.codecs.index, b->view.whole_k_max);
    if (tam_stream_in_nodes(b)) {
        TAM_TRY(describe_node(b, &capacity, t));
        plan.node = &t->node;
    }
    plan.kind = exact ? TAM_SELECT_TOTAL : TAM_SELECT_ALL;
    plan.weighted = tam_scheme_weighted(b->scheme);
    plan.quota.spans = t->spans;
    plan.quota.capacity = exact ? 0.0 : r->config.capacity;
    plan.quota.ranks = tam_scheme_undivided(b->scheme) ? 1.0 : plan.nranks;
    plan.quota.own = tam_own_max(&b->division);
    plan.packet_capacity = capacity.packet_capacity;
    plan.union_max = capacity.union_max;
    plan.nstats = tam_selection_sums(&b->view);
    plan.with_values = tam_scheme_sends_selected(b->scheme);
    plan.dense_output = r->config.output == TAMIS_OUTPUT_DENSE;
    plan.control = &b->control;
    if (tam_stream_is_sparse_rows(b))
        plan_rows(b, t->parts, &plan);
    b->view.index_codec = plan.codecs.index;
    return tam_cuda_step_open(b->view.kernels, &plan, b->view.acc, step);
}

tamis_status tam_stream_open_sparse(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tables t = {.spans = tam_alloc_array(r->nranks, sizeof t.spans[0]),
                .parts = tam_alloc_array(r->nranks, sizeof t.parts[0]),
                .node_shards = tam_alloc_array(b->node_shard.nlocal, sizeof t.node_shards[0])};
    tamis_status status =
        t.spans && t.parts && t.node_shards
            ? open_step(b, &t)
            : tam_fail(TAMIS_E_NOMEM, "no memory for steps of %u ranks", r->comm->nranks);
    tam_free(t.spans);
    tam_free(t.parts);
    tam_free(t.node_shards);
    return status;
}

tamis_status tam_stream_open_dense(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    tam_cuda_step **step = &r->inflight->steps[b->view.index];
    const tam_cuda_whole whole = stream_plan_whole_of(r);
    const tam_cuda_plan plan = stream_plan_of(b, &whole);
    return tam_cuda_dense_open(b->view.kernels, &plan, TAM_DENSE_PIECE, step);
}

#endif
