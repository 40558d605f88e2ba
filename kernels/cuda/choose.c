/* SPDX-License-Identifier: MIT
 *
 * The rest of the device row of CUDA: selections and walks whose indices and values go to host
 * memory. The pool is free by then: chosen indices are written there.
 */
#include "kernels/cuda/row.h"
#include "lib/base/base.h"
#include "lib/base/numbers.h"

/* -- selection -------------------------------------------------------------------------------- */

/* Number of own entries in tiles `first` to `end` - 1, or `most` if there are more. */
static size_t count_own(const tam_grid *grid, uint32_t mine, uint32_t first, uint32_t end,
                        size_t most) {
    size_t count = 0;
    for (uint32_t t = first; t < end && count < most; t++) {
        const tam_tile *tile = &grid->tiles[t];
        bool own = tile->part == mine || (mine == TAM_PART_ALL && tile->part != TAM_PART_COMMON);
        count += own ? tile->length : 0;
    }
    return tam_min(count, most);
}

static tamis_status check_capacity(const tam_cuda_row *row, size_t count) {
    uint32_t capacity = row->device.candidates.pool_capacity;
    if (count > capacity)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "%zu indices in one selection; this reducer has device memory for %u",
                        count, capacity);
    return TAMIS_OK;
}

static tam_cuda_select_job choose_prepare(const tam_cuda_row *row, const tam_select_job *job) {
    const tam_cuda_device *d = &row->device;
    return (tam_cuda_select_job){
        .grid = d->grid,
        .acc = job->acc,
        .kind = job->kind == TAM_SELECT_ALL ? TAM_SELECT_ALL : TAM_SELECT_TOTAL,
        .end_chunk = d->grid.nchunks,
        .params = row->inbox.params,
        .thresholds = row->inbox.thresholds,
        .candidates = d->candidates,
        .found = d->found,
        .select = d->select,
        .indices = d->candidates.pool_index,
        .selected = d->selected,
    };
}

static tamis_status choose_launch(const tam_cuda_row *row, const tam_cuda_select_job *selection) {
    cudaStream_t stream = row->work.stream;
    const tam_cuda_fresh fresh = {.select = selection->select, .selected = selection->selected};
    TAM_CUDA_TRY(tam_launch_reset(&fresh, stream), "launching a selection");
    TAM_CUDA_TRY(tam_launch_select(selection, stream), "launching a selection");
    return TAMIS_OK;
}

/* Wait for selected[0..n-1], then copy the indices, at most `most`. As many as fit the staging
 * memory come with the same wait. */
static tamis_status choose_receive(const tam_cuda_row *row, uint32_t n, const uint32_t *from,
                                   size_t most, uint32_t *indices) {
    const tam_cuda_select_result *selected = row->outbox.selected;
    size_t along = tam_min(most, TAM_CUDA_STAGING / sizeof from[0]);
    TAM_TRY(tam_cuda_fetch(row, row->device.selected, n * sizeof *selected, row->outbox.selected));
    if (along > 0)
        TAM_TRY(tam_cuda_fetch(row, from, along * sizeof from[0], row->work.staging));
    TAM_TRY(tam_cuda_queue_wait(&row->work, "selection"));
    size_t count = n == 1 ? tam_min(selected[0].count, most) : most, here = tam_min(count, along);
    if (here > 0)
        memcpy(indices, row->work.staging, here * sizeof indices[0]);
    return tam_cuda_queue_read(&row->work, from + here, (count - here) * sizeof from[0],
                               indices + here);
}

/* One threshold for all groups replaces those of the last accumulate. */
static tamis_status send_threshold(const tam_cuda_row *row, uint32_t threshold) {
    uint32_t ngroups = row->device.grid.ngroups;
    for (uint32_t g = 0; g < ngroups; g++)
        row->host.thresholds[g] = threshold;
    return tam_cuda_send(row, row->host.thresholds, ngroups * sizeof row->host.thresholds[0],
                         row->inbox.thresholds);
}

tamis_status tam_cuda_select_total(tam_cuda_row *row, const tam_select_job *job, uint32_t *indices,
                                   tam_select_result *out) {
    const tam_grid *grid = row->device.source;
    tam_cuda_select_job selection = choose_prepare(row, job);
    size_t k = count_own(grid, job->mine, 0, grid->ntiles, job->k);
    TAM_TRY(check_capacity(row, k));
    row->host.params[0] = (tam_cuda_params){
        .mine = job->mine,
        .k = (uint32_t)k,
        .floor = (job->floor_key > 0.0f ? tam_bits(job->floor_key) : 0) + 1,
        .listed = !job->threshold && job->candidates && job->candidates->complete,
    };
    TAM_TRY(tam_cuda_send(row, row->host.params, sizeof row->host.params[0], row->inbox.params));
    if (job->kind == TAM_SELECT_ALL && job->threshold)
        TAM_TRY(send_threshold(row, job->threshold));
    if (job->kind == TAM_SELECT_TOTAL && job->weights) {
        size_t bytes = grid->ngroups * sizeof job->weights[0];
        memcpy(row->host.weights, job->weights, bytes);
        TAM_TRY(tam_cuda_send(row, row->host.weights, bytes, row->inbox.weights));
        selection.weights = row->inbox.weights;
    }
    TAM_TRY(choose_launch(row, &selection));
    TAM_TRY(choose_receive(row, 1, selection.indices, k, indices));
    const tam_cuda_select_result *selected = row->outbox.selected;
    *out = (tam_select_result){
        .count = selected->count,
        .candidates = selected->candidates,
        .deferred = selected->deferred,
        .key = tam_float(selected->key),
        .rescanned = selected->rescanned != 0,
    };
    return TAMIS_OK;
}

