/* SPDX-License-Identifier: MIT
 *
 * Scheme dense, and buckets that are dense by choice: every element is summed, run by run. A failure
 * leaves the gradient partly reduced.
 *
 * What is a run follows from the layout alone, so that all ranks make the same sums whatever form
 * their gradients have: whole segments, as many as fit a piece, or one that is longer.
 *
 *     segments   | a | b | c | d ............................ | e | f |
 *     runs       |     0     |               1                |   2   |
 *
 * Floats of the host that lie one after another are summed where they lie, as a long segment always
 * does; all else passes through the staging area, a piece at a time, where elements of other types
 * become floats:
 *
 *     staging    | float[TAM_DENSE_PIECE], summed | as many of the gradient's type, as they are |
 *
 * Under exchange auto there is a residual, in which micro-batches wait. They go with the gradient,
 * where they lie by then:
 *
 *     residual   | a0 a1 a2 |   ->   | 0 0 0 |
 *     gradient   | g0 g1 g2 |   ->   | a0 + s g0   a1 + s g1   a2 + s g2 |   ->   sums over ranks
 */
#include "collectives/reducer/reducer.h"

#include "collectives/transport/tag.h"
#include "lib/base/half.h"

#include <math.h>

/* -- runs ------------------------------------------------------------------------------------- */

typedef struct run {
    size_t at, count; /* elements of the bucket */
    uint32_t first;   /* segment in which it begins */
} run;

/* Of what all ranks agreed on, so that their runs are the same. */
static bool always_staged(const tamis_reducer *r) {
    return r->config.device != TAMIS_DEVICE_CPU || r->config.grad_type != TAMIS_TYPE_FLOAT32;
}

/* @param last  zeros: there is none */
static run run_after(const tam_bucket *b, run last) {
    const tamis_layout *l = b->layout;
    run next = {last.at + last.count, 0, last.first};
    while (l->begins[next.first + 1] <= next.at)
        next.first++;
    uint32_t s = next.first + 1;
    next.count = l->begins[s] - next.at;
    if (next.count > TAM_DENSE_PIECE && always_staged(b->reducer))
        next.count = TAM_DENSE_PIECE;
    while (s < l->nsegments && l->begins[s + 1] - next.at <= TAM_DENSE_PIECE)
        next.count = l->begins[++s] - next.at;
    return next;
}

size_t tam_dense_staging(const tam_bucket *b) {
    size_t most = 0;
    if (always_staged(b->reducer))
        return 2 * (size_t)TAM_DENSE_PIECE;
    for (run u = {0}; u.at + u.count < b->layout->length;) {
        u = run_after(b, u);
        bool alone = b->layout->begins[u.first + 1] >= u.at + u.count;
        most = !alone && u.count > most ? u.count : most;
    }
    return most;
}

/* -- where a run lies ------------------------------------------------------------------------- */

/* Element `at`, which is in segment s, as the caller has it. */
static char *locate(const tam_bucket *b, uint32_t s, size_t at) {
    size_t bytes = tam_type_bytes(b->target.type);
    if (b->target.grad)
        return (char *)b->target.grad + at * bytes;
    return (char *)b->target.grads[s] + (at - b->layout->begins[s]) * bytes;
}

/* Elements from `at` on, in segments from s on, that lie one after another; at most to the run's end. */
static size_t stretch(const tam_bucket *b, const run *u, uint32_t s, size_t at) {
    const uint32_t *begins = b->layout->begins;
    size_t end = u->at + u->count;
    while (begins[s + 1] < end && locate(b, s, begins[s + 1]) == locate(b, s + 1, begins[s + 1]))
        s++;
    return (begins[s + 1] < end ? begins[s + 1] : end) - at;
}

static bool in_place(const tam_bucket *b, const run *u) {
    return !always_staged(b->reducer) && stretch(b, u, u->first, u->at) == u->count;
}

/* Between a stretch of the gradient and the staging area. */
typedef tamis_status (*mover)(const tam_bucket *b, char *grad, size_t bytes, char *staged);

static tamis_status take(const tam_bucket *b, char *grad, size_t bytes, char *staged) {
    return b->reducer->device->read(b->kernels, grad, bytes, staged);
}

static tamis_status give(const tam_bucket *b, char *grad, size_t bytes, char *staged) {
    return b->reducer->device->write(b->kernels, staged, bytes, grad);
}

/* Of the host's memory nothing is staged. */
static tamis_status clear(const tam_bucket *b, char *grad, size_t bytes, char *staged) {
    memset(staged ? staged : grad, 0, bytes);
    return staged ? give(b, grad, bytes, staged) : TAMIS_OK;
}

