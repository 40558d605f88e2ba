/* SPDX-License-Identifier: MIT
 *
 * In a body of a rank that uses CUDA: beside what tests/support/ranks.h has.
 */
#ifndef TEST_CUDA_RANK_H
#define TEST_CUDA_RANK_H

#include "tests/support/ranks.h"
#include <cuda_runtime_api.h>

#define RANK_CUDA(self, call)                                                                      \
    RANK_CHECK(self, (call) == cudaSuccess, "%s: %s", #call, cudaGetErrorName(cudaGetLastError()))

/* Until all ranks have come here. */
#define RANK_MEET(self) RANK_CHECK(self, rank_barrier(self), "a rank has left")

#endif
