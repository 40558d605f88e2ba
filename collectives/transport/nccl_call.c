/* SPDX-License-Identifier: MIT
 *
 * What a call of NCCL needs: error texts, polling until a deadline, and the thread's device.
 */
#include "collectives/transport/nccl_comm.h"

#include "lib/transport/wait.h"

/* -- words ------------------------------------------------------------------------------------ */

tamis_status tam_nccl_failed(const tam_nccl *self, ncclResult_t code, const char *what) {
    const char *words = ncclGetLastError(NULL);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %u: %s: %s%s%.160s (NCCL_DEBUG=WARN says more)",
                    self->rank, what, ncclGetErrorString(code), words && *words ? "; " : "",
                    words ? words : "");
}

tamis_status tam_nccl_cuda_failed(const tam_nccl *self, cudaError_t code, const char *what) {
    return tam_fail(TAMIS_E_DEVICE, "rank %u: %s: %s (%s)", self->rank, what,
                    cudaGetErrorString(code), cudaGetErrorName(code));
}

tamis_status tam_nccl_cuda_refused(const tam_nccl *self, cudaError_t code, const char *what) {
    bool absent = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                  code == cudaErrorStubLibrary;
    tamis_status status = tam_nccl_cuda_failed(self, code, what);
    return absent                              ? TAMIS_E_UNSUPPORTED
           : code == cudaErrorMemoryAllocation ? TAMIS_E_NOMEM
                                               : status;
}

tamis_status tam_nccl_over(const tam_nccl *self) {
    return tam_fail(TAMIS_E_ABORTED, "rank %u: the communicator was abandoned", self->rank);
}

/* -- polling ---------------------------------------------------------------------------------- */

bool tam_nccl_hold(tam_nccl *self) {
    pthread_mutex_lock(&self->lock);
    if (!self->ending)
        return true;
    pthread_mutex_unlock(&self->lock);
    return false;
}

void tam_nccl_let_go(tam_nccl *self) {
    pthread_mutex_unlock(&self->lock);
}

tamis_status tam_nccl_look(tam_nccl *self, const char *what, bool *busy) {
    ncclResult_t state = ncclSuccess;
    if (!tam_nccl_hold(self))
        return tam_nccl_over(self);
    ncclResult_t code = ncclCommGetAsyncError(self->comm, &state);
    tam_nccl_let_go(self);
    if (code == ncclSuccess)
        code = state;
    *busy = code == ncclInProgress;
    return code == ncclSuccess || *busy ? TAMIS_OK : tam_nccl_failed(self, code, what);
}

tamis_status tam_nccl_have_patience(const tam_nccl *self, const char *what, const tam_call *call) {
    tamis_status poison = (tamis_status)atomic_load(call->poison);
    if (poison != TAMIS_OK)
        return tam_fail(poison, "rank %u stopped waiting in %s", self->rank, what);
    char late[TAM_WAIT_TEXT];
    if (tam_clock_ns() > call->deadline_ns)
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u%s in %s: a rank is missing, or the ranks made different calls",
                        self->rank, tam_wait_time_text(call, late), what);
    return TAMIS_OK;
}

tamis_status tam_nccl_complete(tam_nccl *self, ncclResult_t code, const char *what,
                               const tam_call *call) {
    bool busy = code == ncclInProgress;
    if (code != ncclSuccess && !busy)
        return tam_nccl_failed(self, code, what);
    for (unsigned tries = 0; busy; tries++) {
        TAM_TRY(tam_nccl_look(self, what, &busy));
        if (!busy)
            break;
        TAM_TRY(tam_nccl_have_patience(self, what, call));
        tam_back_off(tries);
    }
    return TAMIS_OK;
}

cudaError_t tam_nccl_query(const tam_nccl *self) {
    cudaError_t code = cudaStreamQuery(self->stream);
    if (code == cudaErrorNotReady)
        (void)cudaGetLastError(); /* not an error, but CUDA remembers it as one */
    return code;
}

/* Looks at NCCL's state after the query: an abort or an error empties the stream as well, so an
 * empty stream alone does not prove that the data arrived. */
tamis_status tam_nccl_await_stream(tam_nccl *self, const char *what, const tam_call *call) {
    for (unsigned tries = 0;; tries++) {
        bool busy;
        cudaError_t code = tam_nccl_query(self);
        TAM_TRY(tam_nccl_look(self, what, &busy));
        if (code != cudaSuccess && code != cudaErrorNotReady)
            return tam_nccl_cuda_failed(self, code, what);
        TAM_TRY(tam_nccl_have_patience(self, what, call));
        if (code == cudaSuccess)
            return TAMIS_OK;
        tam_back_off(tries);
    }
}

/* -- the device of the thread ----------------------------------------------------------------- */

cudaError_t tam_nccl_enter(const tam_nccl *self, tam_nccl_mode *before) {
    before->capture = cudaStreamCaptureModeRelaxed;
    before->ours = self->device;
    cudaError_t code = cudaGetDevice(&before->device);
    if (code == cudaSuccess && before->device != self->device)
        code = cudaSetDevice(self->device);
    if (code == cudaSuccess)
        code = cudaThreadExchangeStreamCaptureMode(&before->capture);
    return code;
}

/* On a library thread, restoring the device would create a context there that nobody asked for. */
void tam_nccl_leave(tam_nccl_mode *before) {
    cudaThreadExchangeStreamCaptureMode(&before->capture);
    if (before->device != before->ours && !tam_thread_ours())
        cudaSetDevice(before->device);
}
