/* SPDX-License-Identifier: MIT
 *
 * Preloaded into the ranks of an MPI job, kills one where those of tamis_train --elastic look at
 * each other, and not only between two steps: DIE_AT=RANK:CALL, calls counted since elastic_open,
 * which sets the error handler of MPI_COMM_SELF. Counted are the beginnings of bench_spread and,
 * after each, the first look whether it has ended.
 */
#include <mpi.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static bool counts, begun;
static int calls;

static void count(void) {
    int mine = -1, rank = -1, call = -1;
    const char *text = getenv("DIE_AT");
    if (!counts || !text || sscanf(text, "%d:%d", &rank, &call) != 2)
        return;
    PMPI_Comm_rank(MPI_COMM_WORLD, &mine);
    if (mine != rank || calls++ != call)
        return;
    fprintf(stderr, "rank %d dies in call %d\n", mine, call);
    raise(SIGKILL);
}

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
    counts = counts || comm == MPI_COMM_SELF;
    return PMPI_Comm_set_errhandler(comm, handler);
}

int MPI_Comm_rank(MPI_Comm comm, int *rank) {
    begun = true;
    count();
    return PMPI_Comm_rank(comm, rank);
}

int MPI_Testall(int n, MPI_Request requests[], int *ended, MPI_Status statuses[]) {
    if (begun)
        count();
    begun = false;
    return PMPI_Testall(n, requests, ended, statuses);
}
