/* SPDX-License-Identifier: MIT */
#include "collectives/transport/faulty.h"

#include <time.h>

typedef struct faulty {
    tam_transport row; /* what the communicator sees */
    const tam_transport *inner;
    void *self;
    uint32_t nranks;
    tam_fault fault;
    uint64_t nth, count;
    uint32_t argument;
} faulty;

static void sleep_ms(uint64_t ms) {
    nanosleep(&(struct timespec){(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}, NULL);
}

static tamis_status stay_silent(const tam_call *call) {
    while (tam_clock_ns() < call->deadline_ns && atomic_load(call->poison) == TAMIS_OK)
        sleep_ms(1);
    return tam_fail(TAMIS_E_TIMEOUT, "injected fault: this rank stayed silent");
}

/* Faults before the real call. */
static tamis_status before(faulty *f, bool hit, const tam_call *call) {
    if (hit && f->fault == TAM_FAULT_ERROR)
        return tam_fail(TAMIS_E_TRANSPORT, "injected fault: the transport failed");
    if (hit && f->fault == TAM_FAULT_SILENT)
        return stay_silent(call);
    if (hit && f->fault == TAM_FAULT_DELAY)
        sleep_ms(f->argument);
    return TAMIS_OK;
}

static void flip(const faulty *f, void *memory, size_t bytes) {
    if (bytes > 0)
        ((unsigned char *)memory)[f->argument / 8 % bytes] ^=
            (unsigned char)(1u << f->argument % 8);
}

static tamis_status after(const faulty *f, bool hit, void *memory, size_t bytes) {
    if (hit && f->fault == TAM_FAULT_FLIP)
        flip(f, memory, bytes);
    if (!hit || f->fault != TAM_FAULT_LATE)
        return TAMIS_OK;
    sleep_ms(f->argument);
    return tam_fail(TAMIS_E_TRANSPORT, "injected fault: the transport failed at its end");
}

static tamis_status allgather_faulty(void *arg, const void *send, size_t bytes, void *recv,
                                     tam_call *call) {
    faulty *f = arg;
    bool hit = f->count++ == f->nth, spoilt = hit && f->fault == TAM_FAULT_SPOIL;
    TAM_TRY(before(f, hit, call));
    if (spoilt)
        flip(f, (void *)(uintptr_t)send, bytes);
    tamis_status status = f->inner->allgather(f->self, send, bytes, recv, call);
    if (spoilt) /* restore it */
        flip(f, (void *)(uintptr_t)send, bytes);
    TAM_TRY(status);
    return after(f, hit, recv, bytes * f->nranks);
}

static tamis_status allreduce_sum_faulty(void *arg, float *values, size_t count, tam_call *call) {
    faulty *f = arg;
    bool hit = f->count++ == f->nth;
    TAM_TRY(before(f, hit, call));
    TAM_TRY(f->inner->allreduce_sum(f->self, values, count, call));
    return after(f, hit, values, count * sizeof values[0]);
}

static tamis_status alltoall_faulty(void *arg, const void *send, const size_t *send_at, void *recv,
                                    const size_t *recv_at, tam_call *call) {
    faulty *f = arg;
    bool hit = f->count++ == f->nth, spoilt = hit && f->fault == TAM_FAULT_SPOIL;
    TAM_TRY(before(f, hit, call));
    if (spoilt)
        flip(f, (void *)(uintptr_t)send, send_at[f->nranks]);
    tamis_status status = f->inner->alltoall(f->self, send, send_at, recv, recv_at, call);
    if (spoilt) /* restore it */
        flip(f, (void *)(uintptr_t)send, send_at[f->nranks]);
    TAM_TRY(status);
    return after(f, hit, recv, recv_at[f->nranks]);
}

static void abort_faulty(void *arg, tamis_status status, const char *cause) {
    faulty *f = arg;
    f->inner->abort(f->self, status, cause);
}

static tamis_status shrink_faulty(void *arg, const tam_left *left, tamis_comm **out) {
    faulty *f = arg;
    return f->inner->shrink(f->self, left, out);
}

static tamis_status grow_faulty(void *arg, const tam_growth *how, tamis_comm **out) {
    faulty *f = arg;
    return f->inner->grow(f->self, how, out);
}

static void close_faulty(void *arg, int clean) {
    faulty *f = arg;
    f->inner->close(f->self, clean);
    tam_free(f);
}

tamis_status tam_faulty_install(tamis_comm *comm, tam_fault fault, uint64_t nth,
                                uint32_t argument) {
    faulty *f = tam_alloc(sizeof *f);
    if (!f)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a faulty transport");
    *f = (faulty){
        .row = {.name = comm->transport->name,
                .capabilities = comm->transport->capabilities,
                .stream = comm->transport->stream,
                .allgather = allgather_faulty,
                .allreduce_sum = allreduce_sum_faulty,
                .alltoall = alltoall_faulty,
                .shrink = shrink_faulty,
                .grow = grow_faulty,
                .abort = abort_faulty,
                .close = close_faulty},
        .inner = comm->transport,
        .self = comm->self,
        .nranks = comm->nranks,
        .fault = fault,
        .nth = nth,
        .argument = argument,
    };
    comm->transport = &f->row;
    comm->self = f;
    return TAMIS_OK;
}

bool tam_faulty_fired(const tamis_comm *comm) {
    const faulty *f = comm->self;
    return f->count > f->nth;
}
