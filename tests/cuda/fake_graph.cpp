/* SPDX-License-Identifier: MIT
 *
 * Fake CUDA runtime: capture of streams, and graphs.
 *
 * A graph runs its nodes one after another in an order drawn anew at every launch from those that
 * its edges allow, so that an edge that is missing shows.
 */
#include "tests/cuda/fake_cuda.hpp"
#include <algorithm>

static work counted(const char *kind, work run) {
    return [kind, run = std::move(run)] {
        guard held(world.lock);
        world.runs[kind]++;
        held.unlock();
        run();
    };
}

cudaError_t enqueue(CUstream_st *stream, const char *kind, work operation) {
    work run = counted(kind, std::move(operation));
    if (!stream->in) {
        stream->queue.push_back(std::move(run));
        stream->arrived.notify_one();
        return cudaSuccess;
    }
    if (stream->in->invalid)
        return cudaErrorStreamCaptureInvalidated;
    std::vector<node> &nodes = stream->in->graph->nodes;
    nodes.push_back({kind, std::move(run), stream->tails});
    stream->tails = {nodes.size() - 1};
    return cudaSuccess;
}

/* Modes are those of the capture, unless the thread has asked for less care. */
bool forbidden() {
    bool found = false;
    if (thread_mode == cudaStreamCaptureModeRelaxed)
        return false;
    for (auto &c : world.captures) {
        bool mine = c->owner == std::this_thread::get_id();
        bool global =
            c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if ((mine && c->mode != cudaStreamCaptureModeRelaxed) || global)
            found = c->invalid = true;
    }
    return found;
}

void run_graph(const std::vector<node> &nodes, int device) {
    std::vector<bool> done(nodes.size());
    for (size_t left = nodes.size(); left > 0; left--) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < nodes.size(); i++)
            if (!done[i] && std::all_of(nodes[i].after.begin(), nodes[i].after.end(),
                                        [&](size_t before) { return done[before]; }))
                ready.push_back(i);
        guard held(world.lock);
        size_t next = ready[draw() % ready.size()];
        held.unlock();
        if (!begin_operation(device))
            return;
        nodes[next].run();
        done[next] = true;
    }
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    ENTER();
    guard held(world.lock);
    if (!stream) /* the legacy stream cannot be captured */
        return give(cudaErrorStreamCaptureUnsupported);
    if (stream->in)
        return give(cudaErrorIllegalState);
    auto made = std::make_shared<capture>();
    made->graph = new CUgraph_st();
    made->origin = stream;
    made->owner = std::this_thread::get_id();
    made->mode = mode;
    made->id = ++world.captures_begun;
    stream->in = made;
    stream->tails.clear();
    world.captures.push_back(made);
    return cudaSuccess;
}

/* Whether every node lies on a way to the last ones of the stream. */
static bool all_joined(const std::vector<node> &nodes, const std::vector<size_t> &tails) {
    std::vector<bool> seen(nodes.size());
    std::vector<size_t> open = tails;
    while (!open.empty()) {
        size_t i = open.back();
        open.pop_back();
        if (seen[i])
            continue;
        seen[i] = true;
        open.insert(open.end(), nodes[i].after.begin(), nodes[i].after.end());
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    ENTER();
    guard held(world.lock);
    std::shared_ptr<capture> c = stream ? stream->in : nullptr;
    if (!c)
        return give(cudaErrorIllegalState);
    if (c->origin != stream)
        return give(cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && c->owner != std::this_thread::get_id())
        return give(cudaErrorStreamCaptureWrongThread);
    cudaError_t error = c->invalid ? cudaErrorStreamCaptureInvalidated
                        : all_joined(c->graph->nodes, stream->tails)
                            ? cudaSuccess
                            : cudaErrorStreamCaptureUnjoined;
    for (CUstream_st *s : world.streams)
        if (s->in == c) {
            s->in = nullptr;
            s->tails.clear();
        }
    world.captures.erase(std::find(world.captures.begin(), world.captures.end(), c));
    *out = error ? nullptr : c->graph;
    if (error)
        delete c->graph;
    else
        world.alive.graphs++;
    return give(error);
}

static cudaStreamCaptureStatus status_of(const CUstream_st *stream) {
    if (!stream->in)
        return cudaStreamCaptureStatusNone;
    return stream->in->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *out) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    *out = status_of(stream);
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **after, const cudaGraphEdgeData **,
                                     size_t *nafter) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    *status = status_of(stream);
    if (id && stream->in)
        *id = stream->in->id;
    if (graph && stream->in)
        *graph = stream->in->graph;
    if (after) {
        fprintf(stderr, "fake cuda: nodes of a capture cannot be asked for\n");
        return give(cudaErrorNotSupported);
    }
    if (nafter)
        *nafter = stream->tails.size();
    return cudaSuccess;
}
#endif

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph) {
    guard held(world.lock);
    if (!graph)
        return give(cudaErrorInvalidValue);
    *out = new CUgraphExec_st{graph->nodes};
    world.alive.graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    ENTER();
    return instantiate(out, graph);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long) {
    ENTER();
    return instantiate(out, graph);
}

/* Only a graph of the same shape can take the place of the other. */
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info) {
    ENTER();
    guard held(world.lock);
    *info = {};
    bool same = exec->nodes.size() == graph->nodes.size();
    for (size_t i = 0; same && i < exec->nodes.size(); i++)
        same = exec->nodes[i].after == graph->nodes[i].after &&
               strcmp(exec->nodes[i].kind, graph->nodes[i].kind) == 0;
    if (!same) {
        info->result = cudaGraphExecUpdateErrorTopologyChanged;
        return give(cudaErrorGraphExecUpdateFailure);
    }
    exec->nodes = graph->nodes;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
    ENTER();
    CUstream_st *stream = stream_of(handle);
    guard held(world.lock);
    int device = stream->device;
    return give(
        enqueue(stream, "graph", [nodes = exec->nodes, device] { run_graph(nodes, device); }));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    ENTER();
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *out, size_t *count) {
    ENTER();
    guard held(world.lock);
    if (out)
        return give(cudaErrorNotSupported);
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    fake_cuda_enter(__func__);
    guard held(world.lock);
    world.alive.graphs--;
    held.unlock(); /* operations are dropped here */
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    fake_cuda_enter(__func__);
    guard held(world.lock);
    world.alive.graphs--;
    held.unlock();
    delete exec;
    return cudaSuccess;
}
