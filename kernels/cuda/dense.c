/* SPDX-License-Identifier: MIT
 *
 * A whole step of scheme dense, of one bucket: its memory, its phases. A piece is a run of whole
 * chunks. It has two buffers of the same size:
 *
 *     values, shards   | shard | shard | shard |      shard * nranks >= elements of the piece
 *
 * There are two such pairs, which the pieces of all buckets take in turn: while one pair is on the
 * wire, the kernels work on the other.
 *
 *     coll     packets .       shards 0  shards 1  sums 0   sums 1     shards 2   shards 3  sums 2
 *     comm            check,   widen 1   add 0     add 1    narrow 0,  narrow 1,  add 2     add 3
 *                     widen 0                               widen 2    widen 3
 *
 * A collective follows the kernels enqueued before it, and a kernel the collective before it on its
 * buffers (`arrived`). So a buffer is free again when its piece was narrowed, in the order of
 * `comm` alone, and a bucket leaves nothing behind on the wire. Before the first piece the ranks
 * exchange empty packets, to check that they sum the same.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* -- pieces ----------------------------------------------------------------------------------- */

/* Split the chunks, in the order of the tiles, into pieces; `pieces` NULL: only count. */
static uint32_t dense_split_pieces(const tam_grid *grid, uint64_t most, tam_cuda_piece *pieces) {
    tam_cuda_piece piece = {0};
    uint32_t count = 0;
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        for (uint32_t at = 0; at < grid->tiles[t].length; at += TAM_CHUNK) {
            uint32_t left = grid->tiles[t].length - at;
            uint32_t length = left < TAM_CHUNK ? left : TAM_CHUNK;
            if ((uint64_t)piece.count + length > most) {
                if (pieces)
                    pieces[count] = piece;
                count++;
                piece = (tam_cuda_piece){piece.end_chunk, piece.end_chunk,
                                         piece.begin + piece.count, 0, 0};
            }
            piece.count += length;
            piece.end_chunk++;
        }
    }
    if (pieces)
        pieces[count] = piece;
    return count + 1;
}

static bool flags(const tam_cuda_step *s) {
    return s->plan.sum_order == TAMIS_SUM_ORDER_TRANSPORT;
}

/* A multiple of 4 floats, so that every shard is aligned. */
static uint64_t dense_shard_length_of(const tam_cuda_step *s, uint64_t count) {
    uint64_t sent = count + flags(s);
    return tam_cuda_round_up((size_t)(sent + s->plan.nranks - 1) / s->plan.nranks, 4);
}

/* All pieces but the last are sent as long as the longest can be, whatever the chunks that they
 * hold: then a warm-up covers all sizes. */
