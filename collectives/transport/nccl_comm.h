/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over NCCL: nccl.c has the collectives, nccl_call.c what all calls need;
 * nccl_open.c creates it and nccl_end.c ends it.
 */
#ifndef TAM_TRANSPORT_NCCL_COMM_H
#define TAM_TRANSPORT_NCCL_COMM_H

#include "lib/base/base.h"
#include "collectives/transport/sum.h"
#include "lib/base/transport.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct tam_nccl {
    uint32_t rank, nranks;
    int device;
    uint64_t timeout_ns;
    cudaStream_t stream; /* for exchanges from host memory */
    size_t piece;        /* bytes that a rank gives at a time */
    char *pinned;        /* [(1 + nranks) * piece] sent | received */
    char *memory;        /* [nranks * piece] on the device */
    tam_alltoall_scratch runs;

    pthread_mutex_t lock; /* of comm while not `ending`: abort may come from any thread */
    ncclComm_t comm;      /* NCCL's threads write it too, until its creation has ended */
    bool ending;
    bool clean;       /* end by finalizing */
    pthread_t helper; /* if `helped` */
    bool helped;
    atomic_bool ended;
} tam_nccl;

/* The thread's device and capture mode: our calls must not break the caller's stream capture. */
typedef struct tam_nccl_mode {
    int device, ours;
    enum cudaStreamCaptureMode capture;
} tam_nccl_mode;

/* nccl_call.c */

/** Fail with "rank <r>: <what>: <NCCL's or CUDA's text for the code>". */
tamis_status tam_nccl_failed(const tam_nccl *self, ncclResult_t code, const char *what);
tamis_status tam_nccl_cuda_failed(const tam_nccl *self, cudaError_t code, const char *what);

/** Fail with ABORTED: the communicator is being ended. */
tamis_status tam_nccl_over(const tam_nccl *self);

/** Lock the communicator. @return false: it is being ended */
bool tam_nccl_hold(tam_nccl *self);
void tam_nccl_let_go(tam_nccl *self);

/** Check NCCL's state: OK if nothing has failed so far. @param busy  still with the last call */
tamis_status tam_nccl_look(tam_nccl *self, const char *what, bool *busy);

/** TIMEOUT, or the poison, once a call must not wait any longer. */
tamis_status tam_nccl_have_patience(const tam_nccl *self, const char *what, const tam_call *call);

/** Wait until our stream is empty and NCCL reports no failure. */
tamis_status tam_nccl_await_stream(tam_nccl *self, const char *what, const tam_call *call);

/** Wait until a call that returned `code` is enqueued. */
tamis_status tam_nccl_complete(tam_nccl *self, ncclResult_t code, const char *what,
                               const tam_call *call);

/** Whether our stream is empty: cudaErrorNotReady while it is not. */
cudaError_t tam_nccl_query(const tam_nccl *self);

/** Calls into CUDA come between these two; do not leave if enter failed. */
cudaError_t tam_nccl_enter(const tam_nccl *self, tam_nccl_mode *before);
void tam_nccl_leave(tam_nccl_mode *before);

/* nccl.c */

extern const tam_transport tam_nccl_transport;

/** The first use of a new communicator. */
tamis_status tam_nccl_warm_up(tam_nccl *self, tam_call *call);

/* nccl_end.c: of the row */
void tam_nccl_abort(void *arg);
void tam_nccl_close(void *arg, int clean);

#endif
