/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself: kernels and collectives are enqueued in stream order,
 * bucket after bucket, and the host only watches.
 *
 *     caller's thread           device                          communicator's thread
 *     ready  enqueue 0 ----->   accumulate 0, select 0, exchange watch: has it ended? has the
 *     ready  enqueue 1 ----->   accumulate 1, select 1, exchange transport failed? is it late?
 *     join   stream waits       apply 0 and 1 --> result
 *     (or wait)                 control, report ------------->  report taken, step retires
 *     ready  ...
 *
 * inflight.c: how the host watches it.
 */
#include "collectives/reducer/reducer.h"

#ifdef TAM_HAVE_CUDA

#include "collectives/reducer/stream.h"
#include "collectives/reducer/rollback.h"

/* -- start, wait, join ------------------------------------------------------------------------ */

/* Collectives of one communicator must be issued in the same order on all ranks. A host-driven
 * reducer issues its own at any time, so it must not be under way; another device-driven reducer is
 * waited for, in stream order, once all of its step is enqueued. */
static tamis_status order_steps(tamis_reducer *r) {
    const tam_cuda_step *last = r->comm->last_step;
    if (atomic_load(&r->comm->exchanges) > 0)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: another reducer of this communicator, which the host drives, has "
                        "a step under way; wait for it first",
                        r->comm->rank);
    if (!last || last == tam_stream_leader(r))
        return TAMIS_OK;
    if (tam_cuda_step_halfway(last))
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: another reducer of this communicator has begun a step whose "
                        "segments are not all ready; finish it first",
                        r->comm->rank);
    return tam_cuda_step_follow(tam_stream_leader(r), last);
}

/* The first bucket was launched. Whatever follows this step, whoever drives it, waits for the
 * step's end, so the watch begins now. */
static void submit_step(tamis_reducer *r, uint64_t serial, uint64_t begin_ns) {
    tam_inflight *f = tam_inflight_begin(r, serial, begin_ns);
    r->comm->last_step = tam_stream_leader(r);
    tam_comm_submit(r->comm, &f->job);
}

static tamis_status stream_launch(tam_bucket *b, void *caller) {
    tamis_reducer *r = b->reducer;
    tam_inflight_ring *s = r->inflight;
    uint64_t serial, begin_ns = tam_clock_ns();
    tam_rollback_invalidate(r, TAM_ROLLBACK_NONE); /* only the device knows what it applies */
    if (tam_stream_is_first(b) && s->serial - s->retired == TAM_CUDA_STEPS)
        TAM_TRY(tam_inflight_retire_joined(r));
    if (tam_stream_is_first(b)) {
        TAM_TRY(order_steps(r));
        TAM_TRY(tam_stream_rearm(r, caller));
    }
    TAM_TRY(tam_cuda_step_run(s->steps[b->view.index], &b->view.target, caller,
                              tam_stream_row_of(b)->enqueue, r->comm, &serial));
    s->captured = serial == 0;
    r->in_graph = r->in_graph || s->captured;
    if (s->captured)
        return TAMIS_OK;
    if (r->config.update)
        r->passes = b->pass; /* the same for all buckets of a step */
    if (tam_stream_is_first(b))
        submit_step(r, serial, begin_ns);
    tam_inflight_of(s, serial)->begin_ns[b->view.index] = begin_ns;
    if (b == tam_last_bucket(r))
        atomic_store(&tam_inflight_of(s, serial)->complete_ns, tam_clock_ns());
    return TAMIS_OK;
}

static tamis_status stream_accumulate(tam_bucket *b, void *caller) {
    tam_rollback_invalidate(b->reducer, TAM_ROLLBACK_NONE);
    return tam_cuda_step_accumulate(b->reducer->inflight->steps[b->view.index], &b->view.target,
                                    caller);
}

static bool stream_test(tamis_reducer *r) {
    tam_inflight_ring *s = r->inflight;
    return s->captured || atomic_load(&tam_inflight_of(s, s->serial)->job.state) == TAM_JOB_DONE;
}

/* A step that ended half way is lost; its record in flight says so. */
static tamis_status stream_wait(tamis_reducer *r, uint64_t begin_ns, uint64_t until_ns) {
    tam_inflight_ring *s = r->inflight;
    (void)until_ns;
    if (s->captured)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: a captured step cannot be waited for; use tamis_reducer_join",
                        r->comm->rank);
    if (r->launched == 0)
        return tam_comm_check(r->comm);
    TAM_TRY(tam_inflight_retire_until(r, s->serial - 1));
    tamis_status status = tam_inflight_retire(r);
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        return status;
    uint64_t now_ns = tam_clock_ns();
    r->stats.wait_s = 1e-9 * (double)(now_ns - begin_ns);
    tam_phase_report(r, TAMIS_PHASE_WAIT, TAMIS_NO_BUCKET,
                     tam_inflight_of(s, s->serial)->report.step, begin_ns, now_ns);
    return status;
}

