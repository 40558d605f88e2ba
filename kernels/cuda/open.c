/* SPDX-License-Identifier: MIT
 *
 * Opening and closing the device row of CUDA: the grid in device memory, lists and scratch.
 */
#include "kernels/cuda/row.h"
#include "lib/base/base.h"

static const uint64_t POOL_MIN = 1 << 20;
static const uint64_t GRACE_NS = 500000000; /* at close, for work that a failure left behind */

static uint32_t chunks_in(const tam_tile *tile) {
    return (tile->length + TAM_CHUNK - 1) / TAM_CHUNK;
}

static tamis_status copy_grid(tam_cuda_row *row, const tam_grid *grid) {
    tam_cuda_grid *view = &row->device.grid;
    row->tile_chunks = tam_alloc_array((size_t)grid->ntiles + 1, sizeof row->tile_chunks[0]);
    if (!row->tile_chunks)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u tiles", grid->ntiles);
    for (uint32_t t = 0; t < grid->ntiles; t++)
        row->tile_chunks[t + 1] = row->tile_chunks[t] + chunks_in(&grid->tiles[t]);
    *view = (tam_cuda_grid){
        .n = grid->n,
        .ntiles = grid->ntiles,
        .ngroups = grid->ngroups,
        .nchunks = row->tile_chunks[grid->ntiles],
    };
    row->chunks = tam_alloc_array(view->nchunks, sizeof row->chunks[0]);
    if (!row->chunks)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u chunks", view->nchunks);
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        const tam_tile *tile = &grid->tiles[t];
        tam_cuda_chunk *to = row->chunks + row->tile_chunks[t];
        for (uint32_t at = 0; at < tile->length; at += TAM_CHUNK) {
            uint32_t left = tile->length - at;
            *to++ = (tam_cuda_chunk){tile->begin + at, left < TAM_CHUNK ? left : TAM_CHUNK,
                                     tile->group, tile->part};
        }
    }
    return TAMIS_OK;
}

static uint32_t divide_up(uint32_t x, uint32_t by) {
    return x / by + (x % by > 0);
}

/* Blocks and their runs, in which every warp has equally many chunks. */
static void choose_blocks(tam_cuda_grid *grid, uint32_t multiprocessors) {
    uint32_t walks = divide_up(grid->nchunks, TAM_BLOCK_WARPS);
    uint32_t each = divide_up(walks, multiprocessors * TAM_PASS_RUNS);
    grid->run = TAM_BLOCK_WARPS * each;
    grid->nruns = divide_up(grid->nchunks, grid->run);
    grid->blocks = multiprocessors * TAM_PASS_RESIDENT;
    if (grid->blocks > grid->nruns)
        grid->blocks = grid->nruns;
}

/* Sizes of lists that hold what the walk may write; see view.h. */
static void choose_sizes(tam_cuda_device *d, size_t capacity) {
    const tam_cuda_grid *grid = &d->grid;
    uint64_t batches = (uint64_t)TAM_BATCH * ((uint64_t)grid->blocks * TAM_BLOCK_WARPS + 1);
    uint64_t pool = 2 * (uint64_t)capacity + batches;
    uint64_t enough = (uint64_t)TAM_CHUNK * grid->nchunks + grid->n;
    pool = pool > POOL_MIN ? pool : POOL_MIN; /* selections write there, see choose.c */
    pool = pool < enough ? pool : enough;
    if (pool > UINT32_MAX - batches) /* the cursor of the pool must not wrap */
        pool = UINT32_MAX - batches;
    d->candidates.capacity = capacity < UINT32_MAX ? (uint32_t)capacity : UINT32_MAX;
    d->candidates.pool_capacity = (uint32_t)pool;
}

static void lay_out_inbox(const tam_cuda_device *d, tam_cuda_arena *a, tam_cuda_inbox *out) {
    uint32_t ngroups = d->grid.ngroups;
    out->params = tam_cuda_take(a, ngroups, sizeof out->params[0]);
    out->thresholds = tam_cuda_take(a, ngroups, sizeof out->thresholds[0]);
    out->weights = tam_cuda_take(a, ngroups, sizeof out->weights[0]);
    out->source = tam_cuda_take(a, 1, sizeof *out->source);
    out->grads = tam_cuda_take(a, d->nsegments, sizeof out->grads[0]);
    out->count = tam_cuda_take(a, 1, sizeof out->count[0]);
    out->list = tam_cuda_take(a, 1, sizeof out->list[0]);
    out->reaching = tam_cuda_take(a, 1, sizeof out->reaching[0]);
}

