/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself: kernels and collectives are enqueued in stream order,
 * bucket after bucket, and the host only watches.
 *
 *     caller's thread           device                          communicator's thread
 *     ready  enqueue 0 ----->   accumulate 0, cut 0, exchange   watch: has it ended? has the
 *     ready  enqueue 1 ----->   accumulate 1, cut 1, exchange   transport failed? is it late?
 *     join   stream waits       apply 0 and 1 --> result
 *     (or wait)                 control, report ------------->  report taken, step retires
 *     ready  ...
 *
 * inflight.c: how the host watches it.
 */
#include "collectives/reducer/reducer.h"

#ifdef TAM_HAVE_CUDA

#include "collectives/reducer/inflight.h"
#include "collectives/reducer/undo.h"

#include "collectives/exchange/sparse.h"
#include "kernels/cuda/parameters.h"

/* If not, the gradient itself is summed. */
static bool picks(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_PICKS;
}

static bool is_rowed(const tam_bucket *b) {
    return b->layout->nrowed > 0;
}

static bool is_first(const tam_bucket *b) {
    return b->view.index == 0;
}

/* The first bucket's step stands for all. */
static tam_cuda_step *leader(const tamis_reducer *r) {
    return r->inflight->steps[0];
}

/* -- enqueue ---------------------------------------------------------------------------------- */

static tamis_status gather_slots(const tamis_comm *comm, const tam_cuda_mail *mail) {
    return comm->transport->stream->allgather(comm->self,
                                              mail->slots + comm->rank * mail->slot_bytes,
                                              mail->slot_bytes, mail->slots, mail->stream);
}

static tamis_status bring_values(const tamis_comm *comm, const tam_cuda_mail *mail) {
    return comm->transport->stream->alltoall(comm->self, mail->values, mail->share_bytes,
                                             mail->shares, mail->stream);
}

static tamis_status gather_sums(const tamis_comm *comm, const tam_cuda_mail *mail) {
    return comm->transport->stream->allgather(comm->self, mail->sums + comm->rank * mail->sum_bytes,
                                              mail->sum_bytes, mail->sums, mail->stream);
}

static tamis_status enqueue(void *context, tam_cuda_step *step) {
    const tamis_comm *comm = context;
    const tam_cuda_mail *mail = tam_cuda_step_mail(step);
    TAM_TRY(gather_slots(comm, mail));
    TAM_TRY(tam_cuda_step_unite(step));
    if (mail->share_bytes == 0)
        return TAMIS_OK;
    TAM_TRY(bring_values(comm, mail));
    TAM_TRY(tam_cuda_step_add(step));
    return gather_sums(comm, mail);
}

static tamis_status sum_values(const tamis_comm *comm, const tam_cuda_mail *mail) {
    return comm->transport->stream->allreduce(comm->self, (const float *)(const void *)mail->values,
                                              comm->nranks * mail->share_bytes / sizeof(float),
                                              (float *)(void *)mail->shares, mail->stream);
}

static tamis_status carry_leg(void *context, const tam_cuda_mail *mail, tam_cuda_leg leg) {
    static tamis_status (*const legs[TAM_CUDA_LEGS])(const tamis_comm *, const tam_cuda_mail *) = {
        [TAM_CUDA_SLOTS] = gather_slots,
        [TAM_CUDA_SHARES] = bring_values,
        [TAM_CUDA_SUMS] = gather_sums,
        [TAM_CUDA_VALUES] = sum_values,
    };
    return legs[leg](context, mail);
}

static tamis_status enqueue_dense(void *context, tam_cuda_step *step) {
    return tam_cuda_dense_reduce(step, carry_leg, context);
}

static tam_cuda_enqueue enqueue_of(const tam_bucket *b) {
    return !picks(b) ? enqueue_dense : enqueue;
}

/* The collectives of a step with nothing between them, on buffers that hold zeros. */
static tamis_status rehearse(void *context, tam_cuda_step *step) {
    const tam_cuda_mail *mail = tam_cuda_step_mail(step);
    TAM_TRY(gather_slots(context, mail));
    if (mail->share_bytes == 0)
        return TAMIS_OK;
    TAM_TRY(bring_values(context, mail));
    return gather_sums(context, mail);
}

