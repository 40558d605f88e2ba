/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over MPI: mpi.c has the collectives, mpi_open.c creates it.
 */
#ifndef TAM_TRANSPORT_MPI_COMM_H
#define TAM_TRANSPORT_MPI_COMM_H

#include "lib/base/base.h"
#include "lib/base/transport.h"

#include <tamis/mpi.h>

/* Tests make these small. */
#ifndef TAM_MPI_PIECE
#define TAM_MPI_PIECE 65536 /* values of a slice in one message */
#endif
#ifndef TAM_MPI_MESSAGE_MAX
#define TAM_MPI_MESSAGE_MAX (1 << 30) /* bytes: counts of MPI are int */
#endif

/* Requests that are waited for together: 2 (P - 1) at most. */
typedef struct tam_mpi_batch {
    MPI_Request *requests;
    MPI_Status *statuses;
    int *peers; /* the other rank of each request */
    int count;
} tam_mpi_batch;

typedef struct tam_mpi {
    MPI_Comm comm;
    int rank, nranks;
    tam_mpi_batch gather[2], scatter[2], meeting;
    tam_tag *tags;   /* [nranks] of a sum: received; this rank's own as it is sent */
    char *pieces[2]; /* [nranks * TAM_MPI_PIECE] floats: received parts of this rank's slice */
    void *memory;
} tam_mpi;

/* mpi.c: called from the caller's threads only, or also from a library thread. */

extern const tam_transport tam_mpi_inline, tam_mpi_threaded;

/** Fail with "rank <r>: <what>: <MPI's text for the code>" if the code is an error. */
tamis_status tam_mpi_check(const tam_mpi *self, int code, const char *what);

#endif
