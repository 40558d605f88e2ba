/* SPDX-License-Identifier: MIT
 *
 * The memory of a sparse step: packets, shards, union and control, and the tables that never
 * change.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"
#include "kernels/codecs/index_code.h"
#include "lib/contracts/value_codec.h"
#include "lib/policy/shards.h"

/* -- memory ----------------------------------------------------------------------------------- */

/* Bytes for the indices of a packet. */
uint64_t tam_cuda_index_capacity(const tam_cuda_plan *plan) {
    return tam_cuda_is_packed(plan) ? plan->codecs.index_bytes
                                    : sizeof(uint32_t) * (uint64_t)plan->packet_capacity;
}

static tam_cuda_value_codec sparse_memory_value_codec_of(tam_cuda_value_codec codec) {
    return codec.bits > 0 ? codec : (tam_cuda_value_codec){.type = TAMIS_VALUE_FLOAT32, .bits = 32};
}

static size_t sparse_memory_bytes_of(tam_cuda_value_codec codec, size_t count) {
    return tam_value_bytes_of(codec.bits, codec.scale_bytes, count);
}

/* Whether the values that are summed, or those in the packets, are quantized. */
static bool sparse_memory_quantizes(const tam_cuda_plan *plan) {
    bool up = sparse_memory_value_codec_of(plan->codecs.up).bits < 32,
         down = sparse_memory_value_codec_of(plan->codecs.down).bits < 32;
    return up || (down && !plan->with_values);
}

static void size_packets(const tam_cuda_plan *plan, tam_cuda_packets *packets) {
    size_t values =
        plan->with_values ? sparse_memory_bytes_of(packets->value_codec, plan->packet_capacity) : 0;
    packets->capacity = plan->packet_capacity;
    packets->index_bytes = (uint32_t)tam_cuda_index_capacity(plan);
    packets->bytes = tam_cuda_round_up(tam_header_bytes(TAM_COUNTERS + plan->nstats) +
                                           packets->index_bytes + values,
                                       TAM_CUDA_PART);
}

static tam_cuda_packets sparse_memory_describe_packets(const tam_cuda_plan *plan) {
    return (tam_cuda_packets){
        .rank = plan->rank,
        .nranks = plan->nranks,
        .first = plan->among.first,
        .stride = plan->among.count > 0 ? plan->among.stride : 1,
        .nstats = plan->nstats,
        .with_values = plan->with_values,
        .value_codec = sparse_memory_value_codec_of(plan->codecs.up),
        .packed = {.index_codec = tam_cuda_is_packed(plan) ? plan->codecs.index : TAMIS_INDEX_AUTO,
                   .span = plan->codecs.span},
    };
}

/* A shard, as bytes: its blocks and, last, its check. */
static size_t shard_bytes(tam_cuda_value_codec codec, uint32_t blocks) {
    return tam_cuda_round_up(
        blocks * tam_header_round(sparse_memory_bytes_of(codec, TAM_VALUE_BLOCK)) +
            sizeof(uint32_t),
        TAM_CUDA_PART);
}

static tam_cuda_rows describe_rows(const tam_cuda_plan *plan) {
    tam_cuda_rows rows = {.length = plan->row_length};
    if (tam_cuda_is_sparse_rows(plan))
        rows.count = (uint32_t)(plan->grid->n / plan->row_length);
    return rows;
}

static void size_rounded(const tam_cuda_plan *plan, tam_cuda_rounded *q) {
    uint64_t blocks = ((uint64_t)plan->union_max + TAM_VALUE_BLOCK - 1) / TAM_VALUE_BLOCK;
    if (plan->with_values || !sparse_memory_quantizes(plan))
        return;
    q->blocks = (uint32_t)tam_shards_most(blocks, plan->nranks);
    q->shard_bytes = shard_bytes(q->up, q->blocks);
    q->sum_bytes = shard_bytes(q->down, q->blocks);
}

static void size_exchange(tam_cuda_step *s) {
    const tam_cuda_plan *plan = &s->plan;
    tam_cuda_exchange *x = &s->exchange;
    size_t values = (plan->union_max + plan->nranks - 1) / plan->nranks;
    size_packets(plan, &x->packets);
    size_rounded(plan, &x->rounded);
    x->shard_length = x->checked ? tam_cuda_round_up(values, 4) + TAM_SHARD_CHECK : 0;
    x->capacity = x->shard_length > 0 ? x->shard_length * plan->nranks : plan->union_max;
}