static tamis_status rehearse_dense(void *context, tam_cuda_step *step) {
    return tam_cuda_dense_rehearse(step, carry_leg, context);
}

/* Bytes that this rank sends in a step, or for a piece of it: always the same. What a sum of the
 * transport's own sends is not known; this is what a ring would. */
static uint64_t count_wire_bytes(const tam_cuda_mail *mail, uint32_t nranks) {
    return (nranks - 1) * (mail->slot_bytes + mail->share_bytes + mail->sum_bytes);
}

/* -- start, wait, join ------------------------------------------------------------------------ */

/* Collectives of one communicator must be issued in the same order on all ranks. A host-driven
 * reducer issues its own at any time, so it must not be under way; another device-driven reducer is
 * waited for, in stream order, once all of its step is enqueued. */
static tamis_status line_up(tamis_reducer *r) {
    const tam_cuda_step *last = r->comm->last_step;
    if (atomic_load(&r->comm->exchanges) > 0)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: another reducer of this communicator, which the host drives, has "
                        "a step under way; wait for it first",
                        r->comm->rank);
    if (!last || last == leader(r))
        return TAMIS_OK;
    if (tam_cuda_step_halfway(last))
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: another reducer of this communicator has begun a step whose "
                        "segments are not all ready; finish it first",
                        r->comm->rank);
    return tam_cuda_step_follow(leader(r), last);
}

/* The first bucket was launched. Whatever follows this step, whoever drives it, waits for the
 * step's end, so the watch begins now. */
static void take_off(tamis_reducer *r, uint64_t serial, uint64_t begin_ns) {
    tam_inflight *f = tam_inflight_begin(r, serial, begin_ns);
    r->comm->last_step = leader(r);
    tam_comm_submit(r->comm, &f->job);
}

static tamis_status stream_launch(tam_bucket *b, void *caller) {
    tamis_reducer *r = b->reducer;
    tam_inflight_ring *s = r->inflight;
    uint64_t serial, begin_ns = tam_clock_ns();
    tam_undo_lose(r, TAM_WAY_NONE); /* only the device knows what it applies */
    if (is_first(b) && s->serial - s->retired == TAM_CUDA_STEPS)
        TAM_TRY(tam_inflight_retire_joined(r));
    if (is_first(b))
        TAM_TRY(line_up(r));
    TAM_TRY(tam_cuda_step_run(s->steps[b->view.index], &b->view.target, caller, enqueue_of(b),
                              r->comm, &serial));
    s->captured = serial == 0;
    if (s->captured)
        return TAMIS_OK;
    if (r->config.update)
        r->passes = b->pass; /* the same for all buckets of a step */
    if (is_first(b))
        take_off(r, serial, begin_ns);
    tam_inflight_of(s, serial)->begin_ns[b->view.index] = begin_ns;
    if (b == tam_last_bucket(r))
        atomic_store(&tam_inflight_of(s, serial)->complete_ns, tam_clock_ns());
    return TAMIS_OK;
}

static tamis_status stream_accumulate(tam_bucket *b, void *caller) {
    tam_undo_lose(b->reducer, TAM_WAY_NONE);
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
    tam_phase_tell(r, TAMIS_PHASE_WAIT, TAMIS_NO_BUCKET, tam_inflight_of(s, s->serial)->report.step,
                   begin_ns, now_ns);
    return status;
}

static tamis_status stream_join(tamis_reducer *r, void *caller, uint64_t begin_ns,
                                uint64_t until_ns) {
    (void)begin_ns;
    (void)until_ns;
    return tam_cuda_step_join(leader(r), caller);
}

static void stream_look(tamis_reducer *r) {
    tam_inflight_ring *s = r->inflight;
    while (s->retired < s->serial &&
           atomic_load(&tam_inflight_of(s, s->retired + 1)->job.state) == TAM_JOB_DONE)
        tam_inflight_retire_joined(r);
    tam_inflight_poll_replays(r);
}

