/* SPDX-License-Identifier: MIT
 *
 * cuda.h - the calls of tamis.h that take a stream, typed for CUDA. The library need not be built
 * with CUDA; the header is C11 and C++17.
 *
 *     cudaSetDevice(local_rank);
 *     tamis_comm_create_nccl(bootstrap, NULL, &comm);               (tamis/nccl.h)
 *     tamis_reducer_config cfg = TAMIS_REDUCER_CONFIG_INIT;
 *     cfg.device = TAMIS_DEVICE_CUDA;
 *     tamis_reducer_create(comm, layout, &cfg, &red);
 *     for (;;) {
 *         backward<<<..., stream>>>(grads);                          device memory
 *         tamis_cuda_reduce(red, grads, stream);                     enqueues, does not wait
 *         optimizer<<<..., stream>>>(params, grads);
 *     }
 */
#ifndef TAMIS_CUDA_H
#define TAMIS_CUDA_H

#include <cuda_runtime_api.h>
#include <tamis/tamis.h>

/** Describe a step over a flat gradient in device memory, produced on `stream`. */
static inline tamis_step tamis_cuda_step(void *grad, cudaStream_t stream) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    step.stream = stream;
    return step;
}

/** As tamis_reducer_join: work enqueued on `stream` after this call sees the result. */
static inline tamis_status tamis_cuda_join(tamis_reducer *reducer, cudaStream_t stream) {
    return tamis_reducer_join(reducer, stream);
}

/** A whole step in stream order: start, then join. Errors and ordering are those of both. */
static inline tamis_status tamis_cuda_reduce(tamis_reducer *reducer, void *grad,
                                             cudaStream_t stream) {
    tamis_step step = tamis_cuda_step(grad, stream);
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_join(reducer, stream) : status;
}

#endif