static tamis_status stream_join(tamis_reducer *r, void *caller, uint64_t begin_ns,
                                uint64_t until_ns) {
    (void)begin_ns;
    (void)until_ns;
    return tam_cuda_step_join(tam_stream_leader(r), caller);
}

/* The ring still has the report of each of the last steps. */
static tamis_status stream_outcome(tamis_reducer *r, uint32_t back, int *applied) {
    tam_inflight_ring *s = r->inflight;
    *applied = 1;
    if (s->serial <= back)
        return TAMIS_OK;
    TAM_TRY(tam_inflight_retire_until(r, s->serial - back));
    return tam_inflight_outcome(tam_inflight_of(s, s->serial - back), applied);
}

static void stream_look(tamis_reducer *r) {
    tam_inflight_ring *s = r->inflight;
    while (s->retired < s->serial &&
           atomic_load(&tam_inflight_of(s, s->retired + 1)->job.state) == TAM_JOB_DONE)
        tam_inflight_retire_joined(r);
    tam_inflight_poll_replays(r);
}

/* -- state ------------------------------------------------------------------------------------ */

static tamis_status quiesce_bucket(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    tam_cuda_past past;
    TAM_TRY(tam_cuda_step_save(r->inflight->steps[b->view.index], &past));
    r->step = past.number;
    b->view.last_result = past.last_result;
    b->view.early_nonfinite = past.early_nonfinite;
    if (!tam_stream_row_of(b)->resize) /* nothing of it follows from k */
        return TAMIS_OK;
    b->view.whole_k = past.k;
    b->view.k = tam_node_shard_budget(&b->node_shard, past.k);
    r->norms[b->view.index] = past.norm;
    r->has_norms = past.has_norms;
    r->norm_matching = past.norm_matching;
    return TAMIS_OK;
}

static tamis_status stream_quiesce(tamis_reducer *r) {
    /* its status is ignored: a state can be saved after the communicator is lost */
    tam_inflight_retire_until(r, r->inflight->serial);
    tam_inflight_poll_replays(r);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(quiesce_bucket(&r->buckets[i]));
    return TAMIS_OK;
}

static tamis_status reload_bucket(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_cuda_past past = {
        .number = r->step,
        .k = b->view.whole_k,
        .all = r->k,
        .last_result = b->view.last_result,
        .early_nonfinite = b->view.early_nonfinite,
        .norm = r->norms[b->view.index],
        .has_norms = r->has_norms,
        .norm_matching = r->norm_matching,
        .scale = tam_update_scale(r, &r->norm_matching),
        .ratio = r->update.norm_matching,
    };
    return tam_cuda_step_load(r->inflight->steps[b->view.index], tam_stream_config(b), &past);
}

static tamis_status stream_reload(tamis_reducer *r) {
    r->inflight->shown = r->step;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(reload_bucket(&r->buckets[i]));
    return TAMIS_OK;
}

static void stream_result(const tamis_reducer *r, tamis_result *out) {
    tam_cuda_result result = {0};
    if (!tam_scheme_dense(r->scheme))
        result = tam_cuda_step_result(tam_stream_leader(r));
    out->count = r->count;
    out->indices = result.indices;
    out->values = result.values;
    out->memory = TAMIS_DEVICE_CUDA;
}

/* -- open and close --------------------------------------------------------------------------- */

static tamis_status stream_open(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    if (tam_stream_is_first(b))
        r->inflight = tam_alloc(sizeof *r->inflight);
    if (!r->inflight)
        return tam_fail(TAMIS_E_NOMEM, "no memory for steps under way");
    TAM_TRY(tam_stream_row_of(b)->open(b));
    return reload_bucket(b);
}

/* The first bucket is closed last, with what all share. */
static void stream_close(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    if (!r->inflight)
        return;
    if (tam_stream_is_first(b) && r->comm->last_step == tam_stream_leader(r))
        r->comm->last_step = NULL;
    tam_cuda_step_close(r->inflight->steps[b->view.index]);
    r->inflight->steps[b->view.index] = NULL;
    if (b->view.gradient_kernels != b->view.kernels)
        b->view.device->close(b->view.gradient_kernels);
    b->view.gradient_kernels = b->view.kernels;
    if (!tam_stream_is_first(b))
        return;
    tam_free(r->inflight);
    r->inflight = NULL;
}

const tam_driver tam_driver_stream = {
    .name = "stream",
    .open = stream_open,
    .arm = tam_stream_arm,
    .close = stream_close,
    .launch = stream_launch,
    .accumulate = stream_accumulate,
    .test = stream_test,
    .wait = stream_wait,
    .join = stream_join,
    .outcome = stream_outcome,
    .look = stream_look,
    .quiesce = stream_quiesce,
    .reload = stream_reload,
    .result = stream_result,
};

#endif
