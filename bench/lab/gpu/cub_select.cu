/* SPDX-License-Identifier: MIT
 *
 * tamis_cub device: the device and its copy rate at 1 GiB.
 * tamis_cub N DENSITY [RUNS]: the cost of a step composed of fast library parts, each in its best
 * case: the threshold is known beforehand, indices stay where they were found, nothing is
 * exchanged. Two compositions, one JSON line each:
 *
 *     cub_select    DeviceTransform acc += s * g; DeviceSelect::If on |acc| >= threshold;
 *                   gather, clear                                      12 + 4 bytes per element
 *     micro_mask    acc += s * g; mask = |acc| >= threshold; DeviceSelect::Flagged; gather;
 *                   acc *= not mask: as MiCRO's program does it        12 + 5 + 1 + 9 bytes
 *
 * Between runs acc is set to zero, untimed, so that every run finds the same number of entries.
 * Gradients are heavy-tailed like those of tamis_perf and rotate among four buffers.
 */
#include <cub/device/device_select.cuh>
#include <cub/device/device_transform.cuh>
#include <cuda/std/tuple>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

enum { BUFFERS = 4, THREADS = 256, BLOCKS = 4096, WARMUP = 3 };

static void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    std::fprintf(stderr, "tamis_cub: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

struct axpy {
    float scale;
    __host__ __device__ float operator()(float acc, float grad) const {
        return acc + scale * grad;
    }
};

struct ranges {
    const float *acc;
    float threshold;
    __host__ __device__ bool operator()(uint32_t i) const {
        return fabsf(acc[i]) >= threshold;
    }
};

struct at_least {
    float threshold;
    __host__ __device__ char operator()(float acc) const {
        return fabsf(acc) >= threshold;
    }
};

struct unless {
    __host__ __device__ float operator()(float acc, char mask) const {
        return acc * (1.0f - (float)mask);
    }
};

/* v (1 - v^2)^(-1/4), v uniform in (-1, 1). */
__global__ void fill(float *out, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        uint64_t x = (i + seed * n + 1) * 0x9e3779b97f4a7c15ull;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ x >> 27) * 0x94d049bb133111ebull;
        float v = (float)(int32_t)((x ^ x >> 31) >> 41) * 0x1p-22f - 1.0f + 0x1p-23f;
        out[i] = v / sqrtf(sqrtf(1.0f - v * v));
    }
}

__global__ void gather(const float *acc, const uint32_t *indices, const uint32_t *count,
                       float *values) {
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < *count; i += gridDim.x * THREADS)
        values[i] = acc[indices[i]];
}

__global__ void gather_and_clear(float *acc, const uint32_t *indices, const uint32_t *count,
                                 float *values) {
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < *count; i += gridDim.x * THREADS) {
        values[i] = acc[indices[i]];
        acc[indices[i]] = 0.0f;
    }
}

struct buffers {
    size_t n;
    float threshold;
    float *acc, *grads[BUFFERS], *values;
    uint32_t *indices, *count;
    char *mask;
    void *scratch;
    size_t scratch_bytes;
    cudaStream_t stream;
};

template <typename Type> static void allocate(Type **out, size_t count) {
    check(cudaMalloc((void **)out, count * sizeof(Type)), "cudaMalloc");
}

static cudaError_t select_if(buffers &b, void *scratch, size_t &bytes) {
    return cub::DeviceSelect::If(scratch, bytes, thrust::counting_iterator<uint32_t>(0), b.indices,
                                 b.count, (int64_t)b.n, ranges{b.acc, b.threshold}, b.stream);
}

static cudaError_t select_flagged(buffers &b, void *scratch, size_t &bytes) {
    return cub::DeviceSelect::Flagged(scratch, bytes, thrust::counting_iterator<uint32_t>(0),
                                      b.mask, b.indices, b.count, (int64_t)b.n, b.stream);
}

static buffers make_buffers(size_t n, double density) {
    buffers b = {};
    size_t one = 0, other = 0;
    double v = 1.0 - density; /* P(|x| > t) for t = v (1 - v^2)^(-1/4) */
    b.n = n;
    b.threshold = (float)(0.5 * v / std::sqrt(std::sqrt(1.0 - v * v)));
    check(cudaStreamCreate(&b.stream), "cudaStreamCreate");
    allocate(&b.acc, n);
    allocate(&b.values, n);
    allocate(&b.indices, n);
    allocate(&b.mask, n);
    allocate(&b.count, 1);
    for (uint64_t i = 0; i < BUFFERS; i++) {
        allocate(&b.grads[i], n);
        fill<<<BLOCKS, THREADS, 0, b.stream>>>(b.grads[i], n, i);
    }
    check(select_if(b, NULL, one), "size of DeviceSelect::If");
    check(select_flagged(b, NULL, other), "size of DeviceSelect::Flagged");
    b.scratch_bytes = std::max(one, other);
    check(cudaMalloc(&b.scratch, b.scratch_bytes), "cudaMalloc");
    return b;
}

static void accumulate(buffers &b, const float *grad) {
    auto both = cuda::std::make_tuple((const float *)b.acc, grad);
    check(cub::DeviceTransform::Transform(both, b.acc, (int64_t)b.n, axpy{0.5f}, b.stream),
          "DeviceTransform");
}

