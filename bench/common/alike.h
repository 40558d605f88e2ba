/* SPDX-License-Identifier: MIT
 *
 * All ranks of a run must be given the same options: with another learning rate, seed or number of
 * steps on one rank a run is wrong without a word, or stands still. Names of files may differ, for
 * a file may lie elsewhere on another machine; whether there is one may not.
 */
#ifndef TAMIS_BENCH_ALIKE_H
#define TAMIS_BENCH_ALIKE_H

#include "bench/common/group.h"

/** Collective: whether all ranks were given the same. If not, the first rank says which option
 * differs first, and where. */
bool bench_alike(bench_group *group);

#endif
