/* SPDX-License-Identifier: MIT
 *
 * The device row of CUDA. Calls enqueue on the row's own stream and wait for it by polling; they
 * never allocate after open.
 */
#include "kernels/cuda/cuda.h"

#include "kernels/cuda/row.h"
#include "lib/base/base.h"

/* -- open and close --------------------------------------------------------------------------- */

static void cuda_close(void *self) {
    tam_cuda_row *row = self;
    tam_cuda_guard guard;
    if (!row)
        return;
    bool entered = tam_cuda_enter(row->device.device, &guard) == TAMIS_OK;
    tam_cuda_row_close(row); /* works with any current device */
    if (entered)
        tam_cuda_leave(&guard);
}

static tamis_status cuda_open(const tam_grid *grid, size_t capacity, uint32_t threads, void **out) {
    (void)threads;
    tam_cuda_guard guard;
    int device = 0;
    const char *reason = tam_cuda_reason();
    if (reason)
        return tam_fail(TAMIS_E_UNSUPPORTED, "%s", reason);
    TAM_CUDA_TRY(cudaGetDevice(&device), "asking for the current CUDA device");
    TAM_TRY(tam_cuda_enter(device, &guard));
    tamis_status status = TAMIS_E_NOMEM;
    tam_cuda_row *row = tam_alloc(sizeof *row);
    if (!row) {
        status = tam_fail(status, "no memory for a device");
        goto err_leave;
    }
    row->device.device = device;
    status = tam_cuda_row_open(row, grid, capacity);
    if (status == TAMIS_OK)
        *out = row;
    else
        tam_cuda_row_close(row);

err_leave:
    tam_cuda_leave(&guard);
    return status;
}

/* -- memory ----------------------------------------------------------------------------------- */

static void *cuda_alloc(void *self, size_t bytes) {
    tam_cuda_row *row = self;
    tam_cuda_guard guard;
    void *memory = NULL;
    if (tam_cuda_enter(row->device.device, &guard) != TAMIS_OK)
        return NULL;
    if (tam_cuda_alloc(bytes, "a vector", &memory) != TAMIS_OK)
        memory = NULL;
    tam_cuda_leave(&guard);
    return memory;
}

static void cuda_release(void *self, void *memory) {
    tam_cuda_row *row = self;
    tam_cuda_guard guard;
    if (!memory)
        return;
    bool entered = tam_cuda_enter(row->device.device, &guard) == TAMIS_OK;
    if (tam_cuda_row_idle(row))
        tam_cuda_free(memory);
    if (entered)
        tam_cuda_leave(&guard);
}

static tamis_status cuda_read(void *self, const void *device, size_t bytes, void *host) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_queue_read(&row->copy, device, bytes, host));
}

static tamis_status cuda_write(void *self, const void *host, size_t bytes, void *device) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_queue_write(&row->copy, host, bytes, device));
}

static tamis_status device_check(const tam_cuda_row *row, const void *memory, const char *what) {
    struct cudaPointerAttributes seen;
    cudaError_t error = cudaPointerGetAttributes(&seen, memory);
    if (error != cudaSuccess && error != cudaErrorInvalidValue)
        return tam_cuda_failed((int)error, what);
    if (error == cudaErrorInvalidValue) /* older runtimes, for memory unknown to them */
        (void)cudaGetLastError();
    if (error == cudaSuccess && seen.type == cudaMemoryTypeManaged)
        return TAMIS_OK;
    if (error != cudaSuccess || seen.type != cudaMemoryTypeDevice)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s is host memory; a reducer with TAMIS_DEVICE_CUDA needs device memory",
                        what);
    if (seen.device != row->device.device)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s is memory of CUDA device %d; this reducer works on device %d", what,
                        seen.device, row->device.device);
    return TAMIS_OK;
}

static tamis_status cuda_check(void *self, const void *memory, const char *what) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, device_check(row, memory, what));
}

/* -- accumulate ------------------------------------------------------------------------------- */

/* Ownership `bins` moves groups from rank to rank between steps, `balanced` blocks. */
static tamis_status refresh_parts(tam_cuda_row *row) {
    const tam_grid *grid = row->device.source;
    bool changed = false;
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        uint32_t part = grid->tiles[t].part;
        if (row->chunks[row->tile_chunks[t]].part == part)
            continue;
        for (uint32_t c = row->tile_chunks[t]; c < row->tile_chunks[t + 1]; c++)
            row->chunks[c].part = part;
        changed = true;
    }
    if (!changed)
        return TAMIS_OK;
    return tam_cuda_queue_write(&row->work, row->chunks,
                                row->device.grid.nchunks * sizeof row->chunks[0],
                                (void *)row->device.grid.chunks);
}

