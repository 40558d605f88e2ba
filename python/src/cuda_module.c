/* SPDX-License-Identifier: MIT
 *
 * tamis/_cuda.so: the device CUDA, its kernels and the CUDA runtime, for _core.
 */
#include "device_calls.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

/* The runtime's own words blame a driver that is too old where there is none. It takes any driver
 * of its own major version or a later one. */
static const char *reason(void) {
    static _Thread_local char words[200];
    int driver = 0, runtime = CUDART_VERSION / 1000;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return "there is no CUDA device: no driver is installed (libcuda.so.1)";
    if (driver == 0 || driver / 1000 >= runtime)
        return tam_cuda_reason();
    (void)snprintf(
        words, sizeof words,
        "the driver is of CUDA %d.%d, but tamis was built with CUDA %d.%d: install a newer "
        "driver, or build tamis with nvcc %d",
        driver / 1000, driver % 1000 / 10, runtime, CUDART_VERSION % 1000 / 10, driver / 1000);
    return words;
}

#define ENTRY(result, name, parameters, arguments) .name = name,

TAMIS_API const tam_python_cuda tam_python_cuda_table = {.size = sizeof(tam_python_cuda),
                                                         .version = TAMIS_VERSION,
                                                         .reason = reason,
                                                         .row = &tam_device_cuda,
                                                         .tam_cuda_version = tam_cuda_version,
                                                         .tam_cuda_step_close = tam_cuda_step_close,
                                                         TAM_CUDA_CALLS(ENTRY)};
