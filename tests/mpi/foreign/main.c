/* SPDX-License-Identifier: MIT
 *
 * A program of one MPI on a libtamis of another, as tests/mpis.sh links it: refused in words, where
 * it would end in SIGSEGV. No test of ctest's: a build has one MPI.
 */
#include <stdio.h>
#include <tamis/mpi.h>

int main(int argc, char **argv) {
    int level;
    tamis_comm *comm = NULL;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    tamis_status status = tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm);
    printf("%s: %s\n", tamis_status_name(status), tamis_last_error());
    MPI_Finalize();
    return status != TAMIS_E_UNSUPPORTED;
}
