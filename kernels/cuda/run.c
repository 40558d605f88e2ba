/* SPDX-License-Identifier: MIT
 *
 * A step under way: launched as a graph, followed by its reports.
 *
 *     caller's stream   gradient --given-->                              --ready--> optimizer
 *     own stream                           [ begin ... settle ] ready, control, report, done
 *                                          `-- the graph ---'
 *
 * When the caller captures its stream, fork and merge bring all of it into the caller's graph.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* -- the target ------------------------------------------------------------------------------- */

static tamis_status find_capture(void *stream, bool *captured) {
    enum cudaStreamCaptureStatus found;
    *captured = false;
    TAM_TRY(tam_cuda_find_capture(stream, &found));
    if (found == cudaStreamCaptureStatusInvalidated)
        return tam_fail(TAMIS_E_STATE, "the capture of the step's stream has failed already; end "
                                       "it and call again");
    *captured = found == cudaStreamCaptureStatusActive;
    return TAMIS_OK;
}

static bool same_pointers(const tam_cuda_step *s, void *const *a, void *const *b) {
    return memcmp(a, b, s->device->nsegments * sizeof a[0]) == 0;
}

/* Graphs of the caller have an array of pointers of their own, the same for all of them. It is a
 * copy of what the last step used: nothing can be sent while a stream is being captured. */
static tamis_status capture_pointers(tam_cuda_step *s, const tam_accumulate *target) {
    size_t bytes = s->device->nsegments * sizeof s->grads_now[0];
    if (target->grad)
        return TAMIS_OK;
    if (!same_pointers(s, s->grads_now, target->grads))
        return tam_fail(TAMIS_E_STATE, "tamis_step.grads: a step that is captured needs the "
                                       "pointers of the step before; make a step with them first");
    if (s->grads_captured[0] && !same_pointers(s, s->grads_captured, target->grads))
        return tam_fail(TAMIS_E_STATE, "tamis_step.grads: another captured step works on other "
                                       "pointers");
    TAM_TRY(tam_cuda_lane_write(&s->lane, target->grads, bytes, s->grads[TAM_CUDA_BY_CALLER]));
    memcpy(s->grads_captured, target->grads, bytes);
    return TAMIS_OK;
}

/* The pointers of the segments go to the device when they changed. Those of eight steps may be on
 * their way; the ninth step waits for the report of the first. */
static tamis_status send_pointers(tam_cuda_step *s, const tam_accumulate *target) {
    size_t count = s->device->nsegments, bytes = count * sizeof target->grads[0];
    void **sent = s->grads_sent + (s->serial + 1) % TAM_CUDA_STEPS * count;
    if (target->grad || same_pointers(s, s->grads_now, target->grads))
        return TAMIS_OK;
    memcpy(sent, target->grads, bytes);
    TAM_CUDA_TRY(cudaMemcpyAsync(s->grads[TAM_CUDA_BY_HOST], sent, bytes, cudaMemcpyHostToDevice,
                                 s->lane.stream),
                 "sending the pointers of the segments");
    memcpy(s->grads_now, target->grads, bytes);
    return TAMIS_OK;
}

static tam_cuda_accumulate target_of(const tam_cuda_step *s, uint32_t by) {
    const tam_cuda_device *d = s->device;
    return (tam_cuda_accumulate){
        .grid = d->grid,
        .acc = s->exchange.acc,
        .source = &s->sources[by],
        .seg_begin = d->seg_begin,
        .type = s->plan.type,
        .clear = s->plan.dense_output,
        .turn = s->control.turn,
        .thresholds = s->control.thresholds,
        .candidates = d->candidates,
        .found = d->found,
        .chunk_sums = d->chunk_sums,
        .group_sums = d->group_sums,
    };
}

/* What is enqueued after this works on that gradient. */
static tamis_status aim(tam_cuda_step *s, const tam_accumulate *target, uint32_t by) {
    tam_cuda_source source = {
        .grad = target->grad,
        .grads = target->grad ? NULL : s->grads[by],
        .scale = target->scale,
    };
    s->target = target_of(s, by);
    TAM_CUDA_LAUNCH(tam_launch_source(&s->sources[by], source, s->lane.stream));
    return TAMIS_OK;
}

/* -- the graph -------------------------------------------------------------------------------- */

