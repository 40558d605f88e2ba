/* SPDX-License-Identifier: MIT
 *
 * A program, a library or a launcher of another MPI: refused, or said.
 */
#include "tests/support/mpi_ranks.h"

#include <string.h>

static void refuse(const char *built_with, const char *says) {
    tamis_comm *comm = NULL;
    void *handle = (void *)(uintptr_t)0x44000000; /* MPI_COMM_WORLD of another MPI: not looked at */
    MPI_STATUS(TAMIS_E_UNSUPPORTED, tamis_comm_create_mpi_of(built_with, &handle, NULL, &comm));
    MPI_CHECK(strstr(tamis_last_error(), says), "%s", tamis_last_error());
    MPI_CHECK(!comm, "a communicator was handed out");
}

int main(int argc, char **argv) {
    tamis_comm *comm = NULL;
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    bool open_mpi = strcmp(TAMIS_MPI_BUILT_WITH, "Open MPI") == 0;
    if (TAMIS_MPI_BUILT_WITH[0])
        refuse(open_mpi ? "MPICH" : "Open MPI", "build both with the same mpicc");
    MPI_STATUS(TAMIS_E_ARGUMENT, tamis_comm_create_mpi_of(NULL, &comm, NULL, &comm));
    MPI_STATUS(TAMIS_E_ARGUMENT, tamis_comm_create_mpi_of(TAMIS_MPI_BUILT_WITH, NULL, NULL, &comm));
    MPI_STATUS(TAMIS_OK, tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));
    tamis_comm_destroy(comm);
    return mpi_end();
}
