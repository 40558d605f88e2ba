/* SPDX-License-Identifier: MIT
 *
 * A step under way, launched as graphs: of one bucket, and of bucket b of several:
 *
 *     caller's stream   gradient --given-->                              --ready--> optimizer
 *     own stream                     start [ begin ... apply ] ready, control, report, done
 *                                          `-- the graph ---'
 *
 *     caller's stream   gradient --given-->
 *     compress       start [ begin b ] --sealed-->     start [ begin b + 1 ]
 *     comm                                        [ collectives of b, validate ] ...  as above
 *
 * If the caller captures its stream, fork and merge bring all of it into the caller's graph.
 */
#include "kernels/cuda/range.h"
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

/* Send the pointers of the segments as parameters of launches: memory to copy from would have to
 * stay unchanged until the device reads it, and a graph of the caller keeps the parameters. */
static tamis_status send_pointers(tam_cuda_step *s, void *const *from, uint32_t by) {
    uint32_t count = s->whole->nsegments;
    for (uint32_t at = 0; at < count; at += TAM_POINTERS) {
        uint32_t length = count - at < TAM_POINTERS ? count - at : TAM_POINTERS;
        TAM_CUDA_LAUNCH(
            tam_launch_pointers(s->grads[by] + at, from + at, length, s->group->queue.stream));
    }
    return TAMIS_OK;
}

/* Pointers of steps that the host launches seldom change: send them only then. */
static tamis_status renew_pointers(tam_cuda_step *s, void *const *from, uint32_t by) {
    size_t bytes = s->whole->nsegments * sizeof from[0];
    if (by == TAM_CUDA_BY_CALLER)
        return send_pointers(s, from, by);
    if (memcmp(s->grads_now, from, bytes) == 0)
        return TAMIS_OK;
    TAM_TRY(send_pointers(s, from, by));
    memcpy(s->grads_now, from, bytes);
    return TAMIS_OK;
}

static tam_cuda_accumulate target_of(const tam_cuda_step *s, uint32_t by) {
    tam_cuda_accumulate target = tam_cuda_pass_of(s, s->whole, &s->sources[by]);
    target.type = s->plan.type;
    target.clear = s->plan.dense_output;
    target.update = s->plan.update.moments;
    return target;
}

/* @param source  [out]  of that gradient: work that follows it on the queue can use it */
static tamis_status run_set_target(tam_cuda_step *s, const tam_accumulate *target, uint32_t by,
                                   tam_cuda_source *source) {
    *source = (tam_cuda_source){
        .grad = target->grad,
        .grads = target->grad ? NULL : s->grads[by],
        .scale = target->scale,
        .decay = target->decay,
        .optimizer = tam_cuda_optimizer(target),
    };
    s->target = target_of(s, by);
    return target->grad ? TAMIS_OK : renew_pointers(s, target->grads, by);
}

/* The first launch of a step. It stands before the graph, because the gradient is another in every
 * step. */
static tamis_status start_step(tam_cuda_step *s, const tam_accumulate *target, uint32_t by) {
    tam_cuda_fresh fresh = tam_cuda_step_fresh(s);
    tam_cuda_source source;
    fresh.agreed = (tam_cuda_agreed){&s->exchange.record->agreed, target->agreed};
    TAM_TRY(run_set_target(s, target, by, &source));
    TAM_CUDA_LAUNCH(tam_launch_start(&s->sources[by], source, &fresh, s->group->queue.stream));
    return TAMIS_OK;
}

/* -- what a step enqueues --------------------------------------------------------------------- */

/* Nothing is applied before every bucket has been exchanged: then all buckets, or none. */
static tamis_status run_apply_result(tam_cuda_bucket_group *r) {
    for (uint32_t b = 0; b < r->nbuckets; b++)
        TAM_TRY(r->steps[b]->kind->apply(r->steps[b]));
    return TAMIS_OK;
}

static tamis_status enqueue_exchange(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    TAM_TRY(enqueue(context, s));
    TAM_TRY(s->kind->validate(s));
    return tam_cuda_is_last(s) ? run_apply_result(s->group) : TAMIS_OK;
}

