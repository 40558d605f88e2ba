/* SPDX-License-Identifier: MIT
 *
 * What the files of the fake CUDA runtime share. One lock guards everything; operations run without
 * it.
 */
#ifndef TEST_CUDA_FAKE_CUDA_HPP
#define TEST_CUDA_FAKE_CUDA_HPP

#include "tests/cuda/fake.h"
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

using work = std::function<void()>;
using guard = std::unique_lock<std::mutex>;

/** How far an event has come; streams that wait for it outlive the event. */
struct event_state {
    uint64_t recorded = 0, completed = 0;
    std::chrono::steady_clock::time_point time;
    std::condition_variable changed;
};

struct node {
    const char *kind;
    work run;
    std::vector<size_t> after; /* nodes */
};

struct CUgraph_st {
    std::vector<node> nodes;
};

struct CUgraphExec_st {
    std::vector<node> nodes;
};

struct capture {
    CUgraph_st *graph;
    CUstream_st *origin;
    std::thread::id owner;
    cudaStreamCaptureMode mode;
    unsigned long long id;
    bool invalid = false;
};

struct CUstream_st {
    int device = 0;
    unsigned flags = 0;
    std::deque<work> queue;
    bool busy = false, destroyed = false;
    std::condition_variable arrived, idle;
    std::shared_ptr<capture> in; /* being captured */
    std::vector<size_t> tails;   /* nodes that the next one comes after */
};

struct CUevent_st {
    int device = 0;
    unsigned flags = 0;
    std::shared_ptr<event_state> state = std::make_shared<event_state>();
    std::shared_ptr<capture> in; /* last recorded in this capture */
    std::vector<size_t> tails;
};

enum memory_kind { DEVICE_MEMORY, PINNED_MEMORY, MANAGED_MEMORY };

struct allocation {
    size_t bytes;
    memory_kind kind;
    int device;
};

/** Everything there is. Never destroyed, for detached threads use it to the end of the process. */
struct fake_world {
    std::mutex lock;
    std::map<uintptr_t, allocation> memory;
    std::vector<CUstream_st *> streams;
    std::vector<std::shared_ptr<capture>> captures;
    CUstream_st *legacy[64] = {};
    int errors[64] = {}; /* of broken devices */
    size_t used[64] = {};
    fake_cuda_objects alive = {};

    int devices, multiprocessors;
    int without_nvlink = -1;
    size_t total;
    unsigned delay_us;
    bool held = false;

    std::map<std::string, uint64_t> calls, runs;
    uint64_t blocking = 0, allocations = 0;
    struct failure {
        std::string function;
        unsigned nth;
        int error;
    };
    std::vector<failure> failures;
    unsigned fault_in = 0;
    int fault_error = 0;
    uint64_t random = 0x9e3779b97f4a7c15ull;
    unsigned long long captures_begun = 0;
};
extern fake_world &world;

extern thread_local int current_device;
extern thread_local cudaStreamCaptureMode thread_mode;

/** Remember it for cudaGetLastError. */
cudaError_t give(cudaError_t error);

/** Begins every function: counts it and returns early if it must fail. */
#define ENTER()                                                                                    \
    do {                                                                                           \
        int entered_ = fake_cuda_enter(__func__);                                                  \
        if (entered_)                                                                              \
            return give(static_cast<cudaError_t>(entered_));                                       \
    } while (0)

uint32_t draw();
void pause_for(std::condition_variable &what, guard &held, unsigned ms);
void break_device(int device, int error);

/** Whether a capture forbids what this thread is about to do; then that capture is spoilt. */
bool forbidden();

CUstream_st *stream_of(cudaStream_t stream);

/** Queue, or add to the graph. With the lock held. */
cudaError_t enqueue(CUstream_st *stream, const char *kind, work run);

/** Until the stream has nothing left to do. @return the device's error */
cudaError_t drain(CUstream_st *stream, guard &held);
cudaError_t drain_device(int device, guard &held);

/** All nodes of a graph, in an order that its edges allow. */
void run_graph(const std::vector<node> &nodes, int device);

/** A random pause; then whether the operation may run, or its device is broken. */
bool begin_operation(int device);

#endif
