/* SPDX-License-Identifier: MIT */
#include "collectives/coll/staged.h"

#include "collectives/transport/wait.h"

/* Tests make it small. */
#ifndef TAM_STAGED_CHUNK
#define TAM_STAGED_CHUNK TAM_COLL_CHUNK
#endif

tamis_status tam_staged_open(const tam_wire *wire, void *self, uint32_t rank, const tam_plan *plan,
                             tam_staged **out) {
    tam_staged *s = tam_alloc(sizeof *s);
    tamis_status status = s ? tam_coll_open(&s->coll, wire, self, rank, plan, TAM_STAGED_CHUNK)
                            : tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    if (status == TAMIS_OK) {
        s->self = self;
        *out = s;
        return TAMIS_OK;
    }
    if (s)
        tam_coll_close(&s->coll, false);
    tam_free(s);
    wire->close(self, 1);
    return status;
}

static tamis_status give_up(tam_coll *coll, tamis_status status, const char *why) {
    char missing[128];
    tam_coll_missing(coll, missing, sizeof missing);
    tam_coll_cancel(coll);
    if (missing[0] == '\0')
        return tam_fail(status, "rank %u%s until its messages were taken", coll->rank, why);
    return tam_fail(status, "rank %u%s for rank(s)%s", coll->rank, why, missing);
}

/* A failure found while it advances: messages that are under way must not come into later calls. */
static tamis_status advance(tam_coll *coll, bool *moved, bool *done) {
    tamis_status status = tam_coll_advance(coll, moved, done);
    if (status != TAMIS_OK)
        tam_coll_cancel(coll);
    return status;
}

static tamis_status wait_for(tam_coll *coll, tam_call *call) {
    tam_wait wait = tam_wait_begin(call);
    char late[TAM_LATE_TEXT];
    bool moved, done;
    for (unsigned tries = 0;; tries++) {
        TAM_TRY(advance(coll, &moved, &done));
        if (done)
            break;
        tamis_status poison = (tamis_status)atomic_load(call->poison);
        if (poison != TAMIS_OK)
            return give_up(coll, poison, " stopped waiting");
        if (tries % 16 == 15 && tam_clock_ns() > call->deadline_ns)
            return give_up(coll, TAMIS_E_TIMEOUT, tam_wait_late(call, late));
        if (moved)
            wait = tam_wait_begin(call);
        else
            tam_wait_pause(&wait);
    }
    tam_wait_end(&wait);
    return TAMIS_OK;
}

static tamis_status run(tam_staged *s, tam_call *call) {
    uint64_t before = s->coll.wire_bytes;
    tamis_status status = wait_for(&s->coll, call);
    call->wire_bytes += s->coll.wire_bytes - before;
    return status;
}

tamis_status tam_staged_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                  tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_gather(&s->coll, send, bytes, recv);
    return run(s, call);
}

tamis_status tam_staged_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_sum(&s->coll, values, count, call->tag);
    TAM_TRY(run(s, call));
    call->notes += s->coll.note;
    return TAMIS_OK;
}

tamis_status tam_staged_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                 const size_t *recv_at, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_runs(&s->coll, send, send_at, recv, recv_at);
    return run(s, call);
}

void tam_staged_abort(void *arg) {
    tam_staged *s = arg;
    s->coll.wire->abort(s->self);
}

void tam_staged_close(void *arg, int clean) {
    tam_staged *s = arg;
    s->coll.wire->close(s->self, clean);
    tam_coll_close(&s->coll, !clean);
    tam_free(s);
}
