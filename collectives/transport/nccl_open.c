/* SPDX-License-Identifier: MIT
 *
 * How a communicator of NCCL begins and ends.
 *
 * Ends. ncclCommAbort lets kernels that wait for other ranks run out; it joins threads and may
 * hang, so a thread of its own calls it and close waits for that thread no longer than END_NS.
 * From the moment it has begun nobody else touches the communicator: that is what the lock is for.
 */
#include "collectives/transport/nccl_comm.h"

#include "collectives/transport/meet.h"

#include <signal.h>
#include <tamis/nccl.h>

enum {
    VERSION_LEAST = NCCL_VERSION(2, 18, 0),
    PIECES_BYTES = 16 << 20, /* of all ranks together, but each piece within the next two */
    PIECE_MOST = 256 << 10,
    PIECE_LEAST = 4 << 10
};

#define HOLD_NS UINT64_C(500000000)
#define END_NS UINT64_C(5000000000) /* for an abort, and for a stream to run dry after it */

/* -- creation --------------------------------------------------------------------------------- */

static size_t choose_piece(uint32_t nranks) {
    size_t share = PIECES_BYTES / nranks / PIECE_LEAST * PIECE_LEAST;
    return share > PIECE_MOST ? PIECE_MOST : share < PIECE_LEAST ? PIECE_LEAST : share;
}

/* Of a call that makes something and has no other effect. */
static tamis_status cuda_refused(const tam_nccl *self, cudaError_t code, const char *what) {
    bool absent = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                  code == cudaErrorStubLibrary;
    tamis_status status = tam_nccl_cuda_failed(self, code, what);
    return absent                              ? TAMIS_E_UNSUPPORTED
           : code == cudaErrorMemoryAllocation ? TAMIS_E_NOMEM
                                               : status;
}

static tamis_status take_buffers(tam_nccl *self) {
    self->piece = choose_piece(self->nranks);
    size_t bytes = self->nranks * self->piece;
    if (!tam_alltoall_scratch_open(self->nranks, self->piece, &self->runs))
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no memory for %zu bytes", self->rank, self->piece);
    cudaError_t code = cudaGetDevice(&self->device);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "no CUDA device");
    code = cudaMalloc((void **)&self->memory, bytes);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "cudaMalloc");
    code = cudaMallocHost((void **)&self->pinned, bytes + self->piece);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "cudaMallocHost");
    code = cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return cuda_refused(self, code, "cudaStreamCreateWithFlags");
    return TAMIS_OK;
}

_Static_assert(sizeof(ncclUniqueId) == TAM_TOKEN_BYTES, "NCCL's name for the group is the token");

/* What can be done without the others. */
static tamis_status prepare(const tamis_comm *bootstrap, const tamis_comm_config *config,
                            ncclUniqueId *id, tam_nccl **out) {
    uint64_t timeout_ns;
    int version = 0;
    tamis_status status = tam_comm_timeout(config, &timeout_ns);
    if (status != TAMIS_OK)
        return tam_fail(status, "rank %u: its tamis_comm_config is not valid", bootstrap->rank);
    if (ncclGetVersion(&version) != ncclSuccess || version < VERSION_LEAST)
        return tam_fail(TAMIS_E_UNSUPPORTED, "rank %u: NCCL %d is older than %d (2.18)",
                        bootstrap->rank, version, VERSION_LEAST);
    tam_nccl *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no memory for a communicator", bootstrap->rank);
    self->rank = bootstrap->rank;
    self->nranks = bootstrap->nranks;
    self->timeout_ns = timeout_ns;
    if (pthread_mutex_init(&self->lock, NULL) != 0) {
        tam_free(self);
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no lock for a communicator", bootstrap->rank);
    }
    *out = self; /* from here on the caller's to close */
    TAM_TRY(take_buffers(self));
    ncclResult_t code = self->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    return code == ncclSuccess ? TAMIS_OK : tam_nccl_failed(self, code, "ncclGetUniqueId");
}

