/* SPDX-License-Identifier: MIT */
#include "collectives/transport/subcomm.h"

#include "collectives/transport/shrink.h"
#include "collectives/transport/sum.h"
#include "lib/base/hash.h"
#include "lib/base/tree.h"

/* Turn runs for members into runs for all ranks, empty for ranks outside. */
static void expand_offsets(const tam_subcomm *t, const size_t *at, size_t *out) {
    uint32_t passed = 0; /* members below rank r */
    for (uint32_t r = 0; r <= t->nranks; r++) {
        out[r] = at[passed];
        passed += passed < t->count && r == t->first + passed * t->stride;
    }
}

static tamis_status alltoall_subcomm(void *arg, const void *send, const size_t *send_at, void *recv,
                                     const size_t *recv_at, tam_call *call) {
    tam_subcomm *t = arg;
    expand_offsets(t, send_at, t->send_at);
    expand_offsets(t, recv_at, t->recv_at);
    return t->transport->alltoall(t->self, send, t->send_at, recv, t->recv_at, call);
}

static tamis_status subcomm_check_bytes(const tam_subcomm *t, size_t bytes) {
    if (bytes <= t->bytes)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "a sub-communicator of %u ranks was made for messages of %zu bytes, not %zu",
                    t->count, t->bytes, bytes);
}

/* Makes a copy for every member, as runs cannot overlap. */
static tamis_status allgather_subcomm(void *arg, const void *send, size_t bytes, void *recv,
                                      tam_call *call) {
    tam_subcomm *t = arg;
    size_t *at = t->shards;
    TAM_TRY(subcomm_check_bytes(t, t->count * bytes));
    for (uint32_t i = 0; i < t->count; i++) {
        memcpy(t->memory + i * bytes, send, bytes);
        at[i + 1] = (i + 1) * bytes;
    }
    return alltoall_subcomm(t, t->memory, at, recv, at, call);
}

/* -- sums ------------------------------------------------------------------------------------- */

size_t tam_subcomm_sum_bytes(size_t count, uint32_t nmembers) {
    size_t way = count * sizeof(float) + nmembers * (TAM_SEAL + sizeof(float));
    return 2 * way; /* out and in */
}

/* Write values and their checksum. @return the end of both */
static char *subcomm_seal(const float *values, size_t count, char *out) {
    memcpy(out, values, count * sizeof values[0]);
    tam_seal(out, count * sizeof values[0]);
    return out + count * sizeof values[0] + TAM_SEAL;
}

static tamis_status subcomm_check_seal(const tam_subcomm *t, uint32_t member, const char *message,
                                       size_t count) {
    if (tam_seal_holds(message, count * sizeof(float)))
        return TAMIS_OK;
    return tam_fail(
        TAMIS_E_PROTOCOL,
        "values of rank %u, as received by rank %u, were refused: their checksum is wrong",
        t->first + member * t->stride, t->first + t->member * t->stride);
}

/* A vector being summed: shard i of it belongs to member i. */
typedef struct sum {
    float *values;
    size_t count, begin, length; /* begin, length: of this rank's shard */
    size_t *send_at, *recv_at;
    char *out, *in;
} sum;

static size_t shard_length(const tam_subcomm *t, const sum *s, uint32_t i) {
    return tam_shard_begin(s->count, i + 1, t->count) - tam_shard_begin(s->count, i, t->count);
}

/* Sum the parts of this rank's shard. */
static tamis_status subcomm_add_up(const tam_subcomm *t, sum *s) {
    for (uint32_t i = 0; i < t->count; i++)
        TAM_TRY(subcomm_check_seal(t, i, s->in + s->recv_at[i], s->length));
    tam_tree_add_up((const float *)(const void *)s->in, s->length + TAM_SEAL / sizeof(float),
                    t->count, s->length, s->values + s->begin);
    return TAMIS_OK;
}