static void lay_out_pinned(tam_cuda_row *row, tam_cuda_arena *a) {
    uint32_t ngroups = row->device.grid.ngroups;
    lay_out_inbox(&row->device, a, &row->host);
    row->outbox.found = tam_cuda_take(a, 1, sizeof row->outbox.found[0]);
    row->outbox.selected = tam_cuda_take(a, ngroups, sizeof row->outbox.selected[0]);
    row->outbox.group_sums = tam_cuda_take(a, ngroups, sizeof row->outbox.group_sums[0]);
}

static void lay_out_candidates(const tam_cuda_grid *grid, tam_cuda_arena *a,
                               tam_cuda_candidates *c) {
    c->pool_index = tam_cuda_take(a, c->pool_capacity, sizeof c->pool_index[0]);
    c->pool_magnitude = tam_cuda_take(a, c->pool_capacity, sizeof c->pool_magnitude[0]);
    c->chunk_offset = tam_cuda_take(a, grid->nchunks, sizeof c->chunk_offset[0]);
    c->chunk_count = tam_cuda_take(a, grid->nchunks, sizeof c->chunk_count[0]);
    c->run_count = tam_cuda_take(a, grid->nruns, sizeof c->run_count[0]);
    c->index = tam_cuda_take(a, c->capacity, sizeof c->index[0]);
    c->magnitude = tam_cuda_take(a, c->capacity, sizeof c->magnitude[0]);
    c->group = tam_cuda_take(a, c->capacity, sizeof c->group[0]);
}

static void lay_out_memory(tam_cuda_row *row, tam_cuda_arena *a) {
    tam_cuda_device *d = &row->device;
    tam_cuda_grid *grid = &d->grid;
    grid->chunks = tam_cuda_take(a, grid->nchunks, sizeof grid->chunks[0]);
    grid->tile_chunks = tam_cuda_take(a, (size_t)grid->ntiles + 1, sizeof grid->tile_chunks[0]);
    grid->groups = tam_cuda_take(a, grid->ngroups, sizeof grid->groups[0]);
    d->seg_begin = tam_cuda_take(a, d->nsegments, sizeof d->seg_begin[0]);
    d->found = tam_cuda_take(a, 1, sizeof d->found[0]);
    d->selected = tam_cuda_take(a, grid->ngroups, sizeof d->selected[0]);
    d->chunk_sums = tam_cuda_take(a, grid->nchunks, sizeof d->chunk_sums[0]);
    d->group_sums = tam_cuda_take(a, grid->ngroups, sizeof d->group_sums[0]);
    d->select.histogram = tam_cuda_take(a, 3 * TAM_DIGITS, sizeof d->select.histogram[0]);
    d->select.block_more = tam_cuda_take(a, grid->blocks, sizeof d->select.block_more[0]);
    d->select.block_ties = tam_cuda_take(a, grid->blocks, sizeof d->select.block_ties[0]);
    d->select.search = tam_cuda_take(a, 1, sizeof d->select.search[0]);
    lay_out_candidates(grid, a, &d->candidates);
    lay_out_inbox(d, a, &row->inbox);
    row->indices = tam_cuda_take(a, TAM_CUDA_WALK, sizeof row->indices[0]);
    row->values = tam_cuda_take(a, TAM_CUDA_WALK, sizeof row->values[0]);
}

static tamis_status open_allocate(tam_cuda_row *row) {
    tam_cuda_arena memory = {0}, pinned = {0};
    lay_out_memory(row, &memory);
    lay_out_pinned(row, &pinned);
    TAM_TRY(tam_cuda_alloc(memory.used, "candidates and tables", &row->memory));
    TAM_TRY(tam_cuda_alloc_pinned(pinned.used, "parameters and results", &row->pinned));
    memory = (tam_cuda_arena){.base = row->memory};
    pinned = (tam_cuda_arena){.base = row->pinned};
    lay_out_memory(row, &memory);
    lay_out_pinned(row, &pinned);
    TAM_TRY(tam_cuda_queue_open(&row->work));
    TAM_TRY(tam_cuda_queue_open(&row->copy));
    return tam_cuda_event_open(&row->caller);
}

