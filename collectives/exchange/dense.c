/* SPDX-License-Identifier: MIT
 *
 * Exchange dense: every element of the gradient is summed, run by run (gradient.h). A failure
 * leaves the gradient partly reduced.
 *
 * Contiguous floats in host memory are summed in place; a long segment always is contiguous. All
 * else passes through the staging area, a piece at a time, where other types become floats:
 *
 *     staging    | float[piece], summed | as many of the gradient's type, as they are |
 *
 * Under exchange auto there is a residual, in which micro-batches wait. They are added to the
 * gradient in place and summed with it:
 *
 *     residual   | a0 a1 a2 |   ->   | 0 0 0 |
 *     gradient   | g0 g1 g2 |   ->   | a0 + s g0   a1 + s g1   a2 + s g2 |   ->   sums over ranks
 */
#include "collectives/exchange/gradient.h"
#include "collectives/exchange/table.h"

#include "lib/base/half.h"
#include "lib/transport/tag.h"

#include <math.h>

typedef struct dense {
    tam_bucket_view *view;
    uint64_t bad; /* sums of this step that are not finite, and entries dropped before it */
} dense;

/* -- memory ----------------------------------------------------------------------------------- */

static size_t count_staging(const tam_bucket_view *v) {
    size_t most = 0;
    if (tam_gradient_staged(v))
        return 2 * (size_t)TAM_GRADIENT_PIECE;
    for (tam_gradient_part u = {0}; u.at + u.count < v->layout->length;) {
        u = tam_gradient_run(v, u);
        bool alone = v->layout->begins[u.first + 1] >= u.at + u.count;
        most = !alone && u.count > most ? u.count : most;
    }
    return most;
}

static tamis_status open_dense(tam_bucket_view *view, void **out) {
    dense *d = tam_alloc(sizeof *d);
    if (!d)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    d->view = view;
    view->staging_floats = count_staging(view);
    view->result_max = 0;
    *out = d;
    return TAMIS_OK;
}

static void close_dense(void *self, bool in_flight) {
    (void)in_flight;
    tam_free(self);
}

/* -- sums ------------------------------------------------------------------------------------- */

/* Sums have the same bits on all ranks, so all find the same bad entries and decide the same. */
static uint64_t dense_divide(float *values, size_t count, float by, bool drop) {
    uint64_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        values[i] /= by;
        bad += !isfinite(values[i]);
    }
    for (size_t i = 0; bad > 0 && drop && i < count; i++)
        values[i] = isfinite(values[i]) ? values[i] : 0.0f;
    return bad;
}

/* Add what waits in the residual to the values, as an accumulate pass would have done. */
static void take_pending(const tam_bucket_view *v, const tam_gradient_part *u, float *values) {
    float *acc = v->acc + u->at;
    for (size_t i = 0; i < u->count; i++)
        values[i] += v->target.decay * acc[i];
    memset(acc, 0, u->count * sizeof acc[0]);
}

/* The first run also carries how many entries each rank dropped from micro-batches. */
static tamis_status dense_sum(const tam_bucket_view *v, tam_link *link, const tam_gradient_part *u,
                              float *values) {
    tam_tag tag = {
        .rank = v->comm_rank,
        .reducer = v->reducer,
        .step = v->step,
        .begin = v->begin + u->at,
        .count = u->count,
        .counter = u->at == 0 ? v->early_nonfinite : 0,
    };
    tam_tag_seal(&tag);
    link->call.tag = &tag;
    link->call.counters = 0;
    tamis_status status = link->transport->allreduce_sum(link->self, values, u->count, &link->call);
    link->call.tag = NULL;
    return status;
}

static tamis_status reduce_values(dense *d, tam_link *link, const tam_gradient_part *u,
                                  float *values) {
    const tam_bucket_view *v = d->view;
    bool drop = v->config->nonfinite == TAMIS_NONFINITE_DROP;
    for (size_t i = 0; v->target.scale != 1.0f && i < u->count; i++)
        values[i] *= v->target.scale;
    if (v->pending)
        take_pending(v, u, values);
    TAM_TRY(dense_sum(v, link, u, values));
    d->bad += link->call.counters + dense_divide(values, u->count, v->divisor, drop);
    return TAMIS_OK;
}

static tamis_status reduce_staged(dense *d, tam_link *link, const tam_gradient_part *u) {
    const tam_bucket_view *v = d->view;
    tamis_dtype type = v->target.type;
    float *values = v->staging;
    void *raw = type == TAMIS_DTYPE_FLOAT32 ? values : values + TAM_GRADIENT_PIECE;
    TAM_TRY(tam_gradient_read(v, u, raw));
    if (raw != values)
        tam_widen(type, raw, u->count, values);
    TAM_TRY(reduce_values(d, link, u, values));
    if (raw != values)
        tam_narrow(values, u->count, type, raw);
    return tam_gradient_write(v, u, raw);
}

static tamis_status dense_reduce(dense *d, tam_link *link) {
    for (tam_gradient_part u = {0}; u.at + u.count < d->view->layout->length;) {
        u = tam_gradient_run(d->view, u);
        float *address = tam_gradient_address(d->view, &u);
        TAM_TRY(address ? reduce_values(d, link, &u, address) : reduce_staged(d, link, &u));
    }
    return TAMIS_OK;
}

/* -- the row ---------------------------------------------------------------------------------- */

static tamis_status run_dense(void *self, tam_link *link) {
    dense *d = self;
    tam_bucket_view *v = d->view;
    d->bad = 0;
    if (!v->skipped)
        TAM_TRY(dense_reduce(d, link));
    if (!v->skipped)
        v->pending = false;
    v->out.result.count = (size_t)v->layout->length;
    return TAMIS_OK;
}

/* Bad sums were already found, and dropped if so configured, piece by piece. */
static uint64_t dense_drop(void *self) {
    return ((dense *)self)->bad;
}

/* Micro-batches that waited are lost with the gradient, whether this bucket came before or after
 * the one that made all ranks skip the step. */
static tamis_status dense_skip(void *self) {
    tam_bucket_view *v = ((dense *)self)->view;
    if (v->pending)
        memset(v->acc, 0, (size_t)v->layout->length * sizeof v->acc[0]);
    v->pending = false;
    return tam_gradient_clear(v);
}

const tam_exchange tam_exchange_dense = {
    .on_device = TAM_ON_DEVICE_DENSE,
    .open = open_dense,
    .close = close_dense,
    .run = run_dense,
    .drop = dense_drop,
    .skip = dense_skip,
};
