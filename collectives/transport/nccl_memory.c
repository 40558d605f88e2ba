/* SPDX-License-Identifier: MIT
 *
 * What a communicator over NCCL holds: taken before NCCL makes it, freed once it has ended.
 */
#include "collectives/transport/nccl_comm.h"

#include "collectives/transport/unseal.h"

enum {
    VERSION_MIN = NCCL_VERSION(2, 18, 0),
    PIECES_BYTES = 16 << 20, /* of all ranks together; each piece stays within the next two */
    PIECE_MAX = 256 << 10,
    PIECE_MIN = 4 << 10
};

static size_t choose_piece(uint32_t nranks) {
    size_t each = PIECES_BYTES / nranks / PIECE_MIN * PIECE_MIN;
    return each > PIECE_MAX ? PIECE_MAX : each < PIECE_MIN ? PIECE_MIN : each;
}

static tamis_status take_device_memory(tam_nccl *self, size_t bytes) {
    cudaError_t code = cudaMalloc((void **)&self->memory, bytes);
    if (code != cudaSuccess)
        return tam_nccl_cuda_refused(self, code, "cudaMalloc");
    code = cudaMallocHost((void **)&self->pinned, bytes + self->capacity);
    if (code != cudaSuccess)
        return tam_nccl_cuda_refused(self, code, "cudaMallocHost");
    code = cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return tam_nccl_cuda_refused(self, code, "cudaStreamCreateWithFlags");
    return TAMIS_OK;
}

/* Another thread of the caller may be capturing, which an allocation would end. */
static tamis_status take_buffers(tam_nccl *self) {
    tam_nccl_mode before;
    self->piece = choose_piece(self->nranks);
    self->capacity = self->piece + TAM_SEAL;
    size_t bytes = self->nranks * self->capacity;
    if (!tam_alltoall_scratch_open(self->nranks, self->piece, &self->runs))
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no memory for %zu bytes", self->rank, self->piece);
    cudaError_t code = cudaGetDevice(&self->device);
    if (code != cudaSuccess)
        return tam_nccl_cuda_refused(self, code, "no CUDA device");
    code = tam_nccl_enter(self, &before);
    if (code != cudaSuccess)
        return tam_nccl_cuda_refused(self, code, "entering the CUDA device");
    tamis_status status = take_device_memory(self, bytes);
    tam_nccl_leave(&before);
    return status;
}

tamis_status tam_nccl_take(uint32_t rank, uint32_t nranks, uint64_t timeout_ns, tam_nccl **out) {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version < VERSION_MIN)
        return tam_fail(TAMIS_E_UNSUPPORTED, "rank %u: NCCL %d is older than %d (2.18)", rank,
                        version, VERSION_MIN);
    tam_nccl *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no memory for a communicator", rank);
    self->rank = rank;
    self->nranks = nranks;
    self->version = version;
    self->timeout_ns = timeout_ns;
    if (pthread_mutex_init(&self->lock, NULL) != 0) {
        tam_free(self);
        return tam_fail(TAMIS_E_NOMEM, "rank %u: cannot create a lock for a communicator", rank);
    }
    *out = self;
    return take_buffers(self);
}

void tam_nccl_free(tam_nccl *self) {
    if (self->stream)
        cudaStreamDestroy(self->stream);
    if (self->memory)
        cudaFree(self->memory);
    if (self->pinned)
        cudaFreeHost(self->pinned);
    pthread_mutex_destroy(&self->lock);
    tam_alltoall_scratch_close(&self->runs);
    tam_free(self->parting.excluded);
    tam_free(self);
}
