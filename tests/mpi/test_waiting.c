/* SPDX-License-Identifier: MIT
 *
 * Waiting for a rank that is late takes little of the processor, before and after it is expected to
 * be late, and costs little when it is in time after all. How a rank waits changes no bits.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"

enum { N = 5000, STEPS = 24, LATE_MS = 20, TIMEOUT_MS = 20000, TRIALS = 3 };

static float gradient[N];

static bool is_late(void) {
    return mpi_rank == mpi_nranks - 1;
}

/* @return seconds from when all ranks began to the end of the step */
static double run_step(tamis_reducer *reducer, uint32_t number, uint32_t late_ms, double *cpu_s) {
    tamis_step step = data_step(gradient);
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradient);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin_s = MPI_Wtime(), cpu_before_s = mpi_cpu_s();
    sleep_ms(is_late() ? late_ms : 0);
    MPI_OK(tamis_reduce_start(reducer, &step));
    MPI_OK(tamis_reduce_wait(reducer));
    *cpu_s += mpi_cpu_s() - cpu_before_s;
    return MPI_Wtime() - begin_s;
}

static tamis_reducer *make(tamis_comm *comm) {
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = data_layout(N);
    MPI_OK(tamis_reducer_create(comm, layout, NULL, &reducer));
    tamis_layout_destroy(layout);
    return reducer;
}

/* At first the delay comes as a surprise, then it is expected. Then, at once, there is a tenth of
 * it: the others must not sleep as long as they had to wait before. */
static void check_waiting(tamis_comm *comm, tamis_waiting waiting) {
    double surprised_s = 0.0, expecting_s = 0.0, least_s = 1.0;
    MPI_OK(tamis_comm_set_waiting(comm, waiting));
    for (int trial = 0; trial < TRIALS; trial++) {
        tamis_reducer *reducer = make(comm);
        double other_s = 0.0;
        for (uint32_t number = 0; number < 2 * STEPS; number++)
            run_step(reducer, number, LATE_MS,
                     number < STEPS / 2 ? &surprised_s
                     : number < STEPS   ? &other_s
                                        : &expecting_s);
        double step_s = run_step(reducer, 2 * STEPS, LATE_MS / 10, &other_s);
        least_s = step_s < least_s ? step_s : least_s;
        tamis_reducer_destroy(reducer);
    }
    double most_s = 0.3e-3 * LATE_MS * TRIALS;
    MPI_CHECK(is_late() || surprised_s < most_s * STEPS / 2, "waiting %d: %g s of the processor",
              (int)waiting, surprised_s);
    MPI_CHECK(is_late() || expecting_s < most_s * STEPS, "waiting %d, expecting: %g s",
              (int)waiting, expecting_s);
    MPI_CHECK(least_s < 0.6e-3 * LATE_MS * test_slowness(),
              "waiting %d: a step with a short delay takes %g s", (int)waiting, least_s);
}

static uint64_t run(tamis_comm *comm, tamis_waiting waiting) {
    tamis_reducer *reducer = make(comm);
    uint64_t hash = 0;
    double cpu_s = 0.0;
    MPI_OK(tamis_comm_set_waiting(comm, waiting));
    for (uint32_t number = 0; number < STEPS; number++) {
        run_step(reducer, number, 1, &cpu_s);
        hash = data_hash(hash, gradient, sizeof gradient);
    }
    tamis_reducer_destroy(reducer);
    return hash;
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(TIMEOUT_MS);
    uint64_t hash = run(comm, TAMIS_WAITING_AUTO);
    MPI_CHECK(run(comm, TAMIS_WAITING_NAP) == hash, "napping changes bits");
    MPI_CHECK(run(comm, TAMIS_WAITING_SPIN) == hash, "spinning changes bits");
    check_waiting(comm, TAMIS_WAITING_AUTO);
    check_waiting(comm, TAMIS_WAITING_NAP);
    tamis_comm_destroy(comm);
    return mpi_end();
}
