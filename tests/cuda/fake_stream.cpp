/* SPDX-License-Identifier: MIT
 *
 * Fake CUDA runtime: streams, each a thread with a queue, and events among them.
 */
#include "tests/cuda/fake_cuda.hpp"

/* Longer than any wait, also on a machine that is starved; the vendor's library would hang for
 * ever. */
constexpr int PATIENCE_S = 300;

bool begin_operation(int device) {
    guard held(world.lock);
    std::condition_variable nobody;
    while (world.held && !world.errors[device])
        pause_for(nobody, held, 1);
    if (world.delay_us > 0 && draw() % 4 == 0) {
        auto us = std::chrono::microseconds(draw() % world.delay_us);
        held.unlock();
        std::this_thread::sleep_for(us);
        held.lock();
    }
    if (world.fault_in > 0 && --world.fault_in == 0)
        break_device(device, world.fault_error);
    return world.errors[device] == 0;
}

/* The thread of a stream. It ends when the stream is destroyed and has nothing left to do. */
static void serve(CUstream_st *stream) {
    guard held(world.lock);
    for (;;) {
        while (stream->queue.empty() && !stream->destroyed)
            stream->arrived.wait(held);
        if (stream->queue.empty())
            break;
        {
            work next = std::move(stream->queue.front());
            stream->queue.pop_front();
            stream->busy = true;
            held.unlock();
            if (begin_operation(stream->device))
                next();
        }
        held.lock();
        stream->busy = false;
        if (stream->queue.empty())
            stream->idle.notify_all();
    }
    held.unlock();
    delete stream;
}

static CUstream_st *start_stream(int device, unsigned flags) {
    auto *stream = new CUstream_st();
    stream->device = device;
    stream->flags = flags;
    world.streams.push_back(stream);
    std::thread(serve, stream).detach();
    return stream;
}

/* The legacy stream of a device is made when it is first used, and stays. The vendor's library may
 * crash too when it is given what is no stream. */
CUstream_st *stream_of(cudaStream_t stream) {
    guard held(world.lock);
    if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
        for (CUstream_st *known : world.streams)
            if (known == stream)
                return stream;
        fprintf(stderr, "fake cuda: %p is no stream, or one that was destroyed\n",
                static_cast<void *>(stream));
        abort();
    }
    CUstream_st **legacy = &world.legacy[current_device];
    if (!*legacy)
        *legacy = start_stream(current_device, 0);
    return *legacy;
}

cudaError_t drain(CUstream_st *stream, guard &held) {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(PATIENCE_S);
    while ((stream->busy || !stream->queue.empty()) && !world.errors[stream->device]) {
        pause_for(stream->idle, held, 20);
        if (std::chrono::steady_clock::now() > end) {
            fprintf(stderr, "fake cuda: a call waits for ever for a stream that does not end\n");
            abort();
        }
    }
    return static_cast<cudaError_t>(world.errors[stream->device]);
}

cudaError_t drain_device(int device, guard &held) {
    for (bool again = true; again;) {
        again = false;
        for (CUstream_st *stream : world.streams)
            if (stream->device == device && (stream->busy || !stream->queue.empty()) &&
                !world.errors[device]) {
                drain(stream, held);
                again = true; /* the list may have changed meanwhile */
                break;
            }
    }
    return static_cast<cudaError_t>(world.errors[device]);
}

