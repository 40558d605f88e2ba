/* SPDX-License-Identifier: MIT */
#include "bench/train/factors.h"

double factor_of(uint32_t rank, uint32_t ranks, uint32_t old, uint32_t olds) {
    uint32_t least = ranks < olds ? ranks : olds;
    if (rank % least != old % least)
        return 0.0;
    if (ranks <= olds)
        return (double)ranks / olds;
    uint32_t sharers = (ranks - old + olds - 1) / olds; /* old, old + olds, ... below ranks */
    return (double)ranks / olds / sharers;
}
