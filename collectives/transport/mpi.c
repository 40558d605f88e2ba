/* SPDX-License-Identifier: MIT
 *
 * Point-to-point messages over MPI; only this file and mpi_open.c call MPI. Nonblocking messages
 * that the caller polls until a deadline: a blocking collective could not be abandoned when a rank
 * is gone.
 */
#include "collectives/transport/mpi_comm.h"

#ifdef TAM_HAVE_ULFM
#include <mpi-ext.h>
#endif

tamis_status tam_mpi_check(const tam_mpi *self, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return TAMIS_OK;
    MPI_Error_string(code, text, &length);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %d: %s: %s", self->rank, what, text);
}

/* MPI ends a process that calls it after MPI_Finalize. */
static tamis_status check_finalized(const tam_mpi *self, tamis_status otherwise) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized)
        return TAMIS_OK;
    return tam_fail(otherwise,
                    "rank %d: MPI was finalised before this communicator was destroyed; destroy "
                    "reducers and communicators first",
                    self->rank);
}

static tamis_status mpi_usable(const void *arg) {
    return check_finalized(arg, TAMIS_E_STATE);
}

static tamis_status post_mpi(void *arg, uint32_t ticket, const tam_message *m) {
    tam_mpi *self = arg;
    MPI_Request *request = &self->requests[ticket];
    TAM_TRY(check_finalized(self, TAMIS_E_TRANSPORT)); /* in an exchange: it is lost */
    self->peers[ticket] = (int)m->peer;
    self->sends[ticket] = m->sends;
    if (m->sends)
        return tam_mpi_check(self,
                             MPI_Isend(m->memory, (int)m->bytes, MPI_BYTE, (int)m->peer,
                                       (int)m->channel, self->comm, request),
                             "MPI_Isend");
    return tam_mpi_check(self,
                         MPI_Irecv(m->memory, (int)m->bytes, MPI_BYTE, (int)m->peer,
                                   (int)m->channel, self->comm, request),
                         "MPI_Irecv");
}

/* Or that another rank has found one. */
static bool is_death(int code) {
#ifdef TAM_HAVE_ULFM
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED;
#else
    (void)code;
    return false;
#endif
}

/* For example a message longer than its buffer: its sender is in another call. */
static tamis_status mpi_explain(const tam_mpi *self, int count) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int i = 0, length = 0;
    while (i < count - 1 && self->statuses[i].MPI_ERROR == MPI_SUCCESS)
        i++;
    MPI_Error_string(self->statuses[i].MPI_ERROR, text, &length);
    if (is_death(self->statuses[i].MPI_ERROR))
        return tam_fail(TAMIS_E_TRANSPORT,
                        "rank %d: a process has died, seen in a message from or to rank %d (%s); "
                        "tamis_comm_shrink goes on with the ranks that are left",
                        self->rank, self->peers[self->done[i]], text);
    return tam_fail(TAMIS_E_TRANSPORT,
                    "rank %d: a message from or to rank %d failed (%s); all ranks must make the "
                    "same calls with the same options",
                    self->rank, self->peers[self->done[i]], text);
}

static tamis_status check_deaths(const tam_mpi *self) {
    static const char remedy[] = "tamis_comm_shrink goes on with the ranks that are left";
    int dead;
    if (!tam_mpi_saw_death(self, &dead))
        return TAMIS_OK;
    if (dead < 0)
        return tam_fail(TAMIS_E_TRANSPORT, "rank %d: another rank has found that one is dead; %s",
                        self->rank, remedy);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %d: rank %d has died; %s", self->rank, dead, remedy);
}

/* Open MPI tests first and makes progress afterwards. A second test sees what that progress
 * brought, which must not wait for the end of a sleep. */
static tamis_status test_mpi(void *arg, tam_done *done, uint32_t *count) {
    tam_mpi *self = arg;
    int n = 0;
    TAM_TRY(check_finalized(self, TAMIS_E_TRANSPORT));
    for (int i = 0; i < 2 && n == 0; i++) {
        TAM_TRY(check_deaths(self));
        int code = MPI_Testsome(TAM_P2P_TICKETS, self->requests, &n, self->done, self->statuses);
        if (code == MPI_ERR_IN_STATUS)
            return mpi_explain(self, n);
        TAM_TRY(tam_mpi_check(self, code, "MPI_Testsome"));
    }
    *count = n == MPI_UNDEFINED ? 0 : (uint32_t)n;
    for (uint32_t i = 0; i < *count; i++) {
        int bytes = 0;
        done[i].ticket = (uint32_t)self->done[i];
        if (!self->sends[done[i].ticket])
            MPI_Get_count(&self->statuses[i], MPI_BYTE, &bytes);
        done[i].bytes = (size_t)bytes;
    }
    return TAMIS_OK;
}

/* Works for receives that did not begin. */
static void cancel_mpi(void *arg, uint32_t ticket) {
    tam_mpi *self = arg;
    MPI_Request *request = &self->requests[ticket];
    int done = 1, finalized = 0, dead;
    MPI_Finalized(&finalized);
    if (*request == MPI_REQUEST_NULL || finalized || tam_mpi_saw_death(self, &dead))
        return;
    if (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        MPI_Cancel(request);
    if (!done && !self->sends[ticket])
        MPI_Request_free(request); /* the ticket may be used again */
}

static void abort_mpi(void *arg, tamis_status status, const char *cause) {
    (void)arg, (void)status, (void)cause; /* the poison ends polling here; the others time out */
}

/* After a failure messages may still be in flight, so the communicator and the buffers given to MPI
 * stay until the process ends. */
static bool close_mpi(void *arg, int clean) {
    tam_mpi *self = arg;
    int finalized = 1;
    MPI_Finalized(&finalized);
    if (!clean)
        return false;
    if (!finalized)
        MPI_Comm_free(&self->comm);
    if (!finalized && self->tolerant)
        tam_mpi_release_errors();
    tam_free(self);
    return true;
}

const tam_p2p tam_mpi_p2p = {
    .name = "mpi",
    .stays_in_flight = true,
    .usable = mpi_usable,
    .post = post_mpi,
    .test = test_mpi,
    .cancel = cancel_mpi,
    .abort = abort_mpi,
    .close = close_mpi,
};
