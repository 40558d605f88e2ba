/* SPDX-License-Identifier: MIT
 *
 * Over MPI, nodes of several ranks: one rank sleeps longer than the deadline. The others come back
 * in time, whether they wait for it in its node, in its inter-node group, or for one that does;
 * what was given lies in the gradient still or in the residual of the shard; states can be saved,
 * and all can go.
 *
 * test: waits
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/scratch.h"
#include <string.h>
#include <tamis/state.h>

enum { N = 2000, TIMEOUT_MS = 800, SLEEP_MS = 3 * TIMEOUT_MS };

static tamis_status step_once(tamis_reducer *reducer, uint32_t number, float *gradient) {
    const tamis_step step = data_step(gradient);
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradient);
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

/* The node of the rank that sleeps never had its sum: there the gradient is as it was, elsewhere it
 * has been cleared. */
static void check_gradient(const float *gradient, uint32_t size) {
    static float given[N], cleared[N];
    bool summed = (uint32_t)mpi_rank / size != (uint32_t)(mpi_nranks - 1) / size;
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, 1, N, given);
    MPI_CHECK(memcmp(gradient, summed ? cleared : given, sizeof given) == 0,
              "the gradient was not %s", summed ? "cleared" : "left alone");
}

static void wait_and_time_out(tamis_reducer *reducer, uint32_t size, float *gradient) {
    char path[SCRATCH_PATH];
    uint64_t start_ms = now_ms();
    MPI_STATUS(TAMIS_E_TIMEOUT, step_once(reducer, 1, gradient));
    uint64_t took_ms = now_ms() - start_ms;
    MPI_CHECK(took_ms < test_stretch_ms(TIMEOUT_MS) + test_grace_ms(), "it took %llu ms",
              (unsigned long long)took_ms);
    check_gradient(gradient, size);
    MPI_OK(tamis_reducer_save(reducer, scratch_path("lost", path)));
    unlink(path);
}

static void come_late(tamis_reducer *reducer, float *gradient) {
    sleep_ms(test_stretch_ms(SLEEP_MS));
    tamis_status status = step_once(reducer, 1, gradient);
    if (status == TAMIS_OK) /* all its parts may have arrived */
        status = step_once(reducer, 2, gradient);
    MPI_CHECK(tamis_status_loss(status) == TAMIS_LOST_COMM, "the late rank got %s",
              tamis_status_name(status));
}

int main(int argc, char **argv) {
    /* Static: after a lost communicator MPI may still read it. */
    static float gradient[N];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(test_long_ms());
    config.ranks_per_node = mpi_nranks % 2 == 0 ? 2 : (uint32_t)mpi_nranks;
    MPI_OK(data_reducer(comm, N, &config, &reducer));
    MPI_OK(step_once(reducer, 0, gradient));
    MPI_Barrier(MPI_COMM_WORLD);
    test_deadline(comm, test_stretch_ms(TIMEOUT_MS));
    if (mpi_rank == mpi_nranks - 1)
        come_late(reducer, gradient);
    else
        wait_and_time_out(reducer, config.ranks_per_node, gradient);
    uint64_t start_ms = now_ms();
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    MPI_CHECK(now_ms() - start_ms < test_long_ms() + test_grace_ms(), "destroy took %llu ms",
              (unsigned long long)(now_ms() - start_ms));
    mpi_leave();
    return 0;
}
