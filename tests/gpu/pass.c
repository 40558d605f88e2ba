/* SPDX-License-Identifier: MIT
 *
 * gpu_pass N [small]: the fused pass of a step by itself, and with what follows it on the device,
 * against the copy rate of the same process. What no public call can time: a rank that owns
 * 1 / parts of N elements, without an exchange. One JSON line each:
 *
 *     accumulate   acc += scale * g, sums of squares, candidates of the own part
 *     collect      and the ordered list, sums per group
 *     cut          and exactly k of the list, ascending
 *
 * Four gradients rotate: g[b] = x[b] - x[b-1], so acc runs through x[0], x[1], ... and every pass
 * meets the same number of candidates, 1.5 k of them. Between rounds, outside of the time, acc is
 * set to x[3] again. Buffers hold 2^20 heavy-tailed numbers again and again. `small`: one round,
 * and a short copy, for a device that is emulated.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/half.h"
#include "bench/common/random.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/runtime.h"

enum { BUFFERS = 4, GROUPS = 161, BLOCK = 4096, PERIOD = 1 << 20, ROUNDS = 25 };

#define OVER 1.5 /* candidates in units of k, as the library aims at */

enum { SKIPPED = 77 };

typedef struct effort {
    int warmup, rounds; /* at most ROUNDS */
    size_t copied;      /* elements of the yardstick */
    double shortest;    /* N */
} effort;

static const effort full = {3, ROUNDS, (size_t)1 << 28, BLOCK *GROUPS};
static const effort small = {0, 1, 1 << 16, 600 * GROUPS};
static const effort *run = &full;

static void try_cuda(int error, const char *what) {
    if (error == 0)
        return;
    fprintf(stderr, "gpu_pass: %s: %s\n", what, cudaGetErrorString((cudaError_t)error));
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory;
    try_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

static void *upload(const void *host, size_t bytes) {
    void *memory = allocate(bytes);
    try_cuda(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "upload");
    return memory;
}

static void *host_array(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory)
        try_cuda(cudaErrorMemoryAllocation, "host memory");
    return memory;
}

/* -- data ------------------------------------------------------------------------------------- */

/* As tamis_perf: P(|x| > v (1 - v^2)^(-1/4)) = 1 - v. */
static float heavy_tail(uint64_t stream, uint64_t i) {
    float v = (float)(int32_t)(bench_random(bench_key(1, 4, stream), i) >> 41) * 0x1p-22f - 1.0f;
    v += 0x1p-23f;
    return v / sqrtf(sqrtf(1.0f - v * v));
}

static uint32_t threshold_bits(double share) {
    double v = 1.0 - share;
    float x = (float)(v / sqrt(sqrt(1.0 - v * v)));
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The first piece comes from the host, the rest from what is there already. */
static void *repeat(const void *piece, size_t piece_bytes, size_t bytes) {
    char *memory = allocate(bytes);
    size_t have = piece_bytes < bytes ? piece_bytes : bytes;
    try_cuda(cudaMemcpy(memory, piece, have, cudaMemcpyHostToDevice), "upload");
    while (have < bytes) {
        size_t more = have < bytes - have ? have : bytes - have;
        try_cuda(cudaMemcpy(memory + have, memory, more, cudaMemcpyDeviceToDevice), "copy");
        have += more;
    }
    return memory;
}

typedef struct data {
    size_t n;
    tamis_dtype type;
    float *acc, *start; /* start: x[BUFFERS - 1] */
    void *grads[BUFFERS];
} data;

static data make_data(size_t n, tamis_dtype type) {
    data d = {.n = n, .type = type, .acc = allocate(n * sizeof(float))};
    float *last = host_array(PERIOD, sizeof *last), *next = host_array(PERIOD, sizeof *next);
    size_t size = bench_type_bytes(type);
    for (uint64_t i = 0; i < PERIOD; i++)
        last[i] = heavy_tail(BUFFERS - 1, i);
    d.start = repeat(last, PERIOD * sizeof *last, n * sizeof *last);
    for (uint64_t b = 0; b < BUFFERS; b++) {
        for (uint64_t i = 0; i < PERIOD; i++) {
            float x = heavy_tail(b, i);
            next[i] = x - last[i];
            last[i] = x;
        }
        bench_narrow(type, next, PERIOD, next);
        d.grads[b] = repeat(next, PERIOD * size, n * size);
    }
    free(next);
    free(last);
    return d;
}

static void free_data(data *d) {
    for (int b = 0; b < BUFFERS; b++)
        cudaFree(d->grads[b]);
    cudaFree(d->start);
    cudaFree(d->acc);
}

/* Equal groups, blocks dealt to the parts in turn. */
static tam_grid make_grid(size_t n, uint32_t parts) {
    tam_grid grid = {.n = n, .ngroups = GROUPS};
    grid.groups = host_array(GROUPS, sizeof *grid.groups);
    grid.tiles = host_array(n / BLOCK + 2 * GROUPS, sizeof *grid.tiles);
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t at = (uint32_t)(n * g / GROUPS), end = (uint32_t)(n * (g + 1) / GROUPS);
        grid.groups[g] = (tam_group){.begin = at, .length = end - at, .segment = g};
        grid.groups[g].first_tile = grid.ntiles;
        while (at < end) {
            uint32_t stop = (at / BLOCK + 1) * BLOCK;
            stop = stop < end ? stop : end;
            grid.tiles[grid.ntiles++] = (tam_tile){at, stop - at, g, at / BLOCK % parts};
            at = stop;
        }
        grid.groups[g].ntiles = grid.ntiles - grid.groups[g].first_tile;
    }
    return grid;
}

