/* SPDX-License-Identifier: MIT
 *
 * Fake CUDA runtime: devices, errors, counting, trouble on demand.
 */
#include "tests/cuda/fake_cuda.hpp"

static int from_environment(const char *name, int fallback) {
    const char *text = getenv(name);
    return text ? atoi(text) : fallback;
}

static void set_usual(fake_world *w) {
    w->devices = from_environment("FAKE_CUDA_DEVICES", 8);
    w->multiprocessors = from_environment("FAKE_CUDA_SMS", 2);
    w->delay_us = static_cast<unsigned>(from_environment("FAKE_CUDA_DELAY_US", 20));
    w->total = static_cast<size_t>(4) << 30;
    w->held = false;
    w->without_nvlink = -1;
}

static fake_world &make_world() {
    auto *made = new fake_world();
    set_usual(made);
    return *made;
}

fake_world &world = make_world();
thread_local int current_device;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static thread_local cudaError_t last_error;

cudaError_t give(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

uint32_t draw() {
    world.random ^= world.random << 13;
    world.random ^= world.random >> 7;
    world.random ^= world.random << 17;
    return static_cast<uint32_t>(world.random >> 32);
}

/* On the system's clock, for ThreadSanitizer of gcc 12 does not know waits on the steady one. */
void pause_for(std::condition_variable &what, guard &held, unsigned ms) {
    what.wait_until(held, std::chrono::system_clock::now() + std::chrono::milliseconds(ms));
}

static bool sticks(int error) {
    return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
           error == cudaErrorECCUncorrectable || error == cudaErrorHardwareStackError ||
           error == cudaErrorLaunchTimeout || error == cudaErrorUnknown;
}

void break_device(int device, int error) {
    world.errors[device] = error;
    for (CUstream_st *stream : world.streams) {
        stream->arrived.notify_all();
        stream->idle.notify_all();
    }
}

static bool blocks(const std::string &name) {
    static const char *const those[] = {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMemset",
        "cudaMalloc",
        "cudaMallocHost",
        "cudaHostAlloc",
        "cudaMallocManaged",
        "cudaFree",
        "cudaFreeHost",
    };
    for (const char *one : those)
        if (name == one)
            return true;
    return false;
}

/* What failed here, or 0. */
static int planned_failure(const std::string &name) {
    for (auto it = world.failures.begin(); it != world.failures.end(); ++it) {
        if (it->function != name || --it->nth > 0)
            continue;
        int error = it->error;
        world.failures.erase(it);
        if (name[0] != 'n' && sticks(error))
            break_device(current_device, error);
        return error;
    }
    return 0;
}

int fake_cuda_enter(const char *function) {
    guard held(world.lock);
    std::string name = function;
    name = name.substr(0, name.find('_'));
    world.calls[name]++;
    world.blocking += blocks(name);
    world.allocations += name.find("Alloc") != name.npos || name.find("Malloc") != name.npos;
    int error = planned_failure(name);
    if (error == 0 && name[0] != 'n' && current_device < world.devices)
        error = world.errors[current_device];
    return error;
}

uint64_t fake_cuda_runs(const char *kind) {
    guard held(world.lock);
    return world.runs.count(kind) ? world.runs[kind] : 0;
}

uint64_t fake_cuda_calls(const char *function) {
    guard held(world.lock);
    if (function)
        return world.calls.count(function) ? world.calls[function] : 0;
    uint64_t all = 0;
    for (const auto &one : world.calls)
        all += one.second;
    return all;
}

uint64_t fake_cuda_blocking_calls(void) {
    guard held(world.lock);
    return world.blocking;
}

uint64_t fake_cuda_allocations(void) {
    guard held(world.lock);
    return world.allocations;
}

uint64_t fake_cuda_forbidden_calls(void) {
    return fake_cuda_blocking_calls() + fake_cuda_allocations() +
           fake_cuda_calls("cudaGraphInstantiate");
}

fake_cuda_objects fake_cuda_alive(void) {
    unsigned comms = fake_nccl_comms();
    guard held(world.lock);
    world.alive.comms = comms;
    return world.alive;
}

void fake_cuda_fail(const char *function, unsigned nth, int error) {
    guard held(world.lock);
    world.failures.push_back({function, nth, error});
}

void fake_cuda_fault(unsigned nth, int error) {
    guard held(world.lock);
    world.fault_in = nth;
    world.fault_error = error;
}

void fake_cuda_break(int device, int error) {
    guard held(world.lock);
    break_device(device, error);
}

int fake_cuda_is_broken(int device) {
    guard held(world.lock);
    return world.errors[device] != 0;
}

void fake_cuda_devices(int count) {
    guard held(world.lock);
    world.devices = count;
}

void fake_cuda_memory(size_t bytes) {
    guard held(world.lock);
    world.total = bytes;
}

void fake_cuda_multiprocessors(int count) {
    guard held(world.lock);
    world.multiprocessors = count;
}

void fake_cuda_without_nvlink(int device) {
    guard held(world.lock);
    world.without_nvlink = device;
}

void fake_cuda_delay_us(unsigned us) {
    guard held(world.lock);
    world.delay_us = us;
}

void fake_cuda_hold(int on) {
    guard held(world.lock);
    world.held = on != 0;
}

void fake_cuda_reset(void) {
    fake_nccl_hang_abort(0);
    fake_nccl_version(0);
    guard held(world.lock);
    set_usual(&world);
    world.calls.clear();
    world.runs.clear();
    world.failures.clear();
    world.blocking = world.allocations = 0;
    world.fault_in = 0;
    memset(world.errors, 0, sizeof world.errors);
    last_error = cudaSuccess;
}

/* -- the runtime's own functions -------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER();
    *count = world.devices;
    return give(world.devices > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
    ENTER();
    *device = current_device;
    return give(world.devices > 0 ? cudaSuccess : cudaErrorNoDevice);
}

static const char address[] = "0000:%02x:00.0";

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device) {
    ENTER();
    if (device < 0 || device >= world.devices || bytes < 13)
        return give(cudaErrorInvalidValue);
    snprintf(out, static_cast<size_t>(bytes), address, static_cast<unsigned>(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
    ENTER();
    unsigned number;
    if (sscanf(text, address, &number) != 1 || number >= static_cast<unsigned>(world.devices))
        return give(cudaErrorInvalidDevice);
    *device = static_cast<int>(number);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr attribute, int from, int to) {
    ENTER();
    if (from == to || from < 0 || from >= world.devices || to < 0 || to >= world.devices)
        return give(cudaErrorInvalidDevice);
    if (attribute != cudaDevP2PAttrNativeAtomicSupported)
        return give(cudaErrorInvalidValue);
    *value = from != world.without_nvlink && to != world.without_nvlink;
    return cudaSuccess;
}

/* Works on a broken device too, or nobody could leave it. */
cudaError_t cudaSetDevice(int device) {
    int error = fake_cuda_enter(__func__);
    if (device < 0 || device >= world.devices)
        return give(cudaErrorInvalidDevice);
    current_device = device;
    return give(static_cast<cudaError_t>(error));
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    ENTER();
    if (device < 0 || device >= world.devices)
        return give(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = world.multiprocessors;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = 50 << 20;
        return cudaSuccess;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostNativeAtomicSupported:
    case cudaDevAttrManagedMemory:
        *value = 1;
        return cudaSuccess;
    default:
        fprintf(stderr, "fake cuda: attribute %d of a device is not known here\n", attribute);
        return give(cudaErrorInvalidValue);
    }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    ENTER();
    if (device < 0 || device >= world.devices)
        return give(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "fake device %d", device);
    out->major = 9;
    out->multiProcessorCount = world.multiprocessors;
    out->totalGlobalMem = world.total;
    out->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER();
    guard held(world.lock);
    if (forbidden())
        return give(cudaErrorStreamCaptureUnsupported);
    return give(drain_device(current_device, held));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    fake_cuda_enter(__func__);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    fake_cuda_enter(__func__);
    *version = world.devices > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    guard held(world.lock);
    if (current_device < world.devices && world.errors[current_device])
        return static_cast<cudaError_t>(world.errors[current_device]);
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define NAME(name)                                                                                 \
    case name:                                                                                     \
        return #name;
        NAME(cudaSuccess)
        NAME(cudaErrorInvalidValue)
        NAME(cudaErrorMemoryAllocation)
        NAME(cudaErrorInitializationError)
        NAME(cudaErrorInvalidConfiguration)
        NAME(cudaErrorInsufficientDriver)
        NAME(cudaErrorNoDevice)
        NAME(cudaErrorInvalidDevice)
        NAME(cudaErrorInvalidResourceHandle)
        NAME(cudaErrorNotReady)
        NAME(cudaErrorLaunchOutOfResources)
        NAME(cudaErrorIllegalState)
        NAME(cudaErrorNotSupported)
        NAME(cudaErrorIllegalAddress)
        NAME(cudaErrorLaunchFailure)
        NAME(cudaErrorECCUncorrectable)
        NAME(cudaErrorGraphExecUpdateFailure)
        NAME(cudaErrorCapturedEvent)
        NAME(cudaErrorStreamCaptureUnsupported)
        NAME(cudaErrorStreamCaptureInvalidated)
        NAME(cudaErrorStreamCaptureUnjoined)
        NAME(cudaErrorStreamCaptureMerge)
        NAME(cudaErrorStreamCaptureUnmatched)
        NAME(cudaErrorStreamCaptureIsolation)
        NAME(cudaErrorStreamCaptureWrongThread)
        NAME(cudaErrorUnknown)
#undef NAME
    default:
        return "an error that the fake has no name for";
    }
}

const char *cudaGetErrorString(cudaError_t error) {
    return cudaGetErrorName(error);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    fake_cuda_enter(__func__);
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}
