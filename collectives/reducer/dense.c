/* SPDX-License-Identifier: MIT
 *
 * Scheme dense: the whole gradient is summed, in place. There is no residual, so a failure leaves
 * the gradient partly reduced. Segments that have rows are summed beside it (rows.c).
 */
#include "collectives/reducer/rows.h"

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

/* What is done to a run of the gradient. */
typedef tamis_status (*visitor)(tam_bucket *b, tam_link *link, void *run, size_t count);

static tamis_status visit_run(tam_bucket *b, tam_link *link, visitor visit, void *run,
                              size_t length) {
    const tamis_reducer *r = b->reducer;
    size_t most = r->staging ? TAM_DENSE_PIECE : length, bytes = tam_type_bytes(b->target.type);
    for (size_t at = 0; at < length; at += most) {
        size_t count = length - at < most ? length - at : most;
        TAM_TRY(visit(b, link, (unsigned char *)run + at * bytes, count));
    }
    return TAMIS_OK;
}

static tamis_status visit_gradient(tam_bucket *b, tam_link *link, visitor visit) {
    const tamis_layout *l = b->layout;
    if (b->target.grad)
        return visit_run(b, link, visit, b->target.grad, (size_t)l->length);
    for (uint32_t s = 0; s < l->nsegments; s++)
        TAM_TRY(visit_run(b, link, visit, b->target.grads[s], tam_segment_length(l, s)));
    return TAMIS_OK;
}

static tamis_status reduce_values(tam_bucket *b, tam_link *link, float *values, size_t count) {
    const tamis_reducer *r = b->reducer;
    for (size_t i = 0; b->target.scale != 1.0f && i < count; i++)
        values[i] *= b->target.scale;
    TAM_TRY(link->transport->allreduce_sum(link->self, values, count, &link->call));
    b->now.nonfinite +=
        divide(values, count, tam_divisor(r), r->config.nonfinite == TAMIS_NONFINITE_DROP);
    return TAMIS_OK;
}

/* Floats in memory of the host are summed where they lie; all else goes by way of the staging area:
 *
 *     staging   | float[TAM_DENSE_PIECE], summed | as many of the gradient's type, as they are |
 */
static tamis_status reduce_run(tam_bucket *b, tam_link *link, void *run, size_t count) {
    const tamis_reducer *r = b->reducer;
    if (!r->staging)
        return reduce_values(b, link, run, count);
    tamis_type type = b->target.type;
    size_t bytes = count * tam_type_bytes(type);
    float *values = r->staging, *raw = values + TAM_DENSE_PIECE;
    TAM_TRY(r->device->read(b->kernels, run, bytes, raw));
    tam_widen(type, raw, count, values);
    TAM_TRY(reduce_values(b, link, values, count));
    tam_narrow(values, count, type, raw);
    return r->device->write(b->kernels, raw, bytes, run);
}

static tamis_status clear_run(tam_bucket *b, tam_link *link, void *run, size_t count) {
    const tamis_reducer *r = b->reducer;
    size_t bytes = count * tam_type_bytes(b->target.type);
    (void)link;
    memset(r->staging ? r->staging : run, 0, bytes);
    return r->staging ? r->device->write(b->kernels, r->staging, bytes, run) : TAMIS_OK;
}

static tamis_status clear_all(tamis_reducer *r, tam_link *link) {
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        TAM_TRY(visit_gradient(b, link, clear_run));
        if (b->rows)
            TAM_TRY(tam_rows_forget(b));
    }
    return TAMIS_OK;
}

static tamis_status apply_rows(tamis_reducer *r) {
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        if (r->buckets[i].rows)
            TAM_TRY(tam_step_apply(&r->buckets[i]));
    }
    return TAMIS_OK;
}

/* The sums of all buckets are there: what is bad in one is bad for all. */
tamis_status tam_step_finish_dense(tamis_reducer *r, tam_job *job, tam_link *link) {
    TAM_TRY(tam_step_commit(r, job));
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (b->rows && !r->now.skipped)
            b->now.nonfinite += tam_step_drop_infinite(b);
        r->now.nonfinite += b->now.nonfinite;
    }
    r->count = (size_t)r->layout->length;
    r->now.skipped = r->now.nonfinite > 0 && r->config.nonfinite != TAMIS_NONFINITE_DROP;
    if (!r->now.skipped)
        return apply_rows(r);
    r->count = 0;
    TAM_TRY(clear_all(r, link));
    return tam_say_skipped(r, r->step, r->now.nonfinite, "in the sum over ranks");
}

tamis_status tam_step_dense(tam_job *job, tam_link *link) {
    tam_bucket *b = (tam_bucket *)(void *)job;
    tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(visit_gradient(b, link, reduce_run));
    tam_phase_end(r, TAMIS_PHASE_EXCHANGE, b->index, begin_ns, &b->now.exchange_s);
    return b == tam_last_bucket(r) ? tam_step_finish_dense(r, job, link) : TAMIS_OK;
}
