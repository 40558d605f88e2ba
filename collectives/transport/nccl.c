/* SPDX-License-Identifier: MIT
 *
 * The transport over NCCL; only nccl*.[ch] call NCCL. Here are its collectives; nccl_open.c creates
 * a communicator, nccl_end.c ends it, nccl_shrink.c goes on with fewer ranks, nccl_call.c has what
 * all calls need.
 *
 * The communicator is nonblocking: a call returns at once and is then polled until NCCL reports
 * that it is enqueued, so no call can hold us beyond its deadline. Exchanges of device memory run
 * on the caller's stream. Exchanges of host memory pass through our own pinned and device memory, a
 * piece at a time, on our own stream, which is polled too (two ranks, seen on rank 0):
 *
 *     pinned   | a |   |   |            | a | a | b |
 *                |                            ^   ^      stream: copy, all-gather in place, copy
 *     device       | a |   |  --------->  | a | b |
 *
 * A hash goes with each piece all the way (lib/base/hash.h). NCCL holds memory of the caller's only
 * for work on the caller's streams.
 *
 * NCCL does not compare sizes between ranks: different sizes hang (the deadline ends that) or give
 * wrong bytes, which the headers and checksums of the exchanges find.
 */
#include "collectives/transport/nccl_comm.h"

#include "collectives/transport/unseal.h"
#include "collectives/transport/sum.h"
#include "lib/transport/wait.h"

/* -- collectives on device memory ------------------------------------------------------------- */

static tamis_status gather_on(tam_nccl *self, const void *send, size_t bytes, void *recv,
                              cudaStream_t stream, const tam_call *call) {
    if (!tam_nccl_hold(self))
        return tam_nccl_over(self);
    ncclResult_t code = ncclAllGather(send, recv, bytes, ncclUint8, self->comm, stream);
    tam_nccl_let_go(self);
    return tam_nccl_complete(self, code, "ncclAllGather", call);
}

static tamis_status reduce_on(tam_nccl *self, const float *send, size_t count, float *recv,
                              cudaStream_t stream, const tam_call *call) {
    if (!tam_nccl_hold(self))
        return tam_nccl_over(self);
    ncclResult_t code = ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, self->comm, stream);
    tam_nccl_let_go(self);
    return tam_nccl_complete(self, code, "ncclAllReduce", call);
}

static bool accepted(ncclResult_t code) {
    return code == ncclSuccess || code == ncclInProgress;
}

static int rank_of(const tam_members *among, uint32_t member) {
    return (int)(among->first + member * among->stride);
}

/* What every member gets of a buffer: each a part of its own, or all the same one. */
typedef struct outgoing {
    const char *first;
    size_t stride; /* bytes from a member's to the next one's */
} outgoing;

/* One send and one receive for every other member, starting with the neighbours. */
static ncclResult_t post_all(tam_nccl *self, const tam_members *among, outgoing send, size_t bytes,
                             char *recv, cudaStream_t stream) {
    ncclResult_t code = ncclSuccess;
    uint32_t count = among->count, own = among->member;
    for (uint32_t d = 1; d < count && accepted(code); d++) {
        uint32_t right = (own + d) % count, left = (own + count - d) % count;
        code = ncclSend(send.first + right * send.stride, bytes, ncclUint8, rank_of(among, right),
                        self->comm, stream);
        if (accepted(code))
            code = ncclRecv(recv + left * bytes, bytes, ncclUint8, rank_of(among, left), self->comm,
                            stream);
    }
    return code;
}

/* NCCL itself gathers among all ranks of a communicator only. */
static tamis_status post_on(tam_nccl *self, const tam_members *among, outgoing send, size_t bytes,
                            char *recv, cudaStream_t stream, const tam_call *call) {
    if (among->count == 1)
        return TAMIS_OK;
    if (!tam_nccl_hold(self))
        return tam_nccl_over(self);
    ncclResult_t code = ncclGroupStart();
    if (code == ncclSuccess) {
        code = post_all(self, among, send, bytes, recv, stream);
        ncclResult_t end = ncclGroupEnd(); /* even after an error: the group is the thread's */
        code = accepted(code) ? end : code;
    }
    tam_nccl_let_go(self);
    return tam_nccl_complete(self, code, "ncclSend and ncclRecv", call);
}

static tamis_status exchange_on(tam_nccl *self, const tam_members *among, const char *send,
                                size_t bytes, char *recv, cudaStream_t stream,
                                const tam_call *call) {
    size_t own = among->member * bytes;
    cudaError_t copied =
        cudaMemcpyAsync(recv + own, send + own, bytes, cudaMemcpyDeviceToDevice, stream);
    if (copied != cudaSuccess)
        return tam_nccl_cuda_failed(self, copied, "copying this rank's shard");
    return post_on(self, among, (outgoing){send, bytes}, bytes, recv, stream, call);
}

/* -- the row for streams ---------------------------------------------------------------------- */

static const atomic_int no_poison;

/* Before the call: an abort meanwhile must know. An error means a capture, too. */
static void record_capture(tam_nccl *self, cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (!atomic_load(&self->captured) && (cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
                                          status != cudaStreamCaptureStatusNone))
        atomic_store(&self->captured, true);
}

static tam_call limit_now(const tam_nccl *self) {
    uint64_t now_ns = tam_clock_ns();
    return (tam_call){
        .deadline_ns = now_ns + self->timeout_ns, .poison = &no_poison, .begin_ns = now_ns};
}

