/* SPDX-License-Identifier: MIT
 *
 * Starts the ranks of a program.
 */
#ifndef TAMIS_BENCH_START_H
#define TAMIS_BENCH_START_H

#include "bench/common/group.h"

/**
 * Fill in what the command line left open, and refuse what is impossible (status 2).
 *
 * @param transport  -1: MPI under an MPI launcher, else local
 * @param ranks      0: one local rank, or as many as MPI has
 */
void bench_launch_check(int *transport, uint64_t *ranks);

/** Run `body` on every rank with its communicator and device, if all ranks were given the same
 * options. @return the largest status of a rank. */
int bench_launch(bench_transport transport, tamis_device device, uint32_t ranks, bench_main body,
                 void *context);

#endif
