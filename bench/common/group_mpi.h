/* SPDX-License-Identifier: MIT
 *
 * Ranks as MPI processes. Without MPI bench_mpi_built is false and bench_mpi_launch never called.
 */
#ifndef TAMIS_BENCH_GROUP_MPI_H
#define TAMIS_BENCH_GROUP_MPI_H

#include "bench/common/group.h"

#ifdef TAMIS_BENCH_MPI

#include <mpi.h>

struct bench_mpi {
    MPI_Comm comm;
};

MPI_Comm bench_mpi_comm(const bench_group *group);

#endif

bool bench_mpi_built(void);
int bench_mpi_launch(bench_main body, void *context);

#endif
