/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself: kernels and collectives are enqueued in stream order, and
 * the host only watches.
 *
 *     caller's thread           device                          communicator's thread
 *     start  enqueue ------->   accumulate, cut, all-gather,    watch: has it ended? has the
 *     join   stream waits       unite, all-to-all, add,         transport failed? is it late?
 *     (or wait)                 all-gather, apply --> result
 *     start  ...                control, report ------------->  report taken, flight done
 *
 * A flight is a step between start and its report. Flights end in order; up to TAM_CUDA_STEPS may
 * be aloft. What the host learns of a step it learns when the flight has landed: by wait, or by a
 * later call that finds it done. A step that the caller captures is no flight: nobody watches the
 * replays of a graph, their reports are only looked at.
 */
#include "collectives/reducer/reducer.h"

#ifdef TAM_HAVE_CUDA

#include "kernels/cuda/cuda.h"

#include <math.h>
#include <stdio.h>

typedef struct flight {
    tam_job job; /* first: the watch */
    tamis_reducer *reducer;
    uint64_t serial;
    tam_cuda_report report;
} flight;

struct tam_flights {
    tam_cuda_step *step;
    flight ring[TAM_CUDA_STEPS];
    uint64_t serial; /* of the last step started */
    uint64_t landed; /* of the last one whose outcome is known to the host */
    uint64_t replay; /* serial of the last report of a caller's graph */
    uint64_t shown;  /* number of the step in the statistics, plus 1 */
    bool captured;   /* the step between start and join is part of a caller's graph */
    uint64_t wire_bytes;
};

static bool is_dense(const tamis_reducer *r) {
    return r->scheme.exchange == TAM_EXCHANGE_DENSE;
}

/* -- enqueue ---------------------------------------------------------------------------------- */

static tamis_status enqueue(void *context, tam_cuda_step *step) {
    const tamis_comm *comm = context;
    const tam_stream_transport *t = comm->transport->stream;
    const tam_cuda_mail *mail = tam_cuda_step_mail(step);
    TAM_TRY(tam_cuda_step_begin(step));
    TAM_TRY(t->allgather(comm->self, mail->slots + comm->rank * mail->slot_bytes, mail->slot_bytes,
                         mail->slots, mail->stream));
    TAM_TRY(tam_cuda_step_unite(step));
    if (mail->share > 0) {
        size_t bytes = mail->share * sizeof(float);
        TAM_TRY(t->alltoall(comm->self, mail->values, bytes, mail->shares, mail->stream));
        TAM_TRY(tam_cuda_step_add(step));
        TAM_TRY(t->allgather(comm->self, mail->sums, bytes, mail->values, mail->stream));
    }
    return tam_cuda_step_settle(step);
}

static tamis_status enqueue_piece(const tamis_comm *comm, tam_cuda_step *step, uint32_t piece) {
    const tam_stream_transport *t = comm->transport->stream;
    tam_cuda_mail mail = tam_cuda_dense_mail(step, piece);
    size_t bytes = mail.share * sizeof(float);
    TAM_TRY(tam_cuda_dense_widen(step, piece));
    TAM_TRY(t->alltoall(comm->self, mail.values, bytes, mail.shares, mail.stream));
    TAM_TRY(tam_cuda_dense_add(step, piece));
    TAM_TRY(t->allgather(comm->self, mail.sums, bytes, mail.values, mail.stream));
    return tam_cuda_dense_narrow(step, piece);
}

static tamis_status enqueue_dense(void *context, tam_cuda_step *step) {
    TAM_TRY(tam_cuda_dense_begin(step));
    for (uint32_t p = 0; p < tam_cuda_dense_pieces(step); p++)
        TAM_TRY(enqueue_piece(context, step, p));
    return tam_cuda_dense_settle(step);
}

static tam_cuda_enqueue enqueue_of(const tamis_reducer *r) {
    return is_dense(r) ? enqueue_dense : enqueue;
}

/* Bytes that this rank sends in a step, or for a piece of it: always the same. */
static uint64_t count_wire_bytes(const tam_cuda_mail *mail, uint32_t nranks) {
    return (nranks - 1) * (mail->slot_bytes + 2 * mail->share * sizeof(float));
}

/* -- watch ------------------------------------------------------------------------------------ */

static tamis_status explain_refusal(const tam_cuda_report *report, uint32_t rank) {
    const char *why = tam_cuda_refusal(report->refused);
    if (report->rank == rank) /* nobody refuses his own slot */
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u, step %llu: %s", rank,
                        (unsigned long long)report->step, why);
    return tam_fail(TAMIS_E_PROTOCOL, "step %llu: the slot of rank %u was refused: %s",
                    (unsigned long long)report->step, report->rank, why);
}

