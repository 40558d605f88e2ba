/* SPDX-License-Identifier: MIT
 *
 * How a communicator over NCCL ends. ncclCommAbort and ncclCommRevoke end kernels that wait for
 * other ranks. They join threads and may hang, so a helper thread calls them, and close waits for
 * that thread no longer than END_NS. Once it has begun, no other thread may touch the communicator:
 * the lock ensures that.
 *
 *     a failure, tamis_comm_abort    revoke it, where it can be shrunk; else abort it
 *     tamis_comm_shrink              revoke it, make the smaller one of it (nccl_shrink.c)
 *     tamis_comm_destroy             finalize and destroy it; after a failure abort it
 */
#include "collectives/transport/nccl_comm.h"

#include <signal.h>

enum { SHRINK_MIN = NCCL_VERSION(2, 28, 7) };

#define REVOKE_NS UINT64_C(5000000000)
#define HOLD_NS UINT64_C(500000000)
#define END_NS UINT64_C(5000000000) /* for an abort, and for a stream to run dry after it */

ncclResult_t tam_nccl_wait_done(ncclComm_t comm, ncclResult_t code, uint64_t deadline_ns) {
    ncclResult_t state = code;
    for (unsigned tries = 0; code == ncclSuccess || code == ncclInProgress; tries++) {
        code = ncclCommGetAsyncError(comm, &state);
        if (code != ncclSuccess || state != ncclInProgress || tam_clock_ns() > deadline_ns)
            break;
        tam_back_off(tries);
    }
    return code == ncclSuccess ? state : code;
}

/* -- tasks ------------------------------------------------------------------------------------ */

/* End it, and what is under way. */
static void abort_comm(tam_nccl *self) {
    ncclCommAbort(self->comm);
}

/* Wait until no operation is in flight on any rank. */
static void finalize_comm(tam_nccl *self) {
    uint64_t deadline_ns = tam_clock_ns() + self->timeout_ns;
    ncclResult_t code = ncclCommFinalize(self->comm);
    if (tam_nccl_wait_done(self->comm, code, deadline_ns) == ncclSuccess)
        ncclCommDestroy(self->comm);
    else
        ncclCommAbort(self->comm);
}

bool tam_nccl_shrinks(const tam_nccl *self) {
    return ncclCommRevoke && ncclCommShrink && self->version >= SHRINK_MIN;
}

/* End what is under way; it can be shrunk, and still must be aborted. */
static void revoke_comm(tam_nccl *self) {
    uint64_t deadline_ns = tam_clock_ns() + REVOKE_NS;
    ncclResult_t code = ncclCommRevoke(self->comm, TAM_NCCL_DEFAULT_FLAGS);
    self->quiet = tam_nccl_wait_done(self->comm, code, deadline_ns) == ncclSuccess;
    if (!self->quiet)
        ncclCommAbort(self->comm);
}

/* -- the helper ------------------------------------------------------------------------------- */

static void *run_task(void *arg) {
    tam_nccl *self = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* of this thread */
    cudaSetDevice(self->device);
    cudaThreadExchangeStreamCaptureMode(&mode);
    self->task(self);
    atomic_store(&self->ended, true);
    return NULL;
}

bool tam_nccl_send_helper(tam_nccl *self, tam_nccl_task *task) {
    sigset_t all, before;
    self->task = task;
    atomic_store(&self->ended, false);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the caller's threads */
    self->helped = pthread_create(&self->helper, NULL, run_task, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return self->helped;
}

bool tam_nccl_await_helper(tam_nccl *self, uint64_t until_ns) {
    for (unsigned tries = 0; self->helped && !atomic_load(&self->ended); tries++) {
        if (tam_clock_ns() > until_ns)
            return false;
        tam_back_off(tries);
    }
    if (self->helped)
        pthread_join(self->helper, NULL);
    self->helped = false;
    return atomic_load(&self->ended);
}

/* -- abort and close -------------------------------------------------------------------------- */

/* Lock the communicator, unless it is already being ended. Gives up after HOLD_NS, as an abort must
 * not wait for a call that does not return. */
static bool hold_soon(tam_nccl *self) {
    uint64_t until_ns = tam_clock_ns() + HOLD_NS;
    for (unsigned tries = 0; pthread_mutex_trylock(&self->lock) != 0; tries++) {
        if (tam_clock_ns() > until_ns) {
            tam_log(TAM_WARN, "rank %u: an NCCL call does not return, so nothing can be aborted",
                    self->rank);
            return false;
        }
        tam_back_off(tries);
    }
    if (!self->ending)
        return true;
    pthread_mutex_unlock(&self->lock);
    return false;
}

/* Hand the communicator to a thread that ends it, unless one already does. */
static void begin_end(tam_nccl *self, tam_nccl_task *task) {
    if (!hold_soon(self))
        return;
    self->ending = true;
    tam_nccl_send_helper(self, task);
    pthread_mutex_unlock(&self->lock);
}

/* Revoking ends what has been launched. A graph may launch more afterwards, which would wait for
 * ever: only an abort ends that. */
void tam_nccl_abort(void *arg, tamis_status status, const char *cause) {
    tam_nccl *self = arg;
    (void)status, (void)cause; /* NCCL tells the others nothing */
    bool kept = tam_nccl_shrinks(self) && !atomic_load(&self->captured);
    begin_end(self, kept ? revoke_comm : abort_comm);
}

static bool await_dry_stream(const tam_nccl *self) {
    uint64_t until_ns = tam_clock_ns() + END_NS;
    for (unsigned tries = 0; tam_nccl_query(self) == cudaErrorNotReady; tries++) {
        if (tam_clock_ns() > until_ns)
            return false;
        tam_back_off(tries);
    }
    return true;
}

/* @return whether NCCL holds nothing of ours any more */
static bool nccl_end_await_end(tam_nccl *self, int clean) {
    bool ended =
        tam_nccl_await_helper(self, tam_clock_ns() + END_NS + (clean ? self->timeout_ns : 0));
    if (ended && self->quiet) {
        tam_nccl_send_helper(self, abort_comm);
        ended = tam_nccl_await_helper(self, tam_clock_ns() + END_NS);
    }
    if (ended)
        return await_dry_stream(self);
    if (self->helped)
        pthread_detach(self->helper);
    return false;
}

void tam_nccl_close(void *arg, int clean) {
    tam_nccl *self = arg;
    tam_nccl_mode before;
    bool entered = tam_nccl_enter(self, &before) == cudaSuccess;
    if (self->comm)
        begin_end(self, clean ? finalize_comm : abort_comm);
    if (!self->comm || nccl_end_await_end(self, clean))
        tam_nccl_free(self);
    else
        tam_log(TAM_WARN,
                "rank %u: the NCCL communicator does not end; it is not freed, nor are %zu bytes "
                "of device memory",
                self->rank, self->nranks * self->capacity);
    if (entered)
        tam_nccl_leave(&before);
}