/* -- state ------------------------------------------------------------------------------------ */

static tamis_status settle_bucket(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    tam_cuda_past past;
    TAM_TRY(tam_cuda_step_save(r->inflight->steps[b->view.index], &past));
    r->step = past.number;
    b->view.last_result = past.last_result;
    b->view.early_nonfinite = past.early_nonfinite;
    if (!picks(b) || is_rowed(b))
        return TAMIS_OK;
    b->view.whole_k = b->view.k = b->control.k;
    r->norms[b->view.index] = past.norm;
    r->has_norms = past.has_norms;
    r->match = past.match;
    return TAMIS_OK;
}

static tamis_status stream_settle(tamis_reducer *r) {
    /* its status is ignored: a state can be saved after the communicator is lost */
    tam_inflight_retire_until(r, r->inflight->serial);
    tam_inflight_poll_replays(r);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(settle_bucket(&r->buckets[i]));
    return TAMIS_OK;
}

static tamis_status reload_bucket(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_cuda_past past = {
        .number = r->step,
        .last_result = b->view.last_result,
        .early_nonfinite = b->view.early_nonfinite,
        .norm = r->norms[b->view.index],
        .has_norms = r->has_norms,
        .match = r->match,
    };
    return tam_cuda_step_load(r->inflight->steps[b->view.index], b->view.config_hash, &past);
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
        result = tam_cuda_step_result(leader(r));
    out->count = r->count;
    out->indices = result.indices;
    out->values = result.values;
    out->memory = TAMIS_DEVICE_CUDA;
}

/* -- open and close --------------------------------------------------------------------------- */

static void fill_spans(const tam_bucket *b, tam_cuda_span *spans) {
    uint32_t nranks = b->reducer->comm->nranks, rank = b->reducer->comm->rank;
    for (uint32_t t = 0; t < nranks; t++) {
        uint64_t before, upto;
        tam_share_span(&b->division, t, rank, &before, &upto);
        spans[t] = (tam_cuda_span){(uint32_t)before, (uint32_t)upto};
    }
}

static tam_cuda_whole whole_of(const tamis_reducer *r) {
    return (tam_cuda_whole){
        .nbuckets = r->nbuckets,
        .nrowed = r->layout->nrowed,
        .k = r->k,
        .by_norm = tam_buckets_by_norm(r),
        .lengths = r->lengths,
    };
}

static tam_cuda_update update_of(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    return (tam_cuda_update){
        .moments = r->first || r->second,
        .corrects = r->second != NULL,
        .masked = b->view.masked,
        .scale = tam_update_scale(r, &r->match),
        .match = tam_update_matches(r) ? r->update.match : 0.0,
        .scale_most = tam_update_scale_most(r),
    };
}

/* What does not depend on the kind of the step. */
static tam_cuda_plan plan_of(const tam_bucket *b, const tam_cuda_whole *whole) {
    const tamis_reducer *r = b->reducer;
    return (tam_cuda_plan){
        .whole = whole,
        .first = leader(r),
        .bucket = b->view.index,
        .begin = (uint32_t)b->view.begin,
        .grid = &b->division.grid,
        .rank = r->comm->rank,
        .nranks = r->comm->nranks,
        .type = r->config.grad_dtype,
        .divisor = tam_update_matches(r) ? (float)tam_divisor_of_sums(r) : tam_divisor(r),
        .update = update_of(b),
        .nonfinite = r->config.nonfinite,
        .sum_order = r->config.sum_order,
        .timeout_ns = r->comm->timeout_ns,
    };
}

/* No union exceeds what all ranks send, or the length of the vector. */
static uint32_t union_max(const tam_bucket *b, uint64_t capacity) {
    uint64_t sent = capacity * b->reducer->comm->nranks, n = b->division.grid.n;
    return (uint32_t)(sent < n ? sent : n);
}

static tam_cuda_wire wire_of(tamis_wire_type type) {
    const tam_wire_type *row = tam_wire_of(type);
    return (tam_cuda_wire){.type = type, .bits = row->bits, .scale_bytes = row->scale_bytes};
}

