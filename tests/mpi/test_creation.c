/* SPDX-License-Identifier: MIT
 *
 * Over MPI: a rank that does not come to the creation of a communicator, or comes with a wrong
 * argument, does not make the others wait for ever.
 *
 * test: waits
 */
#include "tests/support/mpi_ranks.h"

int main(int argc, char **argv) {
    tamis_comm *comm = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    config.timeout_ms = test_stretch_ms(600);
    uint64_t start_ms = now_ms();
    if (mpi_rank == mpi_nranks - 1) {
        config.size = 1;
        MPI_STATUS(TAMIS_E_ARGUMENT, tamis_comm_create_mpi(MPI_COMM_WORLD, &config, &comm));
        sleep_ms(2 * config.timeout_ms);
    } else {
        MPI_STATUS(TAMIS_E_TIMEOUT, tamis_comm_create_mpi(MPI_COMM_WORLD, &config, &comm));
        MPI_CHECK(now_ms() - start_ms < config.timeout_ms + test_grace_ms(), "it took %llu ms",
                  (unsigned long long)(now_ms() - start_ms));
    }
    MPI_CHECK(!comm, "a communicator was handed out");
    mpi_leave();
    return 0;
}
