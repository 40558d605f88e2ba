/* SPDX-License-Identifier: MIT
 *
 * A whole step of scheme dense, of one bucket: its memory, its phases. A piece is a run of whole
 * chunks. All buckets use one pair of buffers, which fit the largest piece:
 *
 *     values, shares   | share | share | share |      share * nranks >= elements of the piece
 *
 * All of it runs on the stream of the collectives: a piece begins when the previous one has left
 * the buffers. Before the first piece the ranks exchange slots without picks, to check that they
 * sum the same.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* -- pieces ----------------------------------------------------------------------------------- */

/* Cut the chunks, in the order of the tiles, into pieces; `pieces` NULL: only count. */
static uint32_t cut_pieces(const tam_grid *grid, uint64_t most, tam_cuda_piece *pieces) {
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
                                         piece.begin + piece.count, 0};
            }
            piece.count += length;
            piece.end_chunk++;
        }
    }
    if (pieces)
        pieces[count] = piece;
    return count + 1;
}

/* A multiple of 4 floats, so that every share is aligned. */
static uint64_t share_of(const tam_cuda_step *s, uint64_t count) {
    return tam_cuda_round_up((size_t)(count + s->plan.nranks - 1) / s->plan.nranks, 4);
}

static tam_cuda_exchange exchange_of(const tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = s->exchange;
    x.share = share_of(s, s->pieces[piece].count);
    x.room = x.share * s->plan.nranks;
    return x;
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Elements of the largest bucket. */
static uint64_t longest(const tam_cuda_plan *plan) {
    uint64_t most = plan->grid->n;
    for (uint32_t b = 0; plan->whole && b < plan->whole->nbuckets; b++)
        most = plan->whole->lengths[b] > most ? plan->whole->lengths[b] : most;
    return most;
}

static tamis_status describe(tam_cuda_step *s, uint32_t most) {
    const tam_cuda_plan *plan = &s->plan;
    s->npieces = cut_pieces(plan->grid, most, NULL);
    s->pieces = tam_alloc_array(s->npieces, sizeof s->pieces[0]);
    if (!s->pieces)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u pieces of the gradient", s->npieces);
    cut_pieces(plan->grid, most, s->pieces);
    uint64_t n = longest(plan), share = share_of(s, most < n ? most : n);
    s->exchange = (tam_cuda_exchange){
        .grid.n = plan->grid->n, /* no groups: norms are not needed */
        .slots = {.bytes = tam_head_bytes(TAM_TALLIES) + tam_head_round(sizeof(uint32_t)),
                  .rank = plan->rank,
                  .nranks = plan->nranks,
                  .capacity = 1}, /* never used */
        .nonfinite = plan->nonfinite,
        .divisor = plan->divisor,
        .blocks = s->device->multiprocessors * TAM_EXCHANGE_BLOCKS,
        .found = s->device->found,
        .picked = s->device->picked,
        .group_sums = s->device->group_sums,
        .share = share,
        .room = share * plan->nranks,
    };
    return TAMIS_OK;
}

static void take(tam_cuda_step *s, tam_cuda_arena *arena) {
    uint32_t nranks = s->plan.nranks;
    s->exchange.slots.memory = tam_cuda_take(arena, nranks, s->exchange.slots.bytes);
    s->exchange.ranges.runs = tam_cuda_take(arena, nranks, sizeof(uint32_t)); /* of no range */
    if (s->plan.first) {
        s->exchange.values = s->plan.first->exchange.values;
        s->exchange.shares = s->plan.first->exchange.shares;
        return;
    }
    s->exchange.values = tam_cuda_take(arena, s->exchange.room, sizeof(float));
    s->exchange.shares = tam_cuda_take(arena, s->exchange.room, sizeof(float));
}

static tamis_status fill(tam_cuda_step *s) {
    (void)s; /* the sizes of messages are known piece by piece */
    return TAMIS_OK;
}

/* -- state: the number of the step ------------------------------------------------------------ */

static tamis_status load(tam_cuda_step *s, uint64_t number) {
    tam_cuda_turn turn = {.step = number};
    return tam_cuda_lane_write(&s->round->lane, &turn, sizeof turn, s->control.turn);
}

static tamis_status save(tam_cuda_step *s) {
    (void)s;
    return TAMIS_OK;
}

/* -- phases ----------------------------------------------------------------------------------- */

static tamis_status begin(tam_cuda_step *s) {
    TAM_TRY(tam_cuda_step_clear(s));
    TAM_CUDA_LAUNCH(tam_launch_seal(&s->exchange, s->round->lane.stream));
    return TAMIS_OK;
}

tamis_status tam_cuda_dense_check(tam_cuda_step *s) {
    TAM_CUDA_LAUNCH(tam_launch_check(&s->exchange, tam_cuda_travel(s)));
    return TAMIS_OK;
}

tamis_status tam_cuda_dense_widen(tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    TAM_CUDA_LAUNCH(tam_launch_dense_widen(&x, &s->target, &s->pieces[piece], tam_cuda_travel(s)));
    return TAMIS_OK;
}

tamis_status tam_cuda_dense_add(tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    TAM_CUDA_LAUNCH(tam_launch_add(&x, tam_cuda_travel(s)));
    return TAMIS_OK;
}

tamis_status tam_cuda_dense_narrow(tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    TAM_CUDA_LAUNCH(tam_launch_dense_narrow(&x, &s->target, &s->pieces[piece], tam_cuda_travel(s)));
    return TAMIS_OK;
}

/* Nothing to do: narrow has already checked the sums. */
static tamis_status survey(tam_cuda_step *s) {
    (void)s;
    return TAMIS_OK;
}

static tamis_status settle(tam_cuda_step *s) {
    TAM_CUDA_LAUNCH(
        tam_launch_dense_settle(&s->exchange, &s->target, s->control.turn, tam_cuda_travel(s)));
    return TAMIS_OK;
}

static tamis_status finish(tam_cuda_step *first, uint32_t by) {
    const tam_cuda_round *r = first->round;
    TAM_CUDA_LAUNCH(tam_launch_report(&first->exchange, first->control.state, NULL, by,
                                      r->reports[by], r->travel));
    return TAMIS_OK;
}

uint32_t tam_cuda_dense_pieces(const tam_cuda_step *s) {
    return s->npieces;
}

tam_cuda_mail tam_cuda_dense_mail(const tam_cuda_step *s, uint32_t piece) {
    tam_cuda_exchange x = exchange_of(s, piece);
    return (tam_cuda_mail){
        .stream = tam_cuda_travel(s),
        .slots = x.slots.memory,
        .slot_bytes = piece == 0 ? x.slots.bytes : 0,
        .values = x.values,
        .shares = x.shares,
        .sums = x.values + s->plan.rank * x.share,
        .share = (size_t)x.share,
    };
}

/* -- open ------------------------------------------------------------------------------------- */

static const tam_cuda_kind dense = {
    .take = take,
    .fill = fill,
    .load = load,
    .save = save,
    .begin = begin,
    .survey = survey,
    .settle = settle,
    .finish = finish,
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
    tamis_status status = describe(s, piece);
    if (status == TAMIS_OK)
        return tam_cuda_step_make(s, out);
    tam_free(s);
    return status;
}
