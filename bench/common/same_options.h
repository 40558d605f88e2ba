/* SPDX-License-Identifier: MIT
 *
 * All ranks of a run must be given the same options. With another learning rate, seed or number of
 * steps on one rank the run is silently wrong, or hangs. File names may differ, for a file may lie
 * elsewhere on another machine, but all ranks must give one, or none.
 */
#ifndef TAMIS_BENCH_SAME_OPTIONS_H
#define TAMIS_BENCH_SAME_OPTIONS_H

#include "bench/common/group.h"

/** Collective: whether all ranks were given the same options. If not, rank 0 prints the first
 * option that differs, and the rank. */
bool bench_same_options(bench_group *group);

#endif
