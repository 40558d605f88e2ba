/* SPDX-License-Identifier: MIT
 *
 * A communicator over MPI: checks, memory, and a duplicate of the caller's communicator.
 */
#include "collectives/transport/mpi_comm.h"
#include "collectives/transport/comm.h"

enum { BATCHES = 5 };

/* tags | pieces 0 | pieces 1 | requests of the batches | statuses | peers */
static tamis_status open_buffers(tam_mpi *self) {
    size_t ranks = (size_t)self->nranks, most = 2 * ranks;
    size_t tags = ranks * sizeof self->tags[0], pieces = ranks * TAM_MPI_PIECE * sizeof(float);
    size_t requests = most * sizeof(MPI_Request), peers = most * sizeof(int);
    size_t statuses = most * sizeof(MPI_Status);
    char *at = tam_alloc(tags + 2 * pieces + BATCHES * (requests + statuses + peers));
    if (!at)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the messages of %d ranks", self->nranks);
    self->memory = at;
    tam_mpi_batch *batches[BATCHES] = {&self->gather[0], &self->gather[1], &self->scatter[0],
                                       &self->scatter[1], &self->meeting};
    self->tags = (tam_tag *)(void *)at;
    at += tags;
    for (int i = 0; i < 2; i++, at += pieces)
        self->pieces[i] = at;
    for (int i = 0; i < BATCHES; i++, at += requests)
        batches[i]->requests = (MPI_Request *)(void *)at;
    for (int i = 0; i < BATCHES; i++, at += statuses)
        batches[i]->statuses = (MPI_Status *)(void *)at;
    for (int i = 0; i < BATCHES; i++, at += peers)
        batches[i]->peers = (int *)(void *)at;
    return TAMIS_OK;
}

static tamis_status check_mpi(int *level) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return tam_fail(TAMIS_E_STATE, "tamis_comm_create_mpi: MPI is %s",
                        finalized ? "already finalised" : "not initialised; call MPI_Init_thread");
    MPI_Query_thread(level);
    return TAMIS_OK;
}

static tamis_status await_duplicate(const tam_mpi *self, MPI_Request *request,
                                    uint64_t timeout_ns) {
    uint64_t deadline_ns = tam_clock_ns() + timeout_ns;
    int done = 0;
    for (unsigned tries = 0; !done; tries++) {
        TAM_TRY(tam_mpi_check(self, MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup"));
        if (!done && tam_clock_ns() > deadline_ns)
            return tam_fail(TAMIS_E_TIMEOUT,
                            "rank %d waited %llu ms for all ranks to call tamis_comm_create_mpi",
                            self->rank, (unsigned long long)(timeout_ns / 1000000u));
        tam_relax(tries);
    }
    return TAMIS_OK;
}

/* A communicator of our own. Errors return instead of ending the process, whatever handler the
 * caller has set; the caller's is restored afterwards. */
static tamis_status duplicate(tam_mpi *self, MPI_Comm parent, uint64_t timeout_ns) {
    MPI_Errhandler before;
    MPI_Request request;
    MPI_Comm_get_errhandler(parent, &before);
    MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
    tamis_status status =
        tam_mpi_check(self, MPI_Comm_idup(parent, &self->comm, &request), "MPI_Comm_idup");
    if (status == TAMIS_OK)
        status = await_duplicate(self, &request, timeout_ns);
    MPI_Comm_set_errhandler(parent, before);
    MPI_Errhandler_free(&before);
    if (status == TAMIS_OK)
        MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    return status;
}

tamis_status tamis_comm_create_mpi(MPI_Comm parent, const tamis_comm_config *config,
                                   tamis_comm **out) {
    int level = MPI_THREAD_SINGLE;
    uint64_t timeout_ns;
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_mpi: out is NULL");
    TAM_TRY(check_mpi(&level));
    if (parent == MPI_COMM_NULL)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_mpi: the communicator is "
                                          "MPI_COMM_NULL");
    int inter = 0;
    MPI_Comm_test_inter(parent, &inter);
    if (inter)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_mpi: an intercommunicator has two "
                                          "groups; merge them first");
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));

    tam_mpi *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    MPI_Comm_rank(parent, &self->rank);
    MPI_Comm_size(parent, &self->nranks);
    tamis_status status = open_buffers(self);
    if (status != TAMIS_OK)
        goto err_free;
    status = duplicate(self, parent, timeout_ns);
    if (status == TAMIS_E_TIMEOUT)
        return status; /* MPI may still write into `self` */
    if (status != TAMIS_OK)
        goto err_buffers;
    bool threaded = level == MPI_THREAD_MULTIPLE;
    return tam_comm_open(threaded ? &tam_mpi_threaded : &tam_mpi_inline, self, (uint32_t)self->rank,
                         (uint32_t)self->nranks, config, out);

err_buffers:
    tam_free(self->memory);
err_free:
    tam_free(self);
    return status;
}
