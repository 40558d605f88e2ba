/* SPDX-License-Identifier: MIT
 *
 * Scheme dense, and buckets that are dense by choice: every element is summed, in place. A failure
 * leaves the gradient partly reduced.
 *
 * Under exchange auto there is a residual, in which micro-batches wait. They go with the gradient,
 * where they lie by then:
 *
 *     residual   | a0 a1 a2 |   ->   | 0 0 0 |
 *     gradient   | g0 g1 g2 |   ->   | a0 + s g0   a1 + s g1   a2 + s g2 |   ->   sums over ranks
 */
#include "collectives/reducer/reducer.h"

#include "lib/base/half.h"

#include <math.h>

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

/* What is done to a run of the gradient. @param at  element of the bucket where it begins */
typedef tamis_status (*visitor)(tam_bucket *b, tam_link *link, size_t at, void *run, size_t count);

static tamis_status visit_run(tam_bucket *b, tam_link *link, visitor visit, size_t begin, void *run,
                              size_t length) {
    const tamis_reducer *r = b->reducer;
    size_t most = r->staging ? TAM_DENSE_PIECE : length, bytes = tam_type_bytes(b->target.type);
    for (size_t at = 0; at < length; at += most) {
        size_t count = length - at < most ? length - at : most;
        TAM_TRY(visit(b, link, begin + at, (unsigned char *)run + at * bytes, count));
    }
    return TAMIS_OK;
}

static tamis_status visit_gradient(tam_bucket *b, tam_link *link, visitor visit) {
    const tamis_layout *l = b->layout;
    if (b->target.grad)
        return visit_run(b, link, visit, 0, b->target.grad, (size_t)l->length);
    for (uint32_t s = 0; s < l->nsegments; s++)
        TAM_TRY(
            visit_run(b, link, visit, l->begins[s], b->target.grads[s], tam_segment_length(l, s)));
    return TAMIS_OK;
}

/* What waits in the residual goes too. All ranks are to see what one has dropped there. */
static void take_pending(tam_bucket *b, size_t at, float *values, size_t count) {
    float *acc = b->acc + at;
    for (size_t i = 0; i < count; i++)
        values[i] += acc[i];
    memset(acc, 0, count * sizeof acc[0]);
    if (b->early_nonfinite > 0 && b->reducer->config.nonfinite != TAMIS_NONFINITE_DROP)
        values[0] = NAN;
}

static tamis_status reduce_values(tam_bucket *b, tam_link *link, size_t at, float *values,
                                  size_t count) {
    const tamis_reducer *r = b->reducer;
    for (size_t i = 0; b->target.scale != 1.0f && i < count; i++)
        values[i] *= b->target.scale;
    if (b->pending)
        take_pending(b, at, values, count);
    TAM_TRY(link->transport->allreduce_sum(link->self, values, count, &link->call));
    b->now.nonfinite +=
        divide(values, count, tam_divisor(r), r->config.nonfinite == TAMIS_NONFINITE_DROP);
    return TAMIS_OK;
}

/* Floats in memory of the host are summed where they lie; all else goes by way of the staging area:
 *
 *     staging   | float[TAM_DENSE_PIECE], summed | as many of the gradient's type, as they are |
 */
static tamis_status reduce_run(tam_bucket *b, tam_link *link, size_t at, void *run, size_t count) {
    const tamis_reducer *r = b->reducer;
    if (!r->staging)
        return reduce_values(b, link, at, run, count);
    tamis_type type = b->target.type;
    size_t bytes = count * tam_type_bytes(type);
    float *values = r->staging, *raw = values + TAM_DENSE_PIECE;
    TAM_TRY(r->device->read(b->kernels, run, bytes, raw));
    tam_widen(type, raw, count, values);
    TAM_TRY(reduce_values(b, link, at, values, count));
    tam_narrow(values, count, type, raw);
    return r->device->write(b->kernels, raw, bytes, run);
}

static tamis_status clear_run(tam_bucket *b, tam_link *link, size_t at, void *run, size_t count) {
    const tamis_reducer *r = b->reducer;
    size_t bytes = count * tam_type_bytes(b->target.type);
    (void)link, (void)at;
    memset(r->staging ? r->staging : run, 0, bytes);
    return r->staging ? r->device->write(b->kernels, r->staging, bytes, run) : TAMIS_OK;
}

tamis_status tam_dense_clear(tam_bucket *b) {
    return visit_gradient(b, NULL, clear_run);
}

/* A step that will be skipped is known as such by all ranks, and needs no more. */
tamis_status tam_step_dense(tam_job *job, tam_link *link) {
    tam_bucket *b = (tam_bucket *)(void *)job;
    tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    if (!r->now.skipped)
        TAM_TRY(visit_gradient(b, link, reduce_run));
    b->pending = b->pending && r->now.skipped;
    b->count = (size_t)b->layout->length;
    uint64_t end_ns =
        tam_phase_end(r, TAMIS_PHASE_EXCHANGE, b->index, begin_ns, &b->now.exchange_s);
    tam_arrive_met(b, end_ns);
    return b == tam_last_bucket(r) ? tam_step_finish(r, job) : TAMIS_OK;
}
