/* SPDX-License-Identifier: MIT
 *
 * A communicator over MPI: checks, memory, and a duplicate of the caller's communicator.
 */
#include "collectives/transport/mpi_comm.h"
#include "collectives/transport/shrink.h"

static const tam_transport on_the_callers_threads = {
    .name = "mpi",
    .unthreaded = "MPI was initialised without MPI_THREAD_MULTIPLE; initialise it with "
                  "MPI_Init_thread(MPI_THREAD_MULTIPLE)",
    .capabilities = TAM_CAP_IN_FLIGHT,
    .usable = tam_staged_usable,
    .allgather = tam_staged_allgather,
    .allreduce_sum = tam_staged_sum,
    .alltoall = tam_staged_alltoall,
    .encoded = &tam_staged_encoded,
    .shrink = tam_mpi_shrink,
    .grow = tam_grow_refuse,
    .abort = tam_staged_abort,
    .close = tam_staged_close,
};

static const tam_transport threaded = {
    .name = "mpi",
    .capabilities = TAM_CAP_IN_FLIGHT | TAM_CAP_THREADED,
    .usable = tam_staged_usable,
    .allgather = tam_staged_allgather,
    .allreduce_sum = tam_staged_sum,
    .alltoall = tam_staged_alltoall,
    .encoded = &tam_staged_encoded,
    .shrink = tam_mpi_shrink,
    .grow = tam_grow_refuse,
    .abort = tam_staged_abort,
    .close = tam_staged_close,
};

static tamis_status await_duplicate(const tam_mpi *self, MPI_Request *request,
                                    uint64_t deadline_ns) {
    uint64_t begin_ns = tam_clock_ns();
    int done = 0;
    for (unsigned tries = 0; !done; tries++) {
        TAM_TRY(tam_mpi_check(self, MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup"));
        if (!done && tam_clock_ns() > deadline_ns)
            return tam_fail(TAMIS_E_TIMEOUT,
                            "rank %d waited %llu ms for all ranks to call tamis_comm_create_mpi",
                            self->rank,
                            (unsigned long long)((tam_clock_ns() - begin_ns) / 1000000u));
        tam_back_off(tries);
    }
    return TAMIS_OK;
}

/* A communicator of our own. Errors return instead of ending the process, whatever handler the
 * caller has set; the caller's is restored afterwards. */
static tamis_status duplicate(tam_mpi *self, MPI_Comm parent, uint64_t deadline_ns) {
    MPI_Errhandler before;
    MPI_Request request;
    MPI_Comm_get_errhandler(parent, &before);
    MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
    tamis_status status =
        tam_mpi_check(self, MPI_Comm_idup(parent, &self->comm, &request), "MPI_Comm_idup");
    if (status == TAMIS_OK)
        status = await_duplicate(self, &request, deadline_ns);
    MPI_Comm_set_errhandler(parent, before);
    MPI_Errhandler_free(&before);
    if (status == TAMIS_OK)
        MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    return status;
}

static tam_mpi *new_mpi(MPI_Comm comm, bool multiple) {
    tam_mpi *self = tam_alloc(sizeof *self);
    if (!self)
        return NULL;
    self->threaded = multiple;
    self->tolerant = tam_mpi_tolerates();
    MPI_Comm_rank(comm, &self->rank);
    MPI_Comm_size(comm, &self->nranks);
    for (int i = 0; i < TAM_P2P_TICKETS; i++)
        self->requests[i] = MPI_REQUEST_NULL;
    return self;
}

static tamis_status mpi_open_staged(tam_mpi *self, uint64_t deadline_ns,
                                    const tamis_comm_config *config, tamis_comm **out) {
    uint32_t rank = (uint32_t)self->rank, nranks = (uint32_t)self->nranks;
    tam_staged *staged = NULL;
    const char *wanted = tam_setting_text(TAM_SETTING_PLAN);
    const tam_transport *transport = self->threaded ? &threaded : &on_the_callers_threads;
    if (self->tolerant)
        tam_mpi_hold_errors();
    TAM_TRY(tam_staged_open(&tam_mpi_p2p, self, rank, nranks, wanted, deadline_ns, &staged));
    return tam_comm_open_staged(transport, staged, rank, nranks, config, out);
}

tamis_status tam_mpi_open(MPI_Comm own, bool multiple, uint64_t deadline_ns,
                          const tamis_comm_config *config, tamis_comm **out) {
    tam_mpi *self = new_mpi(own, multiple);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    self->comm = own;
    return mpi_open_staged(self, deadline_ns, config, out);
}

tamis_status tamis_comm_create_mpi_of(const char *built_with, const void *handle,
                                      const tamis_comm_config *config, tamis_comm **out) {
    int level = MPI_THREAD_SINGLE;
    uint64_t timeout_ns;
    MPI_Comm parent;
    if (!out || !handle || !built_with)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_mpi: %s is NULL",
                        !out ? "out" : "the communicator");
    TAM_TRY(tam_mpi_meant(built_with));
    TAM_TRY(tam_mpi_ready(&level));
    memcpy(&parent, handle, sizeof parent);
    if (parent == MPI_COMM_NULL)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_mpi: the communicator is "
                                          "MPI_COMM_NULL");
    int inter = 0;
    MPI_Comm_test_inter(parent, &inter);
    if (inter)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_mpi: an intercommunicator has two "
                                          "groups; merge them first");
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));
    tam_mpi_warn_of_one();

    tam_mpi *self = new_mpi(parent, level == MPI_THREAD_MULTIPLE);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    uint64_t deadline_ns = tam_clock_ns() + timeout_ns; /* of both exchanges */
    tamis_status status = duplicate(self, parent, deadline_ns);
    if (status == TAMIS_E_TIMEOUT)
        return status; /* MPI may still write into `self` */
    if (status != TAMIS_OK) {
        tam_free(self);
        return status;
    }
    return mpi_open_staged(self, deadline_ns, config, out);
}
