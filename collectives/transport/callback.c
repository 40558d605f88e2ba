/* SPDX-License-Identifier: MIT
 *
 * The caller's own all-gather. Sums are gathered chunk by chunk.
 */
#include "lib/base/base.h"
#include "collectives/transport/comm.h"
#include "collectives/transport/sum.h"

enum { CHUNK = 65536 }; /* floats per rank and round */

typedef struct callback {
    tamis_callbacks user;
    float *gathered; /* [nranks * CHUNK] */
    tam_alltoall_scratch runs;
} callback;

static tamis_status allgather_callback(void *arg, const void *send, size_t bytes, void *recv,
                                       tam_call *call) {
    callback *self = arg;
    tamis_status poison = (tamis_status)atomic_load(call->poison);
    if (poison != TAMIS_OK)
        return tam_fail(poison, "rank %u: the communicator was abandoned", self->user.rank);
    tamis_status status = self->user.allgather(self->user.context, send, recv, bytes);
    call->wire_bytes += (uint64_t)bytes * (self->user.nranks - 1);
    if (status == TAMIS_OK)
        return TAMIS_OK;
    bool passes = (int)status >= TAMIS_E_TIMEOUT && (int)status <= TAMIS_E_DEVICE;
    return tam_fail(passes ? status : TAMIS_E_TRANSPORT,
                    "rank %u: the all-gather callback returned %d (%s)", self->user.rank,
                    (int)status, tamis_status_name(status));
}

static tamis_status gather_chunk(void *arg, const void *send, size_t bytes, const void **out,
                                 tam_call *call) {
    callback *self = arg;
    *out = self->gathered;
    return allgather_callback(arg, send, bytes, self->gathered, call);
}

static tamis_status allreduce_sum_callback(void *arg, float *values, size_t count, tam_call *call) {
    callback *self = arg;
    return tam_sum_by_gather(gather_chunk, self, self->user.nranks, CHUNK, values, count, call);
}

static tamis_status alltoall_callback(void *arg, const void *send, const size_t *send_at,
                                      void *recv, const size_t *recv_at, tam_call *call) {
    callback *self = arg;
    return tam_alltoall_by_gather(gather_chunk, self, self->user.rank, self->user.nranks,
                                  &self->runs, send, send_at, recv, recv_at, call);
}

static void abort_callback(void *arg) {
    (void)arg; /* only the caller can wake a callback that blocks */
}

static void close_callback(void *arg, int clean) {
    callback *self = arg;
    (void)clean;
    tam_free(self->gathered);
    tam_alltoall_scratch_close(&self->runs);
    tam_free(self);
}

static const tam_transport transport = {
    .name = "callback",
    .capabilities = TAM_CAP_GATHERS,
    .allgather = allgather_callback,
    .allreduce_sum = allreduce_sum_callback,
    .alltoall = alltoall_callback,
    .abort = abort_callback,
    .close = close_callback,
};

static tamis_status check(const tamis_callbacks *user) {
    if (!user->allgather)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_callbacks.allgather is NULL");
    if (user->nranks == 0 || user->nranks > 65536 || user->rank >= user->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_callbacks: rank %u is out of range: nranks is %u",
                        user->rank, user->nranks);
    return TAMIS_OK;
}

tamis_status tamis_comm_create_callback(const tamis_callbacks *callbacks,
                                        const tamis_comm_config *config, tamis_comm **out) {
    tamis_callbacks user = TAMIS_CALLBACKS_INIT;
    uint64_t timeout_ns;
    if (!callbacks || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_callback: callbacks or out is NULL");
    TAM_TRY(tam_struct_copy("tamis_callbacks", &user, sizeof user, sizeof user, callbacks));
    TAM_TRY(check(&user));
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));
    callback *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    self->user = user;
    self->gathered = tam_alloc_array((size_t)CHUNK * user.nranks, sizeof self->gathered[0]);
    if (!tam_alltoall_scratch_open(user.nranks, CHUNK * sizeof self->gathered[0], &self->runs) ||
        !self->gathered) {
        close_callback(self, 0);
        return tam_fail(TAMIS_E_NOMEM, "no memory for the sums of %u ranks", user.nranks);
    }
    return tam_comm_open(&transport, self, user.rank, user.nranks, config, out);
}
