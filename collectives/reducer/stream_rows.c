/* SPDX-License-Identifier: MIT
 *
 * The ways in which a device runs the steps of a bucket by itself, a row each: what is opened,
 * which collectives are enqueued, with which phases between them, and the bytes they send.
 */
#include "collectives/reducer/reducer.h"

#ifdef TAM_HAVE_CUDA

#include "collectives/reducer/stream.h"

/* -- collectives ------------------------------------------------------------------------------ */

static tamis_status gather_packets(const tamis_comm *comm, const tam_cuda_comm_buffers *buffers) {
    return comm->transport->stream->allgather(comm->self, &buffers->among, buffers->packet_bytes,
                                              buffers->packets, buffers->stream);
}

static tamis_status bring_values(const tamis_comm *comm, const tam_cuda_comm_buffers *buffers) {
    return comm->transport->stream->alltoall(comm->self, &buffers->among, buffers->values,
                                             buffers->shard_bytes, buffers->shards,
                                             buffers->stream);
}

static tamis_status stream_rows_gather_sums(const tamis_comm *comm,
                                            const tam_cuda_comm_buffers *buffers) {
    return comm->transport->stream->allgather(comm->self, &buffers->among, buffers->sum_bytes,
                                              buffers->sums, buffers->stream);
}

static tamis_status enqueue_packets(void *context, tam_cuda_step *step) {
    const tamis_comm *comm = context;
    const tam_cuda_comm_buffers *buffers = tam_cuda_step_buffers(step);
    TAM_TRY(gather_packets(comm, buffers));
    TAM_TRY(tam_cuda_step_union(step));
    if (buffers->shard_bytes == 0)
        return TAMIS_OK;
    TAM_TRY(bring_values(comm, buffers));
    TAM_TRY(tam_cuda_step_add(step));
    return stream_rows_gather_sums(comm, buffers);
}

static tamis_status sum_values(const tamis_comm *comm, const tam_cuda_comm_buffers *buffers) {
    return comm->transport->stream->allreduce(comm->self,
                                              (const float *)(const void *)buffers->values,
                                              comm->nranks * buffers->shard_bytes / sizeof(float),
                                              (float *)(void *)buffers->shards, buffers->stream);
}

static tamis_status enqueue_comm(void *context, const tam_cuda_comm_buffers *buffers,
                                 tam_cuda_comm_phase phase) {
    static tamis_status (*const phases[TAM_CUDA_COMM_PHASES])(const tamis_comm *,
                                                              const tam_cuda_comm_buffers *) = {
        [TAM_CUDA_PACKETS] = gather_packets,
        [TAM_CUDA_SHARDS] = bring_values,
        [TAM_CUDA_SUMS] = stream_rows_gather_sums,
        [TAM_CUDA_VALUES] = sum_values,
    };
    return phases[phase](context, buffers);
}

static tamis_status enqueue_dense(void *context, tam_cuda_step *step) {
    return tam_cuda_dense_reduce(step, enqueue_comm, context);
}

static tamis_status enqueue_in_nodes(void *context, tam_cuda_step *step) {
    return tam_cuda_node_exchange(step, enqueue_comm, enqueue_packets, context);
}

/* The collectives of a step with nothing between them. */
static tamis_status warm_up_packets(void *context, tam_cuda_step *step) {
    const tam_cuda_comm_buffers *buffers = tam_cuda_step_buffers(step);
    TAM_TRY(gather_packets(context, buffers));
    if (buffers->shard_bytes == 0)
        return TAMIS_OK;
    TAM_TRY(bring_values(context, buffers));
    return stream_rows_gather_sums(context, buffers);
}

static tamis_status warm_up_dense(void *context, tam_cuda_step *step) {
    return tam_cuda_dense_warm_up(step, enqueue_comm, context);
}

static tamis_status warm_up_in_nodes(void *context, tam_cuda_step *step) {
    return tam_cuda_node_warm_up(step, enqueue_comm, warm_up_packets, context);
}

/* -- what is sent ----------------------------------------------------------------------------- */

static tam_cuda_step *step_of(const tam_bucket *b) {
    return b->reducer->inflight->steps[b->view.index];
}

/* Bytes sent in a step, or for a piece of it. What a sum of the transport's own sends is not known;
 * this is what a ring would. */
static uint64_t buffer_bytes(const tam_cuda_comm_buffers *buffers) {
    return (buffers->among.count - 1) *
           (buffers->packet_bytes + buffers->shard_bytes + buffers->sum_bytes);
}

static uint64_t dense_bytes(const tam_bucket *b) {
    const tam_cuda_step *step = step_of(b);
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < tam_cuda_dense_pieces(step); p++) {
        tam_cuda_comm_buffers buffers = tam_cuda_dense_buffers(step, p);
        bytes += buffer_bytes(&buffers);
    }
    return bytes;
}

static uint64_t bytes_of_packets(const tam_bucket *b) {
    return buffer_bytes(tam_cuda_step_buffers(step_of(b)));
}

static uint64_t node_bytes(const tam_bucket *b) {
    return bytes_of_packets(b) + tam_cuda_node_bytes(step_of(b));
}

/* -- rows ------------------------------------------------------------------------------------- */

static const tam_stream_row rows[TAM_ON_DEVICE_ROW_COUNT] = {
    [TAM_ON_DEVICE_DENSE] = {tam_stream_open_dense, NULL, dense_bytes, enqueue_dense,
                             warm_up_dense},
    [TAM_ON_DEVICE_PACKETS] = {tam_stream_open_sparse, tam_stream_resize, bytes_of_packets,
                               enqueue_packets, warm_up_packets},
    [TAM_ON_DEVICE_ROWS] = {tam_stream_open_sparse, NULL, bytes_of_packets, enqueue_packets,
                            warm_up_packets},
    [TAM_ON_DEVICE_NODES] = {tam_stream_open_sparse, tam_stream_resize, node_bytes,
                             enqueue_in_nodes, warm_up_in_nodes},
};

const tam_stream_row *tam_stream_row_of(const tam_bucket *b) {
    return &rows[b->exchange->on_device];
}

#endif
