/* SPDX-License-Identifier: MIT
 *
 * The host drives the step: accumulate on the caller's thread, the rest as a job of the
 * communicator (job.c). For every device, over every transport, with every exchange.
 */
#include "collectives/reducer/rollback.h"

#include <tamis/stats.h>

static tamis_status host_open(tam_bucket *b) {
    return b->exchange->open(&b->view, &b->exchanged);
}

static void host_close(tam_bucket *b) {
    b->exchange->close(b->exchanged, tam_reducer_buffers_in_flight(b->reducer));
    b->exchanged = NULL;
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status host_launch(tam_bucket *b, void *stream) {
    tamis_reducer *r = b->reducer;
    bool selects = b->exchange->traits & TAM_TRAIT_SELECTS;
    if (b == tam_last_bucket(r))
        b->view.busy_us = r->busy_us = tam_skew_us(r->ended_ns, tam_clock_ns());
    if (b->view.index == 0) {
        b->view.computing_us = r->times.computing_us;
        b->view.waited_us = r->times.waited_us;
    }
    TAM_TRY(r->device->follow(b->view.kernels, stream));
    if (selects && !tam_bucket_waits(b))
        TAM_TRY(tam_step_accumulate(b));
    b->job.run = tam_step_exchange;
    b->job.purpose = "tamis_reducer_wait";
    b->job.number = r->step + 1;
    tam_comm_submit(r->comm, &b->job);
    return TAMIS_OK;
}

static tamis_status host_accumulate(tam_bucket *b, void *stream) {
    const tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    tam_accumulated seen;
    TAM_TRY(r->device->follow(b->view.kernels, stream));
    TAM_TRY(r->device->accumulate(b->view.kernels, &b->view.target, &seen));
    tam_rollback_pass(b, b->view.target.decay);
    tam_phase_end(r, TAMIS_PHASE_ACCUMULATE, b->view.index, begin_ns, &b->early_s);
    b->view.early_nonfinite += seen.nonfinite;
    tam_nonfinite_record(b, &seen);
    b->view.pending = true;
    return TAMIS_OK;
}

static bool host_test(tamis_reducer *r) {
    return tam_comm_test(r->comm, &r->buckets[r->nbuckets - 1].job);
}

/* Excludes segments with rows; the result includes them. */
static uint64_t count_ordinary(const tamis_reducer *r) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        count += b->layout->nrow_segments > 0 ? 0 : b->view.out.result.count;
    }
    return count;
}

/* Add what the job of the last bucket cannot know. */
static void complete_stats(tamis_reducer *r, uint64_t begin_ns) {
    tamis_stats *s = &r->now;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        s->accumulate_s += b->early_s + b->now.accumulate_s;
        s->select_s += b->now.select_s;
        s->skew_s += b->now.skew_s;
        s->exchange_s += b->now.skew_s + b->now.exchange_s;
        s->wire_bytes += b->job.wire_bytes;
        s->target += tam_bucket_target(b);
        b->view.early_nonfinite = 0;
        b->bad_segment = TAM_SEGMENT_UNKNOWN;
        b->early_s = 0.0;
    }
    s->steps = r->stats.steps + 1;
    s->length = r->layout->length;
    s->selected = count_ordinary(r);
    s->density = (double)s->selected / (double)(r->layout->ordinary ? r->layout->ordinary : 1);
    s->exchange_s_total = r->stats.exchange_s_total + s->exchange_s;
    s->wire_bytes_total = r->stats.wire_bytes_total + s->wire_bytes;
    s->rescans_total = r->stats.rescans_total + s->rescans;
    tam_phase_end(r, TAMIS_PHASE_WAIT, TAMIS_NO_BUCKET, begin_ns, &s->wait_s);
    r->stats = *s;
}

/* Jobs run in order: once the last has ended, so have the others. */
static tamis_status host_wait(tamis_reducer *r, uint64_t begin_ns, uint64_t until_ns) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < r->launched; i++) {
        tam_bucket *b = &r->buckets[i];
        tamis_status one = tam_comm_finish(r->comm, &b->job, until_ns);
        r->abandoned = r->abandoned || atomic_load(&b->job.state) == TAM_JOB_ABANDONED;
        status = status == TAMIS_OK ? one : status;
    }
    if (tamis_status_loss(status) == TAMIS_LOST_COMM || r->launched < r->nbuckets)
        return status;
    complete_stats(r, begin_ns);
    r->step++;
    return status;
}

/* The result is complete when wait returns, so it precedes anything enqueued later. */
static tamis_status host_join(tamis_reducer *r, void *stream, uint64_t begin_ns,
                              uint64_t until_ns) {
    (void)stream;
    return host_wait(r, begin_ns, until_ns);
}

/* Its wait, or its join, has told it. */
static tamis_status host_outcome(tamis_reducer *r, uint32_t back, int *applied) {
    (void)r, (void)back;
    *applied = 1;
    return TAMIS_OK;
}

/* -- between steps: everything is on the host already ----------------------------------------- */

static void host_look(tamis_reducer *r) {
    (void)r;
}

static tamis_status host_keep(tamis_reducer *r) {
    (void)r;
    return TAMIS_OK;
}

static void host_result(const tamis_reducer *r, tamis_result *out) {
    out->count = r->count;
    if (r->traits & TAM_TRAIT_SELECTS) {
        const tam_entries *only = &r->buckets[0].view.out.result;
        out->indices = r->indices ? r->indices : only->indices;
        out->values = r->values ? r->values : only->values;
    }
}

const tam_driver tam_driver_host = {
    .name = "host",
    .by_host = true,
    .open = host_open,
    .arm = host_keep,
    .close = host_close,
    .launch = host_launch,
    .accumulate = host_accumulate,
    .test = host_test,
    .wait = host_wait,
    .join = host_join,
    .outcome = host_outcome,
    .look = host_look,
    .quiesce = host_keep,
    .reload = host_keep,
    .result = host_result,
};
