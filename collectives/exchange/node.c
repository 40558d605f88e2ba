/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/node.h"

#include "collectives/exchange/gradient.h"
#include "lib/base/half.h"
#include "lib/base/tree.h"

#include <xxhash.h>

/* -- memory ----------------------------------------------------------------------------------- */

static bool node_on_device(const tam_bucket_view *v) {
    return v->config->device != TAMIS_DEVICE_CPU;
}

/* A device's gradient passes through host memory, and the sum goes back there. */
static tamis_status node_open_staging(tam_node *o, size_t chunk) {
    const tam_bucket_view *v = o->view;
    size_t shard = (size_t)v->node_shard->layout->length;
    if (!node_on_device(v))
        return TAMIS_OK;
    o->on_device = v->device->alloc(v->kernels, shard * sizeof o->on_device[0]);
    o->raw = v->config->grad_dtype == TAMIS_DTYPE_FLOAT32
                 ? o->packed
                 : tam_alloc_array(chunk, tam_type_bytes(v->config->grad_dtype));
    return o->on_device && o->raw
               ? TAMIS_OK
               : tam_fail(TAMIS_E_NOMEM, "no memory for a shard of %zu elements", shard);
}

tamis_status tam_node_open(tam_bucket_view *view, tam_node *o) {
    const tam_node_shard *shard = view->node_shard;
    uint32_t nlocal = shard->nlocal;
    size_t chunk = (size_t)shard->division.block * nlocal, most = (size_t)shard->division.grid.n;
    *o = (tam_node){.view = view};
    o->sum = tam_alloc_array((size_t)shard->layout->length, sizeof o->sum[0]);
    o->parts = tam_alloc_array(chunk, sizeof o->parts[0]);
    chunk = chunk < most ? chunk : most;
    o->packed = tam_alloc_array(chunk, sizeof o->packed[0]);
    o->send_at = tam_alloc_array((size_t)nlocal + 1, sizeof o->send_at[0]);
    o->recv_at = tam_alloc_array((size_t)nlocal + 1, sizeof o->recv_at[0]);
    o->sent = tam_alloc_array(nlocal, sizeof o->sent[0]);
    o->recv = tam_alloc_array(nlocal, sizeof o->recv[0]);
    o->received = tam_alloc_array(nlocal, sizeof o->received[0]);
    if (o->sum && o->parts && o->packed && o->send_at && o->recv_at && o->sent && o->recv &&
        o->received)
        return node_open_staging(o, chunk);
    return tam_fail(TAMIS_E_NOMEM, "no memory for a shard of %llu elements",
                    (unsigned long long)shard->layout->length);
}

void tam_node_close(tam_node *o, bool in_flight) {
    if (o->on_device)
        o->view->device->release(o->view->kernels, o->on_device);
    if (!in_flight) {
        if (o->raw != o->packed)
            tam_free(o->raw);
        tam_free(o->parts);
        tam_free(o->packed);
        tam_free(o->sent);
        tam_free(o->recv);
    }
    tam_free(o->sum);
    tam_free(o->send_at);
    tam_free(o->recv_at);
    tam_free(o->received);
}

/* -- a chunk ---------------------------------------------------------------------------------- */

/* Pack the part of every segment that lies in the chunk. */
static void pack_segments(const tam_bucket_view *v, uint64_t at, size_t count, float *out) {
    const tamis_layout *l = v->layout;
    const tam_accumulate *t = &v->target;
    for (uint32_t s = 0; s < l->nsegments && l->begins[s] < at + count; s++) {
        uint64_t from = l->begins[s] > at ? l->begins[s] : at;
        uint64_t to = l->begins[s + 1] < at + count ? l->begins[s + 1] : at + count;
        const unsigned char *grad = t->grads[s];
        if (from < to)
            tam_widen(t->type, grad + (from - l->begins[s]) * tam_type_bytes(t->type),
                      (size_t)(to - from), out + (from - at));
    }
}

static tamis_status fetch(const tam_node *o, uint64_t at, size_t count) {
    const tam_bucket_view *v = o->view;
    tam_gradient_part part = {(size_t)at, count, 0};
    while (v->layout->begins[part.first + 1] <= at)
        part.first++;
    TAM_TRY(tam_gradient_read(v, &part, o->raw));
    if (o->raw != o->packed)
        tam_widen(v->target.type, o->raw, count, o->packed);
    return TAMIS_OK;
}

/* A chunk of the gradient as it is sent: floats, scaled. Sent in place if the caller's memory holds
 * just that. */
static tamis_status find_chunk(const tam_node *o, uint64_t at, size_t count, const float **out) {
    const tam_accumulate *t = &o->view->target;
    bool device = node_on_device(o->view);
    *out = (const float *)t->grad + at;
    if (t->grad && t->type == TAMIS_DTYPE_FLOAT32 && t->scale == 1.0f && !device)
        return TAMIS_OK;
    *out = o->packed;
    if (device)
        TAM_TRY(fetch(o, at, count));
    else if (t->grad)
        tam_widen(t->type, (const unsigned char *)t->grad + at * tam_type_bytes(t->type), count,
                  o->packed);
    else
        pack_segments(o->view, at, count, o->packed);
    for (size_t i = 0; t->scale != 1.0f && i < count; i++)
        o->packed[i] *= t->scale;
    return TAMIS_OK;
}

