/* SPDX-License-Identifier: MIT
 *
 * What started this process: mpirun, srun, torchrun, or no launcher. Found by environment variables
 * alone.
 */
#ifndef TAMIS_BENCH_LAUNCHER_H
#define TAMIS_BENCH_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

/** Rank and number of ranks that a launcher gave to this process; 0 and 1 without a launcher. */
uint32_t bench_launched_rank(void);
uint32_t bench_launched_ranks(void);

/** The variable that holds the number of ranks. */
const char *bench_launched_by(void);

/** Whether the launcher starts MPI ranks. */
bool bench_launched_mpi(void);

/** The rank among those on this machine. @return false: the launcher gave none */
bool bench_launched_local_rank(uint32_t *out);

#endif
