/* SPDX-License-Identifier: MIT */
#ifndef TAMIS_BENCH_GROUP_LOCAL_H
#define TAMIS_BENCH_GROUP_LOCAL_H

#include "bench/common/group.h"

/** Run `body` on `ranks` threads. @return the largest status of a rank */
int bench_local_launch(uint32_t ranks, bench_main body, void *context);

#endif