/* As where the host drives, but for lists that one block of threads packs, which is slow: they are
 * for whoever asks for them, or sends few bits and so pays for bytes. */
static tamis_index_format choose_format(const tam_bucket *b, const tam_slots *slots) {
    bool slow = slots->format == TAMIS_INDEX_GAP8 || slots->format == TAMIS_INDEX_BITMAP;
    if (b->view.format != TAMIS_INDEX_AUTO || !slow)
        return slots->format;
    uint64_t words = tam_codec_of(TAMIS_INDEX_U32)->bytes(slots->span, slots->capacity);
    uint64_t bytes = tam_codec_of(TAMIS_INDEX_BLOCK16)->bytes(slots->span, slots->capacity);
    return bytes < words ? TAMIS_INDEX_BLOCK16 : TAMIS_INDEX_U32;
}

static tam_cuda_format indices_of(const tam_bucket *b, const tam_slots *slots) {
    tamis_index_format index = choose_format(b, slots);
    return (tam_cuda_format){
        .index = index,
        .index_bytes =
            tam_head_round((size_t)tam_codec_of(index)->bytes(slots->span, slots->capacity)),
        .span = slots->span,
    };
}

/* The same bytes in slots as where the host drives, and the same blocks of values. */
static tam_cuda_format format_of(const tam_bucket *b, const tam_strided *parts) {
    const tamis_reducer_config *c = &b->reducer->config;
    const tam_slots slots = tam_sparse_slots(&b->view);
    tamis_wire_type up = tam_wire_resolve(c->wire_type);
    tam_cuda_format format = indices_of(b, &slots);
    format.parts = parts;
    format.up = wire_of(up);
    format.down = wire_of(tam_wire_resolve_sum(c->wire_type_sum, up));
    return format;
}

/* Slots list rows, which every rank may list; values are not rounded, norms not sent. */
static void plan_rows(const tam_bucket *b, tam_strided *parts, tam_cuda_plan *plan) {
    uint32_t length = b->layout->rows[0], count = (uint32_t)b->layout->length / length;
    uint32_t asked = b->reducer->config.rows_capacity, most = asked < count ? asked : count;
    tamis_index_format format = b->view.format;
    const tam_slots slots = {
        .format = format != TAMIS_INDEX_AUTO ? format : tam_codec_choose(count, most, false),
        .span = count,
        .capacity = most,
    };
    for (uint32_t part = 0; part < plan->nranks; part++)
        parts[part] = (tam_strided){0, count, count, count};
    plan->format = indices_of(b, &slots);
    plan->format.parts = parts;
    plan->row_length = length;
    plan->slot_capacity = most;
    plan->union_max = union_max(b, (uint64_t)most * length);
}

static tamis_status open_step(tam_bucket *b, tam_cuda_span *spans, tam_strided *parts) {
    tamis_reducer *r = b->reducer;
    tam_cuda_step **step = &r->inflight->steps[b->view.index];
    bool exact = tam_scheme_exact_count(b->scheme);
    const tam_cuda_whole whole = whole_of(r);
    tam_cuda_plan plan = plan_of(b, &whole);
    fill_spans(b, spans);
    for (uint32_t part = 0; part < plan.nranks; part++)
        parts[part] = tam_strided_of(&b->division, part);
    plan.format = format_of(b, parts);
    plan.kind = exact ? TAM_CUT_TOTAL : TAM_CUT_ALL;
    plan.weighted = tam_scheme_weighted(b->scheme);
    plan.quota.spans = spans;
    plan.quota.capacity = exact ? 0.0 : r->config.capacity;
    plan.quota.ranks = tam_scheme_undivided(b->scheme) ? 1.0 : plan.nranks;
    plan.quota.own = tam_own_max(&b->division);
    plan.slot_capacity = (uint32_t)tam_pick_most(&b->view, b->view.k_max);
    plan.union_max = union_max(b, plan.slot_capacity);
    plan.nstats = tam_pick_sums(&b->view);
    plan.with_values = tam_scheme_gives_picks(b->scheme);
    plan.dense_output = r->config.output == TAMIS_OUTPUT_DENSE;
    plan.control = &b->control;
    if (is_rowed(b))
        plan_rows(b, parts, &plan);
    b->view.format = plan.format.index;
    TAM_TRY(tam_cuda_step_open(b->view.kernels, &plan, b->view.acc, step));
    r->inflight->wire_bytes += count_wire_bytes(tam_cuda_step_mail(*step), plan.nranks);
    return reload_bucket(b);
}

