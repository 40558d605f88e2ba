/* SPDX-License-Identifier: MIT
 *
 * Helpers for the CUDA runtime, and the opened device.
 *
 * Every call of the library into CUDA is between enter and leave: leave restores the caller's
 * device, and our calls do not disturb a capture of the caller. Nothing here blocks in the driver:
 * waits poll, with a deadline.
 */
#ifndef TAM_CUDA_RUNTIME_H
#define TAM_CUDA_RUNTIME_H

#include "kernels/cuda/view.h"

#include <cuda_runtime_api.h>

/* -- errors and the current device ------------------------------------------------------------ */

/** Fail with "<what>: <name of the error>, <its text>" and clear the error in the runtime.
 * @param error  not 0. @return always DEVICE: work may be half enqueued */
tamis_status tam_cuda_failed(int error, const char *what);

/** Report a failed call that only creates something: NOMEM if memory ran out. */
tamis_status tam_cuda_refused(int error, const char *what);

/** For calls and launchers that return a cudaError_t (as int). */
#define TAM_CUDA_TRY(call, what)                                                                   \
    do {                                                                                           \
        int tam_cuda_try_error_ = (int)(call);                                                     \
        if (tam_cuda_try_error_ != cudaSuccess)                                                    \
            return tam_cuda_failed(tam_cuda_try_error_, what);                                     \
    } while (0)

/** What leave restores. */
typedef struct tam_cuda_guard {
    int ours, device;
    enum cudaStreamCaptureMode mode;
} tam_cuda_guard;

tamis_status tam_cuda_enter(int device, tam_cuda_guard *out);
void tam_cuda_leave(const tam_cuda_guard *guard);

/** Make a call with that device current, and return its status. */
#define TAM_CUDA_ON(device, call)                                                                  \
    do {                                                                                           \
        tam_cuda_guard guard;                                                                      \
        TAM_TRY(tam_cuda_enter(device, &guard));                                                   \
        tamis_status status = (call);                                                              \
        tam_cuda_leave(&guard);                                                                    \
        return status;                                                                             \
    } while (0)

/* -- memory ----------------------------------------------------------------------------------- */

/** Device memory: zeroed when the call returns, 256-byte aligned. bytes 0 gives 1. */
tamis_status tam_cuda_alloc(size_t bytes, const char *what, void **out);
void tam_cuda_free(void *memory); /* NULL is fine */

/** Host memory that kernels and copies can access: zeroed, the same address on both sides. */
tamis_status tam_cuda_alloc_pinned(size_t bytes, const char *what, void **out);
void tam_cuda_free_pinned(void *memory);

/**
 * One allocation for many arrays. The same function takes them twice: first with base NULL, which
 * only adds up `used`, then with base set to that many bytes.
 */
typedef struct tam_cuda_arena {
    unsigned char *base;
    size_t used;
} tam_cuda_arena;

/** The next array, 256-byte aligned; NULL while base is NULL. */
void *tam_cuda_take(tam_cuda_arena *arena, size_t count, size_t size);

/* -- streams, events, waiting ----------------------------------------------------------------- */

/** Priority of a stream: the blocks of the most urgent one are scheduled first. A device with two
 * priorities treats a brisk one as patient. */
typedef enum tam_cuda_urgency {
    TAM_CUDA_PATIENT,
    TAM_CUDA_BRISK,
    TAM_CUDA_URGENT
} tam_cuda_urgency;

/** A stream that does not wait for the legacy one. */
tamis_status tam_cuda_stream_open(tam_cuda_urgency urgency, cudaStream_t *out);
void tam_cuda_stream_close(cudaStream_t stream); /* NULL is fine */

/** Whether a stream of the caller is being captured. STATE: it is the legacy stream, which cannot
 * be used while another is captured. */
tamis_status tam_cuda_find_capture(cudaStream_t stream, enum cudaStreamCaptureStatus *out);

/** An event without times. */
tamis_status tam_cuda_event_open(cudaEvent_t *out);
void tam_cuda_event_close(cudaEvent_t event); /* NULL is fine */

/** The deadline on tam_clock_ns, from now. 0: TAMIS_TIMEOUT_MS. */
uint64_t tam_cuda_deadline(uint64_t timeout_ns);

/** Wait for the event. DEVICE if the deadline passes or the device reports an error. */
tamis_status tam_cuda_wait(cudaEvent_t event, uint64_t deadline_ns, const char *what);

/** Wait until the stream is idle or the device is broken: before freeing memory that may be in use
 * after a failure. @return false: the deadline passed; NULL is fine */
bool tam_cuda_drain(cudaStream_t stream, uint64_t deadline_ns);

/** A stream with an event to wait for it and a pinned staging buffer to copy through. */
typedef struct tam_cuda_queue {
    cudaStream_t stream;
    cudaEvent_t event;
    uint64_t timeout_ns;    /* of a wait; 0: TAMIS_TIMEOUT_MS */
    unsigned char *staging; /* [TAM_CUDA_STAGING], pinned; free to use when the stream is idle */
} tam_cuda_queue;

enum { TAM_CUDA_STAGING = 1 << 22 };

tamis_status tam_cuda_queue_open(tam_cuda_queue *out); /* patient */
void tam_cuda_queue_close(tam_cuda_queue *queue);

/** Wait until all work on the queue is done. */
tamis_status tam_cuda_queue_wait(const tam_cuda_queue *queue, const char *what);

/** Copy through the staging memory; return when it is done. */
tamis_status tam_cuda_queue_read(const tam_cuda_queue *queue, const void *device, size_t bytes,
                                 void *host);
tamis_status tam_cuda_queue_write(const tam_cuda_queue *queue, const void *host, size_t bytes,
                                  void *device);

/* -- the opened device ------------------------------------------------------------------------ */

/** The object of tam_device_cuda.open. The whole step (step.c) borrows grid and scratch; then only
 * alloc, release, read, write, check may be called on the row. */
typedef struct tam_cuda_device {
    int device;
    uint32_t multiprocessors;
    const tam_grid *source; /* of the reducer, on the host */
    bool hangs;             /* work that never ended may still use device memory: free nothing */

    /* In device memory; the pointers are the host's to copy into launches. */
    tam_cuda_grid grid;
    tam_cuda_candidates candidates;
    tam_cuda_found *found;
    tam_cuda_select select;
    tam_cuda_select_result *selected;
    float *chunk_sums;
    double *group_sums;
    const uint32_t *seg_begin; /* [segments] */
    uint32_t nsegments;
} tam_cuda_device;

#endif
