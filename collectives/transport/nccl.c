/* SPDX-License-Identifier: MIT
 *
 * NCCL: the only file of the library that knows it.
 *
 * The communicator is nonblocking: a call returns at once and is then polled until NCCL says that
 * it has been enqueued, so that no call can hold us beyond its deadline. What travels from device
 * memory runs on the caller's stream. What travels from host memory goes through pinned and device
 * memory of our own, a piece at a time, on a stream of our own that is polled too (two ranks,
 * seen on rank 0):
 *
 *     pinned   | a |   |   |            | a | a | b |
 *                |                            ^   ^      stream: copy, all-gather in place, copy
 *     device       | a |   |  --------->  | a | b |
 *
 * So NCCL never holds memory of the caller's but for work on his streams.
 *
 * NCCL does not compare what ranks ask for: sizes that differ hang (the deadline) or give wrong
 * bytes, which the callers' headers and checksums find.
 *
 * Ends. ncclCommAbort lets kernels that wait for other ranks run out; it joins threads and may
 * hang, so a thread of its own calls it and close waits for that thread no longer than END_NS.
 * From the moment it has begun nobody else touches the communicator: that is what the lock is for.
 */
#include "lib/base/base.h"
#include "collectives/transport/meet.h"
#include "collectives/transport/sum.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <tamis/nccl.h>

enum {
    VERSION_LEAST = NCCL_VERSION(2, 18, 0),
    PIECES_BYTES = 16 << 20, /* of all ranks together, but each piece within the next two */
    PIECE_MOST = 256 << 10,
    PIECE_LEAST = 4 << 10
};

#define HOLD_NS UINT64_C(500000000)
#define END_NS UINT64_C(5000000000) /* for an abort, and for a stream to run dry after it */

typedef struct nccl {
    uint32_t rank, nranks;
    int device;
    uint64_t timeout_ns;
    cudaStream_t stream; /* for what comes from host memory */
    size_t piece;        /* bytes that a rank gives at a time */
    char *pinned;        /* [(1 + nranks) * piece] what goes | what comes */
    char *memory;        /* [nranks * piece] on the device */

    pthread_mutex_t lock; /* of comm while not `ending`: abort may come from any thread */
    ncclComm_t comm;      /* NCCL's threads write it too, until its creation has ended */
    bool ending;
    bool clean;       /* end by finalizing */
    pthread_t helper; /* if `helped` */
    bool helped;
    atomic_bool ended;
} nccl;

/* -- words ------------------------------------------------------------------------------------ */

static tamis_status nccl_failed(const nccl *self, ncclResult_t code, const char *what) {
    const char *words = ncclGetLastError(NULL);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %u: %s: %s%s%.160s (NCCL_DEBUG=WARN says more)",
                    self->rank, what, ncclGetErrorString(code), words && *words ? "; " : "",
                    words ? words : "");
}

static tamis_status cuda_failed(const nccl *self, cudaError_t code, const char *what) {
    return tam_fail(TAMIS_E_DEVICE, "rank %u: %s: %s (%s)", self->rank, what,
                    cudaGetErrorString(code), cudaGetErrorName(code));
}

/* Of a call that makes something and has no other effect. */
static tamis_status cuda_refused(const nccl *self, cudaError_t code, const char *what) {
    bool absent = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                  code == cudaErrorStubLibrary;
    tamis_status status = cuda_failed(self, code, what);
    return absent                              ? TAMIS_E_UNSUPPORTED
           : code == cudaErrorMemoryAllocation ? TAMIS_E_NOMEM
                                               : status;
}

static tamis_status over(const nccl *self) {
    return tam_fail(TAMIS_E_ABORTED, "rank %u: the communicator was given up", self->rank);
}

/* -- polling ---------------------------------------------------------------------------------- */

/* Lock the communicator, unless it is already being given up. */
static bool hold(nccl *self) {
    pthread_mutex_lock(&self->lock);
    if (!self->ending)
        return true;
    pthread_mutex_unlock(&self->lock);
    return false;
}

static void let_go(nccl *self) {
    pthread_mutex_unlock(&self->lock);
}

/* What NCCL says of everything so far: nothing wrong, or still `busy` with the last call. */
static tamis_status look(nccl *self, const char *what, bool *busy) {
    ncclResult_t state = ncclSuccess;
    if (!hold(self))
        return over(self);
    ncclResult_t code = ncclCommGetAsyncError(self->comm, &state);
    let_go(self);
    if (code == ncclSuccess)
        code = state;
    *busy = code == ncclInProgress;
    return code == ncclSuccess || *busy ? TAMIS_OK : nccl_failed(self, code, what);
}