static void cub_select(buffers &b, const float *grad) {
    accumulate(b, grad);
    check(select_if(b, b.scratch, b.scratch_bytes), "DeviceSelect::If");
    gather_and_clear<<<BLOCKS, THREADS, 0, b.stream>>>(b.acc, b.indices, b.count, b.values);
}

static void micro_mask(buffers &b, const float *grad) {
    accumulate(b, grad);
    check(cub::DeviceTransform::Transform((const float *)b.acc, b.mask, (int64_t)b.n,
                                          at_least{b.threshold}, b.stream),
          "DeviceTransform");
    check(select_flagged(b, b.scratch, b.scratch_bytes), "DeviceSelect::Flagged");
    gather<<<BLOCKS, THREADS, 0, b.stream>>>(b.acc, b.indices, b.count, b.values);
    auto both = cuda::std::make_tuple((const float *)b.acc, (const char *)b.mask);
    check(cub::DeviceTransform::Transform(both, b.acc, (int64_t)b.n, unless{}, b.stream),
          "DeviceTransform");
}

typedef void (*step)(buffers &b, const float *grad);

/* Microseconds of each run, between two events. */
static std::vector<float> time_runs(buffers &b, step run, unsigned runs) {
    std::vector<float> times;
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    for (unsigned i = 0; i < WARMUP + runs; i++) {
        float ms = 0.0f;
        check(cudaMemsetAsync(b.acc, 0, b.n * sizeof(float), b.stream), "cudaMemset");
        check(cudaEventRecord(begin, b.stream), "cudaEventRecord");
        run(b, b.grads[i % BUFFERS]);
        check(cudaEventRecord(end, b.stream), "cudaEventRecord");
        check(cudaEventSynchronize(end), "the device");
        check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
        if (i >= WARMUP)
            times.push_back(1e3f * ms);
    }
    check(cudaEventDestroy(end), "cudaEventDestroy");
    check(cudaEventDestroy(begin), "cudaEventDestroy");
    std::sort(times.begin(), times.end());
    return times;
}

/* From each buffer into the next but one: with four of 1 GiB nothing stays in the cache. */
static void copy_next(buffers &b, const float *grad) {
    float *to = grad == b.grads[0] || grad == b.grads[1] ? b.grads[2] : b.grads[0];
    check(cudaMemcpyAsync(to, grad, (size_t)1 << 30, cudaMemcpyDeviceToDevice, b.stream), "copy");
}

static void report(buffers &b, const char *name, step run, double density, unsigned runs) {
    uint32_t count = 0;
    std::vector<float> times = time_runs(b, run, runs);
    check(cudaMemcpy(&count, b.count, sizeof count, cudaMemcpyDeviceToHost), "cudaMemcpy");
    std::printf(
        "{\"record\":\"baseline\",\"name\":\"%s\",\"n\":%zu,\"density\":%g,\"grad\":\"fp32\","
        "\"runs\":%u,\"selected\":%u,\"time_us\":{\"min\":%.2f,\"median\":%.2f}}\n",
        name, b.n, density, runs, count, times.front(), times[times.size() / 2]);
}

/* Rate of copies of 1 GiB, bytes read plus bytes written, in 1e9 per second. */
static double copy_gb_s(unsigned runs) {
    const size_t bytes = (size_t)1 << 30;
    buffers b = {};
    check(cudaStreamCreate(&b.stream), "cudaStreamCreate");
    b.n = 1;
    allocate(&b.acc, b.n);
    for (float *&grad : b.grads)
        allocate(&grad, bytes / sizeof(float));
    std::vector<float> times = time_runs(b, copy_next, runs);
    return 2e-3 * (double)bytes / times[times.size() / 2];
}

static int report_device() {
    cudaDeviceProp p;
    int driver = 0, runtime = 0;
    check(cudaGetDeviceProperties(&p, 0), "properties of the device");
    check(cudaDriverGetVersion(&driver), "version of the driver");
    check(cudaRuntimeGetVersion(&runtime), "version of the runtime");
    std::printf("{\"record\":\"device\",\"name\":\"%s\",\"capability\":\"%d.%d\",\"sms\":%d,"
                "\"l2_bytes\":%d,\"memory_bytes\":%zu,\"driver\":%d,\"runtime\":%d,"
                "\"copy_gb_s\":%.1f}\n",
                p.name, p.major, p.minor, p.multiProcessorCount, p.l2CacheSize, p.totalGlobalMem,
                driver, runtime, copy_gb_s(21));
    return 0;
}

int main(int argc, char **argv) {
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "no CUDA device can be used");
    if (argc == 2 && std::strcmp(argv[1], "device") == 0)
        return report_device();
    double n = argc > 1 ? std::atof(argv[1]) : 0, density = argc > 2 ? std::atof(argv[2]) : 0;
    unsigned runs = argc > 3 ? (unsigned)std::atoi(argv[3]) : 21;
    if (!(n >= 1 && n < 4294901760.0 && density > 0 && density < 1) || runs < 1) {
        std::fprintf(stderr, "usage: tamis_cub device | N DENSITY [RUNS]\n");
        return 2;
    }
    buffers b = make_buffers((size_t)n, density);
    report(b, "cub_select", cub_select, density, runs);
    report(b, "micro_mask", micro_mask, density, runs);
    return 0; /* the end of the process frees what is left */
}