/* -- rounds ----------------------------------------------------------------------------------- */

typedef enum phases { ACCUMULATE, COLLECT, CUT, COPY } phases;

static const char *const phase_names[] = {"accumulate", "collect", "cut", "copy"};

typedef struct rounds {
    const data *d;
    const tam_cuda_device *device;
    phases phases;
    tam_cuda_accumulate job;
    const tam_cuda_source *sources; /* [BUFFERS] device memory */
    tam_cuda_cut cut;
    cudaStream_t stream;
} rounds;

static void enqueue(const rounds *r, int b) {
    tam_cuda_accumulate job = r->job;
    job.source = &r->sources[b];
    try_cuda(tam_launch_reset(job.found, r->cut.select, r->cut.picked, r->stream), "reset");
    try_cuda(tam_launch_accumulate(&job, r->stream), "accumulate");
    if (r->phases >= COLLECT)
        try_cuda(tam_launch_collect(&job, r->stream), "collect");
    if (r->phases >= CUT)
        try_cuda(tam_launch_cut(&r->cut, r->stream), "cut");
}

static cudaGraphExec_t capture(const rounds *r) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t half = r->d->n * bench_type_bytes(r->d->type);
    try_cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int b = 0; b < BUFFERS; b++) {
        if (r->phases == COPY)
            try_cuda(cudaMemcpyAsync(r->d->grads[(b + 2) % BUFFERS], r->d->grads[b], half,
                                     cudaMemcpyDeviceToDevice, r->stream),
                     "copy");
        else
            enqueue(r, b);
    }
    try_cuda(cudaStreamEndCapture(r->stream, &graph), "capture");
    try_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    try_cuda(cudaGraphDestroy(graph), "graph");
    return exec;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median over rounds of the microseconds that one of the four passes takes. */