void tam_cuda_sparse_describe(tam_cuda_step *s, float *acc) {
    const tam_cuda_plan *plan = &s->plan;
    const tam_cuda_device *d = s->device;
    const tam_cuda_rows rows = describe_rows(plan);
    uint64_t span = tam_cuda_is_sparse_rows(plan) ? rows.count : d->grid.n;
    s->exchange = (tam_cuda_exchange){
        .grid = d->grid,
        .packets = sparse_memory_describe_packets(plan),
        .ranges.count = (uint32_t)((span + TAM_RANGE - 1) / TAM_RANGE),
        .rows = rows,
        .scheme = plan->control->scheme,
        .nonfinite = plan->nonfinite,
        .divisor = plan->divisor,
        .matches = plan->update.matches,
        .scale_most = plan->update.scale_most,
        .masked = plan->update.masked,
        .blocks = d->multiprocessors * TAM_EXCHANGE_BLOCKS,
        .found = d->found,
        .selected = d->selected,
        .group_sums = d->group_sums,
        .nsums = tam_cuda_is_sparse_rows(plan) ? 0 : d->grid.ngroups, /* rows have no sums */
        .acc = acc,
        .checked = !plan->with_values && !sparse_memory_quantizes(plan),
        .rounded = {.up = sparse_memory_value_codec_of(plan->codecs.up),
                    .down = sparse_memory_value_codec_of(plan->codecs.down)},
    };
    size_exchange(s);
    s->control = (tam_cuda_control){
        .grid = d->grid,
        .scheme = plan->control->scheme,
        .over = plan->control->over,
        .node_shard = plan->node ? plan->node->own : (tam_cuda_span){0, (uint32_t)d->grid.n},
        .whole = plan->node ? plan->node->grid->n : d->grid.n,
        .quota = plan->quota,
    };
    s->result_max = plan->union_max;
}

static void take_rice(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_packed *packed = &s->exchange.packets.packed;
    size_t pieces = (size_t)s->plan.nranks * tam_rice_pieces(s->exchange.packets.index_bytes);
    packed->zeros =
        tam_cuda_take(arena, s->plan.packet_capacity / TAM_PIECE + 1, sizeof packed->zeros[0]);
    packed->pieces = tam_cuda_take(arena, pieces, sizeof packed->pieces[0]);
    packed->skips = tam_cuda_take(arena, pieces, TAM_BLOCK_THREADS);
}

/* Lists beside the packets, which hold their codes. */
static void take_packed(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_packed *packed = &s->exchange.packets.packed;
    size_t nranks = s->plan.nranks, blocks = (size_t)tam_block16_blocks(packed->span);
    if (packed->index_codec == TAMIS_INDEX_AUTO)
        return;
    packed->parts = s->parts = tam_cuda_take(arena, nranks, sizeof s->parts[0]);
    packed->lists = tam_cuda_take(arena, nranks * s->plan.packet_capacity, sizeof packed->lists[0]);
    if (packed->index_codec == TAMIS_INDEX_BLOCK16)
        packed->offsets = tam_cuda_take(arena, nranks * (blocks + 1), sizeof packed->offsets[0]);
    if (packed->index_codec == TAMIS_INDEX_RICE)
        take_rice(s, arena);
}

static void take_rows(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_rows *rows = &s->exchange.rows;
    if (!tam_cuda_is_sparse_rows(&s->plan))
        return;
    rows->touched = tam_cuda_take(arena, rows->count / 32 + 1, sizeof rows->touched[0]);
    rows->union_rows =
        tam_cuda_take(arena, s->plan.union_max / rows->length, sizeof rows->union_rows[0]);
}

/* Sums travel in the memory of the values, which have left by then. */
static void take_rounded(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_exchange *x = &s->exchange;
    tam_cuda_rounded *q = &x->rounded;
    size_t nranks = s->plan.nranks;
    if (sparse_memory_quantizes(&s->plan))
        x->errors =
            tam_cuda_take(arena, x->packets.with_values ? s->plan.packet_capacity : x->capacity,
                          sizeof x->errors[0]);
    if (q->blocks == 0)
        return;
    q->shards = tam_cuda_take(arena, nranks, sizeof q->shards[0]);
    q->sent =
        tam_cuda_take(arena, nranks, q->shard_bytes > q->sum_bytes ? q->shard_bytes : q->sum_bytes);
    q->received = tam_cuda_take(arena, nranks, q->shard_bytes);
    q->squares = tam_cuda_take(arena, x->capacity / TAM_PIECE + 1, sizeof q->squares[0]);
}

uint32_t *tam_cuda_sparse_take_lists(tam_cuda_exchange *x, size_t most, tam_cuda_arena *arena) {
    size_t ranges = x->ranges.count, nranks = x->packets.nranks;
    x->packets.memory = tam_cuda_take(arena, nranks, x->packets.bytes);
    uint32_t *first_chunk = tam_cuda_take(arena, ranges + 1, sizeof first_chunk[0]);
    x->ranges.first_chunk = first_chunk;
    x->ranges.runs = tam_cuda_take(arena, (ranges + 1) * nranks, sizeof(uint32_t));
    x->ranges.offsets = tam_cuda_take(arena, ranges + 1, sizeof(uint32_t));
    x->ranges.sums = tam_cuda_take(arena, ranges, sizeof(double));
    x->indices = tam_cuda_take(arena, most, sizeof(uint32_t));
    x->values = tam_cuda_take(arena, x->capacity, sizeof(float));
    return first_chunk;
}