static tamis_status have_patience(const nccl *self, const char *what, const tam_call *call) {
    tamis_status poison = (tamis_status)atomic_load(call->poison);
    if (poison != TAMIS_OK)
        return tam_fail(poison, "rank %u stopped waiting in %s", self->rank, what);
    if (tam_clock_ns() > call->deadline_ns)
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u waited until its deadline in %s: a rank is missing, or the ranks "
                        "made different calls",
                        self->rank, what);
    return TAMIS_OK;
}

/* A call that gave `code` is enqueued when this returns. */
static tamis_status complete(nccl *self, ncclResult_t code, const char *what,
                             const tam_call *call) {
    bool busy = code == ncclInProgress;
    if (code != ncclSuccess && !busy)
        return nccl_failed(self, code, what);
    for (unsigned tries = 0; busy; tries++) {
        TAM_TRY(look(self, what, &busy));
        if (!busy)
            break;
        TAM_TRY(have_patience(self, what, call));
        tam_relax(tries);
    }
    return TAMIS_OK;
}

static cudaError_t query(const nccl *self) {
    cudaError_t code = cudaStreamQuery(self->stream);
    if (code == cudaErrorNotReady)
        (void)cudaGetLastError(); /* no error, but remembered as one */
    return code;
}

/* Until our stream is empty. The last look tells whether what came is what was sent: an abort or an
 * error empties the stream as well. */
static tamis_status await_stream(nccl *self, const char *what, const tam_call *call) {
    for (unsigned tries = 0;; tries++) {
        bool busy;
        cudaError_t code = query(self);
        TAM_TRY(look(self, what, &busy));
        if (code != cudaSuccess && code != cudaErrorNotReady)
            return cuda_failed(self, code, what);
        TAM_TRY(have_patience(self, what, call));
        if (code == cudaSuccess)
            return TAMIS_OK;
        tam_relax(tries);
    }
}

/* -- collectives on device memory ------------------------------------------------------------- */

static tamis_status gather_on(nccl *self, const void *send, size_t bytes, void *recv,
                              cudaStream_t stream, const tam_call *call) {
    if (!hold(self))
        return over(self);
    ncclResult_t code = ncclAllGather(send, recv, bytes, ncclUint8, self->comm, stream);
    let_go(self);
    return complete(self, code, "ncclAllGather", call);
}

static bool accepted(ncclResult_t code) {
    return code == ncclSuccess || code == ncclInProgress;
}

/* One send and one receive for every other rank, starting with the neighbours. */
static ncclResult_t post_all(nccl *self, const char *send, size_t bytes, char *recv,
                             cudaStream_t stream) {
    ncclResult_t code = ncclSuccess;
    for (uint32_t d = 1; d < self->nranks && accepted(code); d++) {
        uint32_t right = (self->rank + d) % self->nranks;
        uint32_t left = (self->rank + self->nranks - d) % self->nranks;
        code = ncclSend(send + right * bytes, bytes, ncclUint8, (int)right, self->comm, stream);
        if (accepted(code))
            code = ncclRecv(recv + left * bytes, bytes, ncclUint8, (int)left, self->comm, stream);
    }
    return code;
}

static tamis_status exchange_on(nccl *self, const char *send, size_t bytes, char *recv,
                                cudaStream_t stream, const tam_call *call) {
    size_t own = self->rank * bytes;
    cudaError_t copied =
        cudaMemcpyAsync(recv + own, send + own, bytes, cudaMemcpyDeviceToDevice, stream);
    if (copied != cudaSuccess)
        return cuda_failed(self, copied, "copying the own share");
    if (self->nranks == 1)
        return TAMIS_OK;
    if (!hold(self))
        return over(self);
    ncclResult_t code = ncclGroupStart();
    if (code == ncclSuccess) {
        code = post_all(self, send, bytes, recv, stream);
        ncclResult_t end = ncclGroupEnd(); /* also after an error: the group is the thread's */
        code = accepted(code) ? end : code;
    }
    let_go(self);
    return complete(self, code, "ncclSend and ncclRecv", call);
}

/* -- the row for streams ---------------------------------------------------------------------- */

static const atomic_int no_poison;

static tam_call limit_now(const nccl *self) {
    return (tam_call){.deadline_ns = tam_clock_ns() + self->timeout_ns, .poison = &no_poison};
}

static tamis_status stream_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                     void *stream) {
    nccl *self = arg;
    tam_call call = limit_now(self);
    return bytes == 0 ? TAMIS_OK : gather_on(self, send, bytes, recv, stream, &call);
}

static tamis_status stream_alltoall(void *arg, const void *send, size_t bytes, void *recv,
                                    void *stream) {
    nccl *self = arg;
    tam_call call = limit_now(self);
    return bytes == 0 ? TAMIS_OK : exchange_on(self, send, bytes, recv, stream, &call);
}