/* With half of the time: the rest is for telling each other how it went. */
static tamis_status join(tam_nccl *self, const tamis_comm *bootstrap, const ncclUniqueId *id) {
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

tamis_status tamis_comm_create_nccl(tamis_comm *bootstrap, const tamis_comm_config *config,
                                    tamis_comm **out) {
    tam_nccl *self = NULL;
    tamis_comm *comm = NULL;
    ncclUniqueId id = {{0}};
    if (!bootstrap)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_nccl: bootstrap is NULL");
    tamis_status status = out ? prepare(bootstrap, config, &id, &self)
                              : tam_fail(TAMIS_E_ARGUMENT, "rank %u: out is NULL", bootstrap->rank);
    status = tam_meet(bootstrap, "tamis_comm_create_nccl", status, &id);
    if (status == TAMIS_OK) {
        status = join(self, bootstrap, &id);
        if (status == TAMIS_OK) {
            status =
                tam_comm_open(&tam_nccl_transport, self, self->rank, self->nranks, config, &comm);
            self = NULL; /* it has been taken over, also on failure */
        }
        status = tam_meet(bootstrap, "tamis_comm_create_nccl", status, &id);
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

/* -- ends ------------------------------------------------------------------------------------- */

/* Until nothing of it is under way on any rank. */
static bool finalize(tam_nccl *self) {
    uint64_t deadline_ns = tam_clock_ns() + self->timeout_ns;
    ncclResult_t code = ncclCommFinalize(self->comm), state = code;
    for (unsigned tries = 0; code == ncclSuccess || code == ncclInProgress; tries++) {
        code = ncclCommGetAsyncError(self->comm, &state);
        if (code != ncclSuccess || state != ncclInProgress || tam_clock_ns() > deadline_ns)
            break;
        tam_relax(tries);
    }
    return code == ncclSuccess && state == ncclSuccess;
}

static void *end(void *arg) {
    tam_nccl *self = arg;
    cudaSetDevice(self->device);
    if (self->clean && finalize(self))
        ncclCommDestroy(self->comm);
    else
        ncclCommAbort(self->comm);
    atomic_store(&self->ended, true);
    return NULL;
}

/* Lock the communicator, unless it is already being given up. Whoever aborts must not wait for a
 * call that does not return. */
static bool hold_soon(tam_nccl *self) {
    uint64_t until_ns = tam_clock_ns() + HOLD_NS;
    for (unsigned tries = 0; pthread_mutex_trylock(&self->lock) != 0; tries++) {
        if (tam_clock_ns() > until_ns) {
            tam_log(TAM_WARN, "rank %u: a call of NCCL does not return, so nothing can be aborted",
                    self->rank);
            return false;
        }
        tam_relax(tries);
    }
    if (!self->ending)
        return true;
    pthread_mutex_unlock(&self->lock);
    return false;
}

/* Hand the communicator to a thread that ends it; nothing if that has begun. */
static void begin_end(tam_nccl *self, bool clean) {
    sigset_t all, before;
    if (!hold_soon(self))
        return;
    self->ending = true;
    self->clean = clean;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the caller's threads */
    self->helped = pthread_create(&self->helper, NULL, end, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&self->lock);
}

void tam_nccl_abort(void *arg) {
    begin_end(arg, false);
}

static bool await_end(tam_nccl *self) {
    uint64_t until_ns = tam_clock_ns() + END_NS + (self->clean ? self->timeout_ns : 0);
    if (!self->helped)
        return false;
    for (unsigned tries = 0; !atomic_load(&self->ended); tries++) {
        if (tam_clock_ns() > until_ns) {
            pthread_detach(self->helper);
            return false;
        }
        tam_relax(tries);
    }
    pthread_join(self->helper, NULL);
    until_ns = tam_clock_ns() + END_NS;
    for (unsigned tries = 0; tam_nccl_query(self) == cudaErrorNotReady; tries++) {
        if (tam_clock_ns() > until_ns)
            return false;
        tam_relax(tries);
    }
    return true;
}

static void free_all(tam_nccl *self) {
    if (self->stream)
        cudaStreamDestroy(self->stream);
    if (self->memory)
        cudaFree(self->memory);
    if (self->pinned)
        cudaFreeHost(self->pinned);
    pthread_mutex_destroy(&self->lock);
    tam_alltoall_scratch_close(&self->runs);
    tam_free(self);
}

void tam_nccl_close(void *arg, int clean) {
    tam_nccl *self = arg;
    tam_nccl_mode before;
    bool entered = tam_nccl_enter(self, &before) == cudaSuccess;
    if (self->comm)
        begin_end(self, clean);
    if (!self->comm || await_end(self))
        free_all(self);
    else
        tam_log(TAM_WARN,
                "rank %u: NCCL's communicator does not end; it stays, with %zu bytes of device "
                "memory",
                self->rank, self->nranks * self->piece);
    if (entered)
        tam_nccl_leave(&before);
}
