/* SPDX-License-Identifier: MIT
 *
 * What one rank's own passes take as ranks become more: accumulate, over all elements, and union,
 * of the entries of all ranks. The division among P ranks, and so the number of tiles, is that of P
 * ranks; only one rank runs.
 */
#ifndef TAMIS_BENCH_SCALE_PASSES_H
#define TAMIS_BENCH_SCALE_PASSES_H

#include "bench/scale/settings.h"

/** For each number of ranks. @return 0, or 1 after a message */
int scale_passes(const scale_settings *s);

#endif