static tamis_status poll_nccl(void *arg) {
    bool busy;
    return look(arg, "work on a stream", &busy);
}

static const tam_stream_transport stream_row = {
    .allgather = stream_allgather,
    .alltoall = stream_alltoall,
    .poll = poll_nccl,
};

/* -- from and to host memory ------------------------------------------------------------------ */

/* The thread's device and capture mode: our calls must not break a capture of the caller's. */
typedef struct mode {
    int device, ours;
    enum cudaStreamCaptureMode capture;
} mode;

static cudaError_t enter(const nccl *self, mode *before) {
    before->capture = cudaStreamCaptureModeRelaxed;
    before->ours = self->device;
    cudaError_t code = cudaGetDevice(&before->device);
    if (code == cudaSuccess && before->device != self->device)
        code = cudaSetDevice(self->device);
    if (code == cudaSuccess)
        code = cudaThreadExchangeStreamCaptureMode(&before->capture);
    return code;
}

/* On a thread of ours the old device would get a context that nobody asked for. */
static void leave(mode *before) {
    cudaThreadExchangeStreamCaptureMode(&before->capture);
    if (before->device != before->ours && !tam_thread_ours())
        cudaSetDevice(before->device);
}

/* `bytes` of every rank, at most a piece, from pinned memory to where they come out. */
static tamis_status send_piece(nccl *self, size_t bytes, const tam_call *call) {
    char *own = self->memory + self->rank * bytes;
    cudaError_t code =
        cudaMemcpyAsync(own, self->pinned, bytes, cudaMemcpyHostToDevice, self->stream);
    if (code != cudaSuccess)
        return cuda_failed(self, code, "copying to the device");
    TAM_TRY(gather_on(self, own, bytes, self->memory, self->stream, call));
    code = cudaMemcpyAsync(self->pinned + self->piece, self->memory, self->nranks * bytes,
                           cudaMemcpyDeviceToHost, self->stream);
    if (code != cudaSuccess)
        return cuda_failed(self, code, "copying from the device");
    return await_stream(self, "ncclAllGather", call);
}

static void abort_nccl(void *arg);

/* A failure ends it all at once: kernels that still wait for other ranks would block whoever frees
 * device memory next. */
static tamis_status gather_piece(void *arg, const void *send, size_t bytes, const void **out,
                                 tam_call *call) {
    nccl *self = arg;
    mode before;
    TAM_TRY(have_patience(self, "ncclAllGather", call));
    cudaError_t code = enter(self, &before);
    if (code != cudaSuccess)
        return cuda_failed(self, code, "choosing the device");
    memcpy(self->pinned, send, bytes);
    tamis_status status = send_piece(self, bytes, call);
    leave(&before);
    if (status != TAMIS_OK)
        abort_nccl(self);
    call->wire_bytes += (uint64_t)bytes * (self->nranks - 1);
    *out = self->pinned + self->piece;
    return status;
}

static tamis_status allgather(void *arg, const void *send, size_t bytes, void *recv,
                              tam_call *call) {
    nccl *self = arg;
    for (size_t at = 0; at < bytes; at += self->piece) {
        size_t length = bytes - at < self->piece ? bytes - at : self->piece;
        const void *came;
        TAM_TRY(gather_piece(self, (const char *)send + at, length, &came, call));
        for (uint32_t r = 0; r < self->nranks; r++)
            memcpy((char *)recv + r * bytes + at, (const char *)came + r * length, length);
    }
    return TAMIS_OK;
}

static tamis_status allreduce_sum(void *arg, float *values, size_t count, tam_call *call) {
    nccl *self = arg;
    return tam_sum_by_gather(gather_piece, self, self->nranks, self->piece / sizeof values[0],
                             values, count, call);
}

/* -- ends ------------------------------------------------------------------------------------- */

/* Until nothing of it is under way on any rank. */
static bool finalize(nccl *self) {
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
    nccl *self = arg;
    cudaSetDevice(self->device);
    if (self->clean && finalize(self))
        ncclCommDestroy(self->comm);
    else
        ncclCommAbort(self->comm);
    atomic_store(&self->ended, true);
    return NULL;
}

/* As hold, but whoever aborts must not wait for a call that does not return. */
static bool hold_soon(nccl *self) {
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
    let_go(self);
    return false;
}

