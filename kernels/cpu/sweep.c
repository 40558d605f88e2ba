/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/sweep.h"

#include "lib/base/base.h"
#include "lib/base/half.h"
#include "lib/base/fenv.h"

enum {
    WORTH_A_THREAD = 1 << 16, /* elements: some 10 us of work, about the cost of a start */
    PIECE = 2048              /* 16-bit elements widened at a time: fits the first-level cache */
};

static uint32_t longest_tile(const tam_grid *grid) {
    uint32_t most = 0;
    for (uint32_t t = 0; t < grid->ntiles; t++)
        most = grid->tiles[t].length > most ? grid->tiles[t].length : most;
    return most;
}

tamis_status tam_sweep_open(const tam_grid *grid, size_t capacity, uint32_t threads,
                            tam_sweep *out) {
    tam_sweep s = {.grid = grid, .level = tam_tile_best(), .capacity = capacity, .threads = 1};
#ifdef _OPENMP
    s.threads = threads > 0 ? threads : 1;
#else
    (void)threads;
#endif
    s.tile_sums = tam_alloc_array(grid->ntiles, sizeof s.tile_sums[0]);
    s.lanes = tam_alloc_array(s.threads, sizeof s.lanes[0]);
    if (!s.tile_sums || !s.lanes)
        goto err_close;
    /* A tile may begin while the list is not over capacity, and then needs room for all its own
     * elements. The first lane also holds the joined list; another at most its part_of_thread(),
     * below. */
    size_t beyond = longest_tile(grid) + TAM_TILE_SLACK, part_most = grid->n / s.threads;
    for (uint32_t i = 0; i < s.threads; i++) {
        size_t length = (i > 0 && part_most < capacity ? part_most : capacity) + beyond;
        s.lanes[i].index = tam_alloc_array(length, sizeof(uint32_t));
        s.lanes[i].magnitude = tam_alloc_array(length, sizeof(uint32_t));
        if (!s.lanes[i].index || !s.lanes[i].magnitude)
            goto err_close;
    }
    *out = s;
    return TAMIS_OK;

err_close:
    tam_sweep_close(&s);
    return tam_fail(TAMIS_E_NOMEM, "no memory for lists of %zu candidates", capacity);
}

void tam_sweep_close(tam_sweep *s) {
    for (uint32_t i = 0; s->lanes && i < s->threads; i++) {
        tam_free(s->lanes[i].index);
        tam_free(s->lanes[i].magnitude);
    }
    tam_free(s->lanes);
    tam_free(s->tile_sums);
    *s = (tam_sweep){0};
}

void *tam_tile_grad(const tam_grid *grid, const tam_accumulate *job, const tam_tile *tile) {
    size_t bytes = tam_type_bytes(job->type);
    if (job->grad)
        return (char *)job->grad + tile->begin * bytes;
    if (!job->grads)
        return NULL;
    uint32_t segment = grid->groups[tile->group].segment;
    return (char *)job->grads[segment] + (tile->begin - job->seg_begin[segment]) * bytes;
}

/* The first tile of `span` that begins at or after `element`. */
static uint32_t tile_at(const tam_grid *grid, tam_span span, uint64_t element) {
    while (span.first < span.end) {
        uint32_t middle = span.first + (span.end - span.first) / 2;
        if (grid->tiles[middle].begin < element)
            span.first = middle + 1;
        else
            span.end = middle;
    }
    return span.first;
}

static uint64_t span_length(const tam_grid *grid, tam_span span) {
    const tam_tile *last = &grid->tiles[span.end - 1];
    return (uint64_t)last->begin + last->length - grid->tiles[span.first].begin;
}

/* The part of thread i of `threads`: the tiles that begin in its equal part of the elements, so at
 * most length / threads elements plus the longest tile. */
static tam_span part_of_thread(const tam_grid *grid, tam_span span, uint32_t i, uint32_t threads) {
    uint64_t begin = grid->tiles[span.first].begin, length = span_length(grid, span);
    return (tam_span){tile_at(grid, span, begin + length * i / threads),
                      tile_at(grid, span, begin + length * (i + 1) / threads)};
}

/* A tile whose gradient has 16 bits: widen a piece at a time, then run the kernel on it while it is
 * in the cache. Pieces are whole chunks, so the bits are those of a binary32 gradient. */
static void run_narrow(const tam_tile_level *level, const tam_tile_job *tile, tamis_dtype type,
                       uint16_t *grad, tam_tile_out *out) {
    _Alignas(64) float wide[PIECE];
    _Static_assert(PIECE % TAM_TILE_CHUNK == 0, "a piece is made of whole chunks");
    for (uint32_t at = 0; at < tile->length; at += PIECE) {
        tam_tile_job one = *tile;
        one.length = tile->length - at < PIECE ? tile->length - at : PIECE;
        one.acc += at;
        one.base += at;
        one.grad = wide;
        one.clear = false;
        level->widen(type, grad + at, one.length, wide);
        if (tile->clear)
            memset(grad + at, 0, one.length * sizeof grad[0]);
        level->run(&one, out);
    }
}

