/* SPDX-License-Identifier: MIT
 *
 * gpu_pass N [small]: the fused pass of a step by itself, and with what follows it on the device,
 * against the copy rate of the same process. What no public call can time: a rank that owns
 * 1 / parts of N elements, without an exchange. One JSON line each:
 *
 *     accumulate   acc += scale * g, sums of squares, candidates of the own part
 *     collect      and the ordered list, sums per group
 *     select       and exactly k of the list, ascending
 *
 * Four gradients rotate: g[b] = x[b] - x[b-1], so acc runs through x[0], x[1], ... and every pass
 * finds the same number of candidates, 1.5 k of them. Between rounds, outside of the time, acc is
 * set to x[3] again. Buffers hold 2^20 heavy-tailed numbers again and again. `small`: one round,
 * and a short copy, for a device that is emulated.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/half.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/runtime.h"
#include "tests/gpu/timing.h"

enum { BUFFERS = 4, GROUPS = 161, BLOCK = 4096, ROUNDS = 25 };

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

/* -- data ------------------------------------------------------------------------------------- */

static uint32_t threshold_bits(double share) {
    double v = 1.0 - share;
    float x = (float)(v / sqrt(sqrt(1.0 - v * v)));
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

typedef struct data {
    size_t n;
    tamis_dtype type;
    float *acc, *start; /* start: x[BUFFERS - 1] */
    void *grads[BUFFERS];
} data;

static data make_data(size_t n, tamis_dtype type) {
    data d = {.n = n, .type = type, .acc = timing_alloc(n * sizeof(float))};
    float *last = timing_host_array(TIMING_PERIOD, sizeof *last),
          *next = timing_host_array(TIMING_PERIOD, sizeof *next);
    size_t size = bench_type_bytes(type);
    for (uint64_t i = 0; i < TIMING_PERIOD; i++)
        last[i] = timing_tail(BUFFERS - 1, i);
    d.start = timing_repeat(last, TIMING_PERIOD * sizeof *last, n * sizeof *last);
    for (uint64_t b = 0; b < BUFFERS; b++) {
        for (uint64_t i = 0; i < TIMING_PERIOD; i++) {
            float x = timing_tail(b, i);
            next[i] = x - last[i];
            last[i] = x;
        }
        bench_narrow(type, next, TIMING_PERIOD, next);
        d.grads[b] = timing_repeat(next, TIMING_PERIOD * size, n * size);
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
    grid.groups = timing_host_array(GROUPS, sizeof *grid.groups);
    grid.tiles = timing_host_array(n / BLOCK + 2 * GROUPS, sizeof *grid.tiles);
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

typedef enum phases { ACCUMULATE, COLLECT, SELECT, COPY } phases;

static const char *const phase_names[] = {"accumulate", "collect", "select", "copy"};

typedef struct rounds {
    const data *d;
    const tam_cuda_device *device;
    phases phases;
    tam_cuda_accumulate job;
    const tam_cuda_source *sources; /* [BUFFERS] device memory */
    tam_cuda_select_job selection;
    cudaStream_t stream;
} rounds;

static void enqueue(const rounds *r, int b) {
    tam_cuda_accumulate job = r->job;
    job.source = &r->sources[b];
    const tam_cuda_fresh fresh = {
        .found = job.found, .select = r->selection.select, .selected = r->selection.selected};
    timing_try(tam_launch_reset(&fresh, r->stream), "reset");
    timing_try(tam_launch_accumulate(&job, r->stream), "accumulate");
    if (r->phases >= COLLECT)
        timing_try(tam_launch_collect(&job, r->stream), "collect");
    if (r->phases >= SELECT)
        timing_try(tam_launch_select(&r->selection, r->stream), "select");
}

static void enqueue_copies(const rounds *r) {
    size_t bytes = r->d->n * bench_type_bytes(r->d->type);
    for (int b = 0; b < BUFFERS; b++)
        timing_try(cudaMemcpyAsync(r->d->grads[(b + 2) % BUFFERS], r->d->grads[b], bytes,
                                   cudaMemcpyDeviceToDevice, r->stream),
                   "copy");
}

static cudaGraphExec_t capture(const rounds *r) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    timing_try(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int b = 0; b < BUFFERS; b++)
        enqueue(r, b);
    timing_try(cudaStreamEndCapture(r->stream, &graph), "capture");
    timing_try(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    timing_try(cudaGraphDestroy(graph), "graph");
    return exec;
}

/* Median over rounds of the microseconds that one of the four passes takes. Copies are not
 * captured: in a graph those of 1 GiB take 1.6 times as long (H200, CUDA 13.0). */
static double time_us(const rounds *r) {
    float ms[ROUNDS] = {0};
    cudaEvent_t begin, end;
    cudaGraphExec_t exec = r->phases == COPY ? NULL : capture(r);
    timing_try(cudaEventCreate(&begin), "event");
    timing_try(cudaEventCreate(&end), "event");
    for (int i = -run->warmup; i < run->rounds; i++) {
        timing_try(cudaMemcpyAsync(r->d->acc, r->d->start, r->d->n * sizeof(float),
                                   cudaMemcpyDeviceToDevice, r->stream),
                   "copy");
        timing_try(cudaEventRecord(begin, r->stream), "event");
        if (exec)
            timing_try(cudaGraphLaunch(exec, r->stream), "launch");
        else
            enqueue_copies(r);
        timing_try(cudaEventRecord(end, r->stream), "event");
        timing_try(cudaEventSynchronize(end), "the device");
        if (i >= 0)
            timing_try(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    timing_try(cudaEventDestroy(end), "event");
    timing_try(cudaEventDestroy(begin), "event");
    if (exec)
        timing_try(cudaGraphExecDestroy(exec), "graph");
    return 1e3 * timing_median(ms, (size_t)run->rounds) / BUFFERS;
}

/* -- cases ------------------------------------------------------------------------------------ */

static void report(const rounds *r, double density, uint32_t parts, double copy_gb_s) {
    tam_cuda_found found;
    tam_cuda_select_result selected;
    double us = time_us(r);
    uint32_t k = (uint32_t)(density * (double)r->d->n / parts);
    double bytes = (8.0 + (double)bench_type_bytes(r->d->type)) * (double)r->d->n;
    timing_try(cudaMemcpy(&found, r->job.found, sizeof found, cudaMemcpyDeviceToHost), "read");
    timing_try(
        cudaMemcpy(&selected, r->selection.selected, sizeof selected, cudaMemcpyDeviceToHost),
        "read");
    printf("{\"record\":\"pass\",\"n\":%zu,\"grad\":\"%s\",\"parts\":%u,\"density\":%g,"
           "\"phases\":\"%s\",\"candidates\":%llu,\"selected\":%u,\"rescanned\":%u,\"bytes_moved\":"
           "%.0f,"
           "\"copy_gb_s\":%.1f,\"copy_share\":%.4f,\"time_us\":{\"median\":%.2f}}\n",
           r->d->n, r->d->type == TAMIS_DTYPE_FLOAT32 ? "fp32" : "bf16", parts, density,
           phase_names[r->phases], (unsigned long long)found.total, selected.count,
           selected.rescanned, bytes, copy_gb_s, 1e-3 * bytes / copy_gb_s / us, us);
    if (r->phases == SELECT && selected.count != k) {
        fprintf(stderr, "gpu_pass: %u entries were selected, not %u\n", selected.count, k);
        exit(1);
    }
}

static void run_density(const data *d, const tam_cuda_device *device, double density,
                        uint32_t parts, double copy_gb_s) {
    uint32_t bits = threshold_bits(OVER * density), thresholds[GROUPS];
    double k = density * (double)d->n / parts;
    tam_cuda_params params = {.mine = 0, .k = (uint32_t)k, .floor = bits, .listed = 1};
    rounds r = {.d = d, .device = device};
    for (int g = 0; g < GROUPS; g++)
        thresholds[g] = bits;
    tam_cuda_params *params_there = timing_upload(&params, sizeof params);
    tam_cuda_source sources[BUFFERS] = {{0}};
    for (int b = 0; b < BUFFERS; b++)
        sources[b] = (tam_cuda_source){.grad = d->grads[b], .scale = 1.0f, .decay = 1.0f};
    r.sources = timing_upload(sources, sizeof sources);
    uint32_t *thresholds_there = timing_upload(thresholds, sizeof thresholds);
    r.job = (tam_cuda_accumulate){
        .grid = device->grid,
        .acc = d->acc,
        .seg_begin = device->seg_begin,
        .type = d->type,
        .params = params_there,
        .thresholds = thresholds_there,
        .candidates = device->candidates,
        .found = device->found,
        .chunk_sums = device->chunk_sums,
        .group_sums = device->group_sums,
    };
    r.selection = (tam_cuda_select_job){
        .grid = device->grid,
        .acc = d->acc,
        .kind = TAM_SELECT_TOTAL,
        .end_chunk = device->grid.nchunks,
        .params = params_there,
        .thresholds = thresholds_there,
        .candidates = device->candidates,
        .found = device->found,
        .select = device->select,
        .indices = timing_alloc(((size_t)k + 1) * sizeof(uint32_t)),
        .selected = device->selected,
    };
    timing_try(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), "stream");
    for (r.phases = ACCUMULATE; r.phases <= SELECT; r.phases++)
        report(&r, density, parts, copy_gb_s);
    timing_try(cudaStreamDestroy(r.stream), "stream");
    cudaFree(r.selection.indices);
    cudaFree(thresholds_there);
    cudaFree((void *)r.sources);
    cudaFree(params_there);
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
    timing_try(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), "stream");
    double us = time_us(&r);
    timing_try(cudaStreamDestroy(r.stream), "stream");
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
