/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/runtime.h"

#include "kernels/cuda/cuda.h"
#include "lib/base/base.h"
#include "lib/base/numbers.h"

#include <stdio.h>

enum { MIN_MAJOR = 8 }; /* least compute capability that the kernels are compiled for */

/* -- errors and the current device ------------------------------------------------------------ */

tamis_status tam_cuda_failed(int error, const char *what) {
    cudaError_t e = (cudaError_t)error;
    (void)cudaGetLastError(); /* or the caller's next check would find it */
    return tam_fail(TAMIS_E_DEVICE, "%s: %s, %s", what, cudaGetErrorName(e), cudaGetErrorString(e));
}

tamis_status tam_cuda_refused(int error, const char *what) {
    tamis_status status = tam_cuda_failed(error, what);
    return error == (int)cudaErrorMemoryAllocation ? TAMIS_E_NOMEM : status;
}

tamis_status tam_cuda_enter(int device, tam_cuda_guard *out) {
    tam_cuda_guard guard = {.mode = cudaStreamCaptureModeRelaxed};
    TAM_CUDA_TRY(cudaGetDevice(&guard.device), "asking for the current CUDA device");
    if (guard.device != device)
        TAM_CUDA_TRY(cudaSetDevice(device), "making the reducer's CUDA device current");
    (void)cudaThreadExchangeStreamCaptureMode(&guard.mode);
    guard.ours = device;
    *out = guard;
    return TAMIS_OK;
}

void tam_cuda_leave(const tam_cuda_guard *guard) {
    enum cudaStreamCaptureMode mode = guard->mode;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    /* Not on the library's own threads: it would create a context on a device not asked for. */
    if (guard->device != guard->ours && !tam_thread_ours())
        (void)cudaSetDevice(guard->device);
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Zero memory, not on the legacy stream, which would wait for the caller's work. */
static tamis_status zero(void *memory, size_t bytes) {
    cudaStream_t stream;
    cudaEvent_t event;
    tamis_status status = tam_cuda_stream_open(TAM_CUDA_PATIENT, &stream);
    if (status != TAMIS_OK)
        return status;
    status = tam_cuda_event_open(&event);
    if (status != TAMIS_OK)
        goto err_stream;
    cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(event, stream);
    status = error == cudaSuccess ? tam_cuda_wait(event, tam_cuda_deadline(0), "clearing memory")
                                  : tam_cuda_failed((int)error, "clearing memory");
    if (status != TAMIS_OK)
        (void)tam_cuda_drain(stream, tam_cuda_deadline(0));
    tam_cuda_event_close(event);

err_stream:
    tam_cuda_stream_close(stream);
    return status;
}

tamis_status tam_cuda_alloc(size_t bytes, const char *what, void **out) {
    void *memory = NULL;
    size_t least = bytes ? bytes : 1;
    cudaError_t error = cudaMalloc(&memory, least);
    if (error == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&left, &all);
        return tam_fail(TAMIS_E_NOMEM,
                        "no device memory for %s: %zu bytes requested, %zu of %zu are free", what,
                        least, left, all);
    }
    if (error != cudaSuccess)
        return tam_cuda_failed((int)error, what);
    tamis_status status = zero(memory, least);
    if (status != TAMIS_OK) {
        tam_cuda_free(memory);
        return status;
    }
    *out = memory;
    return TAMIS_OK;
}

void tam_cuda_free(void *memory) {
    if (memory && cudaFree(memory) != cudaSuccess)
        (void)cudaGetLastError();
}

tamis_status tam_cuda_alloc_pinned(size_t bytes, const char *what, void **out) {
    void *memory = NULL;
    size_t least = bytes ? bytes : 1;
    cudaError_t error = cudaHostAlloc(&memory, least, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return tam_fail(TAMIS_E_NOMEM, "no pinned host memory for %s: %zu bytes requested", what,
                        least);
    }
    if (error != cudaSuccess)
        return tam_cuda_failed((int)error, what);
    memset(memory, 0, least);
    *out = memory;
    return TAMIS_OK;
}

