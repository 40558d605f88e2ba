/* SPDX-License-Identifier: MIT */
#include "tests/gpu/timing.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/common/random.h"

void timing_try(int error, const char *what) {
    if (error == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

void *timing_alloc(size_t bytes) {
    void *memory;
    timing_try(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

void *timing_upload(const void *host, size_t bytes) {
    void *memory = timing_alloc(bytes);
    timing_try(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "upload");
    return memory;
}

void *timing_host_array(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory)
        timing_try(cudaErrorMemoryAllocation, "host memory");
    return memory;
}

/* The first piece comes from the host, the rest from what is there already. */
void *timing_repeat(const void *piece, size_t piece_bytes, size_t bytes) {
    char *memory = timing_alloc(bytes);
    size_t have = piece_bytes < bytes ? piece_bytes : bytes;
    timing_try(cudaMemcpy(memory, piece, have, cudaMemcpyHostToDevice), "upload");
    while (have < bytes) {
        size_t more = have < bytes - have ? have : bytes - have;
        timing_try(cudaMemcpy(memory + have, memory, more, cudaMemcpyDeviceToDevice), "copy");
        have += more;
    }
    return memory;
}

float timing_tail(uint64_t stream, uint64_t i) {
    float v = (float)(int32_t)(bench_random(bench_key(1, 4, stream), i) >> 41) * 0x1p-22f - 1.0f;
    v += 0x1p-23f;
    return v / sqrtf(sqrtf(1.0f - v * v));
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double timing_median(float *times, size_t count) {
    qsort(times, count, sizeof times[0], ascending);
    return times[count / 2];
}