/* Choose k of the `all` indices at the beginning of the pool, by magnitude; write them behind. */
static tamis_status choose_trim(tam_cuda_row *row, const tam_select_job *job, size_t all, size_t k,
                                uint32_t *indices, tam_select_result *out) {
    tam_cuda_select_job selection = choose_prepare(row, job);
    tam_cuda_candidates *list = &selection.candidates;
    list->index = list->pool_index;
    list->magnitude = list->pool_magnitude;
    selection.found = row->inbox.list;
    selection.indices = list->pool_index + all;
    row->host.params[0] = (tam_cuda_params){.mine = job->mine, .k = (uint32_t)k, .listed = 1};
    *row->host.list = (tam_cuda_found){.total = all, .complete = 1, .count = (uint32_t)all};
    *row->host.count = (uint32_t)all;
    TAM_TRY(tam_cuda_send(row, row->host.params, sizeof row->host.params[0], row->inbox.params));
    TAM_TRY(tam_cuda_send(row, row->host.list, sizeof *row->host.list, row->inbox.list));
    TAM_TRY(tam_cuda_send(row, row->host.count, sizeof *row->host.count, row->inbox.count));
    /* Signed values serve as magnitudes: a selection ignores their sign. */
    TAM_CUDA_TRY(tam_launch_gather(job->acc, list->index, row->inbox.count, (uint32_t)all,
                                   (float *)list->magnitude, row->work.stream),
                 "launching gather");
    TAM_TRY(choose_launch(row, &selection));
    TAM_TRY(choose_receive(row, 1, selection.indices, k, indices));
    out->count = k;
    out->deferred = all - k;
    out->key = tam_float(row->outbox.selected->key);
    return TAMIS_OK;
}

/* One selection after another, each over its group's chunks; lists follow each other in the
 * pool. */
static tamis_status launch_groups(tam_cuda_row *row, const tam_select_job *job) {
    const tam_grid *grid = row->device.source;
    TAM_TRY(tam_cuda_send(row, row->host.params, grid->ngroups * sizeof row->host.params[0],
                          row->inbox.params));
    for (uint32_t g = 0, at = 0; g < grid->ngroups; g++) {
        tam_cuda_select_job selection = choose_prepare(row, job);
        selection.first_chunk = row->tile_chunks[grid->groups[g].first_tile];
        selection.end_chunk = row->tile_chunks[grid->groups[g].first_tile + grid->groups[g].ntiles];
        selection.params += g;
        selection.selected += g;
        selection.indices += at;
        uint32_t most =
            (selection.end_chunk - selection.first_chunk + TAM_BLOCK_WARPS - 1) / TAM_BLOCK_WARPS;
        selection.grid.blocks = (uint32_t)tam_min(selection.grid.blocks, most);
        at += row->host.params[g].k;
        if (row->host.params[g].k > 0)
            TAM_TRY(choose_launch(row, &selection));
    }
    return TAMIS_OK;
}

tamis_status tam_cuda_select_groups(tam_cuda_row *row, const tam_select_job *job, uint32_t *indices,
                                    tam_select_result *out) {
    const tam_grid *grid = row->device.source;
    uint32_t least = UINT32_MAX;
    size_t all = 0;
    for (uint32_t g = 0; g < grid->ngroups; g++) {
        const tam_group *group = &grid->groups[g];
        size_t k = count_own(grid, job->mine, group->first_tile, group->first_tile + group->ntiles,
                             job->budgets[g]);
        row->host.params[g] = (tam_cuda_params){.mine = job->mine, .k = (uint32_t)k};
        all += k;
    }
    size_t k = tam_min(all, job->k);
    TAM_TRY(check_capacity(row, k < all ? all + k : all));
    if (all == 0)
        return TAMIS_OK;
    TAM_TRY(launch_groups(row, job));
    TAM_TRY(choose_receive(row, grid->ngroups, row->device.candidates.pool_index, k < all ? 0 : all,
                           indices));
    for (uint32_t g = 0; g < grid->ngroups; g++) {
        if (row->host.params[g].k == 0)
            continue;
        out->candidates += row->outbox.selected[g].candidates;
        least = (uint32_t)tam_min(least, row->outbox.selected[g].key);
    }
    out->count = all;
    out->rescanned = true;
    out->key = tam_float(least);
    return k < all ? choose_trim(row, job, all, k, indices, out) : TAMIS_OK;
}

/* -- count ------------------------------------------------------------------------------------ */