/* @return a cudaError_t; *status is that of `enqueue` */
static cudaError_t capture(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context,
                           tamis_status *status) {
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamBeginCapture(s->lane.stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return error;
    *status = enqueue(context, s);
    error = cudaStreamEndCapture(s->lane.stream, &graph);
    if (error == cudaSuccess && *status == TAMIS_OK)
        error = cudaGraphInstantiate(&s->graph, graph, 0);
    if (graph && cudaGraphDestroy(graph) != cudaSuccess)
        (void)cudaGetLastError();
    if (error == cudaSuccess && *status == TAMIS_OK) /* else the first launch would take memory */
        error = cudaGraphUpload(s->graph, s->lane.stream);
    return error;
}

tamis_status tam_cuda_step_capture(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    tam_cuda_guard guard;
    tamis_status status = TAMIS_OK;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    s->target = target_of(s, TAM_CUDA_BY_HOST);
    cudaError_t error = capture(s, enqueue, context, &status);
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    else if (status == TAMIS_OK)
        status = tam_cuda_lane_wait(&s->lane, "uploading a graph");
    tam_cuda_leave(&guard);
    TAM_TRY(status);
    if (error != cudaSuccess)
        return tam_fail(error == cudaErrorMemoryAllocation ? TAMIS_E_NOMEM : TAMIS_E_DEVICE,
                        "rank %u: a step cannot be captured as a graph (%s); with TAMIS_GRAPHS=off "
                        "on all ranks its kernels are launched one by one",
                        s->plan.rank, cudaGetErrorName(error));
    return TAMIS_OK;
}

static tamis_status play(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    if (!s->graph)
        return enqueue(context, s);
    TAM_CUDA_TRY(cudaGraphLaunch(s->graph, s->lane.stream), "launching a captured step");
    return TAMIS_OK;
}

/* -- run -------------------------------------------------------------------------------------- */

static tamis_status run_directly(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                                 tam_cuda_enqueue enqueue, void *context, uint64_t *serial) {
    TAM_CUDA_TRY(cudaEventRecord(s->given, stream), "following the gradient's stream");
    TAM_CUDA_TRY(cudaStreamWaitEvent(s->lane.stream, s->given, 0),
                 "following the gradient's stream");
    TAM_TRY(send_pointers(s, target));
    TAM_TRY(aim(s, target, TAM_CUDA_BY_HOST));
    TAM_TRY(play(s, enqueue, context));
    TAM_CUDA_TRY(cudaEventRecord(s->ready, s->lane.stream), "marking a result");
    TAM_TRY(s->kind->finish(s, TAM_CUDA_BY_HOST));
    TAM_CUDA_TRY(cudaEventRecord(s->done, s->lane.stream), "marking the end of a step");
    s->by = TAM_CUDA_BY_HOST;
    *serial = ++s->serial;
    return TAMIS_OK;
}

/* Nothing here runs now. The own stream becomes part of the capture at `fork`, and leaves it at
 * `merge`, which join waits for. What ran on it before is over when the graph runs: the last step
 * is waited for here, once, and from now on join waits for the whole of a step. */
static tamis_status run_captured(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                                 tam_cuda_enqueue enqueue, void *context, uint64_t *serial) {
    if (s->serial > 0)
        TAM_TRY(tam_cuda_wait(s->done, tam_cuda_deadline(s->plan.timeout_ns),
                              "the step before a capture"));
    TAM_TRY(capture_pointers(s, target));
    TAM_CUDA_TRY(cudaEventRecord(s->fork, stream), "following a captured stream");
    TAM_CUDA_TRY(cudaStreamWaitEvent(s->lane.stream, s->fork, 0), "following a captured stream");
    TAM_TRY(aim(s, target, TAM_CUDA_BY_CALLER));
    TAM_TRY(enqueue(context, s));
    TAM_TRY(s->kind->finish(s, TAM_CUDA_BY_CALLER));
    TAM_CUDA_TRY(cudaEventRecord(s->merge, s->lane.stream), "marking the end of a step");
    s->by = TAM_CUDA_BY_CALLER;
    s->captured = true;
    *serial = 0;
    return TAMIS_OK;
}

static tamis_status run(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                        tam_cuda_enqueue enqueue, void *context, uint64_t *serial) {
    bool captured;
    TAM_TRY(find_capture(stream, &captured));
    if (captured)
        return run_captured(s, target, stream, enqueue, context, serial);
    return run_directly(s, target, stream, enqueue, context, serial);
}

tamis_status tam_cuda_step_run(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                               tam_cuda_enqueue enqueue, void *context, uint64_t *serial) {
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = run(s, target, stream, enqueue, context, serial);
    tam_cuda_leave(&guard);
    return status;
}

tamis_status tam_cuda_step_follow(tam_cuda_step *s, const tam_cuda_step *other) {
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    cudaError_t error = cudaStreamWaitEvent(s->lane.stream, other->ready, 0);
    tam_cuda_leave(&guard);
    return error ? tam_cuda_failed((int)error, "following another reducer's step") : TAMIS_OK;
}

static tamis_status join(tam_cuda_step *s, void *stream) {
    bool captured;
    TAM_TRY(find_capture(stream, &captured));
    if (captured != (s->by == TAM_CUDA_BY_CALLER))
        return tam_fail(TAMIS_E_STATE,
                        "start and join of a step must both be captured, or neither");
    cudaEvent_t event = captured ? s->merge : s->captured ? s->done : s->ready;
    TAM_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0), "making a stream wait for the result");
    return TAMIS_OK;
}

