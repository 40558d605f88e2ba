/* SPDX-License-Identifier: MIT
 *
 * How a communicator over NCCL ends. ncclCommAbort ends kernels that wait for other ranks. It joins
 * threads and may hang, so a helper thread calls it, and close waits for that thread no longer than
 * END_NS. Once it has begun, no other thread may touch the communicator: the lock ensures that.
 */
#include "collectives/transport/nccl_comm.h"

#include <signal.h>

#define HOLD_NS UINT64_C(500000000)
#define END_NS UINT64_C(5000000000) /* for an abort, and for a stream to run dry after it */

/* Wait until no operation is in flight on any rank. */
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
        tam_relax(tries);
    }
    if (!self->ending)
        return true;
    pthread_mutex_unlock(&self->lock);
    return false;
}

/* Hand the communicator to a thread that ends it, unless one already does. */
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
                "rank %u: the NCCL communicator does not end; it is not freed, nor are %zu bytes "
                "of device memory",
                self->rank, self->nranks * self->piece);
    if (entered)
        tam_nccl_leave(&before);
}
