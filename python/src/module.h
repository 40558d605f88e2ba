/* SPDX-License-Identifier: MIT
 *
 * The interface between _core and the shared objects that link MPI and NCCL. Each is loaded by its
 * path when first needed, and exports one constant table.
 */
#ifndef TAM_PYTHON_MODULE_H
#define TAM_PYTHON_MODULE_H

#include <tamis/tamis.h>

/** What initialised MPI. */
enum {
    TAM_PYTHON_MPI_ABSENT = 0,   /* nothing yet */
    TAM_PYTHON_MPI_FOREIGN = 1,  /* other code, which also finalises it */
    TAM_PYTHON_MPI_OWN = 2,      /* open did */
    TAM_PYTHON_MPI_FINALIZED = 3 /* MPI is finalised, by whatever code */
};

typedef struct tam_python_mpi {
    size_t size; /* sizeof(tam_python_mpi) */
    int version; /* TAMIS_VERSION: both must be built from the same source */

    /** Communicator over MPI_COMM_WORLD. Initialises MPI with MPI_THREAD_MULTIPLE if needed. */
    tamis_status (*open)(const tamis_comm_config *config, tamis_comm **out);

    /** TAM_PYTHON_MPI_... Never fails, never initialises. */
    int (*state)(void);

    /** MPI_Finalize if MPI is our own; else nothing. */
    tamis_status (*finalize)(void);
} tam_python_mpi;

typedef struct tam_python_nccl {
    size_t size; /* sizeof(tam_python_nccl) */
    int version; /* TAMIS_VERSION */

    /** As tamis_comm_create_nccl. */
    tamis_status (*open)(tamis_comm *bootstrap, const tamis_comm_config *config, tamis_comm **out);
} tam_python_nccl;

/* The shared objects define these; _core finds them by dlsym:
 *
 *     TAMIS_API const tam_python_mpi tam_python_mpi_table;
 *     TAMIS_API const tam_python_nccl tam_python_nccl_table;
 */
#define TAM_PYTHON_MPI_SYMBOL "tam_python_mpi_table"
#define TAM_PYTHON_NCCL_SYMBOL "tam_python_nccl_table"

#endif