static tamis_status subcomm_scatter(tam_subcomm *t, sum *s, tam_call *call) {
    char *end = s->out;
    for (uint32_t i = 0; i < t->count; i++) {
        size_t begin = tam_shard_begin(s->count, i, t->count);
        end = subcomm_seal(s->values + begin, shard_length(t, s, i), end);
        s->send_at[i + 1] = (size_t)(end - s->out);
        s->recv_at[i + 1] = (i + 1) * (s->length * sizeof(float) + TAM_SEAL);
    }
    TAM_TRY(alltoall_subcomm(t, s->out, s->send_at, s->in, s->recv_at, call));
    return subcomm_add_up(t, s);
}

static tamis_status subcomm_gather_sums(tam_subcomm *t, sum *s, tam_call *call) {
    char *end = s->out;
    for (uint32_t i = 0; i < t->count; i++) {
        end = subcomm_seal(s->values + s->begin, s->length, end);
        s->send_at[i + 1] = (size_t)(end - s->out);
        s->recv_at[i + 1] = s->recv_at[i] + shard_length(t, s, i) * sizeof(float) + TAM_SEAL;
    }
    TAM_TRY(alltoall_subcomm(t, s->out, s->send_at, s->in, s->recv_at, call));
    for (uint32_t i = 0; i < t->count; i++) {
        size_t length = shard_length(t, s, i);
        TAM_TRY(subcomm_check_seal(t, i, s->in + s->recv_at[i], length));
        memcpy(s->values + tam_shard_begin(s->count, i, t->count), s->in + s->recv_at[i],
               length * sizeof(float));
    }
    return TAMIS_OK;
}

/* Always two rounds, even for no values. */
static tamis_status allreduce_sum_subcomm(void *arg, float *values, size_t count, tam_call *call) {
    tam_subcomm *t = arg;
    size_t bytes = tam_subcomm_sum_bytes(count, t->count);
    sum s = {.values = values,
             .count = count,
             .begin = tam_shard_begin(count, t->member, t->count),
             .send_at = t->shards,
             .recv_at = t->shards + t->count + 1,
             .out = t->memory,
             .in = t->memory + bytes / 2};
    s.length = shard_length(t, &s, t->member);
    TAM_TRY(subcomm_check_bytes(t, bytes));
    TAM_TRY(subcomm_scatter(t, &s, call));
    return subcomm_gather_sums(t, &s, call);
}

static void abort_whole(void *arg, tamis_status status, const char *cause) {
    tam_subcomm *t = arg;
    t->transport->abort(t->self, status, cause);
}

static void leave_whole(void *arg, int clean) {
    (void)arg, (void)clean; /* the owner of the whole transport closes it */
}

static const tam_transport row = {
    .name = "subcomm",
    .allgather = allgather_subcomm,
    .allreduce_sum = allreduce_sum_subcomm,
    .alltoall = alltoall_subcomm,
    .shrink = tam_shrink_refuse,
    .grow = tam_grow_refuse,
    .abort = abort_whole,
    .close = leave_whole,
};

tam_link tam_subcomm_link(tam_subcomm *t, const tam_link *whole) {
    t->transport = whole->transport;
    t->self = whole->self;
    return (tam_link){&row, t, t->member, t->count, whole->call};
}

tamis_status tam_subcomm_open(tam_subcomm *t) {
    size_t runs = (size_t)t->nranks + 1;
    t->send_at = tam_alloc_array(runs, sizeof t->send_at[0]);
    t->recv_at = tam_alloc_array(runs, sizeof t->recv_at[0]);
    t->shards = tam_alloc_array(2 * ((size_t)t->count + 1), sizeof t->shards[0]);
    t->memory = tam_alloc(t->bytes);
    if (t->send_at && t->recv_at && t->shards && t->memory)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NOMEM, "no memory for the messages of a sub-communicator of %u ranks",
                    t->count);
}

void tam_subcomm_close(tam_subcomm *t, bool in_flight) {
    tam_free(t->send_at);
    tam_free(t->recv_at);
    tam_free(t->shards);
    if (!in_flight)
        tam_free(t->memory);
}