/* Upload the tables of the grid; constant arrays are written only here. */
static tamis_status open_upload(tam_cuda_row *row, const tam_grid *grid) {
    const tam_cuda_device *d = &row->device;
    const tam_cuda_queue *queue = &row->work;
    uint32_t *begins = tam_alloc_array(d->nsegments, sizeof begins[0]);
    if (!begins)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u segments", d->nsegments);
    for (uint32_t g = grid->ngroups; g > 0; g--) /* backwards: the first group of each stays */
        begins[grid->groups[g - 1].segment] = grid->groups[g - 1].begin;
    for (uint32_t g = 0; g < grid->ngroups; g++)
        row->host.thresholds[g] = TAM_INFINITE_BITS;
    tamis_status status =
        tam_cuda_queue_write(queue, begins, d->nsegments * sizeof begins[0], (void *)d->seg_begin);
    tam_free(begins);
    TAM_TRY(status);
    TAM_TRY(tam_cuda_queue_write(queue, row->chunks, d->grid.nchunks * sizeof row->chunks[0],
                                 (void *)d->grid.chunks));
    TAM_TRY(tam_cuda_queue_write(queue, row->tile_chunks,
                                 ((size_t)grid->ntiles + 1) * sizeof row->tile_chunks[0],
                                 (void *)d->grid.tile_chunks));
    TAM_TRY(tam_cuda_queue_write(queue, row->host.thresholds,
                                 grid->ngroups * sizeof row->host.thresholds[0],
                                 row->inbox.thresholds));
    return tam_cuda_queue_write(queue, grid->groups, grid->ngroups * sizeof grid->groups[0],
                                (void *)d->grid.groups);
}

void tam_cuda_row_borrow(tam_cuda_row *row, const tam_cuda_queue *queue) {
    tam_cuda_free_pinned(row->work.staging);
    tam_cuda_free_pinned(row->copy.staging);
    row->work.staging = NULL;
    row->copy.staging = queue->staging;
}

void tam_cuda_row_return(tam_cuda_row *row, const tam_cuda_queue *queue) {
    if (row->copy.staging == queue->staging)
        row->copy.staging = NULL;
}

bool tam_cuda_row_idle(const tam_cuda_row *row) {
    uint64_t deadline = tam_clock_ns() + GRACE_NS;
    return !row->device.hangs && tam_cuda_drain(row->work.stream, deadline) &&
           tam_cuda_drain(row->copy.stream, deadline);
}

void tam_cuda_row_close(tam_cuda_row *row) {
    if (!tam_cuda_row_idle(row)) {
        tam_log(TAM_WARN, "device memory of a reducer is not freed: the device is still using it");
    } else {
        tam_cuda_event_close(row->caller);
        tam_cuda_queue_close(&row->copy);
        tam_cuda_queue_close(&row->work);
        tam_cuda_free_pinned(row->pinned);
        tam_cuda_free(row->memory);
    }
    tam_free(row->chunks);
    tam_free(row->tile_chunks);
    tam_free(row);
}

tamis_status tam_cuda_row_open(tam_cuda_row *row, const tam_grid *grid, size_t capacity) {
    tam_cuda_device *d = &row->device;
    int multiprocessors = 0;
    TAM_CUDA_TRY(
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, d->device),
        "asking for the number of multiprocessors");
    d->multiprocessors = multiprocessors > 0 ? (uint32_t)multiprocessors : 1;
    d->source = grid;
    d->nsegments = grid->groups[grid->ngroups - 1].segment + 1;
    TAM_TRY(copy_grid(row, grid));
    choose_blocks(&d->grid, d->multiprocessors);
    choose_sizes(d, capacity);
    TAM_TRY(open_allocate(row));
    return open_upload(row, grid);
}
