/* SPDX-License-Identifier: MIT
 *
 * Whether CUDA can be used here, and how: the one way from the reducer to the row. Python's _core
 * has another of it (python/src/cuda.c), which loads this folder when first asked.
 */
#include "kernels/cuda/cuda.h"

const char *tam_cuda_find(const tam_device **out) {
    const char *reason = tam_cuda_reason();
    *out = reason ? NULL : &tam_device_cuda;
    return reason;
}
