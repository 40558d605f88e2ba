/* SPDX-License-Identifier: MIT
 *
 * A step of a bucket with nodes: a sparse step among the ranks of an inter-node group, on a shard
 * of the sum of each node, and what happens inside the node before and behind it (node.cu).
 *
 *     gradient   | 0 . 0 . 0 . | 1 . 1 . 1 . | 0 . 0 . 0 . | 1 . 1 . 1 . | ...       runs of shards
 *     piece      `------------------------------------------------------'
 *     shard 0    | 0 . 0 . 0 . 0 . 0 . 0 . | check |     to rank 0 of the node
 *     shard 1    | 1 . 1 . 1 . 1 . 1 . 1 . | check |     to rank 1
 *
 * All pieces but the last are equally long, so NCCL sees every size in the warm-up. One stream
 * does everything: collectives must come in the same order on all ranks, and those of the sum come
 * before a bucket is compressed.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

struct tam_cuda_inside {
    tam_cuda_node plan;
    tam_cuda_gathered sum;
    tam_cuda_accumulate pass;  /* over the own shard of the sum */
    tam_cuda_exchange results; /* of the shards, as lists with values of exclusive owners */
    tam_strided *node_shards;  /* device: sum.node_shards */
    uint32_t *first_chunk;     /* device: results.ranges.first_chunk */
    tam_cuda_stretch *pieces;  /* host: [npieces] */
    uint32_t npieces;
};

/* -- pieces ----------------------------------------------------------------------------------- */

enum { CHECK = 4 }; /* floats at the end of a shard, of which the last is its check */

static uint64_t node_longest(const tam_cuda_node *node) {
    uint64_t most = 0;
    for (uint32_t g = 0; g < node->among.count; g++)
        most = node->node_shards[g].length > most ? node->node_shards[g].length : most;
    return most;
}

/* Positions of a piece in every shard: whole runs, and a multiple of four, so that sums are
 * aligned. */
static uint64_t positions_of(const tam_cuda_node *node) {
    uint64_t turns = TAM_DENSE_PIECE / ((uint64_t)node->run * node->among.count) / 4 * 4;
    return (turns > 0 ? turns : 4) * node->run;
}

static uint64_t node_shard_length_of(uint64_t positions) {
    return tam_cuda_round_up(positions, 4) + CHECK;
}

/* The chunks of the bucket that begin before element `end`, from chunk `first` on; tiles end where
 * runs do. @param tile  [in,out] the first tile behind them */
static uint32_t chunks_before(const tam_grid *grid, uint64_t end, uint32_t first, uint32_t *tile) {
    for (; *tile < grid->ntiles && grid->tiles[*tile].begin < end; (*tile)++)
        first += (grid->tiles[*tile].length + TAM_CHUNK - 1) / TAM_CHUNK;
    return first;
}

static tamis_status node_split_pieces(tam_cuda_inside *in) {
    const tam_cuda_node *node = &in->plan;
    uint64_t most = positions_of(node), length = node_longest(node);
    uint32_t chunk = 0, tile = 0;
    in->npieces = (uint32_t)((length + most - 1) / most);
    in->pieces = tam_alloc_array(in->npieces, sizeof in->pieces[0]);
    if (!in->pieces)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u pieces of a node's gradients",
                        in->npieces);
    for (uint32_t p = 0; p < in->npieces; p++) {
        uint64_t first = p * most, left = length - first;
        bool last = p + 1 == in->npieces;
        uint32_t end = chunks_before(
            node->grid, last ? node->grid->n : (first + most) * node->among.count, chunk, &tile);
        in->pieces[p] = (tam_cuda_stretch){chunk, end, (uint32_t)first, last,
                                           node_shard_length_of(last ? left : most)};
        chunk = end;
    }
    return TAMIS_OK;
}

/* -- memory ----------------------------------------------------------------------------------- */

static void size_results(const tam_cuda_node *node, tam_cuda_exchange *results) {
    tam_cuda_packets *packets = &results->packets;
    size_t header = tam_header_bytes(TAM_COUNTERS + packets->nstats + packets->nwords);
    packets->capacity = node->packet_capacity;
    packets->index_bytes = (uint32_t)sizeof(uint32_t) * node->packet_capacity;
    packets->bytes = tam_cuda_round_up(header + packets->index_bytes +
                                           sizeof(float) * (size_t)node->packet_capacity,
                                       TAM_CUDA_PART);
    results->capacity = node->result_max;
}

static tam_cuda_packets node_describe_packets(const tam_cuda_node *node, uint32_t nnodes) {
    return (tam_cuda_packets){
        .rank = node->among.member,
        .nranks = node->among.count,
        .first = node->among.first,
        .stride = node->among.stride,
        .nstats = 1,          /* the norm of the shard */
        .nwords = nnodes + 1, /* entries of each rank between nodes; first node with a bad entry */
        .with_values = 1,
        .value_codec = {.type = TAMIS_VALUE_FLOAT32, .bits = 32},
    };
}

