/* SPDX-License-Identifier: MIT
 *
 * Copies of a step's parameters to the device and of results back, in order of the row's stream.
 */
#include "kernels/cuda/row.h"

#include "lib/base/base.h"

#include <cuda_runtime_api.h>

tamis_status tam_cuda_send(const tam_cuda_row *row, const void *pinned, size_t bytes,
                           void *device) {
    TAM_CUDA_TRY(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, row->work.stream),
                 "writing parameters of a step");
    return TAMIS_OK;
}

tamis_status tam_cuda_fetch(const tam_cuda_row *row, const void *device, size_t bytes,
                            void *pinned) {
    TAM_CUDA_TRY(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, row->work.stream),
                 "reading results of a step");
    return TAMIS_OK;
}

tamis_status tam_cuda_target(tam_cuda_row *row, const tam_accumulate *job,
                             tam_cuda_accumulate *out) {
    const tam_cuda_device *d = &row->device;
    *out = (tam_cuda_accumulate){
        .grid = d->grid,
        .acc = job->acc,
        .source = job->grad || job->grads ? row->inbox.source : NULL,
        .seg_begin = d->seg_begin,
        .type = job->type,
        .clear = job->clear,
        .params = row->inbox.params,
        .thresholds = row->inbox.thresholds,
        .candidates = d->candidates,
        .found = d->found,
        .chunk_sums = d->chunk_sums,
        .group_sums = d->group_sums,
        .update = job->optimizer != NULL,
    };
    if (!out->source)
        return TAMIS_OK;
    *row->host.source = (tam_cuda_source){.grad = job->grad,
                                          .scale = job->scale,
                                          .decay = job->decay,
                                          .optimizer = tam_cuda_optimizer(job)};
    if (!job->grad) {
        size_t bytes = d->nsegments * sizeof job->grads[0];
        memcpy(row->host.grads, job->grads, bytes);
        row->host.source->grads = row->inbox.grads;
        TAM_TRY(tam_cuda_send(row, row->host.grads, bytes, row->inbox.grads));
    }
    return tam_cuda_send(row, row->host.source, sizeof *row->host.source, row->inbox.source);
}
