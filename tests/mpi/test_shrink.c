/* SPDX-License-Identifier: MIT
 *
 * Processes that die. Where MPI tolerates faults (mpirun --with-ft ulfm) the others go on, twice in
 * one run; elsewhere they are told that they cannot, and nothing is harmed.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>

enum { N = 2000, BEFORE = 3, AFTER = 20 };

typedef struct job {
    tamis_comm *comm;
    tamis_reducer *r;
    float params[N];
    uint32_t number;
} job;

static tamis_status one_step(job *j) {
    float grad[N];
    const tamis_step step = data_step(grad);
    data_fill_real((uint32_t)mpi_rank, j->number++, N, grad);
    tamis_status status = tamis_reducer_start(j->r, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(j->r);
    for (size_t i = 0; i < N && status == TAMIS_OK; i++)
        j->params[i] -= grad[i];
    return status;
}

/* Steps until one fails, as the first that is not here any more does not come. */
static void notice(job *j) {
    uint64_t begin_ms = now_ms();
    tamis_status status = TAMIS_OK;
    for (int i = 0; i < 1000 && status == TAMIS_OK; i++)
        status = one_step(j);
    MPI_CHECK(tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    MPI_CHECK(now_ms() - begin_ms < test_long_ms() + 1000, "it took too long to notice");
}

/* Rank `dead` of the world dies; the others go on. @param started  in the middle of a step */
static void survive(job *j, int dead, bool started) {
    tamis_comm *smaller = NULL;
    tamis_reducer *migrated = NULL;
    tamis_migration report = TAMIS_MIGRATION_INIT;
    float grad[N];
    const tamis_step step = data_step(grad);
    uint32_t before = tamis_comm_nranks(j->comm);
    for (int i = 0; i < BEFORE; i++)
        MPI_OK(one_step(j));
    if (mpi_rank == dead) {
        data_fill_real((uint32_t)mpi_rank, j->number, N, grad);
        if (started && tamis_reducer_start(j->r, &step) != TAMIS_OK)
            fprintf(stderr, "not in a step\n");
        raise(SIGKILL);
    }
    notice(j);
    tamis_status status = tamis_comm_shrink(j->comm, NULL, &smaller);
    MPI_CHECK(status == TAMIS_OK, "%s", tamis_last_error());
    if (status != TAMIS_OK)
        _exit(9);
    MPI_CHECK(tamis_comm_nranks(smaller) == before - 1, "%u ranks", tamis_comm_nranks(smaller));
    status = tamis_reducer_migrate(j->r, smaller, &report, &migrated);
    MPI_CHECK(status == TAMIS_OK, "%s", tamis_last_error());
    if (status != TAMIS_OK)
        _exit(9);
    MPI_CHECK(report.gone == 1, "%u gone", report.gone);
    tamis_reducer_destroy(j->r);
    tamis_comm_destroy(j->comm);
    j->comm = smaller;
    j->r = migrated;
    j->number = 1000;
    memset(j->params, 0, sizeof j->params); /* a rank that took a step back has applied it */
    for (int i = 0; i < AFTER; i++)
        MPI_OK(one_step(j));
    MPI_OK(tamis_comm_check_equal(j->comm, j->params, sizeof j->params));
}

/* Rank 1 only stops: no call may wait for it beyond its deadline. Once it is dead, the same call
 * goes on where it was. */
static void wait_for_the_stopped(job *j) {
    enum { SHORT_MS = 1000, SLACK_MS = 1500 };
    tamis_comm *smaller = NULL;
    long pid = getpid();
    MPI_Bcast(&pid, 1, MPI_LONG, 1, MPI_COMM_WORLD);
    if (mpi_rank == 1)
        raise(SIGSTOP);
    test_deadline(j->comm, SHORT_MS);
    notice(j);
    for (int i = 0; i < 3; i++) {
        uint64_t begin_ms = now_ms();
        MPI_STATUS(TAMIS_E_TIMEOUT, tamis_comm_shrink(j->comm, NULL, &smaller));
        MPI_CHECK(now_ms() - begin_ms < SHORT_MS + SLACK_MS, "shrink took too long");
    }
    if (mpi_rank == 0)
        kill((pid_t)pid, SIGKILL);
    test_deadline(j->comm, test_long_ms());
    MPI_OK(tamis_comm_shrink(j->comm, NULL, &smaller));
    MPI_CHECK(tamis_comm_nranks(smaller) == (uint32_t)mpi_nranks - 1, "%u ranks",
              tamis_comm_nranks(smaller));
    MPI_OK(tamis_comm_check_equal(smaller, "equal", 5));
    tamis_reducer_destroy(j->r);
    tamis_comm_destroy(j->comm);
    j->r = NULL;
    j->comm = smaller;
}

static void refuse(job *j) {
    tamis_comm *smaller = NULL;
    MPI_STATUS(TAMIS_E_UNSUPPORTED, tamis_comm_shrink(j->comm, NULL, &smaller));
    MPI_CHECK(has_word(tamis_last_error(), "start again"), "\"%s\"", tamis_last_error());
    MPI_CHECK(!smaller && tamis_comm_status(j->comm) == TAMIS_OK, "it had an effect");
    MPI_OK(one_step(j));
    MPI_OK(tamis_comm_check_equal(j->comm, j->params, sizeof j->params));
}

int main(int argc, char **argv) {
    job j = {0};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    mpi_begin(&argc, &argv,
              argc > 1 && strcmp(argv[1], "funneled") == 0 ? MPI_THREAD_FUNNELED
                                                           : MPI_THREAD_MULTIPLE);
    j.comm = mpi_comm(test_long_ms());
    config.density = 0.05;
    MPI_OK(data_reducer(j.comm, N, &config, &j.r));
    if (!mpi_tolerates_faults()) {
        refuse(&j);
        tamis_reducer_destroy(j.r);
        tamis_comm_destroy(j.comm);
        return mpi_end();
    }
    if (argc > 1 && strcmp(argv[1], "stopped") == 0) {
        wait_for_the_stopped(&j);
    } else {
        survive(&j, mpi_nranks / 2, true);
        if (mpi_nranks > 2)
            survive(&j, 0, false);
    }
    uint32_t own = tamis_comm_rank(j.comm);
    tamis_reducer_destroy(j.r);
    tamis_comm_destroy(j.comm);
    fprintf(stderr, "rank %d is left as rank %u: %s\n", mpi_rank, own,
            mpi_failures ? "FAILED" : "passed");
    fflush(NULL);
    _exit(mpi_failures != 0); /* MPI_Finalize of Open MPI 5.0.11 may hang after a second death */
    return 0;
}