static tamis_status move_run(const tam_bucket *b, const run *u, mover move, void *staged) {
    size_t end = u->at + u->count, bytes = tam_type_bytes(b->target.type);
    uint32_t s = u->first;
    for (size_t at = u->at; at < end;) {
        while (b->layout->begins[s + 1] <= at)
            s++;
        size_t count = stretch(b, u, s, at);
        char *to = staged ? (char *)staged + (at - u->at) * bytes : NULL;
        TAM_TRY(move(b, locate(b, s, at), count * bytes, to));
        at += count;
    }
    return TAMIS_OK;
}

tamis_status tam_dense_clear(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    void *staged = r->config.device == TAMIS_DEVICE_CPU ? NULL : r->staging;
    for (run u = {0}; u.at + u.count < b->layout->length;) {
        u = run_after(b, u);
        TAM_TRY(move_run(b, &u, clear, staged));
    }
    return TAMIS_OK;
}

/* -- sums ------------------------------------------------------------------------------------- */

/* The sums are the same bits on all ranks, so all see the same bad entries and decide alike. */
static uint64_t divide(float *values, size_t count, float by, bool drop) {
    uint64_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        values[i] /= by;
        bad += !isfinite(values[i]);
    }
    for (size_t i = 0; bad > 0 && drop && i < count; i++)
        values[i] = isfinite(values[i]) ? values[i] : 0.0f;
    return bad;
}

/* What waits in the residual goes too. */
static void take_pending(const tam_bucket *b, const run *u, float *values) {
    float *acc = b->acc + u->at;
    for (size_t i = 0; i < u->count; i++)
        values[i] += acc[i];
    memset(acc, 0, u->count * sizeof acc[0]);
}

/* What the ranks dropped from micro-batches goes with the first run, for all to know. */
static tamis_status sum(tam_bucket *b, tam_link *link, const run *u, float *values) {
    const tamis_reducer *r = b->reducer;
    tam_tag tag = {
        .rank = r->comm->rank,
        .reducer = r->serial,
        .step = r->step,
        .begin = b->begin + u->at,
        .count = u->count,
        .note = u->at == 0 ? b->early_nonfinite : 0,
    };
    tam_tag_seal(&tag);
    link->call.tag = &tag;
    link->call.notes = 0;
    tamis_status status = link->transport->allreduce_sum(link->self, values, u->count, &link->call);
    link->call.tag = NULL;
    return status;
}

static tamis_status reduce_values(tam_bucket *b, tam_link *link, const run *u, float *values) {
    const tamis_reducer *r = b->reducer;
    bool drop = r->config.nonfinite == TAMIS_NONFINITE_DROP;
    for (size_t i = 0; b->target.scale != 1.0f && i < u->count; i++)
        values[i] *= b->target.scale;
    if (b->pending)
        take_pending(b, u, values);
    TAM_TRY(sum(b, link, u, values));
    b->now.nonfinite += link->call.notes + divide(values, u->count, tam_divisor(r), drop);
    return TAMIS_OK;
}

static tamis_status reduce_run(tam_bucket *b, tam_link *link, const run *u) {
    const tamis_reducer *r = b->reducer;
    tamis_type type = b->target.type;
    if (in_place(b, u))
        return reduce_values(b, link, u, (float *)(void *)locate(b, u->first, u->at));
    float *values = r->staging;
    void *raw = type == TAMIS_TYPE_FLOAT32 ? values : values + TAM_DENSE_PIECE;
    TAM_TRY(move_run(b, u, take, raw));
    if (raw != values)
        tam_widen(type, raw, u->count, values);
    TAM_TRY(reduce_values(b, link, u, values));
    if (raw != values)
        tam_narrow(values, u->count, type, raw);
    return move_run(b, u, give, raw);
}

static tamis_status reduce(tam_bucket *b, tam_link *link) {
    for (run u = {0}; u.at + u.count < b->layout->length;) {
        u = run_after(b, u);
        TAM_TRY(reduce_run(b, link, &u));
    }
    return TAMIS_OK;
}

/* -- the job ---------------------------------------------------------------------------------- */

/* A step that will be skipped is known as such by all ranks, and needs no more. */
tamis_status tam_step_dense(tam_job *job, tam_link *link) {
    tam_bucket *b = (tam_bucket *)(void *)job;
    tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    if (!r->now.skipped)
        TAM_TRY(reduce(b, link));
    b->pending = b->pending && r->now.skipped;
    b->count = (size_t)b->layout->length;
    uint64_t end_ns =
        tam_phase_end(r, TAMIS_PHASE_EXCHANGE, b->index, begin_ns, &b->now.exchange_s);
    tam_arrive_met(b, end_ns);
    return b == tam_last_bucket(r) ? tam_step_finish(r, job) : TAMIS_OK;
}
