/* SPDX-License-Identifier: MIT
 *
 * Named ranges of the host's launches, for profilers that show NVTX. Without its headers: nothing.
 */
#ifndef TAM_CUDA_RANGE_H
#define TAM_CUDA_RANGE_H

#ifdef TAM_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>

static inline void tam_cuda_range_begin(const char *name) {
    (void)nvtxRangePushA(name);
}

static inline void tam_cuda_range_end(void) {
    (void)nvtxRangePop();
}

#else

static inline void tam_cuda_range_begin(const char *name) {
    (void)name;
}

static inline void tam_cuda_range_end(void) {}

#endif

#endif