static tamis_status explain_nonfinite(const tam_cuda_report *report) {
    char where[48] = "in the sum over ranks";
    if (!report->in_sums)
        snprintf(where, sizeof where, "first on rank %u", report->rank);
    return tam_fail(TAMIS_E_NONFINITE,
                    "step %llu: entries that are NaN or Inf: %llu (%s); no rank applied anything",
                    (unsigned long long)report->step, (unsigned long long)report->nonfinite, where);
}

static tamis_status explain_report(const tamis_reducer *r, const tam_cuda_report *report) {
    if (report->status == TAMIS_E_PROTOCOL)
        return explain_refusal(report, r->comm->rank);
    if (report->status == TAMIS_E_NONFINITE && r->config.nonfinite == TAMIS_NONFINITE_ERROR)
        return explain_nonfinite(report);
    return TAMIS_OK;
}

/* What the transport or the clock has to say while a step is under way. */
static tamis_status look_out(const flight *f, const tam_link *link) {
    TAM_TRY(link->transport->stream->poll(link->self));
    tamis_status poison = (tamis_status)atomic_load(link->call.poison);
    if (poison != TAMIS_OK)
        return tam_fail(poison, "rank %u: the communicator was given up", link->rank);
    if (tam_clock_ns() >= link->call.deadline_ns)
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u: step %llu on the device did not end by its deadline; a rank "
                        "that is missing, or work before it on the caller's stream",
                        link->rank, (unsigned long long)f->serial);
    return TAMIS_OK;
}

/* The job of a flight. After a failure the communicator ends the collectives that wait on devices, so
 * that streams run dry and the residual can be saved. */
static tamis_status watch(tam_job *job, tam_link *link) {
    flight *f = (flight *)(void *)job;
    tam_cuda_step *step = f->reducer->flights->step;
    tamis_status status = TAMIS_OK;
    bool done = false;
    for (unsigned tries = 0; status == TAMIS_OK; tries++) {
        tam_cuda_report report;
        status = tam_cuda_step_poll(step, f->serial, &done, &report);
        if (status == TAMIS_OK && done) {
            if (!tam_job_commit(job))
                return tam_fail(TAMIS_E_TIMEOUT, "rank %u: nobody waits for the step any more",
                                link->rank);
            f->report = report;
            return explain_report(f->reducer, &report);
        }
        if (status == TAMIS_OK)
            status = look_out(f, link);
        tam_relax(tries);
    }
    return status;
}

/* -- landing ---------------------------------------------------------------------------------- */

/* The statistics become those of this step. */
static void show(tamis_reducer *r, const tam_cuda_report *report) {
    double rest = report->acc_sum - report->picked_sum;
    tamis_stats s = r->stats;
    s.length = r->layout->length;
    s.target = r->k;
    s.selected = report->selected;
    s.picked = report->picked;
    s.picked_max = report->picked_max;
    s.deferred = report->deferred;
    s.candidates = report->candidates;
    s.rescans = report->rescans;
    s.nonfinite = report->nonfinite;
    s.skipped = report->status == TAMIS_E_NONFINITE;
    s.density = (double)report->selected / (double)r->layout->length;
    s.threshold = report->key;
    s.acc_norm = sqrt(report->acc_sum);
    s.residual_norm = rest > 0.0 ? sqrt(rest) : 0.0;
    s.wire_bytes = r->flights->wire_bytes;
    s.wait_s = 0.0;
    r->stats = s;
    r->count = report->selected;
    if (is_dense(r))
        return;
    tam_log(TAM_DEBUG,
            "rank %u, step %llu: picked %u, %llu candidates, margin 2^%.3f, slope %.1f, %u rescans",
            r->comm->rank, (unsigned long long)report->step, report->picked,
            (unsigned long long)report->candidates, report->margin, report->slope, report->rescans);
}

/* One report, which ends `steps` steps. Reports of replays may be looked at after those of later
 * steps. */
static void note(tamis_reducer *r, const tam_cuda_report *report, uint64_t steps) {
    r->stats.steps += steps;
    r->stats.rescans_total += report->rescans;
    r->stats.wire_bytes_total += steps * r->flights->wire_bytes;
    if (report->step < r->flights->shown)
        return;
    r->flights->shown = report->step + 1;
    show(r, report);
}

static flight *flight_of(tam_flights *s, uint64_t serial) {
    return &s->ring[serial % TAM_CUDA_STEPS];
}

/* Wait for the oldest flight and take note of it. */
static tamis_status land(tamis_reducer *r) {
    flight *f = flight_of(r->flights, ++r->flights->landed);
    tamis_status status = tam_comm_finish(r->comm, &f->job, tam_comm_deadline(r->comm));
    r->abandoned = r->abandoned || atomic_load(&f->job.state) == TAM_JOB_ABANDONED;
    if (tamis_status_loss(status) != TAMIS_LOST_COMM)
        note(r, &f->report, 1);
    return status;
}