/* An inter-node group skips no step by itself. */
static void node_describe(tam_cuda_step *s) {
    tam_cuda_inside *in = s->inside;
    const tam_cuda_node *node = &in->plan;
    in->results = (tam_cuda_exchange){
        .grid = s->whole->grid,
        .packets = node_describe_packets(node, s->plan.nranks),
        .ranges.count = (uint32_t)((node->grid->n + TAM_RANGE - 1) / TAM_RANGE),
        .scheme.ownership = TAM_OWN_CYCLIC,
        .nonfinite = s->plan.nonfinite,
        .divisor = s->plan.divisor,
        .blocks = s->exchange.blocks,
        .still = true,
        .decides = s->plan.bucket + 1 == (s->plan.whole ? s->plan.whole->nbuckets : 1),
        .found = s->device->found,
        .selected = s->device->selected,
        .group_sums = s->device->group_sums,
        .nsums = s->device->grid.ngroups,
    };
    size_results(node, &in->results);
    in->sum = (tam_cuda_gathered){
        .local = node->among.member,
        .nlocal = node->among.count,
        .first_rank = node->among.first,
        .length = s->device->grid.n,
    };
    s->exchange.nonfinite = TAMIS_NONFINITE_DROP;
    s->whole = node->device;
    s->outcome = &in->results;
    s->result_max = node->result_max;
}

static size_t scratch(const tam_cuda_step *s) {
    const tam_cuda_inside *in = s->inside;
    return tam_cuda_scratch_bytes(&in->results) + 2 * in->sum.nlocal * sizeof(uint64_t);
}

static void node_lay_out(tam_cuda_step *s, unsigned char *scratch) {
    tam_cuda_inside *in = s->inside;
    uint64_t *checks = (uint64_t *)(void *)tam_cuda_lay_out_scratch(&in->results, scratch);
    in->sum.checks[0] = checks;
    in->sum.checks[1] = checks + in->sum.nlocal;
}

static void node_take(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_inside *in = s->inside;
    tam_cuda_gathered *sum = &in->sum;
    size_t shards = sum->nlocal * (size_t)in->pieces[0].shard_length;
    tam_cuda_sparse_take(s, arena);
    in->first_chunk = tam_cuda_sparse_take_lists(&in->results, in->results.capacity, arena);
    in->node_shards = tam_cuda_take(arena, sum->nlocal, sizeof in->node_shards[0]);
    sum->node_shards = in->node_shards;
    sum->sent = tam_cuda_take(arena, shards, sizeof(float));
    sum->received = tam_cuda_take(arena, shards, sizeof(float));
    sum->sum = tam_cuda_take(arena, tam_cuda_round_up(sum->length, 4), sizeof(float));
    sum->pass = tam_cuda_take(arena, 1, sizeof *sum->pass);
}

static tamis_status node_fill(tam_cuda_step *s) {
    tam_cuda_inside *in = s->inside;
    const tam_cuda_node *node = &in->plan;
    tam_cuda_step_connect(s, &in->results);
    in->results.applied = in->results.values;
    TAM_TRY(tam_cuda_sparse_fill(s));
    s->control.results = in->results.packets;
    in->pass = tam_cuda_pass_of(s, s->device, in->sum.pass); /* in float32 */
    TAM_TRY(tam_cuda_queue_write(&s->group->queue, node->node_shards,
                                 node->among.count * sizeof node->node_shards[0], in->node_shards));
    return tam_cuda_sparse_ranges(s, node->grid, in->results.ranges.count, in->first_chunk);
}

static void node_resize(tam_cuda_step *s, const tam_cuda_capacity *capacity) {
    tam_cuda_inside *in = s->inside;
    in->plan.packet_capacity = capacity->result_capacity;
    in->plan.result_max = capacity->result_max;
    size_results(&in->plan, &in->results);
    s->control.results = in->results.packets;
}

static void close_node(tam_cuda_step *s) {
    tam_free(s->inside->pieces);
    tam_free(s->inside);
}

/* -- collectives ------------------------------------------------------------------------------ */

static tam_cuda_comm_buffers buffers_of_piece(const tam_cuda_step *s,
                                              const tam_cuda_stretch *piece) {
    const tam_cuda_inside *in = s->inside;
    return (tam_cuda_comm_buffers){
        .stream = tam_cuda_comm_stream(s),
        .among = in->plan.among,
        .shard_bytes = (size_t)piece->shard_length * sizeof(float),
        .values = (unsigned char *)in->sum.sent,
        .shards = (unsigned char *)in->sum.received,
    };
}

static tam_cuda_comm_buffers buffers_of_results(const tam_cuda_step *s) {
    tam_cuda_comm_buffers buffers;
    tam_cuda_step_describe_buffers(s, &s->inside->results, &buffers);
    return buffers;
}

uint64_t tam_cuda_node_bytes(const tam_cuda_step *s) {
    const tam_cuda_inside *in = s->inside;
    uint64_t bytes = in->results.packets.bytes;
    for (uint32_t p = 0; p < in->npieces; p++)
        bytes += in->pieces[p].shard_length * sizeof(float);
    return (in->plan.among.count - 1) * bytes;
}

