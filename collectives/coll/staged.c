/* SPDX-License-Identifier: MIT */
#include "collectives/coll/staged.h"

#include "collectives/coll/drive.h"

tamis_status tam_staged_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                  tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_gather(&s->coll, send, bytes, recv);
    return tam_coll_run(&s->coll, call);
}

tamis_status tam_staged_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_sum(&s->coll, values, count, call->tag);
    TAM_TRY(tam_coll_run(&s->coll, call));
    call->counters += s->coll.counter;
    return TAMIS_OK;
}

tamis_status tam_staged_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                 const size_t *recv_at, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_runs(&s->coll, send, send_at, recv, recv_at);
    return tam_coll_run(&s->coll, call);
}

static tamis_status staged_scatter(void *arg, const tam_value_codec *type, const void *encoded,
                                   float *values, size_t count, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_scatter(&s->coll, type, encoded, values, count, call->tag);
    TAM_TRY(tam_coll_run(&s->coll, call));
    call->counters += s->coll.counter;
    return TAMIS_OK;
}

static tamis_status staged_spread(void *arg, const tam_value_codec *type, void *encoded,
                                  size_t count, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_spread(&s->coll, type, encoded, count);
    return tam_coll_run(&s->coll, call);
}

const tam_encoded_transport tam_staged_encoded = {staged_scatter, staged_spread};

tamis_status tam_staged_usable(const void *arg) {
    const tam_staged *s = arg;
    return s->coll.p2p->usable ? s->coll.p2p->usable(s->self) : TAMIS_OK;
}

void tam_staged_abort(void *arg, tamis_status status, const char *cause) {
    tam_staged *s = arg;
    s->coll.p2p->abort(s->self, status, cause);
}

bool tam_staged_silence(void *arg) {
    tam_staged *s = arg;
    return s->coll.p2p->silence(s->self);
}

void tam_staged_close(void *arg, int clean) {
    tam_staged *s = arg;
    if (clean || !s->coll.p2p->stays_in_flight)
        tam_coll_cancel(&s->coll);
    bool in_flight = !s->coll.p2p->close(s->self, clean);
    tam_coll_close(&s->coll, in_flight);
    if (!in_flight) /* else it may still send the abort message that lies in it */
        tam_free(s);
}