void tam_cuda_free_pinned(void *memory) {
    if (memory && cudaFreeHost(memory) != cudaSuccess)
        (void)cudaGetLastError();
}

void *tam_cuda_take(tam_cuda_arena *arena, size_t count, size_t size) {
    enum { ALIGN = 256 };
    void *array = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count * size + ALIGN - 1) / ALIGN * ALIGN;
    return array;
}

/* -- streams, events, waiting ----------------------------------------------------------------- */

tamis_status tam_cuda_stream_open(tam_cuda_urgency urgency, cudaStream_t *out) {
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    int priority = least + (greatest - least) * (int)urgency / TAM_CUDA_URGENT;
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, priority);
    return error ? tam_cuda_refused((int)error, "creating a CUDA stream") : TAMIS_OK;
}

void tam_cuda_stream_close(cudaStream_t stream) {
    if (stream && cudaStreamDestroy(stream) != cudaSuccess)
        (void)cudaGetLastError();
}

tamis_status tam_cuda_find_capture(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
    cudaError_t error = cudaStreamIsCapturing(stream, out);
    if (error == cudaErrorStreamCaptureImplicit) { /* the legacy stream waits for captured ones */
        (void)cudaGetLastError();
        return tam_fail(TAMIS_E_STATE, "the step's stream is the default one, which cannot be used "
                                       "while another is captured; give the step its own");
    }
    TAM_CUDA_TRY(error, "asking whether a stream is captured");
    return TAMIS_OK;
}

tamis_status tam_cuda_event_open(cudaEvent_t *out) {
    cudaError_t error = cudaEventCreateWithFlags(out, cudaEventDisableTiming);
    return error ? tam_cuda_refused((int)error, "creating a CUDA event") : TAMIS_OK;
}

void tam_cuda_event_close(cudaEvent_t event) {
    if (event && cudaEventDestroy(event) != cudaSuccess)
        (void)cudaGetLastError();
}

uint64_t tam_cuda_deadline(uint64_t timeout_ns) {
    if (timeout_ns == 0)
        timeout_ns = tam_setting_number(TAM_SETTING_TIMEOUT_MS) * UINT64_C(1000000);
    return tam_clock_ns() + timeout_ns;
}

tamis_status tam_cuda_wait(cudaEvent_t event, uint64_t deadline_ns, const char *what) {
    for (unsigned tries = 0;; tries++) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess)
            return TAMIS_OK;
        if (error != cudaErrorNotReady)
            return tam_cuda_failed((int)error, what);
        (void)cudaGetLastError();
        if (tam_clock_ns() >= deadline_ns)
            return tam_fail(TAMIS_E_DEVICE,
                            "%s: the CUDA device did not finish before the deadline; it is busy "
                            "with other work or hangs",
                            what);
        tam_back_off(tries);
    }
}

bool tam_cuda_drain(cudaStream_t stream, uint64_t deadline_ns) {
    for (unsigned tries = 0; stream && cudaStreamQuery(stream) == cudaErrorNotReady; tries++) {
        (void)cudaGetLastError();
        if (tam_clock_ns() >= deadline_ns)
            return false;
        tam_back_off(tries);
    }
    (void)cudaGetLastError();
    return true;
}

tamis_status tam_cuda_queue_open(tam_cuda_queue *out) {
    tam_cuda_queue queue = {0};
    tamis_status status = tam_cuda_stream_open(TAM_CUDA_PATIENT, &queue.stream);
    if (status == TAMIS_OK)
        status = tam_cuda_event_open(&queue.event);
    void *staging = NULL;
    if (status == TAMIS_OK)
        status = tam_cuda_alloc_pinned(TAM_CUDA_STAGING, "copies", &staging);
    queue.staging = staging;
    if (status == TAMIS_OK)
        *out = queue;
    else
        tam_cuda_queue_close(&queue);
    return status;
}

