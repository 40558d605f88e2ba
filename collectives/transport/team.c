/* SPDX-License-Identifier: MIT */
#include "collectives/transport/team.h"

#include "collectives/transport/sum.h"

/* Runs of the members among those of all ranks: to the others there is nothing. */
static void spread(const tam_team *t, const size_t *at, size_t *out) {
    uint32_t passed = 0; /* members below rank r */
    for (uint32_t r = 0; r <= t->nranks; r++) {
        out[r] = at[passed];
        passed += passed < t->count && r == t->first + passed * t->stride;
    }
}

static tamis_status alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                             const size_t *recv_at, tam_call *call) {
    tam_team *t = arg;
    spread(t, send_at, t->send_at);
    spread(t, recv_at, t->recv_at);
    return t->transport->alltoall(t->self, send, t->send_at, recv, t->recv_at, call);
}

static tamis_status check_room(const tam_team *t, size_t bytes) {
    if (bytes <= t->room_bytes)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "a team of %u ranks was made for messages of %zu bytes, not %zu", t->count,
                    t->room_bytes, bytes);
}

/* The same for every member: a copy for each, for runs cannot overlap. */
static tamis_status give_all(tam_team *t, const void *send, size_t bytes, void *recv,
                             const size_t *recv_at, tam_call *call) {
    size_t *send_at = t->slices;
    TAM_TRY(check_room(t, t->count * bytes));
    for (uint32_t i = 0; i < t->count; i++) {
        memcpy(t->room + i * bytes, send, bytes);
        send_at[i + 1] = (i + 1) * bytes;
    }
    return alltoall(t, t->room, send_at, recv, recv_at, call);
}

static tamis_status allgather(void *arg, const void *send, size_t bytes, void *recv,
                              tam_call *call) {
    tam_team *t = arg;
    size_t *recv_at = t->slices + t->count + 1;
    for (uint32_t i = 0; i < t->count; i++)
        recv_at[i + 1] = (i + 1) * bytes;
    return give_all(t, send, bytes, recv, recv_at, call);
}

/* Members' parts of the own slice, rank after rank -> their sum, in rank order. */
static void add_up(const float *parts, uint32_t count, size_t length, float *sums) {
    memcpy(sums, parts, length * sizeof sums[0]);
    for (uint32_t i = 1; i < count; i++) {
        const float *theirs = parts + i * length;
        for (size_t e = 0; e < length; e++)
            sums[e] += theirs[e];
    }
}

/* Slices to their owners, sums to all: two rounds, also of nothing. */
static tamis_status allreduce_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_team *t = arg;
    size_t *parts_at = t->slices, *slices_at = t->slices + t->count + 1;
    size_t begin = tam_slice_begin(count, t->member, t->count);
    size_t length = tam_slice_begin(count, t->member + 1, t->count) - begin;
    for (uint32_t i = 0; i < t->count; i++) {
        parts_at[i + 1] = (i + 1) * length * sizeof values[0];
        slices_at[i + 1] = tam_slice_begin(count, i + 1, t->count) * sizeof values[0];
    }
    TAM_TRY(check_room(t, parts_at[t->count]));
    TAM_TRY(alltoall(t, values, slices_at, t->room, parts_at, call));
    add_up((const float *)(const void *)t->room, t->count, length, values + begin);
    return give_all(t, values + begin, length * sizeof values[0], values, slices_at, call);
}

static tamis_status allreduce_sum_bfloat16(void *arg, uint16_t *values, size_t count, float *lost,
                                           tam_call *call) {
    (void)arg, (void)values, (void)count, (void)lost, (void)call;
    return tam_fail(TAMIS_E_UNSUPPORTED, "a team of ranks sums float32 alone");
}

static void abort_whole(void *arg) {
    tam_team *t = arg;
    t->transport->abort(t->self);
}

static void leave_whole(void *arg, int clean) {
    (void)arg, (void)clean; /* whose whole it is closes it */
}

static const tam_transport row = {
    .name = "team",
    .allgather = allgather,
    .allreduce_sum = allreduce_sum,
    .allreduce_sum_bfloat16 = allreduce_sum_bfloat16,
    .alltoall = alltoall,
    .abort = abort_whole,
    .close = leave_whole,
};

tam_link tam_team_link(tam_team *t, const tam_link *whole) {
    t->transport = whole->transport;
    t->self = whole->self;
    return (tam_link){&row, t, t->member, t->count, whole->call};
}

tamis_status tam_team_open(tam_team *t) {
    size_t runs = (size_t)t->nranks + 1;
    t->send_at = tam_alloc_array(runs, sizeof t->send_at[0]);
    t->recv_at = tam_alloc_array(runs, sizeof t->recv_at[0]);
    t->slices = tam_alloc_array(2 * ((size_t)t->count + 1), sizeof t->slices[0]);
    t->room = tam_alloc(t->room_bytes);
    if (t->send_at && t->recv_at && t->slices && t->room)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NOMEM, "no memory for the messages of a team of %u ranks", t->count);
}

void tam_team_close(tam_team *t, bool lingers) {
    tam_free(t->send_at);
    tam_free(t->recv_at);
    tam_free(t->slices);
    if (!lingers)
        tam_free(t->room);
}
