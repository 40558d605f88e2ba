/* SPDX-License-Identifier: MIT
 *
 * A job that is stopped as a whole for longer than the deadline, as when it is suspended, goes on
 * when it is continued.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"

#include <signal.h>
#include <sys/wait.h>

enum { N = 2000, DEADLINE_MS = 3000, STOPPED_MS = 4500, BEFORE_MS = 200, LATE_MS = 500 };

static void stop_this(void) {
    pid_t tested = getpid();
    if (fork() != 0)
        return;
    sleep_ms(BEFORE_MS);
    kill(tested, SIGSTOP);
    sleep_ms(STOPPED_MS);
    kill(tested, SIGCONT);
    _exit(0);
}

static void step_once(tamis_reducer *reducer, uint32_t number) {
    static float grad[N];
    const tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, grad);
    MPI_OK(tamis_reducer_start(reducer, &step));
    MPI_OK(tamis_reducer_wait(reducer));
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(DEADLINE_MS);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    MPI_OK(data_reducer(comm, N, &config, &reducer));
    step_once(reducer, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    stop_this();
    for (int slept_ms = 0; mpi_rank == 1 && slept_ms < LATE_MS; slept_ms += 10)
        sleep_ms(10); /* the others wait when they are stopped */
    for (uint32_t number = 1; number < 4; number++)
        step_once(reducer, number);
    while (wait(NULL) > 0)
        ;
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    return mpi_end();
}