/* Divide a chunk into runs; in the last chunk, the last runs are shorter or empty.
 * @return the length of the run of this rank's shard */
static size_t divide_chunk(tam_node *o, size_t count) {
    const tam_node_shard *shard = o->view->node_shard;
    size_t run = shard->division.block, end = 0, own = 0;
    for (uint32_t g = 0; g < shard->nlocal; g++) {
        size_t begin = end;
        end = begin + run < count ? begin + run : count;
        own = g == shard->local ? end - begin : own;
        o->send_at[g + 1] = end * sizeof(float);
    }
    for (uint32_t g = 0; g < shard->nlocal; g++)
        o->recv_at[g + 1] = (g + 1) * own * sizeof(float);
    return own;
}

static uint64_t hash_run(const float *values, const size_t *at, uint32_t g, uint64_t before) {
    return XXH3_64bits_withSeed((const char *)values + at[g], at[g + 1] - at[g], before);
}

static tamis_status node_sum_chunk(tam_node *o, tam_link *link, uint64_t at, size_t count,
                                   float **sums) {
    uint32_t nlocal = o->view->node_shard->nlocal;
    size_t own = divide_chunk(o, count);
    const float *chunk;
    TAM_TRY(find_chunk(o, at, count, &chunk));
    for (uint32_t g = 0; g < nlocal; g++)
        o->sent[g].checksum = hash_run(chunk, o->send_at, g, o->sent[g].checksum);
    TAM_TRY(link->transport->alltoall(link->self, chunk, o->send_at, o->parts, o->recv_at,
                                      &link->call));
    for (uint32_t g = 0; g < nlocal; g++)
        o->received[g] = hash_run(o->parts, o->recv_at, g, o->received[g]);
    tam_tree_add_up(o->parts, own, nlocal, own, *sums);
    *sums += own;
    return TAMIS_OK;
}

/* -- the whole -------------------------------------------------------------------------------- */

static tamis_status refuse_gradient(const tam_node *o, uint32_t g, const char *what) {
    const tam_bucket_view *v = o->view;
    return tam_fail(TAMIS_E_PROTOCOL,
                    "the gradient of rank %u, as received by rank %u, was refused: %s",
                    v->comm_rank - v->node_shard->local + g, v->comm_rank, what);
}

static tamis_status check_trailer(const tam_node *o, uint32_t g) {
    const tam_trailer *t = &o->recv[g];
    if (t->config != o->sent[o->view->node_shard->local].config || t->rank != g)
        return refuse_gradient(o, g, "it comes from another configuration, density or rate");
    if (t->step != o->view->step)
        return refuse_gradient(o, g, "it belongs to another step");
    if (t->checksum != o->received[g])
        return refuse_gradient(o, g, "its checksum is wrong");
    return TAMIS_OK;
}

static tamis_status compare_trailers(tam_node *o, tam_link *link) {
    const tam_bucket_view *v = o->view;
    for (uint32_t g = 0; g < v->node_shard->nlocal; g++) {
        o->sent[g].config = tam_view_config(v, v->whole_k);
        o->sent[g].step = v->step;
        o->sent[g].rank = v->node_shard->local;
        o->send_at[g + 1] = o->recv_at[g + 1] = (g + 1) * sizeof o->sent[0];
    }
    TAM_TRY(link->transport->alltoall(link->self, o->sent, o->send_at, o->recv, o->recv_at,
                                      &link->call));
    for (uint32_t g = 0; g < v->node_shard->nlocal; g++)
        TAM_TRY(check_trailer(o, g));
    return TAMIS_OK;
}

tamis_status tam_node_sum(tam_node *o, tam_link *link) {
    const tam_node_shard *shard = o->view->node_shard;
    uint64_t n = shard->division.grid.n, longest = (uint64_t)shard->division.block * shard->nlocal;
    float *sums = o->sum;
    for (uint32_t g = 0; g < shard->nlocal; g++)
        o->sent[g].checksum = o->received[g] = 0;
    for (uint64_t at = 0; at < n; at += longest)
        TAM_TRY(node_sum_chunk(o, link, at, (size_t)(n - at < longest ? n - at : longest), &sums));
    TAM_TRY(compare_trailers(o, link));
    const tam_bucket_view *v = o->view;
    size_t bytes = (size_t)shard->layout->length * sizeof o->sum[0];
    return o->on_device ? v->device->write(v->kernels, o->sum, bytes, o->on_device) : TAMIS_OK;
}

tam_accumulate tam_node_pass(const tam_node *o) {
    tam_accumulate pass = o->view->target;
    pass.grad = o->on_device ? o->on_device : o->sum;
    pass.grads = NULL;
    pass.seg_begin = o->view->node_shard->layout->begins;
    pass.type = TAMIS_DTYPE_FLOAT32;
    pass.scale = 1.0f;
    pass.clear = false;
    return pass;
}
