/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over MPI: mpi.c has the wire, mpi_open.c creates it.
 */
#ifndef TAM_TRANSPORT_MPI_COMM_H
#define TAM_TRANSPORT_MPI_COMM_H

#include "collectives/coll/staged.h"
#include "lib/base/base.h"

#include <tamis/mpi.h>

typedef struct tam_mpi {
    MPI_Comm comm;
    int rank, nranks;
    MPI_Request requests[TAM_WIRE_TICKETS]; /* MPI_REQUEST_NULL: none is in flight */
    int peers[TAM_WIRE_TICKETS];
    bool sends[TAM_WIRE_TICKETS];
    MPI_Status statuses[TAM_WIRE_TICKETS];
    int done[TAM_WIRE_TICKETS];
} tam_mpi;

extern const tam_wire tam_mpi_wire;

/** Fail with "rank <r>: <what>: <MPI's text for the code>" if the code is an error. */
tamis_status tam_mpi_check(const tam_mpi *self, int code, const char *what);

#endif