/* Hand the communicator to a thread that ends it; nothing if that has begun. */
static void begin_end(nccl *self, bool clean) {
    sigset_t all, before;
    if (!hold_soon(self))
        return;
    self->ending = true;
    self->clean = clean;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the caller's threads */
    self->helped = pthread_create(&self->helper, NULL, end, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    let_go(self);
}

static void abort_nccl(void *arg) {
    begin_end(arg, false);
}

static bool await_end(nccl *self) {
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
    for (unsigned tries = 0; query(self) == cudaErrorNotReady; tries++) {
        if (tam_clock_ns() > until_ns)
            return false;
        tam_relax(tries);
    }
    return true;
}

static void free_all(nccl *self) {
    if (self->stream)
        cudaStreamDestroy(self->stream);
    if (self->memory)
        cudaFree(self->memory);
    if (self->pinned)
        cudaFreeHost(self->pinned);
    pthread_mutex_destroy(&self->lock);
    tam_free(self);
}

static void close_nccl(void *arg, int clean) {
    nccl *self = arg;
    mode before;
    bool entered = enter(self, &before) == cudaSuccess;
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
        leave(&before);
}

static const tam_transport transport = {
    .name = "nccl",
    .capabilities = TAM_CAP_THREADED,
    .stream = &stream_row,
    .allgather = allgather,
    .allreduce_sum = allreduce_sum,
    .abort = abort_nccl,
    .close = close_nccl,
};

/* -- creation --------------------------------------------------------------------------------- */

static size_t choose_piece(uint32_t nranks) {
    size_t share = PIECES_BYTES / nranks / PIECE_LEAST * PIECE_LEAST;
    return share > PIECE_MOST ? PIECE_MOST : share < PIECE_LEAST ? PIECE_LEAST : share;
}

static tamis_status take_buffers(nccl *self) {
    self->piece = choose_piece(self->nranks);
    size_t bytes = self->nranks * self->piece;
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
                            ncclUniqueId *id, nccl **out) {
    uint64_t timeout_ns;
    int version = 0;
    tamis_status status = tam_comm_timeout(config, &timeout_ns);
    if (status != TAMIS_OK)
        return tam_fail(status, "rank %u: its tamis_comm_config is not valid", bootstrap->rank);
    if (ncclGetVersion(&version) != ncclSuccess || version < VERSION_LEAST)
        return tam_fail(TAMIS_E_UNSUPPORTED, "rank %u: NCCL %d is older than %d (2.18)",
                        bootstrap->rank, version, VERSION_LEAST);
    nccl *self = tam_alloc(sizeof *self);
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
    return code == ncclSuccess ? TAMIS_OK : nccl_failed(self, code, "ncclGetUniqueId");
}

/* NCCL connects ranks when they first need it, which a capture could not bear: run every kind of
 * collective once, short and long. */
static tamis_status warm_up(nccl *self, tam_call *call) {
    const void *came;
    size_t half = self->piece / 2;
    char *to = self->memory + self->nranks * half;
    TAM_TRY(gather_piece(self, self->pinned + self->piece, 1, &came, call));
    TAM_TRY(gather_piece(self, self->pinned + self->piece, self->piece, &came, call));
    TAM_TRY(exchange_on(self, self->memory, half, to, self->stream, call));
    return await_stream(self, "the first exchange", call);
}

/* With half of the time: the rest is for telling each other how it went. */
static tamis_status join(nccl *self, const tamis_comm *bootstrap, const ncclUniqueId *id) {
    uint64_t timeout_ns =
        self->timeout_ns < bootstrap->timeout_ns ? self->timeout_ns : bootstrap->timeout_ns;
    tam_call call = {.deadline_ns = tam_clock_ns() + timeout_ns / 2, .poison = &bootstrap->poison};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t code =
        ncclCommInitRankConfig(&self->comm, (int)self->nranks, *id, (int)self->rank, &config);
    TAM_TRY(complete(self, code, "ncclCommInitRankConfig", &call));
    return warm_up(self, &call);
}

tamis_status tamis_comm_create_nccl(tamis_comm *bootstrap, const tamis_comm_config *config,
                                    tamis_comm **out) {
    nccl *self = NULL;
    tamis_comm *comm = NULL;
    ncclUniqueId id = {{0}};
    if (!bootstrap)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_nccl: bootstrap is NULL");
    tamis_status status = out ? prepare(bootstrap, config, &id, &self)
                              : tam_fail(TAMIS_E_ARGUMENT, "rank %u: out is NULL", bootstrap->rank);
    status = tam_meet(bootstrap, "NCCL communicator", status, &id);
    if (status == TAMIS_OK) {
        status = join(self, bootstrap, &id);
        if (status == TAMIS_OK) {
            status = tam_comm_open(&transport, self, self->rank, self->nranks, config, &comm);
            self = NULL; /* it has been taken over, also on failure */
        }
        status = tam_meet(bootstrap, "NCCL communicator", status, &id);
    }
    if (status == TAMIS_OK) {
        *out = comm;
        return TAMIS_OK;
    }
    if (self)
        close_nccl(self, 0);
    if (comm) /* another rank has none */
        tam_comm_lose(comm, status);
    tamis_comm_destroy(comm);
    return status;
}