/* The part on the queue, or on `comm`. */
static tamis_status enqueue_part(tam_cuda_step *s, int part, tam_cuda_enqueue enqueue,
                                 void *context) {
    if (part == 1)
        return enqueue_exchange(s, enqueue, context);
    TAM_TRY(s->kind->begin(s));
    return tam_cuda_is_split(s) ? TAMIS_OK : enqueue_exchange(s, enqueue, context);
}

static cudaStream_t stream_of(const tam_cuda_step *s, int part) {
    return part == 1 ? s->group->comm_stream : s->group->queue.stream;
}

static tamis_status launch_part(tam_cuda_step *s, int part, tam_cuda_enqueue enqueue, void *context,
                                uint32_t by) {
    if (by == TAM_CUDA_BY_CALLER || !s->graphs[part])
        return enqueue_part(s, part, enqueue, context);
    TAM_CUDA_TRY(cudaGraphLaunch(s->graphs[part], stream_of(s, part)), "launching a captured step");
    return TAMIS_OK;
}

static tamis_status launch_traced(tam_cuda_step *s, int part, tam_cuda_enqueue enqueue,
                                  void *context, uint32_t by) {
    tam_cuda_range_begin(s->names[part]);
    tamis_status status = launch_part(s, part, enqueue, context, by);
    tam_cuda_range_end();
    return status;
}

static tamis_status launch_parts(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context,
                                 uint32_t by) {
    tam_cuda_bucket_group *r = s->group;
    TAM_TRY(launch_traced(s, 0, enqueue, context, by));
    if (!tam_cuda_is_split(s))
        return TAMIS_OK;
    TAM_TRY(tam_cuda_follow(r->comm_stream, r->queue.stream, r->sealed));
    return launch_traced(s, 1, enqueue, context, by);
}

/* While no step is under way. */
static tamis_status run_on_device(tamis_status (*work)(tam_cuda_step *, tam_cuda_enqueue, void *),
                                  tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    TAM_CUDA_ON(s->device->device, work(s, enqueue, context));
}

static tamis_status run_warm_up(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    TAM_TRY(enqueue(context, s));
    TAM_TRY(tam_cuda_bucket_group_gather(s->group));
    return tam_cuda_queue_wait(&s->group->queue, "the first exchange of a reducer");
}

tamis_status tam_cuda_step_warm_up(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    return run_on_device(run_warm_up, s, enqueue, context);
}

/* -- graphs ----------------------------------------------------------------------------------- */

/* @return a cudaError_t; *status is that of `enqueue` */
static cudaError_t capture_part(tam_cuda_step *s, int part, tam_cuda_enqueue enqueue, void *context,
                                tamis_status *status) {
    cudaStream_t stream = stream_of(s, part);
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return error;
    *status = enqueue_part(s, part, enqueue, context);
    error = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess && *status == TAMIS_OK)
        error = cudaGraphInstantiate(&s->graphs[part], graph, 0);
    if (graph && cudaGraphDestroy(graph) != cudaSuccess)
        (void)cudaGetLastError();
    if (error == cudaSuccess && *status == TAMIS_OK) /* or the first launch would allocate */
        error = cudaGraphUpload(s->graphs[part], stream);
    return error;
}

static tamis_status capture(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    tam_cuda_bucket_group *r = s->group;
    tamis_status status = TAMIS_OK;
    cudaError_t error = cudaSuccess;
    for (uint32_t b = 0; b < r->nbuckets; b++)
        r->steps[b]->target = target_of(r->steps[b], TAM_CUDA_BY_HOST);
    int parts = tam_cuda_is_split(s) ? 2 : 1;
    tam_cuda_step_drop_graphs(s);
    for (int part = 0; part < parts && error == cudaSuccess && status == TAMIS_OK; part++)
        error = capture_part(s, part, enqueue, context, &status);
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    TAM_TRY(status);
    if (error != cudaSuccess)
        return tam_fail(error == cudaErrorMemoryAllocation ? TAMIS_E_NOMEM : TAMIS_E_DEVICE,
                        "rank %u: a step cannot be captured as a graph (%s); with TAMIS_GRAPHS=off "
                        "on all ranks its kernels are launched one by one",
                        tam_cuda_rank(s), cudaGetErrorName(error));
    TAM_TRY(tam_cuda_bucket_group_gather(r));
    return tam_cuda_queue_wait(&r->queue, "uploading a graph");
}