static tam_cuda_exchange exchange_of(const tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = s->exchange;
    x.values += piece % 2 * s->exchange.capacity;
    x.shards += piece % 2 * s->exchange.capacity;
    if (piece + 1 == s->npieces)
        x.shard_length = dense_shard_length_of(s, s->pieces[piece].count);
    x.capacity = x.shard_length * s->plan.nranks;
    return x;
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Elements of the largest bucket. */
static uint64_t dense_longest(const tam_cuda_plan *plan) {
    uint64_t most = plan->grid->n;
    for (uint32_t b = 0; plan->whole && b < plan->whole->nbuckets; b++)
        most = plan->whole->lengths[b] > most ? plan->whole->lengths[b] : most;
    return most;
}

static tamis_status dense_describe(tam_cuda_step *s) {
    const tam_cuda_plan *plan = &s->plan;
    s->npieces = dense_split_pieces(plan->grid, s->piece, NULL);
    s->pieces = tam_alloc_array(s->npieces, sizeof s->pieces[0]);
    if (!s->pieces)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u pieces of the gradient", s->npieces);
    dense_split_pieces(plan->grid, s->piece, s->pieces);
    for (uint32_t p = 0; p < s->npieces; p++)
        s->pieces[p].flagged = flags(s);
    uint64_t n = dense_longest(plan), shard = dense_shard_length_of(s, s->piece < n ? s->piece : n);
    s->exchange = (tam_cuda_exchange){
        .grid.n = plan->grid->n, /* no groups: norms are not needed */
        .packets = {.bytes = tam_cuda_round_up(tam_header_bytes(TAM_COUNTERS) + sizeof(uint32_t),
                                               TAM_CUDA_PART),
                    .rank = plan->rank,
                    .nranks = plan->nranks,
                    .stride = 1,
                    .capacity = 1}, /* never used */
        .nonfinite = plan->nonfinite,
        .divisor = plan->divisor,
        .blocks = s->device->multiprocessors * TAM_EXCHANGE_BLOCKS,
        .found = s->device->found,
        .selected = s->device->selected,
        .group_sums = s->device->group_sums,
        .shard_length = shard,
        .capacity = shard * plan->nranks,
    };
    return TAMIS_OK;
}

static void dense_take(tam_cuda_step *s, tam_cuda_arena *arena) {
    uint32_t nranks = s->plan.nranks, pairs = dense_longest(&s->plan) > s->piece ? 2 : 1;
    s->exchange.packets.memory = tam_cuda_take(arena, nranks, s->exchange.packets.bytes);
    s->exchange.ranges.runs = tam_cuda_take(arena, nranks, sizeof(uint32_t)); /* of no range */
    if (s->plan.first) {
        s->exchange.values = s->plan.first->exchange.values;
        s->exchange.shards = s->plan.first->exchange.shards;
        return;
    }
    s->exchange.values = tam_cuda_take(arena, pairs * s->exchange.capacity, sizeof(float));
    s->exchange.shards = tam_cuda_take(arena, pairs * s->exchange.capacity, sizeof(float));
}

static tamis_status dense_fill(tam_cuda_step *s) {
    tam_cuda_bucket_group *r = s->group;
    if (s->plan.first)
        return TAMIS_OK;
    TAM_TRY(tam_cuda_stream_open(TAM_CUDA_URGENT, &r->coll));
    TAM_TRY(tam_cuda_event_open(&r->handed));
    TAM_TRY(tam_cuda_event_open(&r->arrived[0]));
    return tam_cuda_event_open(&r->arrived[1]);
}

/* -- state: the number of the step ------------------------------------------------------------ */

static tamis_status dense_load(tam_cuda_step *s, uint64_t number) {
    tam_cuda_params params = {.step = number};
    return tam_cuda_queue_write(&s->group->queue, &params, sizeof params, s->control.params);
}

static tamis_status dense_save(tam_cuda_step *s, const tam_cuda_past *past) {
    (void)s;
    (void)past;
    return TAMIS_OK;
}

/* -- phases ----------------------------------------------------------------------------------- */

static tamis_status dense_begin(tam_cuda_step *s) {
    TAM_CUDA_LAUNCH(tam_launch_seal(&s->exchange, s->group->queue.stream));
    return TAMIS_OK;
}

/* Nothing to do: narrow has already checked the sums. */
static tamis_status dense_validate(tam_cuda_step *s) {
    (void)s;
    return TAMIS_OK;
}

static tamis_status dense_apply_result(tam_cuda_step *s) {
    TAM_CUDA_LAUNCH(tam_launch_dense_apply(&s->exchange, &s->target, s->control.params,
                                           tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

static tamis_status dense_finish(tam_cuda_step *first, uint32_t by) {
    const tam_cuda_reporting reporting = tam_cuda_bucket_group_reporting(first, by);
    TAM_CUDA_LAUNCH(tam_launch_report(&reporting, first->group->comm_stream));
    return TAMIS_OK;
}

uint32_t tam_cuda_dense_pieces(const tam_cuda_step *s) {
    return s->npieces;
}

tam_cuda_comm_buffers tam_cuda_dense_buffers(const tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    tam_cuda_comm_buffers buffers;
    tam_cuda_step_describe_buffers(s, &x, &buffers);
    buffers.stream = s->group->coll;
    if (piece > 0)
        buffers.packet_bytes = 0;
    return buffers;
}

/* -- pieces take turns ------------------------------------------------------------------------ */

/* Which of the events tells when the buffers of a piece are back. */
static cudaEvent_t arrival_of(const tam_cuda_step *s, uint32_t piece) {
    return s->group->arrived[piece % 2];
}

/* A collective on the wire, behind the kernels enqueued so far. */
static tamis_status send(tam_cuda_step *s, uint32_t piece, tam_cuda_comm_phase phase,
                         tam_cuda_enqueue_comm enqueue_comm, void *context) {
    const tam_cuda_bucket_group *r = s->group;
    tam_cuda_comm_buffers buffers = tam_cuda_dense_buffers(s, piece);
    TAM_TRY(tam_cuda_follow(r->coll, r->comm_stream, r->handed));
    TAM_TRY(enqueue_comm(context, &buffers, phase));
    TAM_CUDA_TRY(cudaEventRecord(arrival_of(s, piece), r->coll), "sending a piece");
    return TAMIS_OK;
}

/* Later kernels follow the last collective on the buffers of this piece. */
static tamis_status dense_receive(const tam_cuda_step *s, uint32_t piece) {
    TAM_CUDA_TRY(cudaStreamWaitEvent(s->group->comm_stream, arrival_of(s, piece), 0),
                 "receiving a piece");
    return TAMIS_OK;
}

static tamis_status dense_widen(tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    TAM_CUDA_LAUNCH(
        tam_launch_dense_widen(&x, &s->target, &s->pieces[piece], tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

static tamis_status dense_add(tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    TAM_TRY(dense_receive(s, piece));
    TAM_CUDA_LAUNCH(tam_launch_add(&x, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

static tamis_status dense_narrow(tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    if (flags(s))
        x.values = x.shards;
    TAM_TRY(dense_receive(s, piece));
    TAM_CUDA_LAUNCH(
        tam_launch_dense_narrow(&x, &s->target, &s->pieces[piece], tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

/* What a piece goes through before it is narrowed: kernels, and a collective after each. */
typedef struct route {
    uint32_t count;
    struct {
        tamis_status (*prepare)(tam_cuda_step *step, uint32_t piece);
        tam_cuda_comm_phase phase;
    } stages[2];
} route;

static const route *route_of(const tam_cuda_step *s) {
    static const route routes[] = {
        [TAMIS_SUM_ORDER_TREE] = {2, {{dense_widen, TAM_CUDA_SHARDS}, {dense_add, TAM_CUDA_SUMS}}},
        [TAMIS_SUM_ORDER_TRANSPORT] = {1, {{dense_widen, TAM_CUDA_VALUES}}},
    };
    return &routes[s->plan.sum_order];
}

/* The piece that had the buffers before is narrowed first. */
static tamis_status dense_advance(tam_cuda_step *s, uint32_t piece, uint32_t stage,
                                  tam_cuda_enqueue_comm enqueue_comm, void *context) {
    const route *way = route_of(s);
    if (stage == 0 && piece >= 2 && piece - 2 < s->npieces)
        TAM_TRY(dense_narrow(s, piece - 2));
    if (piece >= s->npieces)
        return TAMIS_OK;
    TAM_TRY(way->stages[stage].prepare(s, piece));
    return send(s, piece, way->stages[stage].phase, enqueue_comm, context);
}

static tamis_status check_packets(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                  void *context) {
    TAM_TRY(send(s, 0, TAM_CUDA_PACKETS, enqueue_comm, context));
    TAM_TRY(dense_receive(s, 0));
    TAM_CUDA_LAUNCH(tam_launch_check(&s->exchange, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

/* Two at a time; two places beyond the last piece, for what is then still under way. */
tamis_status tam_cuda_dense_reduce(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                   void *context) {
    TAM_TRY(check_packets(s, enqueue_comm, context));
    for (uint32_t first = 0; first < s->npieces + 2; first += 2) {
        for (uint32_t stage = 0; stage < route_of(s)->count; stage++) {
            TAM_TRY(dense_advance(s, first, stage, enqueue_comm, context));
            TAM_TRY(dense_advance(s, first + 1, stage, enqueue_comm, context));
        }
    }
    return TAMIS_OK;
}

static tamis_status dense_warm_up(tam_cuda_step *s, uint32_t piece,
                                  tam_cuda_enqueue_comm enqueue_comm, void *context) {
    const route *way = route_of(s);
    tam_cuda_comm_buffers buffers = tam_cuda_dense_buffers(s, piece);
    for (uint32_t i = 0; i < way->count; i++)
        TAM_TRY(enqueue_comm(context, &buffers, way->stages[i].phase));
    return TAMIS_OK;
}

tamis_status tam_cuda_dense_warm_up(tam_cuda_step *s, tam_cuda_enqueue_comm enqueue_comm,
                                    void *context) {
    tam_cuda_comm_buffers buffers = tam_cuda_dense_buffers(s, 0);
    TAM_TRY(enqueue_comm(context, &buffers, TAM_CUDA_PACKETS));
    TAM_TRY(dense_warm_up(s, 0, enqueue_comm, context));
    return s->npieces > 1 ? dense_warm_up(s, s->npieces - 1, enqueue_comm, context) : TAMIS_OK;
}

/* -- open ------------------------------------------------------------------------------------- */

static const tam_cuda_kind dense = {
    .urgency = TAM_CUDA_BRISK, /* the messages beside its kernels go first */
    .take = dense_take,
    .fill = dense_fill,
    .load = dense_load,
    .save = dense_save,
    .begin = dense_begin,
    .validate = dense_validate,
    .apply = dense_apply_result,
    .finish = dense_finish,
};

tamis_status tam_cuda_dense_open(void *device, const tam_cuda_plan *plan, uint32_t piece,
                                 tam_cuda_step **out) {
    if (piece < TAM_CHUNK || plan->rank >= plan->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "rank %u of %u cannot reduce pieces of %u elements",
                        plan->rank, plan->nranks, piece);
    tam_cuda_step *s = tam_alloc(sizeof *s);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a step");
    s->kind = &dense;
    s->device = device;
    s->plan = *plan;
    s->piece = piece;
    tamis_status status = dense_describe(s);
    if (status == TAMIS_OK)
        return tam_cuda_step_make(s, out);
    tam_free(s);
    return status;
}
