/* SPDX-License-Identifier: MIT
 *
 * The error handlers of the communicators that all share. Where MPI tolerates faults, an error that
 * a death causes elsewhere than in a message of ours is reported there.
 */
#include "collectives/transport/mpi_comm.h"

#include <pthread.h>

static pthread_mutex_t errors_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned holds;
static bool was_fatal[2];

/* WORLD or SELF: whether it has that handler, which it then loses for another. */
static bool replace_handler(MPI_Comm comm, MPI_Errhandler from, MPI_Errhandler to) {
    MPI_Errhandler now;
    MPI_Comm_get_errhandler(comm, &now);
    bool has = now == from;
    if (has)
        MPI_Comm_set_errhandler(comm, to);
    MPI_Errhandler_free(&now);
    return has;
}

void tam_mpi_hold_errors(void) {
    MPI_Comm comms[2] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    pthread_mutex_lock(&errors_lock);
    for (int i = 0; holds == 0 && i < 2; i++)
        was_fatal[i] = replace_handler(comms[i], MPI_ERRORS_ARE_FATAL, MPI_ERRORS_RETURN);
    holds++;
    pthread_mutex_unlock(&errors_lock);
}

void tam_mpi_release_errors(void) {
    MPI_Comm comms[2] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    pthread_mutex_lock(&errors_lock);
    holds--;
    for (int i = 0; holds == 0 && i < 2; i++)
        if (was_fatal[i])
            replace_handler(comms[i], MPI_ERRORS_RETURN, MPI_ERRORS_ARE_FATAL);
    pthread_mutex_unlock(&errors_lock);
}
