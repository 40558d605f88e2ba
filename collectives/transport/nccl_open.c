/* SPDX-License-Identifier: MIT
 *
 * How a communicator over NCCL is created.
 */
#include "collectives/transport/nccl_comm.h"

#include "collectives/transport/bootstrap.h"
#include "collectives/transport/shrink.h"

#include <tamis/nccl.h>

_Static_assert(sizeof(ncclUniqueId) == TAM_TOKEN_BYTES, "NCCL's name for the group is the token");

/* What this rank can do without the others. */
static tamis_status nccl_open_prepare(const tamis_comm *bootstrap, const tamis_comm_config *config,
                                      ncclUniqueId *id, tam_nccl **out) {
    uint64_t timeout_ns;
    tamis_status status = tam_comm_timeout(config, &timeout_ns);
    if (status != TAMIS_OK)
        return tam_fail(status, "rank %u: its tamis_comm_config is not valid", bootstrap->rank);
    TAM_TRY(tam_nccl_take(bootstrap->rank, bootstrap->nranks, timeout_ns, out));
    ncclResult_t code = bootstrap->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    return code == ncclSuccess ? TAMIS_OK : tam_nccl_failed(*out, code, "ncclGetUniqueId");
}

/* Takes half of the timeout; the rest is for exchanging the outcome. */
static tamis_status join_group(tam_nccl *self, const tamis_comm *bootstrap,
                               const ncclUniqueId *id) {
    uint64_t timeout_ns =
        self->timeout_ns < bootstrap->timeout_ns ? self->timeout_ns : bootstrap->timeout_ns;
    uint64_t now_ns = tam_clock_ns();
    tam_call call = {.deadline_ns = now_ns + timeout_ns / 2,
                     .poison = &bootstrap->poison,
                     .purpose = "tamis_comm_create_nccl",
                     .begin_ns = now_ns};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t code =
        ncclCommInitRankConfig(&self->comm, (int)self->nranks, *id, (int)self->rank, &config);
    TAM_TRY(tam_nccl_complete(self, code, "ncclCommInitRankConfig", &call));
    TAM_TRY(tam_nccl_warm_up(self, &call));
    return tam_nccl_find_link(self, &call);
}

static tamis_status nccl_open_join(tam_nccl *self, const tamis_comm *bootstrap,
                                   const ncclUniqueId *id) {
    tam_nccl_mode before;
    cudaError_t code = tam_nccl_enter(self, &before);
    if (code != cudaSuccess)
        return tam_nccl_cuda_refused(self, code, "entering the CUDA device");
    tamis_status status = join_group(self, bootstrap, id);
    tam_nccl_leave(&before);
    return status;
}

static const tam_transport transport = {
    .name = "nccl",
    .usual = tam_nccl_usual,
    .capabilities = TAM_CAP_THREADED | TAM_CAP_GATHERS,
    .stream = &tam_nccl_stream,
    .allgather = tam_nccl_allgather,
    .allreduce_sum = tam_nccl_allreduce_sum,
    .alltoall = tam_nccl_alltoall,
    .shrink = tam_nccl_shrink,
    .grow = tam_grow_refuse,
    .abort = tam_nccl_abort,
    .close = tam_nccl_close,
};

tamis_status tamis_comm_create_nccl(tamis_comm *bootstrap, const tamis_comm_config *config,
                                    tamis_comm **out) {
    tam_nccl *self = NULL;
    tamis_comm *comm = NULL;
    ncclUniqueId id = {{0}};
    if (!bootstrap)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_nccl: bootstrap is NULL");
    tamis_status status = out ? nccl_open_prepare(bootstrap, config, &id, &self)
                              : tam_fail(TAMIS_E_ARGUMENT, "rank %u: out is NULL", bootstrap->rank);
    status = tam_bootstrap(bootstrap, "tamis_comm_create_nccl", status, &id);
    if (status == TAMIS_OK) {
        status = nccl_open_join(self, bootstrap, &id);
        if (status == TAMIS_OK) {
            status = tam_comm_open(&transport, self, self->rank, self->nranks, config, &comm);
            self = NULL; /* tam_comm_open has taken it, even on failure */
        }
        status = tam_bootstrap(bootstrap, "tamis_comm_create_nccl", status, &id);
    }
    if (status == TAMIS_OK) {
        *out = comm;
        return TAMIS_OK;
    }
    if (self)
        tam_nccl_close(self, 0);
    if (comm) /* another rank has none */
        tam_comm_lose(comm, status);
    tamis_comm_destroy(comm);
    return status;
}
