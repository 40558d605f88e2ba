/* SPDX-License-Identifier: MIT
 *
 * The error handlers of the communicators that all share. Where MPI tolerates faults, an error that
 * a death causes elsewhere than in a message of ours is reported there.
 */
#include "collectives/transport/mpi_comm.h"

#include <pthread.h>

static pthread_mutex_t errors_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned holds;
static MPI_Errhandler ours = MPI_ERRHANDLER_NULL;

/* As MPI_ERRORS_RETURN, but another than that: a program may set that one meanwhile. */
static void return_error(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    (void)code;
}

/* WORLD and SELF: those that have the one get the other. */
static void replace_handlers(MPI_Errhandler from, MPI_Errhandler to) {
    MPI_Comm comms[2] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    for (int i = 0; i < 2; i++) {
        MPI_Errhandler now;
        MPI_Comm_get_errhandler(comms[i], &now);
        if (now == from)
            MPI_Comm_set_errhandler(comms[i], to);
        MPI_Errhandler_free(&now);
    }
}

void tam_mpi_hold_errors(void) {
    pthread_mutex_lock(&errors_lock);
    if (holds++ == 0 && MPI_Comm_create_errhandler(return_error, &ours) == MPI_SUCCESS)
        replace_handlers(MPI_ERRORS_ARE_FATAL, ours);
    pthread_mutex_unlock(&errors_lock);
}

void tam_mpi_release_errors(void) {
    pthread_mutex_lock(&errors_lock);
    if (--holds == 0 && ours != MPI_ERRHANDLER_NULL) {
        replace_handlers(ours, MPI_ERRORS_ARE_FATAL);
        MPI_Errhandler_free(&ours);
    }
    pthread_mutex_unlock(&errors_lock);
}