/* A step that was joined can report a loss of its own only here. */
static tamis_status land_joined(tamis_reducer *r) {
    tamis_status status = land(r);
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        return status;
    if (status != TAMIS_OK)
        tam_log(TAM_WARN, "rank %u: %s", r->comm->rank, tamis_last_error());
    return TAMIS_OK;
}

static tamis_status land_until(tamis_reducer *r, uint64_t serial) {
    tamis_status status = TAMIS_OK;
    while (r->flights->landed < serial) {
        tamis_status one = land_joined(r);
        status = status == TAMIS_OK ? one : status;
    }
    return status;
}

static void look_at_replays(tamis_reducer *r) {
    tam_flights *s = r->flights;
    tam_cuda_report report;
    bool any = false;
    if (tam_cuda_step_poll(s->step, 0, &any, &report) != TAMIS_OK || !any ||
        report.serial <= s->replay)
        return;
    note(r, &report, report.serial - s->replay);
    s->replay = report.serial;
    tamis_status status = explain_report(r, &report);
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        tam_comm_lose(r->comm, status);
    else if (status != TAMIS_OK)
        tam_log(TAM_WARN, "rank %u: %s", r->comm->rank, tamis_last_error());
}

static void stream_look(tamis_reducer *r) {
    tam_flights *s = r->flights;
    while (s->landed < s->serial &&
           atomic_load(&flight_of(s, s->landed + 1)->job.state) == TAM_JOB_DONE)
        land_joined(r);
    look_at_replays(r);
}

/* -- start, wait, join ------------------------------------------------------------------------ */

/* Collectives of one communicator must come in the same order on all ranks. Those of a reducer that
 * the host drives come at a time of their own; those of another device-driven one are waited for. */
static tamis_status line_up(tamis_reducer *r) {
    const tam_cuda_step *last = r->comm->last_flight;
    if (atomic_load(&r->comm->exchanges) > 0)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: another reducer of this communicator, which the host drives, has "
                        "a step under way; wait for it first",
                        r->comm->rank);
    if (last && last != r->flights->step)
        return tam_cuda_step_follow(r->flights->step, last);
    return TAMIS_OK;
}

static tamis_status stream_launch(tam_bucket *b, void *caller) {
    tamis_reducer *r = b->reducer;
    tam_flights *s = r->flights;
    uint64_t serial;
    if (s->serial - s->landed == TAM_CUDA_STEPS)
        TAM_TRY(land_joined(r));
    TAM_TRY(line_up(r));
    TAM_TRY(tam_cuda_step_run(s->step, &b->target, caller, enqueue_of(r), r->comm, &serial));
    s->captured = serial == 0;
    if (s->captured)
        return TAMIS_OK;
    r->comm->last_flight = s->step;
    s->serial = serial;
    flight *f = flight_of(s, serial);
    *f = (flight){.job = {.run = watch, .watches = true}, .reducer = r, .serial = serial};
    tam_comm_submit(r->comm, &f->job);
    return TAMIS_OK;
}

static tamis_status stream_accumulate(tam_bucket *b, void *caller) {
    (void)caller;
    return tam_fail(
        TAMIS_E_UNSUPPORTED,
        "rank %u: tamis_grad_accumulate where a device runs the steps by itself; add up "
        "micro-batches in the gradient",
        b->reducer->comm->rank);
}

static bool stream_test(tamis_reducer *r) {
    tam_flights *s = r->flights;
    return s->captured || atomic_load(&flight_of(s, s->serial)->job.state) == TAM_JOB_DONE;
}

static tamis_status stream_wait(tamis_reducer *r, uint64_t begin_ns, uint64_t until_ns) {
    (void)until_ns;
    if (r->flights->captured)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: a captured step cannot be waited for; use tamis_reduce_join",
                        r->comm->rank);
    TAM_TRY(land_until(r, r->flights->serial - 1));
    tamis_status status = land(r);
    r->stats.wait_s = 0.0;
    tam_phase_end(r, TAMIS_PHASE_WAIT, TAMIS_NO_BUCKET, begin_ns, &r->stats.wait_s);
    return status;
}

static tamis_status stream_join(tamis_reducer *r, void *caller, uint64_t begin_ns,
                                uint64_t until_ns) {
    (void)begin_ns;
    (void)until_ns;
    return tam_cuda_step_join(r->flights->step, caller);
}

/* -- state ------------------------------------------------------------------------------------ */