static double time_us(const rounds *r) {
    float ms[ROUNDS] = {0};
    cudaEvent_t begin, end;
    cudaGraphExec_t exec = capture(r);
    try_cuda(cudaEventCreate(&begin), "event");
    try_cuda(cudaEventCreate(&end), "event");
    for (int i = -run->warmup; i < run->rounds; i++) {
        try_cuda(cudaMemcpyAsync(r->d->acc, r->d->start, r->d->n * sizeof(float),
                                 cudaMemcpyDeviceToDevice, r->stream),
                 "copy");
        try_cuda(cudaEventRecord(begin, r->stream), "event");
        try_cuda(cudaGraphLaunch(exec, r->stream), "launch");
        try_cuda(cudaEventRecord(end, r->stream), "event");
        try_cuda(cudaEventSynchronize(end), "the device");
        if (i >= 0)
            try_cuda(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    try_cuda(cudaEventDestroy(end), "event");
    try_cuda(cudaEventDestroy(begin), "event");
    try_cuda(cudaGraphExecDestroy(exec), "graph");
    qsort(ms, (size_t)run->rounds, sizeof ms[0], ascending);
    return 1e3 * ms[run->rounds / 2] / BUFFERS;
}

/* -- cases ------------------------------------------------------------------------------------ */

static void report(const rounds *r, double density, uint32_t parts, double copy_gb_s) {
    tam_cuda_found found;
    tam_cuda_picked picked;
    double us = time_us(r);
    uint32_t k = (uint32_t)(density * (double)r->d->n / parts);
    double bytes = (8.0 + (double)bench_type_bytes(r->d->type)) * (double)r->d->n;
    try_cuda(cudaMemcpy(&found, r->job.found, sizeof found, cudaMemcpyDeviceToHost), "read");
    try_cuda(cudaMemcpy(&picked, r->cut.picked, sizeof picked, cudaMemcpyDeviceToHost), "read");
    printf(
        "{\"record\":\"pass\",\"n\":%zu,\"grad\":\"%s\",\"parts\":%u,\"density\":%g,"
        "\"phases\":\"%s\",\"candidates\":%llu,\"picked\":%u,\"rescanned\":%u,\"bytes_moved\":%.0f,"
        "\"copy_gb_s\":%.1f,\"copy_share\":%.4f,\"time_us\":{\"median\":%.2f}}\n",
        r->d->n, r->d->type == TAMIS_DTYPE_FLOAT32 ? "fp32" : "bf16", parts, density,
        phase_names[r->phases], (unsigned long long)found.total, picked.count, picked.rescanned,
        bytes, copy_gb_s, 1e-3 * bytes / copy_gb_s / us, us);
    if (r->phases == CUT && picked.count != k) {
        fprintf(stderr, "gpu_pass: %u entries were cut, not %u\n", picked.count, k);
        exit(1);
    }
}

static void run_density(const data *d, const tam_cuda_device *device, double density,
                        uint32_t parts, double copy_gb_s) {
    uint32_t bits = threshold_bits(OVER * density), thresholds[GROUPS];
    double k = density * (double)d->n / parts;
    tam_cuda_turn turn = {.mine = 0, .k = (uint32_t)k, .floor = bits, .listed = 1};
    rounds r = {.d = d, .device = device};
    for (int g = 0; g < GROUPS; g++)
        thresholds[g] = bits;
    tam_cuda_turn *turn_there = upload(&turn, sizeof turn);
    tam_cuda_source sources[BUFFERS] = {{0}};
    for (int b = 0; b < BUFFERS; b++)
        sources[b] = (tam_cuda_source){.grad = d->grads[b], .scale = 1.0f, .decay = 1.0f};
    r.sources = upload(sources, sizeof sources);
    uint32_t *thresholds_there = upload(thresholds, sizeof thresholds);
    r.job = (tam_cuda_accumulate){
        .grid = device->grid,
        .acc = d->acc,
        .seg_begin = device->seg_begin,
        .type = d->type,
        .turn = turn_there,
        .thresholds = thresholds_there,
        .candidates = device->candidates,
        .found = device->found,
        .chunk_sums = device->chunk_sums,
        .group_sums = device->group_sums,
    };
    r.cut = (tam_cuda_cut){
        .grid = device->grid,
        .acc = d->acc,
        .kind = TAM_CUT_TOTAL,
        .end_chunk = device->grid.nchunks,
        .turn = turn_there,
        .thresholds = thresholds_there,
        .candidates = device->candidates,
        .found = device->found,
        .select = device->select,
        .indices = allocate(((size_t)k + 1) * sizeof(uint32_t)),
        .picked = device->picked,
    };
    try_cuda(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), "stream");
    for (r.phases = ACCUMULATE; r.phases <= CUT; r.phases++)
        report(&r, density, parts, copy_gb_s);
    try_cuda(cudaStreamDestroy(r.stream), "stream");
    cudaFree(r.cut.indices);
    cudaFree(thresholds_there);
    cudaFree((void *)r.sources);
    cudaFree(turn_there);
}

static void run_parts(const data *d, uint32_t parts, double copy_gb_s) {
    void *device;
    tam_grid grid = make_grid(d->n, parts);
    size_t capacity = (size_t)(0.04 * (double)d->n / parts) + 1024;
    if (tam_device_cuda.open(&grid, capacity, 1, &device) != TAMIS_OK) {
        fprintf(stderr, "gpu_pass: %s\n", tamis_last_error());
        exit(1);
    }
    run_density(d, device, 0.01, parts, copy_gb_s);
    run_density(d, device, 0.001, parts, copy_gb_s);
    tam_device_cuda.close(device);
    free(grid.tiles);
    free(grid.groups);
}

static double copy_gb_s(const data *d) {
    rounds r = {.d = d, .phases = COPY};
    try_cuda(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), "stream");
    double us = time_us(&r);
    try_cuda(cudaStreamDestroy(r.stream), "stream");
    return 2e-3 * (double)(d->n * bench_type_bytes(d->type)) / us;
}

/* The yardstick: copies of 1 GiB, of binary32, unless small. */
static double measure_copy(void) {
    data d = make_data(run->copied, TAMIS_DTYPE_FLOAT32);
    double gb_s = copy_gb_s(&d);
    free_data(&d);
    return gb_s;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[2], "small") == 0)
        run = &small;
    double n = argc == 2 || run == &small ? atof(argv[1]) : 0;
    if (!(n >= run->shortest && n < 4e9)) {
        fprintf(stderr, "usage: gpu_pass N [small], N from %.0f\n", run->shortest);
        return 2;
    }
    if (tam_cuda_reason()) {
        printf("skipped: %s\n", tam_cuda_reason());
        return SKIPPED;
    }
    double gb_s = measure_copy();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        data d = make_data((size_t)n, bf16 ? TAMIS_DTYPE_BFLOAT16 : TAMIS_DTYPE_FLOAT32);
        run_parts(&d, 1, gb_s);
        run_parts(&d, 8, gb_s);
        free_data(&d);
    }
    return 0;
}