/* Includes the buffers of messages: the transport may use them until the stream is idle. */
static void take_exchange(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_exchange *x = &s->exchange;
    uint32_t nranks = s->plan.nranks;
    size_t pieces = (s->plan.packet_capacity + TAM_PIECE - 1) / TAM_PIECE;
    s->first_chunk = tam_cuda_sparse_take_lists(x, s->plan.union_max, arena);
    x->shards = tam_cuda_take(arena, x->shard_length * nranks, sizeof(float));
    x->piece_sums = tam_cuda_take(arena, x->packets.with_values ? pieces : 1, sizeof(double));
    take_rows(s, arena);
    take_packed(s, arena);
    take_rounded(s, arena);
    if (x->matches)
        x->value_sums = tam_cuda_take(arena, x->capacity / TAM_PIECE + 1, sizeof(double));
}

static void sparse_memory_take_control(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_control *c = &s->control;
    uint32_t ngroups = s->device->grid.ngroups;
    s->nobody = tam_cuda_take(arena, 1, sizeof *s->nobody);
    s->spans = tam_cuda_take(arena, s->plan.nranks, sizeof s->spans[0]);
    c->quota.spans = s->spans;
    c->levels = tam_cuda_take(arena, ngroups, sizeof c->levels[0]);
    c->thresholds = tam_cuda_take(arena, ngroups, sizeof c->thresholds[0]);
    c->weights = tam_cuda_take(arena, ngroups, sizeof c->weights[0]);
    c->budgets = tam_cuda_take(arena, ngroups, sizeof c->budgets[0]);
    c->norms = tam_cuda_take(arena, ngroups, sizeof c->norms[0]);
    c->means = tam_cuda_take(arena, ngroups, sizeof c->means[0]);
    c->group_selected = tam_cuda_take(arena, ngroups, sizeof c->group_selected[0]);
    c->order = tam_cuda_take(arena, ngroups, sizeof c->order[0]);
    c->min_keys = tam_cuda_take(arena, s->plan.nranks, sizeof c->min_keys[0]);
}

void tam_cuda_sparse_take(tam_cuda_step *s, tam_cuda_arena *arena) {
    take_exchange(s, arena);
    sparse_memory_take_control(s, arena);
}

/* Chunks are in the order of the tiles, TAM_CHUNK elements apart within a tile. */
static void find_first_chunks(const tam_grid *grid, uint32_t nranges, uint32_t *first_chunk) {
    uint32_t chunk = 0, range = 0;
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        const tam_tile *tile = &grid->tiles[t];
        uint64_t end = (uint64_t)tile->begin + tile->length;
        for (; range < nranges && (uint64_t)range * TAM_RANGE < end; range++)
            first_chunk[range] = chunk + (range * (uint32_t)TAM_RANGE - tile->begin) / TAM_CHUNK;
        chunk += (tile->length + TAM_CHUNK - 1) / TAM_CHUNK;
    }
    first_chunk[nranges] = chunk - 1;
}

tamis_status tam_cuda_sparse_ranges(const tam_cuda_step *s, const tam_grid *grid, uint32_t nranges,
                                    uint32_t *first_chunk) {
    uint32_t *found = tam_alloc_array((size_t)nranges + 1, sizeof found[0]);
    if (!found)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u ranges", nranges);
    find_first_chunks(grid, nranges, found);
    tamis_status status = tam_cuda_queue_write(
        &s->group->queue, found, ((size_t)nranges + 1) * sizeof found[0], first_chunk);
    tam_free(found);
    return status;
}

static tamis_status sparse_memory_upload(tam_cuda_step *s) {
    TAM_TRY(tam_cuda_sparse_ranges(s, s->plan.grid, s->exchange.ranges.count, s->first_chunk));
    if (s->parts)
        TAM_TRY(tam_cuda_queue_write(&s->group->queue, s->plan.codecs.parts,
                                     s->plan.nranks * sizeof s->parts[0], s->parts));
    return tam_cuda_queue_write(&s->group->queue, s->plan.quota.spans,
                                s->plan.nranks * sizeof s->spans[0], s->spans);
}

static void describe_buffers(tam_cuda_step *s) {
    const tam_cuda_exchange *x = &s->exchange;
    const tam_cuda_rounded *q = &x->rounded;
    tam_cuda_step_describe_buffers(s, x, &s->buffers);
    if (q->blocks == 0)
        return;
    s->buffers.shard_bytes = q->shard_bytes;
    s->buffers.sum_bytes = q->sum_bytes;
    s->buffers.values = s->buffers.sums = q->sent;
    s->buffers.shards = q->received;
}

static void repeat_sizes(tam_cuda_step *s) {
    s->control.packets = s->exchange.packets;
    describe_buffers(s);
}

void tam_cuda_sparse_resize(tam_cuda_step *s) {
    size_exchange(s);
    repeat_sizes(s);
}

tamis_status tam_cuda_sparse_fill(tam_cuda_step *s) {
    s->exchange.applied = s->exchange.checked ? s->exchange.shards : s->exchange.values;
    s->control.indices = s->exchange.indices;
    s->control.verdict = &s->exchange.scratch->verdict;
    repeat_sizes(s);
    tam_cuda_params nobody = {.mine = TAM_PART_COMMON};
    TAM_TRY(tam_cuda_queue_write(&s->group->queue, &nobody, sizeof nobody, s->nobody));
    return sparse_memory_upload(s);
}
