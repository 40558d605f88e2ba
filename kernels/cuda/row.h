/* SPDX-License-Identifier: MIT
 *
 * The implementation of the row tam_device_cuda: open.c opens it, device.c accumulates, choose.c
 * selections and walks over indices.
 */
#ifndef TAM_CUDA_ROW_H
#define TAM_CUDA_ROW_H

#include "kernels/cuda/runtime.h"

/** Parameters of a launch: once in pinned memory, once in device memory, in the same layout. */
typedef struct tam_cuda_inbox {
    tam_cuda_params *params; /* [ngroups]; the first serves all that is not by group */
    uint32_t *thresholds;    /* [ngroups] of the last accumulate, or of a selection since */
    float *weights;          /* [ngroups] */
    tam_cuda_source *source;
    void **grads;         /* [nsegments] */
    uint32_t *count;      /* of indices in the walk */
    tam_cuda_found *list; /* of a list that was not collected */
    uint64_t *reaching;   /* entries counted */
} tam_cuda_inbox;

/** Results, in pinned memory. */
typedef struct tam_cuda_outbox {
    tam_cuda_found *found;
    tam_cuda_select_result *selected; /* [ngroups] */
    double *group_sums;               /* [ngroups] */
} tam_cuda_outbox;

enum { TAM_CUDA_WALK = TAM_CUDA_STAGING / 8 }; /* indices and values of one piece of a walk */

typedef struct tam_cuda_row {
    tam_cuda_device device; /* first: `self` of the row is a tam_cuda_device */
    tam_cuda_chunk *chunks; /* as on the device */
    uint32_t *tile_chunks;  /* [ntiles + 1] as on the device */
    void *memory, *pinned;  /* hold all that follows */
    tam_cuda_inbox host, inbox;
    tam_cuda_outbox outbox;
    uint32_t *indices; /* [TAM_CUDA_WALK] device memory */
    float *values;     /* [TAM_CUDA_WALK] device memory */

    tam_cuda_queue work;
    tam_cuda_queue copy; /* of read and write, which may come while an abandoned job still works */
    cudaEvent_t caller;  /* end of the work on the caller's stream when follow was called */
} tam_cuda_row;

/* open.c, with the device current */

/** Fill a zeroed row whose device.device is set. Close it even after a failure; close also frees
 * the row. */
tamis_status tam_cuda_row_open(tam_cuda_row *row, const tam_grid *grid, size_t capacity);
void tam_cuda_row_close(tam_cuda_row *row);

/** The device runs steps of this row by itself: from here on it copies through the pinned memory of
 * `queue`, which all buckets share, and has none of its own. `return` it before the queue is
 * closed; then nothing can be copied. */
void tam_cuda_row_borrow(tam_cuda_row *row, const tam_cuda_queue *queue);
void tam_cuda_row_return(tam_cuda_row *row, const tam_cuda_queue *queue);

/** Whether the device has finished all its work; waits a moment for it. Freeing would wait without
 * a deadline, so memory that a hung device may still use is not freed. */
bool tam_cuda_row_idle(const tam_cuda_row *row);

/* transfer.c */

/** Enqueue a copy from pinned memory to the device, and back. */
tamis_status tam_cuda_send(const tam_cuda_row *row, const void *pinned, size_t bytes, void *device);
tamis_status tam_cuda_fetch(const tam_cuda_row *row, const void *device, size_t bytes,
                            void *pinned);

/** Launch parameters of this target; enqueues the copy of its pointers. */
tamis_status tam_cuda_target(tam_cuda_row *row, const tam_accumulate *job,
                             tam_cuda_accumulate *out);

/* choose.c: entries of tam_device, with the device current */
tamis_status tam_cuda_select_total(tam_cuda_row *row, const tam_select_job *job, uint32_t *indices,
                                   tam_select_result *out); /* and ALL */
tamis_status tam_cuda_select_groups(tam_cuda_row *row, const tam_select_job *job, uint32_t *indices,
                                    tam_select_result *out);
tamis_status tam_cuda_gather(tam_cuda_row *row, const float *acc, const uint32_t *indices,
                             size_t count, float *values);
tamis_status tam_cuda_apply(tam_cuda_row *row, const tam_accumulate *target,
                            const uint32_t *indices, size_t count, float divisor, float *values);
tamis_status tam_cuda_put(tam_cuda_row *row, float *acc, const uint32_t *indices, size_t count,
                          const float *values);
tamis_status tam_cuda_count(tam_cuda_row *row, const float *acc, uint32_t threshold, uint64_t *out);
tamis_status tam_cuda_mark(tam_cuda_row *row, const float *acc, uint32_t length, uint32_t nrows,
                           unsigned char *marks);

#endif
