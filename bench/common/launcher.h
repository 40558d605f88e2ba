/* SPDX-License-Identifier: MIT
 *
 * What started this process: mpirun, srun, torchrun, or nobody. By environment variables alone.
 */
#ifndef TAMIS_BENCH_LAUNCHER_H
#define TAMIS_BENCH_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

/** Rank and number of ranks that a launcher gave to this process; 0 and 1 else. */
uint32_t bench_launched_rank(void);
uint32_t bench_launched_ranks(void);

/** The variable that says how many. */
const char *bench_launched_by(void);

/** Whether it starts MPI's ranks. */
bool bench_launched_mpi(void);

/** The rank among those on this machine. @return false: it gave none */
bool bench_launched_local_rank(uint32_t *out);

#endif
