/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/gradient.h"

#include "lib/base/half.h"

bool tam_gradient_staged(const tam_bucket_view *v) {
    return v->config->device != TAMIS_DEVICE_CPU || v->config->grad_dtype != TAMIS_DTYPE_FLOAT32;
}

tam_gradient_part tam_gradient_run(const tam_bucket_view *v, tam_gradient_part last) {
    const tamis_layout *l = v->layout;
    tam_gradient_part next = {last.at + last.count, 0, last.first};
    while (l->begins[next.first + 1] <= next.at)
        next.first++;
    uint32_t s = next.first + 1;
    next.count = l->begins[s] - next.at;
    if (next.count > TAM_GRADIENT_PIECE && tam_gradient_staged(v))
        next.count = TAM_GRADIENT_PIECE;
    while (s < l->nsegments && l->begins[s + 1] - next.at <= TAM_GRADIENT_PIECE)
        next.count = l->begins[++s] - next.at;
    return next;
}

/* Element `at`, which is in segment s. */
static char *locate(const tam_bucket_view *v, uint32_t s, size_t at) {
    size_t bytes = tam_type_bytes(v->target.type);
    if (v->target.grad)
        return (char *)v->target.grad + at * bytes;
    return (char *)v->target.grads[s] + (at - v->layout->begins[s]) * bytes;
}

/* Elements from `at` on, in segments from s on, that are contiguous; at most to the run's end. */
static size_t stretch(const tam_bucket_view *v, const tam_gradient_part *u, uint32_t s, size_t at) {
    const uint32_t *begins = v->layout->begins;
    size_t end = u->at + u->count;
    while (begins[s + 1] < end && locate(v, s, begins[s + 1]) == locate(v, s + 1, begins[s + 1]))
        s++;
    return (begins[s + 1] < end ? begins[s + 1] : end) - at;
}

float *tam_gradient_address(const tam_bucket_view *v, const tam_gradient_part *u) {
    if (tam_gradient_staged(v) || stretch(v, u, u->first, u->at) < u->count)
        return NULL;
    return (float *)(void *)locate(v, u->first, u->at);
}

/* Between a stretch of the gradient and the staging memory. */
typedef tamis_status (*mover)(const tam_bucket_view *v, char *grad, size_t bytes, char *staged);

static tamis_status read_stretch(const tam_bucket_view *v, char *grad, size_t bytes, char *staged) {
    return v->device->read(v->kernels, grad, bytes, staged);
}

static tamis_status write_stretch(const tam_bucket_view *v, char *grad, size_t bytes,
                                  char *staged) {
    return v->device->write(v->kernels, staged, bytes, grad);
}

/* Host memory is cleared in place, without staging. */
static tamis_status gradient_clear(const tam_bucket_view *v, char *grad, size_t bytes,
                                   char *staged) {
    memset(staged ? staged : grad, 0, bytes);
    return staged ? write_stretch(v, grad, bytes, staged) : TAMIS_OK;
}

static tamis_status move_run(const tam_bucket_view *v, const tam_gradient_part *u, mover move,
                             void *staging) {
    size_t end = u->at + u->count, bytes = tam_type_bytes(v->target.type);
    uint32_t s = u->first;
    for (size_t at = u->at; at < end;) {
        while (v->layout->begins[s + 1] <= at)
            s++;
        size_t count = stretch(v, u, s, at);
        char *to = staging ? (char *)staging + (at - u->at) * bytes : NULL;
        TAM_TRY(move(v, locate(v, s, at), count * bytes, to));
        at += count;
    }
    return TAMIS_OK;
}

tamis_status tam_gradient_read(const tam_bucket_view *v, const tam_gradient_part *run,
                               void *staging) {
    return move_run(v, run, read_stretch, staging);
}

tamis_status tam_gradient_write(const tam_bucket_view *v, const tam_gradient_part *run,
                                void *staging) {
    return move_run(v, run, write_stretch, staging);
}

tamis_status tam_gradient_clear(const tam_bucket_view *v) {
    void *staging = v->config->device == TAMIS_DEVICE_CPU ? NULL : v->staging;
    for (tam_gradient_part u = {0}; u.at + u.count < v->layout->length;) {
        u = tam_gradient_run(v, u);
        TAM_TRY(move_run(v, &u, gradient_clear, staging));
    }
    return TAMIS_OK;
}
