/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over MPI: mpi.c has the p2p contract, mpi_open.c creates it, mpi_shrink.c
 * makes one of the ranks that are left.
 */
#ifndef TAM_TRANSPORT_MPI_COMM_H
#define TAM_TRANSPORT_MPI_COMM_H

#include "collectives/coll/staged.h"
#include "collectives/transport/comm.h"
#include "lib/base/base.h"

#include <tamis/mpi.h>

typedef struct tam_mpi {
    MPI_Comm comm;
    int rank, nranks;
    MPI_Request requests[TAM_P2P_TICKETS]; /* MPI_REQUEST_NULL: none is in flight */
    int peers[TAM_P2P_TICKETS];
    bool sends[TAM_P2P_TICKETS];
    MPI_Status statuses[TAM_P2P_TICKETS];
    int done[TAM_P2P_TICKETS];
    bool threaded;                   /* MPI_THREAD_MULTIPLE */
    bool tolerant;                   /* MPI goes on when processes die */
    struct tam_mpi_parting *parting; /* NULL until ranks are left behind; then it stays */
} tam_mpi;

/** Take over a communicator of our own, whose errors return. Collective: may measure the network.
 * Frees it on failure, if that can be done. */
tamis_status tam_mpi_open(MPI_Comm own, bool threaded, uint64_t deadline_ns,
                          const tamis_comm_config *config, tamis_comm **out);

tamis_status tam_mpi_shrink(void *arg, const tam_left *left, tamis_comm **out);

/** UNSUPPORTED where the program, of which `built_with` is TAMIS_MPI_BUILT_WITH, this library and
 * the MPI that runs are not of one kind. Before a handle of the program is looked at. */
tamis_status tam_mpi_meant(const char *built_with);

/** STATE where MPI cannot be called, else its thread level. */
tamis_status tam_mpi_ready(int *level);

/** Log a warning where this process is alone in MPI_COMM_WORLD, and its launcher says otherwise. */
void tam_mpi_warn_of_one(void);

/** Whether MPI goes on when processes die, as it was built and started (ULFM). */
bool tam_mpi_tolerates(void);

/** Whether a process of the communicator is known to have died, or another rank has said so.
 *
 * Open MPI (5.0.11, pml/ob1) ends a process one of whose sends was found to fail in a test and ends
 * in its peer afterwards ("Send error after request freed"; no error handler is asked). So whoever
 * tests messages asks this before, and tests none after a death.
 * @param  dead  [out]  a rank that has died; -1: another rank knows it */
bool tam_mpi_saw_death(const tam_mpi *self, int *dead);

/** While there are communicators of ours in an MPI that tolerates faults, errors of MPI_COMM_WORLD
 * and MPI_COMM_SELF return, if they were fatal: a death may be reported there, and would end this
 * process. Each hold needs a release; that of a lost communicator never comes. */
void tam_mpi_hold_errors(void);
void tam_mpi_release_errors(void);

extern const tam_p2p tam_mpi_p2p;

/** Fail with "rank <r>: <what>: <MPI's text for the code>" if the code is an error. */
tamis_status tam_mpi_check(const tam_mpi *self, int code, const char *what);

#endif