static tamis_status follow(tam_cuda_row *row, cudaStream_t stream) {
    static const char what[] = "waiting for the caller's stream";
    enum cudaStreamCaptureStatus capture;
    TAM_TRY(tam_cuda_find_capture(stream, &capture));
    if (capture != cudaStreamCaptureStatusNone)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "the step's stream is being captured, but this scheme and transport need "
                        "the host in every step");
    TAM_CUDA_TRY(cudaEventRecord(row->caller, stream), what);
    TAM_CUDA_TRY(cudaStreamWaitEvent(row->work.stream, row->caller, 0), what);
    TAM_CUDA_TRY(cudaStreamWaitEvent(row->copy.stream, row->caller, 0), what);
    return TAMIS_OK;
}

static tamis_status cuda_follow(void *self, void *stream) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, follow(row, (cudaStream_t)stream));
}

static tamis_status device_accumulate(tam_cuda_row *row, const tam_accumulate *job,
                                      tam_accumulated *out) {
    const tam_cuda_device *d = &row->device;
    size_t ngroups = d->grid.ngroups;
    tam_cuda_accumulate launch;
    TAM_TRY(refresh_parts(row));
    row->host.params[0] = (tam_cuda_params){.mine = job->mine};
    memcpy(row->host.thresholds, job->thresholds, ngroups * sizeof job->thresholds[0]);
    TAM_TRY(tam_cuda_send(row, row->host.params, sizeof row->host.params[0], row->inbox.params));
    TAM_TRY(tam_cuda_send(row, row->host.thresholds, ngroups * sizeof job->thresholds[0],
                          row->inbox.thresholds));
    TAM_TRY(tam_cuda_target(row, job, &launch));
    const tam_cuda_fresh fresh = {.found = d->found, .select = d->select, .selected = d->selected};
    TAM_CUDA_TRY(tam_launch_reset(&fresh, row->work.stream), "launching");
    TAM_CUDA_TRY(tam_launch_accumulate(&launch, row->work.stream), "launching accumulate");
    TAM_CUDA_TRY(tam_launch_collect(&launch, row->work.stream), "launching collect");
    TAM_TRY(tam_cuda_fetch(row, d->found, sizeof *d->found, row->outbox.found));
    TAM_TRY(tam_cuda_fetch(row, d->group_sums, ngroups * sizeof d->group_sums[0],
                           row->outbox.group_sums));
    TAM_TRY(tam_cuda_queue_wait(&row->work, "accumulate"));
    const tam_cuda_found *found = row->outbox.found;
    *out = (tam_accumulated){
        .candidates = {.index = d->candidates.index,
                       .magnitude = d->candidates.magnitude,
                       .count = found->count,
                       .complete = found->complete != 0},
        .group_sums = row->outbox.group_sums,
        .nonfinite = found->nonfinite,
        .nonfinite_segment = TAM_SEGMENT_UNKNOWN,
    };
    return TAMIS_OK;
}

static tamis_status cuda_accumulate(void *self, const tam_accumulate *job, tam_accumulated *out) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, device_accumulate(row, job, out));
}

/* -- the rest of the row ---------------------------------------------------------------------- */

static tamis_status device_select_entries(tam_cuda_row *row, const tam_select_job *job,
                                          uint32_t *indices, tam_select_result *out) {
    *out = (tam_select_result){0};
    TAM_TRY(refresh_parts(row));
    return job->kind == TAM_SELECT_GROUPS ? tam_cuda_select_groups(row, job, indices, out)
                                          : tam_cuda_select_total(row, job, indices, out);
}

static tamis_status cuda_select(void *self, const tam_select_job *job, uint32_t *indices,
                                tam_select_result *out) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, device_select_entries(row, job, indices, out));
}

static tamis_status cuda_count(void *self, const float *acc, uint32_t threshold, uint64_t *out) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_count(row, acc, threshold, out));
}

static tamis_status cuda_mark(void *self, const float *acc, uint32_t length, uint32_t nrows,
                              unsigned char *marks) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_mark(row, acc, length, nrows, marks));
}

static tamis_status cuda_gather(void *self, const float *acc, const uint32_t *indices, size_t count,
                                float *values) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_gather(row, acc, indices, count, values));
}

static tamis_status cuda_apply(void *self, const tam_accumulate *target, const uint32_t *indices,
                               size_t count, float divisor, float *values) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_apply(row, target, indices, count, divisor, values));
}

static tamis_status cuda_put(void *self, float *acc, const uint32_t *indices, size_t count,
                             const float *values) {
    tam_cuda_row *row = self;
    TAM_CUDA_ON(row->device.device, tam_cuda_put(row, acc, indices, count, values));
}

const tam_device tam_device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .read = cuda_read,
    .write = cuda_write,
    .check = cuda_check,
    .follow = cuda_follow,
    .accumulate = cuda_accumulate,
    .count = cuda_count,
    .mark = cuda_mark,
    .select = cuda_select,
    .gather = cuda_gather,
    .apply = cuda_apply,
    .put = cuda_put,
};