static tamis_status open_sparse(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_cuda_span *spans = tam_alloc_array(r->comm->nranks, sizeof spans[0]);
    tam_strided *parts = tam_alloc_array(r->comm->nranks, sizeof parts[0]);
    tamis_status status =
        spans && parts
            ? open_step(b, spans, parts)
            : tam_fail(TAMIS_E_NOMEM, "no memory for steps of %u ranks", r->comm->nranks);
    tam_free(spans);
    tam_free(parts);
    return status;
}

static tamis_status open_dense(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    tam_cuda_step **step = &r->inflight->steps[b->view.index];
    const tam_cuda_whole whole = whole_of(r);
    const tam_cuda_plan plan = plan_of(b, &whole);
    TAM_TRY(tam_cuda_dense_open(b->view.kernels, &plan, TAM_DENSE_PIECE, step));
    for (uint32_t p = 0; p < tam_cuda_dense_pieces(*step); p++) {
        tam_cuda_mail mail = tam_cuda_dense_mail(*step, p);
        r->inflight->wire_bytes += count_wire_bytes(&mail, plan.nranks);
    }
    return reload_bucket(b);
}

static tamis_status stream_open(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    if (is_first(b))
        r->inflight = tam_alloc(sizeof *r->inflight);
    if (!r->inflight)
        return tam_fail(TAMIS_E_NOMEM, "no memory for steps under way");
    return !picks(b) ? open_dense(b) : open_sparse(b);
}

/* NCCL connects ranks when a size of message first wants it, which must not happen in a capture,
 * ours or the caller's. */
static tamis_status rehearse_bucket(const tam_bucket *b) {
    tamis_comm *comm = b->reducer->comm;
    tam_cuda_step *step = b->reducer->inflight->steps[b->view.index];
    tamis_status status = tam_cuda_step_rehearse(step, picks(b) ? rehearse : rehearse_dense, comm);
    if (status == TAMIS_OK)
        return TAMIS_OK;
    TAM_TRY(comm->transport->stream->poll(comm->self)); /* which knows more, if it has failed */
    return tam_fail(status,
                    "rank %u: the first exchange of a reducer did not end; a rank is missing, or "
                    "the device is busy or hangs",
                    comm->rank);
}

/* Either all ranks capture their collectives, or none does. */
static tamis_status stream_arm(tamis_reducer *r) {
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(rehearse_bucket(&r->buckets[i]));
    if (tam_setting_number(TAM_SETTING_GRAPHS) == 0)
        return TAMIS_OK;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(tam_cuda_step_capture(r->inflight->steps[i], enqueue_of(&r->buckets[i]), r->comm));
    return TAMIS_OK;
}

/* The first bucket is closed last, with what all share. */
static void stream_close(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    if (!r->inflight)
        return;
    if (is_first(b) && r->comm->last_step == leader(r))
        r->comm->last_step = NULL;
    tam_cuda_step_close(r->inflight->steps[b->view.index]);
    r->inflight->steps[b->view.index] = NULL;
    if (!is_first(b))
        return;
    tam_free(r->inflight);
    r->inflight = NULL;
}

const tam_driver tam_driver_stream = {
    .name = "stream",
    .open = stream_open,
    .arm = stream_arm,
    .close = stream_close,
    .launch = stream_launch,
    .accumulate = stream_accumulate,
    .test = stream_test,
    .wait = stream_wait,
    .join = stream_join,
    .look = stream_look,
    .settle = stream_settle,
    .reload = stream_reload,
    .result = stream_result,
};

#endif