tamis_status tam_cuda_step_capture(tam_cuda_step *s, tam_cuda_enqueue enqueue, void *context) {
    return run_on_device(capture, s, enqueue, context);
}

/* -- run -------------------------------------------------------------------------------------- */

/* The queue waits for the previous step: its apply and control are on `comm`. */
static tamis_status await_step_before(tam_cuda_step *s) {
    tam_cuda_bucket_group *r = s->group;
    if (tam_cuda_is_split(s) && r->begun == 0)
        TAM_CUDA_TRY(cudaStreamWaitEvent(r->queue.stream, r->done, 0), "following the step before");
    return TAMIS_OK;
}

static tamis_status run_directly(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                                 tam_cuda_enqueue enqueue, void *context) {
    tam_cuda_bucket_group *r = s->group;
    TAM_TRY(tam_cuda_follow(r->queue.stream, stream, r->given));
    TAM_TRY(await_step_before(s));
    TAM_TRY(start_step(s, target, TAM_CUDA_BY_HOST));
    TAM_TRY(launch_parts(s, enqueue, context, TAM_CUDA_BY_HOST));
    if (!tam_cuda_is_last(s))
        return TAMIS_OK;
    TAM_CUDA_TRY(cudaEventRecord(r->ready, r->comm_stream), "marking a result");
    TAM_TRY(s->kind->finish(r->steps[0], TAM_CUDA_BY_HOST));
    TAM_CUDA_TRY(cudaEventRecord(r->done, r->comm_stream), "marking the end of a step");
    __atomic_store_n(&r->serial, r->serial + 1, __ATOMIC_RELEASE); /* poll may see it from now on */
    return TAMIS_OK;
}

/* Work on our streams must be over when a graph of the caller runs. So this waits for the last
 * step, once, and from now on join waits for the whole of a step. */
static tamis_status leave_to_caller(tam_cuda_step *s) {
    tam_cuda_bucket_group *r = s->group;
    if (r->serial > 0 && r->begun == 0)
        TAM_TRY(tam_cuda_wait(r->done, tam_cuda_deadline(s->plan.timeout_ns),
                              "the step before a capture"));
    r->captured = true;
    return TAMIS_OK;
}

/* Only captures, runs nothing. Our streams become part of the capture at `fork`, and leave it at
 * `merge`, which join waits for. */
static tamis_status run_captured(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                                 tam_cuda_enqueue enqueue, void *context) {
    tam_cuda_bucket_group *r = s->group;
    TAM_TRY(leave_to_caller(s));
    TAM_TRY(tam_cuda_follow(r->queue.stream, stream, r->fork));
    TAM_TRY(start_step(s, target, TAM_CUDA_BY_CALLER));
    TAM_TRY(launch_parts(s, enqueue, context, TAM_CUDA_BY_CALLER));
    if (!tam_cuda_is_last(s))
        return TAMIS_OK;
    TAM_TRY(s->kind->finish(r->steps[0], TAM_CUDA_BY_CALLER));
    TAM_CUDA_TRY(cudaEventRecord(r->merge, r->comm_stream), "marking the end of a step");
    return TAMIS_OK;
}