/* As many as in a step, and in its order: another rank may be in one (tam_cuda_step_announce). */
tamis_status tam_cuda_node_warm_up(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                   tam_cuda_enqueue inter, void *context) {
    const tam_cuda_inside *in = s->inside;
    tam_cuda_comm_buffers results = buffers_of_results(s);
    for (uint32_t p = 0; p < in->npieces; p++) {
        tam_cuda_comm_buffers buffers = buffers_of_piece(s, &in->pieces[p]);
        TAM_TRY(enqueue_comm(context, &buffers, TAM_CUDA_SHARDS));
    }
    TAM_TRY(inter(context, s));
    return enqueue_comm(context, &results, TAM_CUDA_PACKETS);
}

/* -- phases ----------------------------------------------------------------------------------- */

/* Collectives come first. */
static tamis_status node_begin(tam_cuda_step *s) {
    (void)s;
    return TAMIS_OK;
}

static tamis_status node_collect(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                 void *context) {
    const tam_cuda_inside *in = s->inside;
    void *stream = tam_cuda_comm_stream(s);
    for (uint32_t p = 0; p < in->npieces; p++) {
        const tam_cuda_stretch *piece = &in->pieces[p];
        tam_cuda_comm_buffers buffers = buffers_of_piece(s, piece);
        TAM_CUDA_LAUNCH(tam_launch_node_send(&s->exchange, &in->sum, &s->target, piece, stream));
        TAM_TRY(enqueue_comm(context, &buffers, TAM_CUDA_SHARDS));
        TAM_CUDA_LAUNCH(tam_launch_node_add(&s->exchange, &in->sum, &s->target, piece, stream));
    }
    if (s->plan.dense_output)
        TAM_CUDA_LAUNCH(tam_launch_node_clear(&s->exchange, &s->target, stream));
    return TAMIS_OK;
}

static tamis_status node_gather_results(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                        void *context) {
    const tam_cuda_inside *in = s->inside;
    void *stream = tam_cuda_comm_stream(s);
    tam_cuda_comm_buffers buffers = buffers_of_results(s);
    TAM_TRY(tam_cuda_sparse_validate(s));
    TAM_CUDA_LAUNCH(tam_launch_node_seal(&s->exchange, &in->results, &in->sum, stream));
    TAM_TRY(enqueue_comm(context, &buffers, TAM_CUDA_PACKETS));
    TAM_CUDA_LAUNCH(tam_launch_check(&in->results, stream));
    TAM_CUDA_LAUNCH(tam_launch_union(&in->results, stream));
    return TAMIS_OK;
}

tamis_status tam_cuda_node_exchange(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                    tam_cuda_enqueue inter, void *context) {
    TAM_TRY(node_collect(s, enqueue_comm, context));
    TAM_TRY(tam_cuda_sparse_select(s, &s->inside->pass));
    TAM_TRY(inter(context, s));
    return node_gather_results(s, enqueue_comm, context);
}

static tamis_status node_validate(tam_cuda_step *s) {
    TAM_CUDA_LAUNCH(tam_launch_validate(&s->inside->results, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

/* The result between nodes leaves the residual; that of the node is the result, whose hash
 * stays. */
static tamis_status node_apply_result(tam_cuda_step *s) {
    tam_cuda_accumulate target = s->target, none = s->target;
    none.source = NULL;
    if (!s->plan.dense_output)
        target.source = NULL;
    TAM_CUDA_LAUNCH(tam_launch_apply_result(&s->exchange, &none, tam_cuda_comm_stream(s)));
    TAM_CUDA_LAUNCH(tam_launch_apply_result(&s->inside->results, &target, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

/* -- open ------------------------------------------------------------------------------------- */

static const tam_cuda_kind in_nodes = {
    .alone = true,
    .take = node_take,
    .fill = node_fill,
    .load = tam_cuda_sparse_load,
    .save = tam_cuda_sparse_save,
    .begin = node_begin,
    .validate = node_validate,
    .apply = node_apply_result,
    .finish = tam_cuda_sparse_finish,
    .scratch = scratch,
    .lay_out = node_lay_out,
    .resize = node_resize,
    .close = close_node,
};

static tamis_status node_check(const tam_cuda_plan *plan) {
    const tam_cuda_node *node = plan->node;
    if (plan->with_values || plan->update.moments || node->among.member >= node->among.count)
        return tam_fail(TAMIS_E_ARGUMENT, "rank %u of the %u of a node cannot run such a step",
                        node->among.member, node->among.count);
    if (node->packet_capacity == 0 || node->packet_capacity > UINT32_MAX / sizeof(uint32_t))
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "the results of a shard with room for %u entries would exceed 4 GiB; "
                        "lower the density or use smaller buckets",
                        node->packet_capacity);
    return TAMIS_OK;
}

tamis_status tam_cuda_node_join(tam_cuda_step *s) {
    TAM_TRY(node_check(&s->plan));
    s->inside = tam_alloc(sizeof *s->inside);
    if (!s->inside)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a step of a node");
    s->inside->plan = *s->plan.node;
    s->kind = &in_nodes;
    s->whole = s->inside->plan.device;
    node_describe(s);
    return node_split_pieces(s->inside);
}
