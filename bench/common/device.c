/* SPDX-License-Identifier: MIT
 *
 * Only the plain copies call a function that blocks, so that a measurement can show that the host
 * waited for nothing.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "bench/common/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>
#include <unistd.h>

#include "bench/common/measure.h"
#include "bench/common/usage.h"

/* @return why the library lacks a feature, NULL if it has it. An older library has no such row. */
static const char *missing(const char *name) {
    static tamis_feature feature = TAMIS_FEATURE_INIT;
    for (size_t i = 0; tamis_feature_list(i, &feature); i++) {
        if (strcmp(feature.name, name) == 0)
            return feature.available ? NULL : feature.reason;
    }
    return "the library does not support it";
}

#ifdef TAMIS_BENCH_CUDA

#include <cuda_runtime_api.h>

static const char *not_built(void) {
    return NULL;
}

static void try_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
    fflush(NULL);
    _exit(1); /* other ranks are threads that may be inside the runtime */
}

void bench_device_use(bench_group *group, tamis_device device) {
    int count = 0;
    if (device == TAMIS_DEVICE_CPU)
        return;
    try_cuda(cudaGetDeviceCount(&count), "cannot count the CUDA devices");
    try_cuda(cudaSetDevice((int)(bench_machine_rank(group) % (uint32_t)count)),
             "cannot use a CUDA device");
}

const char *bench_device_name(tamis_device device) {
    static _Thread_local struct cudaDeviceProp properties;
    int index;
    if (device == TAMIS_DEVICE_CPU)
        return "cpu";
    try_cuda(cudaGetDevice(&index), "cannot query the CUDA device");
    try_cuda(cudaGetDeviceProperties(&properties, index), "cannot read the device's properties");
    return properties.name;
}

void *bench_device_alloc(tamis_device device, size_t bytes) {
    void *memory;
    if (device == TAMIS_DEVICE_CPU)
        return bench_alloc(bytes, 1);
    try_cuda(cudaMalloc(&memory, bytes ? bytes : 1), "no device memory; use smaller sizes");
    try_cuda(cudaMemset(memory, 0, bytes), "cannot clear device memory");
    return memory;
}

void bench_device_free(tamis_device device, void *memory) {
    if (device == TAMIS_DEVICE_CPU)
        free(memory);
    else
        try_cuda(cudaFree(memory), "cannot free device memory");
}

/* cudaMemcpy may return early between device buffers, and the library's streams do not wait for the
 * default one. So this waits for the end of the copy. */
static void copy(tamis_device device, const void *from, size_t bytes, void *to,
                 enum cudaMemcpyKind kind) {
    if (device == TAMIS_DEVICE_CPU) {
        memcpy(to, from, bytes);
        return;
    }
    try_cuda(cudaMemcpy(to, from, bytes, kind), "cannot copy");
    try_cuda(cudaStreamSynchronize(NULL), "cannot complete a copy");
}

void bench_device_write(tamis_device device, const void *host, size_t bytes, void *memory) {
    copy(device, host, bytes, memory, cudaMemcpyHostToDevice);
}

void bench_device_read(tamis_device device, const void *memory, size_t bytes, void *host) {
    copy(device, memory, bytes, host, cudaMemcpyDeviceToHost);
}

void bench_device_copy(tamis_device device, const void *from, size_t bytes, void *to) {
    copy(device, from, bytes, to, cudaMemcpyDeviceToDevice);
}

/* -- replay ----------------------------------------------------------------------------------- */

struct bench_replay {
    bench_enqueue body;
    void *context;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaGraphExec_t graph; /* NULL: enqueued directly */
};

/* Look the preloaded counter up by name: a program that runs without it has no such symbol. */
static bench_calls count_calls(void) {
    void (*count)(uint64_t *, uint64_t *) =
        (void (*)(uint64_t *, uint64_t *))dlsym(RTLD_DEFAULT, "bench_syncs_count");
    bench_calls calls = {.known = count != NULL};
    if (count)
        count(&calls.blocking, &calls.queries);
    return calls;
}

static void capture(bench_replay *replay) {
    cudaGraph_t graph;
    try_cuda(cudaStreamBeginCapture(replay->stream, cudaStreamCaptureModeThreadLocal),
             "cannot begin a capture");
    replay->body(replay->context, replay->stream);
    try_cuda(cudaStreamEndCapture(replay->stream, &graph), "cannot capture what was enqueued");
    try_cuda(cudaGraphInstantiate(&replay->graph, graph, 0), "cannot instantiate the graph");
    try_cuda(cudaGraphDestroy(graph), "cannot destroy the captured graph");
}

bench_replay *bench_replay_open(bench_enqueue body, void *context, bool direct) {
    bench_replay *replay = bench_alloc(1, sizeof *replay);
    replay->body = body;
    replay->context = context;
    try_cuda(cudaStreamCreateWithFlags(&replay->stream, cudaStreamNonBlocking),
             "cannot create a stream");
    try_cuda(cudaEventCreate(&replay->begin), "cannot create an event");
    try_cuda(cudaEventCreate(&replay->end), "cannot create an event");
    if (!direct)
        capture(replay);
    return replay;
}

void bench_replay_close(bench_replay *replay) {
    if (replay->graph)
        try_cuda(cudaGraphExecDestroy(replay->graph), "cannot destroy a graph");
    try_cuda(cudaEventDestroy(replay->end), "cannot destroy an event");
    try_cuda(cudaEventDestroy(replay->begin), "cannot destroy an event");
    try_cuda(cudaStreamDestroy(replay->stream), "cannot destroy a stream");
    free(replay);
}

