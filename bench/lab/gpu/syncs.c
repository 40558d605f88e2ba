/* SPDX-License-Identifier: MIT
 *
 * libtamis_syncs.so, to be preloaded: counts the CUDA runtime calls by which a host waits for a
 * device, allocations included, and the queries by which it could wait in a loop. It sees calls to
 * the shared runtime only; NCCL contains its own runtime, whose calls it does not see.
 *
 *     LD_PRELOAD=.../libtamis_syncs.so tamis_perf --device cuda ...
 *
 * At the end of the process it writes one JSON object to stderr. A program may read the counts so
 * far by the symbol bench_syncs_count.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

void bench_syncs_count(uint64_t *blocking, uint64_t *queries);

typedef enum call {
    DEVICE_SYNCHRONIZE,
    STREAM_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    MEMCPY,
    MALLOC,
    FREE,
    HOST_ALLOC,
    MALLOC_HOST,
    FREE_HOST,
    BLOCKING, /* number of blocking calls; those that follow return at once */
    STREAM_QUERY = BLOCKING,
    EVENT_QUERY,
    CALLS
} call;

static const char *const names[CALLS] = {
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaMallocHost",
    "cudaFreeHost",
    "cudaStreamQuery",
    "cudaEventQuery",
};

static atomic_ullong counts[CALLS];

static void *count(call which) {
    atomic_fetch_add(&counts[which], 1);
    return dlsym(RTLD_NEXT, names[which]);
}

/* The runtime's own function, of the same type as the one that counts. */
#define FORWARD(which, function, ...)                                                              \
    do {                                                                                           \
        __typeof__(&function) next = (__typeof__(&function))count(which);                          \
        return next ? next(__VA_ARGS__) : cudaErrorInitializationError;                            \
    } while (0)

cudaError_t cudaDeviceSynchronize(void) {
    FORWARD(DEVICE_SYNCHRONIZE, cudaDeviceSynchronize);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    FORWARD(STREAM_SYNCHRONIZE, cudaStreamSynchronize, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    FORWARD(EVENT_SYNCHRONIZE, cudaEventSynchronize, event);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    FORWARD(MEMCPY, cudaMemcpy, to, from, bytes, kind);
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    FORWARD(MALLOC, cudaMalloc, out, bytes);
}

cudaError_t cudaFree(void *memory) {
    FORWARD(FREE, cudaFree, memory);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    FORWARD(HOST_ALLOC, cudaHostAlloc, out, bytes, flags);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    FORWARD(MALLOC_HOST, cudaMallocHost, out, bytes);
}

cudaError_t cudaFreeHost(void *memory) {
    FORWARD(FREE_HOST, cudaFreeHost, memory);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    FORWARD(STREAM_QUERY, cudaStreamQuery, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    FORWARD(EVENT_QUERY, cudaEventQuery, event);
}

void bench_syncs_count(uint64_t *blocking, uint64_t *queries) {
    *blocking = *queries = 0;
    for (int c = 0; c < CALLS; c++)
        *(c < BLOCKING ? blocking : queries) += atomic_load(&counts[c]);
}

__attribute__((destructor)) static void print(void) {
    uint64_t all = 0;
    for (int c = 0; c < CALLS; c++)
        all += atomic_load(&counts[c]);
    if (all == 0) /* a process that never used CUDA, such as a shell */
        return;
    fputs("{\"record\":\"syncs\"", stderr);
    for (int c = 0; c < CALLS; c++)
        fprintf(stderr, ",\"%s\":%llu", names[c], (unsigned long long)atomic_load(&counts[c]));
    fputs("}\n", stderr);
}