static tamis_status stream_settle(tamis_reducer *r) {
    land_until(r, r->flights->serial); /* a lost communicator does not keep anybody from saving */
    look_at_replays(r);
    return tam_cuda_step_save(r->flights->step, &r->step, &r->buckets[0].last_result);
}

static tamis_status stream_reload(tamis_reducer *r) {
    const tam_bucket *b = &r->buckets[0];
    r->flights->shown = r->step;
    return tam_cuda_step_load(r->flights->step, r->step, b->config_hash, b->last_result);
}

static void stream_result(const tamis_reducer *r, tamis_result *out) {
    tam_cuda_result result = {0};
    if (!is_dense(r))
        result = tam_cuda_step_result(r->flights->step);
    *out = (tamis_result){r->count, result.indices, result.values, TAMIS_DEVICE_CUDA};
}

/* -- open and close --------------------------------------------------------------------------- */

static tamis_status open_step(tam_bucket *b, uint32_t *picks) {
    tamis_reducer *r = b->reducer;
    uint32_t nranks = r->comm->nranks;
    bool exact = tam_scheme_exact_count(r->scheme);
    for (uint32_t t = 0; t < nranks; t++)
        picks[t] = (uint32_t)(exact ? tam_share_of(&b->division, t, r->comm->rank, b->k)
                                    : b->slots.capacity);
    tam_cuda_plan plan = {
        .grid = &b->division.grid,
        .rank = r->comm->rank,
        .nranks = nranks,
        .exclusive = r->scheme.ownership != TAM_OWN_ALL,
        .kind = exact ? TAM_CUT_TOTAL : TAM_CUT_ALL,
        .weighted = tam_scheme_weighted(r->scheme),
        .picks = picks,
        .slot_capacity = (uint32_t)b->slots.capacity,
        .union_max = (uint32_t)b->union_max,
        .nstats = b->slots.nstats,
        .with_values = b->slots.with_values,
        .dense_output = r->config.output == TAMIS_OUTPUT_DENSE,
        .type = r->config.grad_type,
        .divisor = tam_divisor(r),
        .nonfinite = r->config.nonfinite,
        .timeout_ns = r->comm->timeout_ns,
        .control = &b->control,
    };
    TAM_TRY(tam_cuda_step_open(b->kernels, &plan, r->acc, &r->flights->step));
    r->flights->wire_bytes = count_wire_bytes(tam_cuda_step_mail(r->flights->step), nranks);
    return stream_reload(r);
}

static tamis_status open_sparse(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    uint64_t sent = (uint64_t)b->slots.capacity * r->comm->nranks;
    uint32_t *picks = tam_alloc_array(r->comm->nranks, sizeof picks[0]);
    b->union_max = (size_t)(sent < b->division.grid.n ? sent : b->division.grid.n);
    if (!picks)
        return tam_fail(TAMIS_E_NOMEM, "no memory for steps of %u ranks", r->comm->nranks);
    tamis_status status = open_step(b, picks);
    tam_free(picks);
    return status;
}

static tamis_status open_dense(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    enum { PIECE = 1 << 22 }; /* elements: two buffers of 16 MiB */
    uint32_t nranks = r->comm->nranks;
    tam_cuda_plan plan = {
        .grid = &b->division.grid,
        .rank = r->comm->rank,
        .nranks = nranks,
        .type = r->config.grad_type,
        .divisor = tam_divisor(r),
        .nonfinite = r->config.nonfinite,
        .timeout_ns = r->comm->timeout_ns,
    };
    TAM_TRY(tam_cuda_dense_open(b->kernels, &plan, PIECE, &r->flights->step));
    for (uint32_t p = 0; p < tam_cuda_dense_pieces(r->flights->step); p++) {
        tam_cuda_mail mail = tam_cuda_dense_mail(r->flights->step, p);
        r->flights->wire_bytes += count_wire_bytes(&mail, nranks);
    }
    return stream_reload(r);
}

static tamis_status stream_open(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    r->flights = tam_alloc(sizeof *r->flights);
    if (!r->flights)
        return tam_fail(TAMIS_E_NOMEM, "no memory for steps under way");
    return is_dense(r) ? open_dense(b) : open_sparse(b);
}

/* A captured collective is one for all ranks, and so this is for all or none. */
static tamis_status stream_arm(tamis_reducer *r) {
    if (tam_setting_number(TAM_SETTING_GRAPHS) == 0)
        return TAMIS_OK;
    return tam_cuda_step_capture(r->flights->step, enqueue_of(r), r->comm);
}

static void stream_close(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    if (!r->flights)
        return;
    if (r->comm->last_flight == r->flights->step)
        r->comm->last_flight = NULL;
    tam_cuda_step_close(r->flights->step);
    tam_free(r->flights);
    r->flights = NULL;
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
