/* SPDX-License-Identifier: MIT
 *
 * A step is in flight from the launch of its first bucket until it retires. It retires when the
 * host takes its report: in wait, or in a later call that finds it done. Steps retire in order, and
 * up to TAM_CUDA_STEPS are in flight. A step that the caller captures is never in flight: replays
 * of a graph are not watched, their reports are only polled.
 */
#include "collectives/reducer/reducer.h"

#include <tamis/stats.h>

#ifdef TAM_HAVE_CUDA

#include "collectives/reducer/inflight.h"

#include <math.h>
#include <stdio.h>

enum { WHERE = 64 }; /* bytes of a text */

/* -- watch ------------------------------------------------------------------------------------ */

static tamis_status explain_refusal(const tam_cuda_report *report, uint32_t rank) {
    const char *why = tam_refusal_words(report->refused);
    if (report->refused == TAM_REFUSED_GRADIENT)
        return tam_fail(TAMIS_E_PROTOCOL,
                        "step %llu: the gradient of rank %u, as received by rank %u, was refused: "
                        "%s",
                        (unsigned long long)report->step, report->rank, rank, why);
    if (report->rank == rank) /* no rank refuses its own packet */
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u, step %llu: %s", rank,
                        (unsigned long long)report->step, why);
    return tam_fail(TAMIS_E_PROTOCOL, "step %llu: the packet of rank %u was refused: %s",
                    (unsigned long long)report->step, report->rank, why);
}

static void find_nonfinite(const tamis_reducer *r, const tam_cuda_report *report,
                           char where[WHERE]) {
    uint32_t nlocal = r->comm->nranks / r->nranks;
    if (report->in_sums)
        snprintf(where, WHERE, "in the sum over ranks");
    else if (nlocal > 1)
        snprintf(where, WHERE, "first in the sum of ranks %u to %u", report->rank,
                 report->rank + nlocal - 1);
    else
        snprintf(where, WHERE, "first on rank %u", report->rank);
}

static tamis_status explain_nonfinite(const tamis_reducer *r, const tam_cuda_report *report) {
    char where[WHERE];
    find_nonfinite(r, report, where);
    return tam_nonfinite_say(r, report->step, report->nonfinite, where, "");
}

static tamis_status explain_report(const tamis_reducer *r, const tam_cuda_report *report) {
    if (report->status == TAMIS_E_PROTOCOL)
        return explain_refusal(report, r->comm->rank);
    if (report->status == TAMIS_E_NONFINITE)
        return explain_nonfinite(r, report);
    return TAMIS_OK;
}

/* The timeout runs from the launch of the last bucket, for until then the caller sets the pace, and
 * from the end of the steps before (the link's deadline), whichever is later. */
static bool is_late(const tam_inflight *f, const tam_link *link) {
    uint64_t complete_ns = atomic_load(&f->complete_ns), now_ns = tam_clock_ns();
    return complete_ns > 0 && now_ns >= complete_ns + f->reducer->comm->timeout_ns &&
           now_ns >= link->call.deadline_ns;
}

/* Check transport, communicator and clock while a step is under way. */
static tamis_status look_out(const tam_inflight *f, const tam_link *link) {
    TAM_TRY(link->transport->stream->poll(link->self));
    tamis_status poison = (tamis_status)atomic_load(link->call.poison);
    if (poison != TAMIS_OK)
        return tam_fail(poison, "rank %u: the communicator was abandoned", link->rank);
    if (is_late(f, link))
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u: step %llu on the device did not end by its deadline; a rank is "
                        "missing, or earlier work on the caller's stream is not done",
                        link->rank, (unsigned long long)f->serial);
    return TAMIS_OK;
}

/* Notify the listener: every bucket was under way from its launch to now, as far as the host can
 * tell. */
static void report_device(const tam_inflight *f) {
    const tamis_reducer *r = f->reducer;
    uint64_t now_ns = tam_clock_ns();
    for (uint32_t b = 0; b < r->nbuckets; b++)
        tam_phase_report(r, TAMIS_PHASE_DEVICE, b, f->report.step, f->begin_ns[b], now_ns);
}

/* The job of a step in flight. After a failure the communicator ends the collectives that wait on
 * devices, so that streams run dry and the residual can be saved. */
static tamis_status watch(tam_job *job, tam_link *link) {
    tam_inflight *f = (tam_inflight *)(void *)job;
    tam_cuda_step *step = f->reducer->inflight->steps[0];
    tamis_status status = TAMIS_OK;
    bool done = false;
    for (unsigned tries = 0; status == TAMIS_OK; tries++) {
        tam_cuda_report report;
        status = tam_cuda_step_poll(step, f->serial, &done, &report);
        if (status == TAMIS_OK && done && atomic_load(&f->complete_ns) > 0) {
            if (!tam_job_commit(job))
                return tam_fail(TAMIS_E_TIMEOUT,
                                "rank %u: the step was abandoned by the thread that waited for it",
                                link->rank);
            f->report = report;
            report_device(f);
            return explain_report(f->reducer, &report);
        }
        if (status == TAMIS_OK)
            status = look_out(f, link);
        tam_back_off(tries);
    }
    return status;
}

/* -- retiring --------------------------------------------------------------------------------- */