static tamis_status nccl_stream_allgather(void *arg, const tam_members *among, size_t bytes,
                                          void *recv, void *stream) {
    tam_nccl *self = arg;
    tam_call call = limit_now(self);
    const char *own = (const char *)recv + among->member * bytes;
    record_capture(self, stream);
    if (bytes == 0)
        return TAMIS_OK;
    if (among->count == self->nranks)
        return gather_on(self, own, bytes, recv, stream, &call);
    return post_on(self, among, (outgoing){own, 0}, bytes, recv, stream, &call);
}

static tamis_status nccl_stream_alltoall(void *arg, const tam_members *among, const void *send,
                                         size_t bytes, void *recv, void *stream) {
    tam_nccl *self = arg;
    tam_call call = limit_now(self);
    record_capture(self, stream);
    return bytes == 0 ? TAMIS_OK : exchange_on(self, among, send, bytes, recv, stream, &call);
}

static tamis_status nccl_stream_allreduce(void *arg, const float *send, size_t count, float *recv,
                                          void *stream) {
    tam_nccl *self = arg;
    tam_call call = limit_now(self);
    record_capture(self, stream);
    return count == 0 ? TAMIS_OK : reduce_on(self, send, count, recv, stream, &call);
}

static tamis_status poll_nccl(void *arg) {
    bool busy;
    return tam_nccl_look(arg, "work on a stream", &busy);
}

const tam_stream_transport tam_nccl_stream = {
    .allgather = nccl_stream_allgather,
    .alltoall = nccl_stream_alltoall,
    .allreduce = nccl_stream_allreduce,
    .poll = poll_nccl,
};

/* -- from and to host memory ------------------------------------------------------------------ */

/* All-gather `bytes` of every rank, at most `capacity`, within pinned memory. */
static tamis_status nccl_send_piece(tam_nccl *self, size_t bytes, const tam_call *call) {
    char *own = self->memory + self->rank * bytes;
    cudaError_t code =
        cudaMemcpyAsync(own, self->pinned, bytes, cudaMemcpyHostToDevice, self->stream);
    if (code != cudaSuccess)
        return tam_nccl_cuda_failed(self, code, "copying to the device");
    TAM_TRY(gather_on(self, own, bytes, self->memory, self->stream, call));
    code = cudaMemcpyAsync(self->pinned + self->capacity, self->memory, self->nranks * bytes,
                           cudaMemcpyDeviceToHost, self->stream);
    if (code != cudaSuccess)
        return tam_nccl_cuda_failed(self, code, "copying from the device");
    return tam_nccl_await_stream(self, "ncclAllGather", call);
}

/* After a failure, abort at once: kernels that still wait for other ranks would block the next
 * thread that frees device memory. */
tamis_status tam_nccl_gather_piece(void *arg, const void *send, size_t bytes, const void **out,
                                   tam_call *call) {
    tam_nccl *self = arg;
    tam_nccl_mode before;
    TAM_TRY(tam_nccl_have_patience(self, "ncclAllGather", call));
    cudaError_t code = tam_nccl_enter(self, &before);
    if (code != cudaSuccess)
        return tam_nccl_cuda_failed(self, code, "choosing the device");
    memcpy(self->pinned, send, bytes);
    tam_seal(self->pinned, bytes);
    tamis_status status = nccl_send_piece(self, bytes + TAM_SEAL, call);
    tam_nccl_leave(&before);
    if (status != TAMIS_OK)
        tam_nccl_abort(self, status, "");
    call->wire_bytes += (uint64_t)(bytes + TAM_SEAL) * (self->nranks - 1);
    TAM_TRY(status);
    char *received = self->pinned + self->capacity;
    *out = received;
    return tam_unseal(self->rank, self->nranks, bytes, "ncclAllGather", received);
}

tamis_status tam_nccl_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                tam_call *call) {
    tam_nccl *self = arg;
    for (size_t at = 0; at < bytes; at += self->piece) {
        size_t length = bytes - at < self->piece ? bytes - at : self->piece;
        const void *received;
        TAM_TRY(tam_nccl_gather_piece(self, (const char *)send + at, length, &received, call));
        for (uint32_t r = 0; r < self->nranks; r++)
            memcpy((char *)recv + r * bytes + at, (const char *)received + r * length, length);
    }
    return TAMIS_OK;
}

tamis_status tam_nccl_allreduce_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_nccl *self = arg;
    return tam_sum_by_gather(tam_nccl_gather_piece, self, self->nranks,
                             self->piece / sizeof values[0], values, count, call);
}

tamis_status tam_nccl_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                               const size_t *recv_at, tam_call *call) {
    tam_nccl *self = arg;
    return tam_alltoall_by_gather(tam_nccl_gather_piece, self, self->rank, self->nranks,
                                  &self->runs, send, send_at, recv, recv_at, call);
}

/* -- the first time --------------------------------------------------------------------------- */

/* NCCL connects ranks at their first use, which must not happen in a stream capture: run every kind
 * of collective once, short and long. */
tamis_status tam_nccl_warm_up(tam_nccl *self, tam_call *call) {
    const void *received;
    const tam_members all = {0, 1, self->nranks, self->rank};
    size_t half = self->piece / 2;
    char *to = self->memory + self->nranks * half;
    TAM_TRY(tam_nccl_gather_piece(self, self->pinned + self->capacity, 1, &received, call));
    TAM_TRY(
        tam_nccl_gather_piece(self, self->pinned + self->capacity, self->piece, &received, call));
    TAM_TRY(exchange_on(self, &all, self->memory, half, to, self->stream, call));
    return tam_nccl_await_stream(self, "the first exchange", call);
}
