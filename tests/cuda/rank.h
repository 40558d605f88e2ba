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
#define RANK_BARRIER(self) RANK_CHECK(self, rank_barrier(self), "a rank has left")

/* Whether the last sentence of the library has one of the words. */
#define RANK_SAYS(self, words)                                                                     \
    RANK_CHECK(self, has_word(tamis_last_error(), words), "it says: %s", tamis_last_error())

#endif