/* Operations are freed by whoever drops them last: a queue, a graph, its executable. */
int fake_cuda_enqueue(void *stream, const char *what, void (*run)(void *), void *context,
                      void (*drop)(void *)) {
    std::shared_ptr<void> owned(context, [drop](void *c) {
        if (drop)
            drop(c);
    });
    int error = fake_cuda_enter(what);
    if (error)
        return give(static_cast<cudaError_t>(error));
    CUstream_st *s = stream_of(static_cast<cudaStream_t>(stream));
    guard held(world.lock);
    return give(enqueue(s, what, [run, owned] { run(owned.get()); }));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) {
    ENTER();
    guard held(world.lock);
    if (current_device >= world.devices)
        return give(cudaErrorNoDevice);
    *out = start_stream(current_device, flags);
    world.alive.streams++;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    ENTER();
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
    ENTER();
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

/* Returns at once; what was enqueued still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    int error = fake_cuda_enter(__func__);
    guard held(world.lock);
    for (size_t i = 0; i < world.streams.size(); i++) {
        if (world.streams[i] != stream)
            continue;
        world.streams.erase(world.streams.begin() + static_cast<long>(i));
        world.alive.streams--;
        stream->destroyed = true;
        stream->arrived.notify_all();
        return give(static_cast<cudaError_t>(error));
    }
    return give(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    ENTER();
    *device = stream_of(stream)->device;
    return cudaSuccess;
}

/* A question to a stream that is being captured spoils the capture. */
static bool spoils(CUstream_st *stream) {
    if (stream->in)
        stream->in->invalid = true;
    return stream->in || forbidden();
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    if (spoils(stream))
        return give(cudaErrorStreamCaptureUnsupported);
    if (world.errors[stream->device])
        return give(static_cast<cudaError_t>(world.errors[stream->device]));
    return stream->busy || !stream->queue.empty() ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    if (spoils(stream))
        return give(cudaErrorStreamCaptureUnsupported);
    return give(drain(stream, held));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    ENTER();
    CUstream_st *s = stream_of(stream);
    guard held(world.lock);
    return give(enqueue(s, "host", [=] { function(data); }));
}

/* -- events ----------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    ENTER();
    guard held(world.lock);
    if (current_device >= world.devices)
        return give(cudaErrorNoDevice);
    *out = new CUevent_st();
    (*out)->device = current_device;
    (*out)->flags = flags;
    world.alive.events++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    int error = fake_cuda_enter(__func__);
    guard held(world.lock);
    if (!event)
        return give(cudaErrorInvalidResourceHandle);
    world.alive.events--;
    delete event;
    return give(static_cast<cudaError_t>(error));
}

static work ranges(std::shared_ptr<event_state> state, uint64_t ticket) {
    return [state, ticket] {
        guard held(world.lock);
        state->completed = std::max(state->completed, ticket ? ticket : ++state->recorded);
        state->time = std::chrono::steady_clock::now();
        state->changed.notify_all();
    };
}

static work awaits(std::shared_ptr<event_state> state, uint64_t ticket, int device) {
    return [state, ticket, device] {
        guard held(world.lock);
        uint64_t until = ticket ? ticket : state->recorded;
        while (state->completed < until && !world.errors[device])
            pause_for(state->changed, held, 20);
    };
}

/* In a graph an external event is recorded and awaited at every launch. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    if (!event || event->device != stream->device)
        return give(cudaErrorInvalidResourceHandle);
    if (stream->in && (flags & cudaEventRecordExternal))
        return give(enqueue(stream, "event record", ranges(event->state, 0)));
    event->in = stream->in;
    event->tails = stream->tails;
    if (stream->in)
        return give(stream->in->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    return give(enqueue(stream, "event record", ranges(event->state, ++event->state->recorded)));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER();
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

static bool is_live(const std::shared_ptr<capture> &one) {
    for (const auto &c : world.captures)
        if (c == one)
            return true;
    return false;
}

/* The stream joins the capture of the event, or goes on in it. */
static cudaError_t join(CUstream_st *stream, CUevent_st *event) {
    if (!is_live(event->in))
        return cudaErrorCapturedEvent;
    if (stream->in && stream->in != event->in) {
        stream->in->invalid = event->in->invalid = true;
        return cudaErrorStreamCaptureMerge;
    }
    stream->in = event->in;
    stream->tails.insert(stream->tails.end(), event->tails.begin(), event->tails.end());
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    if (!event)
        return give(cudaErrorInvalidResourceHandle);
    if (stream->in && (flags & cudaEventWaitExternal))
        return give(enqueue(stream, "event wait", awaits(event->state, 0, stream->device)));
    if (event->in)
        return give(join(stream, event));
    if (stream->in) {
        stream->in->invalid = true;
        return give(cudaErrorStreamCaptureIsolation);
    }
    uint64_t ticket = event->state->recorded;
    if (ticket == 0)
        return cudaSuccess;
    return give(enqueue(stream, "event wait", awaits(event->state, ticket, stream->device)));
}

/* Why the host may not ask about an event now; the lock is held. */
static cudaError_t refusal_of(cudaEvent_t event) {
    if (event->in)
        return cudaErrorCapturedEvent;
    return forbidden() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER();
    guard held(world.lock);
    if (cudaError_t refused = refusal_of(event))
        return give(refused);
    if (world.errors[event->device])
        return give(static_cast<cudaError_t>(world.errors[event->device]));
    return event->state->completed < event->state->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER();
    guard held(world.lock);
    if (cudaError_t refused = refusal_of(event))
        return give(refused);
    while (event->state->completed < event->state->recorded && !world.errors[event->device])
        pause_for(event->state->changed, held, 20);
    return give(static_cast<cudaError_t>(world.errors[event->device]));
}

cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t from, cudaEvent_t to) {
    ENTER();
    guard held(world.lock);
    if ((from->flags | to->flags) & cudaEventDisableTiming)
        return give(cudaErrorInvalidResourceHandle);
    if (from->state->completed < from->state->recorded ||
        to->state->completed < to->state->recorded)
        return cudaErrorNotReady;
    *out = std::chrono::duration<float, std::milli>(to->state->time - from->state->time).count();
    return cudaSuccess;
}
