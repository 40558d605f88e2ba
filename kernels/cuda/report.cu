/* SPDX-License-Identifier: MIT
 *
 * The report of a step that has no control: of scheme dense.
 */
#include "kernels/cuda/report.cuh"

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) report(const tam_cuda_reporting job) {
    tam_report(job);
}

extern "C" int tam_launch_report(const tam_cuda_reporting *job, void *stream) {
    return tam_launch(report, 1, stream, *job);
}
