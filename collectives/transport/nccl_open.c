/* SPDX-License-Identifier: MIT
 *
 * How a communicator over NCCL is created.
 */
#include "collectives/transport/nccl_comm.h"

#include "collectives/transport/bootstrap.h"
#include "collectives/transport/seal.h"

#include <tamis/nccl.h>

enum {
    VERSION_MIN = NCCL_VERSION(2, 18, 0),
    PIECES_BYTES = 16 << 20, /* of all ranks together; each piece stays within the next two */
    PIECE_MAX = 256 << 10,
    PIECE_MIN = 4 << 10
};

static size_t choose_piece(uint32_t nranks) {
    size_t share = PIECES_BYTES / nranks / PIECE_MIN * PIECE_MIN;
    return share > PIECE_MAX ? PIECE_MAX : share < PIECE_MIN ? PIECE_MIN : share;
}

/* The status of a failed call that only allocates, so nothing is lost. */
static tamis_status cuda_refused(const tam_nccl *self, cudaError_t code, const char *what) {
    bool absent = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                  code == cudaErrorStubLibrary;
    tamis_status status = tam_nccl_cuda_failed(self, code, what);
    return absent                              ? TAMIS_E_UNSUPPORTED
           : code == cudaErrorMemoryAllocation ? TAMIS_E_NOMEM
                                               : status;
}

static tamis_status take_device_memory(tam_nccl *self, size_t bytes) {
    cudaError_t code = cudaMalloc((void **)&self->memory, bytes);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "cudaMalloc");
    code = cudaMallocHost((void **)&self->pinned, bytes + self->room);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "cudaMallocHost");
    code = cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "cudaStreamCreateWithFlags");
    return TAMIS_OK;
}

/* Another thread of the caller may be capturing, which an allocation would end. */
static tamis_status take_buffers(tam_nccl *self) {
    tam_nccl_mode before;
    self->piece = choose_piece(self->nranks);
    self->room = self->piece + TAM_SEAL;
    size_t bytes = self->nranks * self->room;
    if (!tam_alltoall_scratch_open(self->nranks, self->piece, &self->runs))
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no memory for %zu bytes", self->rank, self->piece);
    cudaError_t code = cudaGetDevice(&self->device);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "no CUDA device");
    code = tam_nccl_enter(self, &before);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "entering the CUDA device");
    tamis_status status = take_device_memory(self, bytes);
    tam_nccl_leave(&before);
    return status;
}

_Static_assert(sizeof(ncclUniqueId) == TAM_TOKEN_BYTES, "NCCL's name for the group is the token");

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

/* What this rank can do without the others. */
static tamis_status prepare(const tamis_comm *bootstrap, const tamis_comm_config *config,
                            ncclUniqueId *id, tam_nccl **out) {
    uint64_t timeout_ns;
    tamis_status status = tam_comm_timeout(config, &timeout_ns);
    if (status != TAMIS_OK)
        return tam_fail(status, "rank %u: its tamis_comm_config is not valid", bootstrap->rank);
    TAM_TRY(tam_nccl_take(bootstrap->rank, bootstrap->nranks, timeout_ns, out));
    ncclResult_t code = bootstrap->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    return code == ncclSuccess ? TAMIS_OK : tam_nccl_failed(*out, code, "ncclGetUniqueId");
}

/* Takes half of the timeout; the rest is for exchanging the outcome. */
static tamis_status join_group(tam_nccl *self, const tamis_comm *bootstrap,
                               const ncclUniqueId *id) {
    uint64_t timeout_ns =
        self->timeout_ns < bootstrap->timeout_ns ? self->timeout_ns : bootstrap->timeout_ns;
    uint64_t now_ns = tam_clock_ns();
    tam_call call = {.deadline_ns = now_ns + timeout_ns / 2,
                     .poison = &bootstrap->poison,
                     .purpose = "tamis_comm_create_nccl",
                     .begin_ns = now_ns};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t code =
        ncclCommInitRankConfig(&self->comm, (int)self->nranks, *id, (int)self->rank, &config);
    TAM_TRY(tam_nccl_complete(self, code, "ncclCommInitRankConfig", &call));
    return tam_nccl_warm_up(self, &call);
}

static tamis_status join(tam_nccl *self, const tamis_comm *bootstrap, const ncclUniqueId *id) {
    tam_nccl_mode before;
    cudaError_t code = tam_nccl_enter(self, &before);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "entering the CUDA device");
    tamis_status status = join_group(self, bootstrap, id);
    tam_nccl_leave(&before);
    return status;
}

tamis_status tamis_comm_create_nccl(tamis_comm *bootstrap, const tamis_comm_config *config,
                                    tamis_comm **out) {
    tam_nccl *self = NULL;
    tamis_comm *comm = NULL;
    ncclUniqueId id = {{0}};
    if (!bootstrap)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_nccl: bootstrap is NULL");
    tamis_status status = out ? prepare(bootstrap, config, &id, &self)
                              : tam_fail(TAMIS_E_ARGUMENT, "rank %u: out is NULL", bootstrap->rank);
    status = tam_bootstrap(bootstrap, "tamis_comm_create_nccl", status, &id);
    if (status == TAMIS_OK) {
        status = join(self, bootstrap, &id);
        if (status == TAMIS_OK) {
            status =
                tam_comm_open(&tam_nccl_transport, self, self->rank, self->nranks, config, &comm);
            self = NULL; /* tam_comm_open has taken it, even on failure */
        }
        status = tam_bootstrap(bootstrap, "tamis_comm_create_nccl", status, &id);
    }
    if (status == TAMIS_OK) {
        *out = comm;
        return TAMIS_OK;
    }
    if (self)
        tam_nccl_close(self, 0);
    if (comm) /* another rank has none */
        tam_comm_lose(comm, status);
    tamis_comm_destroy(comm);
    return status;
}
