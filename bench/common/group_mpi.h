/* SPDX-License-Identifier: MIT
 *
 * The MPI kind of a group; only group.c uses it. Without MPI bench_mpi_built says so and the
 * others are never called.
 */
#ifndef TAMIS_BENCH_GROUP_MPI_H
#define TAMIS_BENCH_GROUP_MPI_H

#include "bench/common/group.h"

bool bench_mpi_built(void);
int bench_mpi_launch(bench_main body, void *context);
void bench_mpi_barrier(void);
void bench_mpi_allgather(const void *send, size_t bytes, void *recv);
void bench_mpi_allreduce(const float *send, float *out, size_t count);
_Noreturn void bench_mpi_abort(void);

#endif