static void enqueue(bench_replay *replay) {
    if (replay->graph)
        try_cuda(cudaGraphLaunch(replay->graph, replay->stream), "cannot launch the graph");
    else
        replay->body(replay->context, replay->stream);
}

static void await_end(bench_replay *replay) {
    cudaError_t status;
    try_cuda(cudaEventRecord(replay->end, replay->stream), "cannot record an event");
    while ((status = cudaEventQuery(replay->end)) == cudaErrorNotReady)
        usleep(20);
    try_cuda(status, "the device failed while it was measured");
}

double bench_replay_time(bench_replay *replay) {
    float ms = 0.0f;
    try_cuda(cudaEventRecord(replay->begin, replay->stream), "cannot record an event");
    enqueue(replay);
    await_end(replay);
    try_cuda(cudaEventElapsedTime(&ms, replay->begin, replay->end), "cannot read the clock");
    return 1e-3 * ms;
}

void bench_replay_watch(bench_replay *replay, double *host_s, bench_calls *out) {
    bench_calls before = count_calls();
    double start = bench_now_s();
    enqueue(replay);
    *host_s = bench_now_s() - start;
    *out = count_calls();
    out->blocking -= before.blocking;
    out->queries -= before.queries;
    await_end(replay);
}

/* -- copy rate -------------------------------------------------------------------------------- */

void bench_device_enqueue_copy(const void *from, size_t bytes, void *to, void *stream) {
    try_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
             "cannot enqueue a copy");
}

typedef struct copy_job {
    void *from, *to;
    size_t bytes;
} copy_job;

static void enqueue_copy(void *context, void *stream) {
    const copy_job *job = context;
    bench_device_enqueue_copy(job->from, job->bytes, job->to, stream);
}

/* Not in a graph: there copies of this size take 1.6 times as long (H200, CUDA 13.0). */
double bench_device_copy_gb_s(void) {
    enum { WARMUP = 3, TIMES = 20 };
    double times[TIMES];
    size_t available, all, bytes = (size_t)1 << 30;
    try_cuda(cudaMemGetInfo(&available, &all), "cannot query how much memory the device has");
    bytes = available / 8 < bytes ? available / 8 : bytes;
    copy_job job = {bench_device_alloc(TAMIS_DEVICE_CUDA, bytes),
                    bench_device_alloc(TAMIS_DEVICE_CUDA, bytes), bytes};
    bench_replay *replay = bench_replay_open(enqueue_copy, &job, true);
    for (int i = 0; i < WARMUP; i++)
        bench_replay_time(replay);
    for (int i = 0; i < TIMES; i++)
        times[i] = bench_replay_time(replay);
    bench_replay_close(replay);
    bench_device_free(TAMIS_DEVICE_CUDA, job.to);
    bench_device_free(TAMIS_DEVICE_CUDA, job.from);
    return 2e-9 * (double)bytes / bench_median(times, TIMES);
}

#else /* without CUDA: only for TAMIS_DEVICE_CPU */

static const char *not_built(void) {
    return "tamis_perf and tamis_train were built without CUDA (TAMIS_CUDA)";
}

void bench_device_use(bench_group *group, tamis_device device) {
    (void)group;
    (void)device;
}

const char *bench_device_name(tamis_device device) {
    (void)device;
    return "cpu";
}

void *bench_device_alloc(tamis_device device, size_t bytes) {
    (void)device;
    return bench_alloc(bytes, 1);
}

void bench_device_free(tamis_device device, void *memory) {
    (void)device;
    free(memory);
}

void bench_device_write(tamis_device device, const void *host, size_t bytes, void *memory) {
    (void)device;
    memcpy(memory, host, bytes);
}

void bench_device_read(tamis_device device, const void *memory, size_t bytes, void *host) {
    (void)device;
    memcpy(host, memory, bytes);
}

void bench_device_copy(tamis_device device, const void *from, size_t bytes, void *to) {
    (void)device;
    memcpy(to, from, bytes);
}

double bench_device_copy_gb_s(void) {
    return 0.0;
}

bench_replay *bench_replay_open(bench_enqueue body, void *context, bool direct) {
    (void)body;
    (void)context;
    (void)direct;
    return NULL;
}

void bench_replay_close(bench_replay *replay) {
    (void)replay;
}

double bench_replay_time(bench_replay *replay) {
    (void)replay;
    return 0.0;
}

void bench_replay_watch(bench_replay *replay, double *host_s, bench_calls *out) {
    (void)replay;
    *host_s = 0.0;
    *out = (bench_calls){0};
}

void bench_device_enqueue_copy(const void *from, size_t bytes, void *to, void *stream) {
    (void)from;
    (void)bytes;
    (void)to;
    (void)stream;
}

#endif

void bench_device_check(int device, int transport) {
    if (device == TAMIS_DEVICE_CPU && transport == BENCH_NCCL)
        bench_usage("--transport nccl works on device memory; add --device cuda");
    if (device == TAMIS_DEVICE_CPU)
        return;
    const char *why = not_built() ? not_built() : missing("cuda");
    if (why)
        bench_usage("--device cuda cannot run here: %s", why);
    if (transport == BENCH_NCCL && missing("nccl"))
        bench_usage("--transport nccl cannot run here: %s", missing("nccl"));
}
