/* SPDX-License-Identifier: MIT
 *
 * The MPI kind of a group; only group.c uses it. Without MPI bench_mpi_built says so and the
 * others are never called. The calls of the same names without `mpi` say what they do.
 */
#ifndef TAMIS_BENCH_GROUP_MPI_H
#define TAMIS_BENCH_GROUP_MPI_H

#include "bench/common/group.h"

bool bench_mpi_built(void);
int bench_mpi_launch(bench_main body, void *context);
uint32_t bench_mpi_rank(void); /* among all ranks */
void bench_mpi_barrier(bench_group *group);
void bench_mpi_allgather(bench_group *group, const void *send, size_t bytes, void *recv);
void bench_mpi_allreduce(bench_group *group, const float *send, float *out, size_t count);
_Noreturn void bench_mpi_abort(void);

#endif