tamis_status tam_cuda_count(tam_cuda_row *row, const float *acc, uint32_t threshold,
                            uint64_t *out) {
    uint64_t *host = row->host.reaching, *device = row->inbox.reaching;
    *host = 0;
    TAM_TRY(tam_cuda_send(row, host, sizeof *host, device));
    TAM_CUDA_TRY(tam_launch_count_reaching(acc, row->device.grid.n, threshold,
                                           row->device.grid.blocks, device, row->work.stream),
                 "launching count");
    TAM_TRY(tam_cuda_fetch(row, device, sizeof *host, host));
    TAM_TRY(tam_cuda_queue_wait(&row->work, "count"));
    *out = *host;
    return TAMIS_OK;
}

/* Marks use the memory of a walk's indices. */
tamis_status tam_cuda_mark(tam_cuda_row *row, const float *acc, uint32_t length, uint32_t nrows,
                           unsigned char *marks) {
    unsigned char *device = (unsigned char *)row->indices;
    for (uint32_t at = 0, piece; at < nrows; at += piece) {
        piece = (uint32_t)tam_min(nrows - at, TAM_CUDA_WALK * sizeof row->indices[0]);
        TAM_CUDA_TRY(tam_launch_mark_rows(acc + (size_t)at * length, length, piece, device,
                                          row->work.stream),
                     "launching mark");
        TAM_TRY(tam_cuda_fetch(row, device, piece, row->work.staging));
        TAM_TRY(tam_cuda_queue_wait(&row->work, "mark"));
        memcpy(marks + at, row->work.staging, piece);
    }
    return TAMIS_OK;
}

/* -- walks: in pieces through the staging memory, indices in its first half, values behind ---- */

static tamis_status choose_send_piece(tam_cuda_row *row, const uint32_t *indices, size_t count,
                                      const float *values) {
    unsigned char *staging = row->work.staging;
    *row->host.count = (uint32_t)count;
    memcpy(staging, indices, count * sizeof indices[0]);
    TAM_TRY(tam_cuda_send(row, row->host.count, sizeof *row->host.count, row->inbox.count));
    TAM_TRY(tam_cuda_send(row, staging, count * sizeof indices[0], row->indices));
    if (!values)
        return TAMIS_OK;
    staging += TAM_CUDA_STAGING / 2;
    memcpy(staging, values, count * sizeof values[0]);
    return tam_cuda_send(row, staging, count * sizeof values[0], row->values);
}

static tamis_status receive_values(tam_cuda_row *row, size_t count, const char *what,
                                   float *values) {
    unsigned char *staging = row->work.staging + TAM_CUDA_STAGING / 2;
    TAM_TRY(tam_cuda_fetch(row, row->values, count * sizeof values[0], staging));
    TAM_TRY(tam_cuda_queue_wait(&row->work, what));
    memcpy(values, staging, count * sizeof values[0]);
    return TAMIS_OK;
}

tamis_status tam_cuda_gather(tam_cuda_row *row, const float *acc, const uint32_t *indices,
                             size_t count, float *values) {
    for (size_t at = 0; at < count; at += TAM_CUDA_WALK) {
        uint32_t piece = (uint32_t)tam_min(count - at, TAM_CUDA_WALK);
        TAM_TRY(choose_send_piece(row, indices + at, piece, NULL));
        TAM_CUDA_TRY(tam_launch_gather(acc, row->indices, row->inbox.count, piece, row->values,
                                       row->work.stream),
                     "launching gather");
        TAM_TRY(receive_values(row, piece, "gather", values + at));
    }
    return TAMIS_OK;
}

tamis_status tam_cuda_apply(tam_cuda_row *row, const tam_accumulate *target,
                            const uint32_t *indices, size_t count, float divisor, float *values) {
    tam_cuda_accumulate launch;
    if (count == 0) /* nothing would wait for the copy of the target's pointers */
        return TAMIS_OK;
    TAM_TRY(tam_cuda_target(row, target, &launch));
    for (size_t at = 0; at < count; at += TAM_CUDA_WALK) {
        uint32_t piece = (uint32_t)tam_min(count - at, TAM_CUDA_WALK);
        TAM_TRY(choose_send_piece(row, indices + at, piece, values + at));
        TAM_CUDA_TRY(tam_launch_apply(&launch, row->indices, row->inbox.count, piece, divisor,
                                      row->values, row->work.stream),
                     "launching apply");
        TAM_TRY(receive_values(row, piece, "apply", values + at));
    }
    return TAMIS_OK;
}

tamis_status tam_cuda_put(tam_cuda_row *row, float *acc, const uint32_t *indices, size_t count,
                          const float *values) {
    for (size_t at = 0; at < count; at += TAM_CUDA_WALK) {
        uint32_t piece = (uint32_t)tam_min(count - at, TAM_CUDA_WALK);
        TAM_TRY(choose_send_piece(row, indices + at, piece, values ? values + at : NULL));
        TAM_CUDA_TRY(tam_launch_put(acc, row->indices, row->inbox.count, piece,
                                    values ? row->values : NULL, row->work.stream),
                     "launching put");
        TAM_TRY(tam_cuda_queue_wait(&row->work, "put"));
    }
    return TAMIS_OK;
}
