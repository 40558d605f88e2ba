/* SPDX-License-Identifier: MIT
 *
 * MPI was finalised, or the process forked, while there is a communicator: every call says so with
 * STATE, and destroying ends. MPI itself ends a process that calls it then.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tamis/elastic.h>
#include <tamis/overlap.h>

enum { N = 3000 };

static float grad[N];

static void refused(const char *call, tamis_status status, const char *word) {
    MPI_CHECK(status == TAMIS_E_STATE, "%s: %s: %s", call, tamis_status_name(status),
              tamis_last_error());
    MPI_CHECK(strstr(tamis_last_error(), word), "%s says: %s", call, tamis_last_error());
}

#define REFUSED(word, call) refused(#call, call, word)

/* @param reducer  between steps; waiting: between start and wait */
static void all_is_refused(tamis_comm *comm, tamis_reducer *reducer, tamis_reducer *waiting,
                           const char *word) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *another = NULL;
    tamis_comm *smaller = NULL;
    tamis_step step = data_step(grad);
    uint64_t number;
    int done;
    REFUSED(word, tamis_reducer_start(reducer, &step));
    REFUSED(word, tamis_reducer_ready(reducer, 0, &step));
    REFUSED(word, tamis_reducer_wait(waiting));
    REFUSED(word, tamis_reducer_test(waiting, &done));
    REFUSED(word, tamis_reducer_resync(reducer, &number));
    REFUSED(word, data_reducer(comm, N, &config, &another));
    REFUSED(word, tamis_comm_check_equal(comm, grad, sizeof grad));
    REFUSED(word, tamis_comm_shrink(comm, NULL, &smaller));
    REFUSED(word, tamis_comm_abort(comm));
}

static void destroy_all(tamis_comm *comm, tamis_reducer *reducer, tamis_reducer *waiting) {
    tamis_reducer_destroy(waiting);
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
}

/* The child ends by exit, as one whose program failed; its parent's ranks go on. */
static void run_child(tamis_comm *comm, tamis_reducer *reducer, tamis_reducer *waiting) {
    int code = 0;
    pid_t child = fork();
    if (child == 0) {
        all_is_refused(comm, reducer, waiting, "forked");
        destroy_all(comm, reducer, waiting);
        exit(mpi_failures != 0);
    }
    MPI_CHECK(child > 0 && waitpid(child, &code, 0) == child, "no child");
    MPI_CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 0, "the child ended with %d", code);
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(20000);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer, *waiting;
    MPI_OK(data_reducer(comm, N, &config, &reducer));
    MPI_OK(data_reducer(comm, N, &config, &waiting));
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, 0, N, grad);
    tamis_step step = data_step(grad);
    MPI_OK(tamis_reducer_start(waiting, &step));
    run_child(comm, reducer, waiting);
    MPI_OK(tamis_reducer_wait(waiting));
    MPI_OK(tamis_reducer_start(waiting, &step));
    MPI_OK(tamis_comm_check_equal(comm, "", 0)); /* the step before it has ended */
    int failures = mpi_verdict();
    MPI_Finalize();
    all_is_refused(comm, reducer, waiting, "finalised");
    destroy_all(comm, reducer, waiting);
    return failures + mpi_failures != 0;
}
