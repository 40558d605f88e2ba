/* SPDX-License-Identifier: MIT
 *
 * Over MPI: one rank sleeps longer than the deadline. The others come back in time with
 * TAMIS_E_TIMEOUT, nothing is lost, the state can be saved, and later calls say the same.
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
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradient);
    step.grad = gradient;
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

static void check_accumulated(const tamis_reducer *reducer, const float *before) {
    static float gradient[N];
    const float *residual = NULL;
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, 1, N, gradient);
    MPI_OK(tamis_reducer_residual(reducer, &residual));
    for (size_t i = 0; residual && i < N; i++)
        if (residual[i] != before[i] + gradient[i]) {
            MPI_CHECK(false, "entry %zu: residual %g, before %g, gradient %g", i,
                      (double)residual[i], (double)before[i], (double)gradient[i]);
            return;
        }
}

static void check_poisoned(tamis_comm *comm, tamis_reducer *reducer) {
    static float gradient[N];
    char path[SCRATCH_PATH];
    test_deadline(comm, test_long_ms());
    uint64_t start_ms = now_ms();
    MPI_STATUS(TAMIS_E_TIMEOUT, tamis_comm_status(comm));
    MPI_STATUS(TAMIS_E_TIMEOUT, step_once(reducer, 2, gradient));
    MPI_OK(tamis_reducer_save(reducer, scratch_path("lost", path)));
    MPI_CHECK(now_ms() - start_ms < test_long_ms() / 2, "calls on a lost communicator wait");
    unlink(path);
}

/* Its first step may even succeed, for the others' part of it may have arrived. */
static void come_late(tamis_reducer *reducer, float *gradient) {
    sleep_ms(test_stretch_ms(SLEEP_MS));
    tamis_status status = step_once(reducer, 1, gradient);
    if (status == TAMIS_OK)
        status = step_once(reducer, 2, gradient);
    MPI_CHECK(tamis_status_loss(status) == TAMIS_LOST_COMM, "the late rank got %s",
              tamis_status_name(status));
}

static void wait_and_time_out(tamis_comm *comm, tamis_reducer *reducer, float *gradient) {
    static float before[N];
    const float *residual = NULL;
    MPI_OK(tamis_reducer_residual(reducer, &residual));
    if (residual)
        memcpy(before, residual, sizeof before);
    uint64_t start_ms = now_ms();
    MPI_STATUS(TAMIS_E_TIMEOUT, step_once(reducer, 1, gradient));
    MPI_CHECK(strstr(tamis_last_error(), "tamis_reducer_wait of step 1: waited "), "\"%s\"",
              tamis_last_error());
    uint64_t took_ms = now_ms() - start_ms;
    MPI_CHECK(took_ms < test_stretch_ms(TIMEOUT_MS) + test_grace_ms(), "it took %llu ms",
              (unsigned long long)took_ms);
    MPI_CHECK(strlen(tamis_last_error()) > 10, "no sentence");
    check_accumulated(reducer, before);
    check_poisoned(comm, reducer);
}

int main(int argc, char **argv) {
    /* Static: after a lost communicator MPI may still read or write it. */
    static float gradient[N];
    tamis_reducer *reducer = NULL;
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(test_long_ms());
    tamis_layout *layout = data_layout(N);
    MPI_OK(tamis_reducer_create(comm, layout, NULL, &reducer));
    MPI_OK(step_once(reducer, 0, gradient));
    MPI_Barrier(MPI_COMM_WORLD);
    test_deadline(comm, test_stretch_ms(TIMEOUT_MS));
    if (mpi_rank == mpi_nranks - 1)
        come_late(reducer, gradient);
    else
        wait_and_time_out(comm, reducer, gradient);
    /* destroying is still safe, and does not hang */
    uint64_t start_ms = now_ms();
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    MPI_CHECK(now_ms() - start_ms < test_long_ms() + test_grace_ms(), "destroy took %llu ms",
              (unsigned long long)(now_ms() - start_ms));
    mpi_leave();
    return 0;
}
