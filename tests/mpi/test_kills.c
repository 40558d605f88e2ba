/* SPDX-License-Identifier: MIT
 *
 * kills SEED: one or two ranks are killed, where MPI tolerates faults (kills.sh counts). Without a
 * seed, or elsewhere, nobody dies.
 */
#include "tests/support/kills.h"
#include "tests/support/mpi_ranks.h"

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    bool tolerated = mpi_tolerates_faults();
    uint64_t recovered = kills_run(mpi_comm(test_long_ms()), seed, argc > 1 && tolerated);
    if (!tolerated)
        return mpi_end();
    fprintf(stderr, "a rank ends well after %llu recoveries\n", (unsigned long long)recovered);
    fflush(NULL);
    _exit(mpi_failures != 0); /* MPI_Finalize of Open MPI 5.0.11 may hang after a second death */
}
