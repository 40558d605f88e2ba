/* SPDX-License-Identifier: MIT
 *
 * Fake CUDA runtime: memory of devices, pinned memory, copies. Every allocation is its own on the
 * heap, so AddressSanitizer sees what runs over its end or comes after its free.
 */
#include "tests/cuda/fake_cuda.hpp"

/* The allocation that holds a run of memory, or NULL. */
static const allocation *find(const void *memory, size_t bytes) {
    uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    auto it = world.memory.upper_bound(at);
    if (it == world.memory.begin())
        return nullptr;
    --it;
    return at + bytes <= it->first + it->second.bytes ? &it->second : nullptr;
}

int fake_cuda_owns(const void *memory, size_t bytes) {
    guard held(world.lock);
    return find(memory, bytes) != nullptr;
}

int fake_cuda_extent(const void *memory, uintptr_t *begin, size_t *bytes) {
    guard held(world.lock);
    const allocation *a = find(memory, 1);
    if (!a)
        return 0;
    *begin = std::prev(world.memory.upper_bound(reinterpret_cast<uintptr_t>(memory)))->first;
    *bytes = a->bytes;
    return 1;
}

static cudaError_t take(void **out, size_t bytes, memory_kind kind) {
    guard held(world.lock);
    if (current_device >= world.devices)
        return give(cudaErrorNoDevice);
    if (forbidden())
        return give(cudaErrorStreamCaptureUnsupported);
    size_t *used = &world.used[current_device];
    if (kind == DEVICE_MEMORY && bytes > world.total - *used)
        return give(cudaErrorMemoryAllocation);
    void *memory = nullptr;
    if (posix_memalign(&memory, 256, bytes ? bytes : 1) != 0)
        return give(cudaErrorMemoryAllocation);
    memset(memory, 0xAB, bytes);
    world.memory[reinterpret_cast<uintptr_t>(memory)] = {bytes, kind, current_device};
    world.alive.allocations++;
    if (kind == DEVICE_MEMORY)
        *used += bytes;
    *out = memory;
    return cudaSuccess;
}

/* Waits for the device, as the vendor's does. Memory of a broken device is freed all the same. */
static cudaError_t put(void *memory, bool pinned) {
    guard held(world.lock);
    if (!memory)
        return cudaSuccess;
    if (forbidden())
        return give(cudaErrorStreamCaptureUnsupported);
    auto it = world.memory.find(reinterpret_cast<uintptr_t>(memory));
    if (it == world.memory.end() || (it->second.kind == PINNED_MEMORY) != pinned)
        return give(cudaErrorInvalidValue);
    allocation was = it->second;
    cudaError_t error = drain_device(was.device, held);
    world.memory.erase(reinterpret_cast<uintptr_t>(memory));
    world.alive.allocations--;
    if (was.kind == DEVICE_MEMORY)
        world.used[was.device] -= was.bytes;
    free(memory);
    return give(error);
}

size_t fake_cuda_pinned(void) {
    guard held(world.lock);
    size_t bytes = 0;
    for (const auto &entry : world.memory)
        bytes += entry.second.kind == PINNED_MEMORY ? entry.second.bytes : 0;
    return bytes;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    ENTER();
    return take(out, bytes, DEVICE_MEMORY);
}

cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned) {
    ENTER();
    return take(out, bytes, MANAGED_MEMORY);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    ENTER();
    return take(out, bytes, PINNED_MEMORY);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    ENTER();
    return take(out, bytes, PINNED_MEMORY);
}

cudaError_t cudaFree(void *memory) {
    int error = fake_cuda_enter(__func__);
    cudaError_t freed = put(memory, false);
    return give(error ? static_cast<cudaError_t>(error) : freed);
}

cudaError_t cudaFreeHost(void *memory) {
    int error = fake_cuda_enter(__func__);
    cudaError_t freed = put(memory, true);
    return give(error ? static_cast<cudaError_t>(error) : freed);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned) {
    ENTER();
    guard held(world.lock);
    const allocation *a = find(host, 1);
    if (!a || a->kind == DEVICE_MEMORY)
        return give(cudaErrorInvalidValue);
    *out = host;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    ENTER();
    guard held(world.lock);
    *total = world.total;
    *available = world.total - world.used[current_device];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *memory) {
    ENTER();
    guard held(world.lock);
    *out = {};
    const allocation *a = find(memory, 1);
    if (!a) {
        out->type = cudaMemoryTypeUnregistered;
        out->device = -2;
        out->hostPointer = const_cast<void *>(memory);
        return cudaSuccess;
    }
    out->type = a->kind == DEVICE_MEMORY   ? cudaMemoryTypeDevice
                : a->kind == PINNED_MEMORY ? cudaMemoryTypeHost
                                           : cudaMemoryTypeManaged;
    out->device = a->device;
    out->devicePointer = const_cast<void *>(memory);
    out->hostPointer = a->kind == DEVICE_MEMORY ? nullptr : const_cast<void *>(memory);
    return cudaSuccess;
}

/* -- copies ----------------------------------------------------------------------------------- */

/* Whether one end of a copy is what its direction says. Pageable memory is known to nobody. */
static bool fits(const void *memory, size_t bytes, bool device) {
    const allocation *a = find(memory, bytes);
    if (device)
        return a && a->kind != PINNED_MEMORY;
    return !a ? find(memory, 1) == nullptr : a->kind != DEVICE_MEMORY;
}

static bool direction_fits(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    switch (kind) {
    case cudaMemcpyHostToHost:
        return fits(to, bytes, false) && fits(from, bytes, false);
    case cudaMemcpyHostToDevice:
        return fits(to, bytes, true) && fits(from, bytes, false);
    case cudaMemcpyDeviceToHost:
        return fits(to, bytes, false) && fits(from, bytes, true);
    case cudaMemcpyDeviceToDevice:
        return fits(to, bytes, true) && fits(from, bytes, true);
    default:
        return true;
    }
}

/* Copies of pageable memory wait for the stream. */
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        CUstream_st *stream, bool waits) {
    guard held(world.lock);
    if (bytes == 0)
        return cudaSuccess;
    if (!direction_fits(to, from, bytes, kind))
        return give(cudaErrorInvalidValue);
    bool pageable = !find(to, bytes) || !find(from, bytes);
    if (waits && forbidden())
        return give(cudaErrorStreamCaptureUnsupported);
    world.blocking += pageable && !waits && !stream->in;
    cudaError_t error = enqueue(stream, "memcpy", [=] { memcpy(to, from, bytes); });
    if (error == cudaSuccess && (waits || pageable) && !stream->in)
        error = drain(stream, held);
    return give(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    ENTER();
    return copy(to, from, bytes, kind, stream_of(nullptr), true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    ENTER();
    return copy(to, from, bytes, kind, stream_of(stream), false);
}

static cudaError_t fill(void *memory, int value, size_t bytes, CUstream_st *stream, bool waits) {
    guard held(world.lock);
    if (bytes > 0 && !find(memory, bytes))
        return give(cudaErrorInvalidValue);
    if (waits && forbidden())
        return give(cudaErrorStreamCaptureUnsupported);
    cudaError_t error = enqueue(stream, "memset", [=] { memset(memory, value, bytes); });
    if (error == cudaSuccess && waits)
        error = drain(stream, held);
    return give(error);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
    ENTER();
    return fill(memory, value, bytes, stream_of(nullptr), true);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    ENTER();
    return fill(memory, value, bytes, stream_of(stream), false);
}