void tam_cuda_queue_close(tam_cuda_queue *queue) {
    tam_cuda_free_pinned(queue->staging);
    tam_cuda_event_close(queue->event);
    tam_cuda_stream_close(queue->stream);
    *queue = (tam_cuda_queue){0};
}

tamis_status tam_cuda_queue_wait(const tam_cuda_queue *queue, const char *what) {
    TAM_CUDA_TRY(cudaEventRecord(queue->event, queue->stream), what);
    return tam_cuda_wait(queue->event, tam_cuda_deadline(queue->timeout_ns), what);
}

tamis_status tam_cuda_queue_read(const tam_cuda_queue *queue, const void *device, size_t bytes,
                                 void *host) {
    for (size_t at = 0; at < bytes; at += TAM_CUDA_STAGING) {
        size_t length = tam_min(bytes - at, TAM_CUDA_STAGING);
        TAM_CUDA_TRY(cudaMemcpyAsync(queue->staging, (const char *)device + at, length,
                                     cudaMemcpyDeviceToHost, queue->stream),
                     "reading device memory");
        TAM_TRY(tam_cuda_queue_wait(queue, "reading device memory"));
        memcpy((char *)host + at, queue->staging, length);
    }
    return TAMIS_OK;
}

tamis_status tam_cuda_queue_write(const tam_cuda_queue *queue, const void *host, size_t bytes,
                                  void *device) {
    for (size_t at = 0; at < bytes; at += TAM_CUDA_STAGING) {
        size_t length = tam_min(bytes - at, TAM_CUDA_STAGING);
        memcpy(queue->staging, (const char *)host + at, length);
        TAM_CUDA_TRY(cudaMemcpyAsync((char *)device + at, queue->staging, length,
                                     cudaMemcpyHostToDevice, queue->stream),
                     "writing device memory");
        TAM_TRY(tam_cuda_queue_wait(queue, "writing device memory"));
    }
    return TAMIS_OK;
}

/* -- what is available ------------------------------------------------------------------------ */

static _Thread_local char reason[256], version[512];

/* The compute capability of the current device; 0 or an error of the runtime. */
static cudaError_t capability(int *major, int *minor) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device);
    return error;
}

/* Any error here means that CUDA cannot be used; no other call is made then. */
const char *tam_cuda_reason(void) {
    int count = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        error = capability(&major, &minor);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(reason, sizeof reason, "no CUDA device can be used: %s (%s)",
                 cudaGetErrorString(error), cudaGetErrorName(error));
        return reason;
    }
    if (count == 0)
        return "no CUDA device can be used: the driver finds none";
    if (major < MIN_MAJOR) {
        snprintf(reason, sizeof reason,
                 "the current CUDA device has compute capability %d.%d; at least %d.0 is required",
                 major, minor, MIN_MAJOR);
        return reason;
    }
    return NULL;
}

const char *tam_cuda_version(void) {
    int runtime = 0, driver = 0, device = 0, major = 0, minor = 0, count = 0;
    struct cudaDeviceProp properties;
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    int used = snprintf(version, sizeof version, "CUDA %d.%d", runtime / 1000, runtime % 1000 / 10);
    if (driver == 0)
        snprintf(version + used, sizeof version - (size_t)used, ", no driver");
    else
        used += snprintf(version + used, sizeof version - (size_t)used, ", driver %d.%d",
                         driver / 1000, driver % 1000 / 10);
    if (driver > 0 && cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
        capability(&major, &minor) == cudaSuccess && cudaGetDevice(&device) == cudaSuccess &&
        cudaGetDeviceProperties(&properties, device) == cudaSuccess)
        snprintf(version + used, sizeof version - (size_t)used, ", %s (%d.%d)", properties.name,
                 major, minor);
    (void)cudaGetLastError();
    return version;
}
