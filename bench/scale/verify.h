/* SPDX-License-Identifier: MIT
 *
 * Steps over MPI, against what tamis_scale predicts for them.
 */
#ifndef TAMIS_BENCH_SCALE_VERIFY_H
#define TAMIS_BENCH_SCALE_VERIFY_H

#include "bench/common/group.h"
#include "bench/scale/settings.h"

/** Every rank. @param  context  the settings @return 1 if bytes differ by more than 5 % on any */
int scale_verify(bench_group *group, void *context);

#endif