/* A tile whose segment has rate 0 is given a gradient of zeros, whatever it holds. */
static void run_still(const tam_tile_level *level, const tam_tile_job *tile, tam_tile_out *out) {
    tam_tile_job one = *tile;
    size_t bytes = tile->length * sizeof tile->grad[0];
    one.before = NULL;
    memset(one.grad, 0, bytes);
    level->run(&one, out);
    memcpy(one.grad, tile->before, bytes);
}

/* A tile of what a step of the caller's optimizer has changed. */
static void run_moved(const tam_sweep *s, const tam_accumulate *job, const tam_tile *tile,
                      tam_tile_job *one, tam_tile_out *out) {
    uint32_t segment = s->grid->groups[tile->group].segment;
    float rate = job->rates[segment];
    one->before = job->before[segment] + (tile->begin - job->seg_begin[segment]);
    one->clear = false;
    one->scale = rate != 0.0f ? 1.0f / rate : 1.0f;
    if (rate != 0.0f)
        s->level->run(one, out);
    else
        run_still(s->level, one, out);
}

static void run_held(tam_sweep *s, const tam_accumulate *job, tam_span span, tam_lane *lane) {
    tam_tile_out out = {.index = lane->index, .magnitude = lane->magnitude};
    lane->bad_tile = UINT32_MAX;
    for (uint32_t t = span.first; t < span.end; t++) {
        const tam_tile *tile = &s->grid->tiles[t];
        void *grad = tam_tile_grad(s->grid, job, tile);
        bool select = tam_owns(job->mine, tile) && out.count <= s->capacity;
        tam_tile_job one = {
            .acc = job->acc + tile->begin,
            .grad = grad,
            .decay = job->decay,
            .scale = job->scale,
            .clear = job->clear,
            .optimizer = job->optimizer,
            .length = tile->length,
            .base = tile->begin,
            .threshold = select ? job->thresholds[tile->group] : TAM_INFINITE_BITS,
        };
        if (!grad && !select)
            continue;
        out.sum = 0.0;
        if (grad && job->before)
            run_moved(s, job, tile, &one, &out);
        else if (grad && job->type != TAMIS_DTYPE_FLOAT32)
            run_narrow(s->level, &one, job->type, grad, &out);
        else
            s->level->run(&one, &out);
        if (grad)
            s->tile_sums[t] = out.sum;
        if (out.nonfinite > 0 && lane->bad_tile == UINT32_MAX)
            lane->bad_tile = t;
    }
    lane->count = out.count;
    lane->nonfinite = out.nonfinite;
}

static void run_tiles(tam_sweep *s, const tam_accumulate *job, tam_span span, tam_lane *lane) {
    TAM_FENV_HELD();
    run_held(s, job, span, lane);
}

/* Join the lists of all threads in the first. If they exceed the capacity, they are dropped. */
static void sweep_join(tam_sweep *s, uint32_t threads, tam_candidates *found) {
    tam_lane *first = &s->lanes[0];
    size_t count = first->count, most = s->capacity;
    for (uint32_t i = 1; i < threads; i++) {
        const tam_lane *lane = &s->lanes[i];
        if (count <= most && lane->count <= most - count) {
            memcpy(first->index + count, lane->index, lane->count * sizeof(uint32_t));
            memcpy(first->magnitude + count, lane->magnitude, lane->count * sizeof(uint32_t));
        }
        count += lane->count;
    }
    *found = (tam_candidates){
        .index = first->index,
        .magnitude = first->magnitude,
        .count = count <= most ? count : 0,
        .complete = count <= most,
    };
}

uint64_t tam_sweep_run(tam_sweep *s, const tam_accumulate *job, tam_span span,
                       tam_candidates *found) {
    uint32_t threads = 1;
    if (span.first < span.end && span_length(s->grid, span) >= WORTH_A_THREAD)
        threads = s->threads;
    if (threads == 1) {
        run_tiles(s, job, span, &s->lanes[0]);
    } else {
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
        for (uint32_t i = 0; i < threads; i++)
            run_tiles(s, job, part_of_thread(s->grid, span, i, threads), &s->lanes[i]);
    }
    uint64_t nonfinite = 0;
    for (uint32_t i = threads; i < s->threads; i++)
        s->lanes[i].bad_tile = UINT32_MAX;
    for (uint32_t i = 0; i < threads; i++)
        nonfinite += s->lanes[i].nonfinite;
    sweep_join(s, threads, found);
    return nonfinite;
}

uint32_t tam_sweep_bad_tile(const tam_sweep *s) {
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < s->threads; i++)
        first = s->lanes[i].bad_tile < first ? s->lanes[i].bad_tile : first;
    return first;
}