static tamis_status run(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                        tam_cuda_enqueue enqueue, void *context, uint64_t *serial) {
    tam_cuda_bucket_group *r = s->group;
    bool captured;
    TAM_TRY(find_capture(stream, &captured));
    if (captured && s->plan.update.corrects)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "rank %u: a graph of the caller cannot hold a pass of Adam, whose bias "
                        "corrections are others in every pass; start the step outside of it",
                        tam_cuda_rank(s));
    if (r->begun > 0 && captured != (r->by == TAM_CUDA_BY_CALLER))
        return tam_fail(TAMIS_E_STATE, "rank %u: all buckets of a step must be captured, or none",
                        tam_cuda_rank(s));
    *serial = captured ? 0 : r->serial + 1;
    if (captured)
        TAM_TRY(run_captured(s, target, stream, enqueue, context));
    else
        TAM_TRY(run_directly(s, target, stream, enqueue, context));
    r->by = captured ? TAM_CUDA_BY_CALLER : TAM_CUDA_BY_HOST;
    r->begun = tam_cuda_is_last(s) ? 0 : s->plan.bucket + 1;
    return TAMIS_OK;
}

tamis_status tam_cuda_step_run(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                               tam_cuda_enqueue enqueue, void *context, uint64_t *serial) {
    TAM_CUDA_ON(s->device->device, run(s, target, stream, enqueue, context, serial));
}

bool tam_cuda_step_halfway(const tam_cuda_step *first) {
    return first->group->begun > 0;
}

tamis_status tam_cuda_step_find_capture(const tam_cuda_step *first, void *stream, bool *captured) {
    TAM_CUDA_ON(first->device->device, find_capture(stream, captured));
}

/* -- micro-batches ---------------------------------------------------------------------------- */

static tamis_status run_add(tam_cuda_step *s, const tam_accumulate *target, void *stream,
                            uint32_t by, cudaEvent_t there, cudaEvent_t read) {
    cudaStream_t queue = s->group->queue.stream;
    tam_cuda_source source;
    TAM_TRY(tam_cuda_follow(queue, stream, there));
    if (by == TAM_CUDA_BY_HOST)
        TAM_TRY(await_step_before(s));
    TAM_TRY(run_set_target(s, target, by, &source));
    TAM_CUDA_LAUNCH(tam_launch_source(&s->sources[by], source, queue));
    tam_cuda_accumulate job = s->target;
    job.params = s->nobody;
    job.found = &s->exchange.record->early;
    TAM_CUDA_LAUNCH(tam_launch_accumulate(&job, queue));
    return tam_cuda_follow(stream, queue, read);
}

static tamis_status run_accumulate(tam_cuda_step *s, const tam_accumulate *target, void *stream) {
    tam_cuda_bucket_group *r = s->group;
    bool captured;
    TAM_TRY(find_capture(stream, &captured));
    if (!captured)
        return run_add(s, target, stream, TAM_CUDA_BY_HOST, r->given, r->given);
    TAM_TRY(leave_to_caller(s));
    return run_add(s, target, stream, TAM_CUDA_BY_CALLER, r->fork, r->merge);
}

tamis_status tam_cuda_step_accumulate(tam_cuda_step *s, const tam_accumulate *target,
                                      void *stream) {
    TAM_CUDA_ON(s->device->device, run_accumulate(s, target, stream));
}

/* -- what comes after ------------------------------------------------------------------------- */

tamis_status tam_cuda_step_follow(tam_cuda_step *s, const tam_cuda_step *other) {
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    cudaError_t error = cudaStreamWaitEvent(s->group->comm_stream, other->group->ready, 0);
    tam_cuda_leave(&guard);
    return error ? tam_cuda_failed((int)error, "following another reducer's step") : TAMIS_OK;
}

static tamis_status run_join(tam_cuda_bucket_group *r, void *stream) {
    bool captured;
    TAM_TRY(find_capture(stream, &captured));
    if (captured != (r->by == TAM_CUDA_BY_CALLER))
        return tam_fail(TAMIS_E_STATE,
                        "start and join of a step must both be captured, or neither");
    cudaEvent_t event = captured ? r->merge : r->captured ? r->done : r->ready;
    TAM_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0), "making a stream wait for the result");
    return TAMIS_OK;
}

tamis_status tam_cuda_step_join(tam_cuda_step *first, void *stream) {
    TAM_CUDA_ON(first->device->device, run_join(first->group, stream));
}