/* The statistics become those of this step. */
static void inflight_show(tamis_reducer *r, const tam_cuda_report *report) {
    double left = report->acc_sum - report->sent_sum;
    tamis_stats s = r->stats;
    s.length = r->layout->length;
    s.target = r->k;
    s.selected = report->selected;
    s.sent = report->sent;
    s.sent_max = report->sent_max;
    s.deferred = report->deferred;
    s.candidates = report->candidates;
    s.rescans = report->rescans;
    s.nonfinite = report->nonfinite;
    s.skipped = report->status == TAMIS_E_NONFINITE;
    s.density = (double)report->selected / (double)(r->layout->ordinary ? r->layout->ordinary : 1);
    s.threshold = report->key;
    s.update_scale = report->update_scale;
    s.acc_norm = sqrt(report->acc_sum);
    s.residual_norm = left > 0.0 ? sqrt(left) : 0.0;
    s.wire_bytes = r->inflight->wire_bytes;
    s.wait_s = 0.0;
    r->stats = s;
    r->count = report->count;
    if (tam_scheme_dense(r->scheme))
        return;
    tam_log(TAM_DEBUG,
            "rank %u, step %llu: sent %u, %llu candidates, margin 2^%.3f, slope %.1f, %u rescans",
            r->comm->rank, (unsigned long long)report->step, report->sent,
            (unsigned long long)report->candidates, report->margin, report->slope, report->rescans);
}

/* What each bucket sends next. */
static void record_targets(tamis_reducer *r, const tam_cuda_report *report) {
    for (uint32_t i = 0; i < r->nbuckets && !tam_scheme_dense(r->scheme); i++) {
        tam_bucket *b = &r->buckets[i];
        b->view.whole_k = report->targets[i];
        b->view.k = tam_node_shard_budget(&b->node_shard, b->view.whole_k);
    }
}

/* On the caller's thread, in the order of steps. */
static void count_nonfinite(tamis_reducer *r, const tam_cuda_report *report) {
    char where[WHERE];
    if (report->status != TAMIS_E_NONFINITE) {
        r->bad_steps = 0;
        return;
    }
    find_nonfinite(r, report, where);
    tam_nonfinite_count(r, report->step, where);
}

/* Take one report, which ends `steps` steps. Replays may report after later steps have. */
static void inflight_record(tamis_reducer *r, const tam_cuda_report *report, uint64_t steps) {
    r->stats.steps += steps;
    r->stats.rescans_total += report->rescans;
    r->stats.wire_bytes_total += steps * r->inflight->wire_bytes;
    if (report->step < r->inflight->shown)
        return;
    r->inflight->shown = r->step = report->step + 1;
    record_targets(r, report);
    inflight_show(r, report);
    count_nonfinite(r, report);
}

tam_inflight *tam_inflight_of(tam_inflight_ring *s, uint64_t serial) {
    return &s->ring[serial % TAM_CUDA_STEPS];
}

tam_inflight *tam_inflight_begin(tamis_reducer *r, uint64_t serial, uint64_t begin_ns) {
    tam_inflight *f = tam_inflight_of(r->inflight, serial);
    *f = (tam_inflight){.job = {.run = watch, .watches = true}, .reducer = r, .serial = serial};
    f->begin_ns[0] = begin_ns;
    r->inflight->serial = serial;
    return f;
}

tamis_status tam_inflight_retire(tamis_reducer *r) {
    tam_inflight *f = tam_inflight_of(r->inflight, ++r->inflight->retired);
    tamis_status status = tam_comm_finish(r->comm, &f->job, tam_comm_deadline(r->comm));
    r->abandoned = r->abandoned || atomic_load(&f->job.state) == TAM_JOB_ABANDONED;
    if (tamis_status_loss(status) != TAMIS_LOST_COMM)
        inflight_record(r, &f->report, 1);
    return status;
}

tamis_status tam_inflight_retire_joined(tamis_reducer *r) {
    tamis_status status = tam_inflight_retire(r);
    return tamis_status_loss(status) == TAMIS_LOST_COMM ? status : TAMIS_OK; /* it was logged */
}

tamis_status tam_inflight_retire_until(tamis_reducer *r, uint64_t serial) {
    tamis_status status = TAMIS_OK;
    while (r->inflight->retired < serial) {
        tamis_status one = tam_inflight_retire_joined(r);
        status = status == TAMIS_OK ? one : status;
    }
    return status;
}

tamis_status tam_inflight_outcome(const tam_inflight *f, int *applied) {
    *applied = f->report.status != TAMIS_E_NONFINITE;
    return *applied ? TAMIS_OK : explain_nonfinite(f->reducer, &f->report);
}

void tam_inflight_poll_replays(tamis_reducer *r) {
    tam_inflight_ring *s = r->inflight;
    tam_cuda_report report;
    bool any = false;
    if (tam_cuda_step_poll(s->steps[0], 0, &any, &report) != TAMIS_OK || !any ||
        report.serial <= s->replay)
        return;
    inflight_record(r, &report, report.serial - s->replay);
    if (r->config.update)
        r->passes += report.serial - s->replay;
    s->replay = report.serial;
    tamis_status status = explain_report(r, &report);
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        tam_comm_lose(r->comm, status);
}

#endif
