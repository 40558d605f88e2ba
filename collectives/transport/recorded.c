/* SPDX-License-Identifier: MIT */
#include "collectives/transport/recorded.h"

static tam_event recorded_begin(tam_recorded *t, tam_flight_call call, size_t bytes, tam_call *c) {
    tam_event e = {TAM_FLIGHT_BEGIN, call, TAMIS_OK, c->number, ++t->number, c->bucket, bytes};
    c->flight = t->flight;
    c->collective = t->number;
    tam_flight_record(t->flight, &e);
    return e;
}

static tamis_status recorded_end(tam_recorded *t, tam_event e, tamis_status status) {
    e.kind = TAM_FLIGHT_END;
    e.status = status;
    tam_flight_record(t->flight, &e);
    return status;
}

static tamis_status allgather(void *arg, const void *send, size_t bytes, void *recv,
                              tam_call *call) {
    tam_recorded *t = arg;
    tam_event e = recorded_begin(t, TAM_FLIGHT_GATHER, bytes, call);
    return recorded_end(t, e, t->inner->allgather(t->self, send, bytes, recv, call));
}

static tamis_status allreduce_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_recorded *t = arg;
    tam_event e = recorded_begin(t, TAM_FLIGHT_SUM, count * sizeof values[0], call);
    return recorded_end(t, e, t->inner->allreduce_sum(t->self, values, count, call));
}

/* Ranks may give different amounts. */
static tamis_status alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                             const size_t *recv_at, tam_call *call) {
    tam_recorded *t = arg;
    tam_event e = recorded_begin(t, TAM_FLIGHT_RUNS, 0, call);
    return recorded_end(t, e, t->inner->alltoall(t->self, send, send_at, recv, recv_at, call));
}

static tamis_status recorded_scatter(void *arg, const tam_value_codec *type, const void *encoded,
                                     float *values, size_t count, tam_call *call) {
    tam_recorded *t = arg;
    tam_event e = recorded_begin(t, TAM_FLIGHT_SCATTER, tam_value_bytes(type, count), call);
    return recorded_end(t, e,
                        t->inner->encoded->scatter(t->self, type, encoded, values, count, call));
}

static tamis_status recorded_spread(void *arg, const tam_value_codec *type, void *encoded,
                                    size_t count, tam_call *call) {
    tam_recorded *t = arg;
    tam_event e = recorded_begin(t, TAM_FLIGHT_SPREAD, tam_value_bytes(type, count), call);
    return recorded_end(t, e, t->inner->encoded->spread(t->self, type, encoded, count, call));
}

/* In stream order: when they begin and end is not known here. */
static tamis_status recorded_stream_allgather(void *arg, const tam_members *among, size_t bytes,
                                              void *recv, void *stream) {
    tam_recorded *t = arg;
    return t->inner->stream->allgather(t->self, among, bytes, recv, stream);
}

static tamis_status recorded_stream_alltoall(void *arg, const tam_members *among, const void *send,
                                             size_t bytes, void *recv, void *stream) {
    tam_recorded *t = arg;
    return t->inner->stream->alltoall(t->self, among, send, bytes, recv, stream);
}

static tamis_status recorded_stream_allreduce(void *arg, const float *send, size_t count,
                                              float *recv, void *stream) {
    tam_recorded *t = arg;
    return t->inner->stream->allreduce(t->self, send, count, recv, stream);
}

static tamis_status recorded_poll(void *arg) {
    tam_recorded *t = arg;
    return t->inner->stream->poll(t->self);
}

static tamis_status recorded_shrink(void *arg, const tam_left *left, tamis_comm **out) {
    tam_recorded *t = arg;
    return t->inner->shrink(t->self, left, out);
}

static tamis_status recorded_grow(void *arg, const tam_growth *how, tamis_comm **out) {
    tam_recorded *t = arg;
    return t->inner->grow(t->self, how, out);
}

static void abort_inner(void *arg, tamis_status status, const char *cause) {
    tam_recorded *t = arg;
    t->inner->abort(t->self, status, cause);
}

/* The communicator closes its own. */
static void close_nothing(void *arg, int clean) {
    (void)arg;
    (void)clean;
}

void tam_recorded_wrap(tam_recorded *t, const tam_transport *inner, void *self) {
    static const tam_encoded_transport encoded = {recorded_scatter, recorded_spread};
    static const tam_stream_transport streams = {recorded_stream_allgather,
                                                 recorded_stream_alltoall,
                                                 recorded_stream_allreduce, recorded_poll};
    t->inner = inner;
    t->self = self;
    t->row = *inner;
    t->row.stream = inner->stream ? &streams : NULL;
    t->row.encoded = inner->encoded ? &encoded : NULL;
    t->row.usable = NULL; /* of the communicator, before a job */
    t->row.allgather = allgather;
    t->row.allreduce_sum = allreduce_sum;
    t->row.alltoall = alltoall;
    t->row.shrink = recorded_shrink;
    t->row.grow = recorded_grow;
    t->row.abort = abort_inner;
    t->row.close = close_nothing;
}