tamis_status tam_cuda_step_join(tam_cuda_step *s, void *stream) {
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = join(s, stream);
    tam_cuda_leave(&guard);
    return status;
}

/* -- reports ---------------------------------------------------------------------------------- */

/* On the device, as far as the host can see without asking. */
static uint64_t last_report(const tam_cuda_step *s, uint64_t serial) {
    return __atomic_load_n(&s->reports[TAM_CUDA_BY_HOST][serial % TAM_CUDA_STEPS].serial,
                           __ATOMIC_ACQUIRE);
}

/* A copy word by word, if the device did not begin to write the next report there meanwhile.
 * @return its serial, or 0 */
static uint64_t read_report(const tam_cuda_report *from, tam_cuda_report *out) {
    const uint64_t *words = (const uint64_t *)(const void *)from;
    uint64_t copy[sizeof *from / sizeof words[0]];
    for (size_t i = 0; i < sizeof copy / sizeof copy[0]; i++)
        copy[i] = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE);
    memcpy(out, copy, sizeof copy);
    return __atomic_load_n(&from->serial, __ATOMIC_ACQUIRE) == out->serial ? out->serial : 0;
}

/* The newest report of the caller's graphs: nobody counts how often they are launched. */
static bool find_newest(const tam_cuda_report *ring, tam_cuda_report *out) {
    _Static_assert(sizeof(tam_cuda_report) % 8 == 0, "read word by word");
    tam_cuda_report report;
    uint64_t newest = 0;
    for (int i = 0; i < TAM_CUDA_STEPS; i++) {
        uint64_t serial = read_report(&ring[i], &report);
        if (serial <= newest)
            continue;
        newest = serial;
        *out = report;
    }
    return newest > 0;
}

static tamis_status find_report(const tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    const tam_cuda_report *at = &s->reports[TAM_CUDA_BY_HOST][serial % TAM_CUDA_STEPS];
    uint64_t there = last_report(s, serial);
    *done = there == serial;
    if (*done)
        *out = *at;
    if (there > serial)
        return tam_fail(TAMIS_E_STATE, "the report of step %llu has been overwritten",
                        (unsigned long long)serial);
    return TAMIS_OK;
}

static tamis_status poll(tam_cuda_step *s, uint64_t serial, bool *done, tam_cuda_report *out) {
    cudaError_t error = cudaEventQuery(s->done);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return TAMIS_OK;
    }
    TAM_CUDA_TRY(error, "a step on the CUDA device");
    TAM_TRY(find_report(s, serial, done, out));
    if (!*done)
        return tam_fail(TAMIS_E_DEVICE,
                        "rank %u: the CUDA device has ended step %llu without a "
                        "report",
                        s->plan.rank, (unsigned long long)serial);
    return TAMIS_OK;
}

/* The driver's locks are for those who launch: a failure may be learnt a little later. */
static bool time_to_ask(tam_cuda_step *s) {
    enum { ASK_EVERY_NS = 500000 };
    uint64_t now_ns = tam_clock_ns();
    if (now_ns - __atomic_load_n(&s->asked_ns, __ATOMIC_RELAXED) < ASK_EVERY_NS)
        return false;
    __atomic_store_n(&s->asked_ns, now_ns, __ATOMIC_RELAXED);
    return true;
}

tamis_status tam_cuda_step_poll(tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    tam_cuda_guard guard;
    if (serial == 0) {
        *done = find_newest(s->reports[TAM_CUDA_BY_CALLER], out);
        return TAMIS_OK;
    }
    TAM_TRY(find_report(s, serial, done, out));
    if (*done || !time_to_ask(s))
        return TAMIS_OK;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = poll(s, serial, done, out);
    tam_cuda_leave(&guard);
    return status;
}
