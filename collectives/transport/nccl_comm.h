/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over NCCL: nccl.c has the collectives, nccl_link.c what lies between the
 * ranks, nccl_call.c what all calls need; nccl_open.c creates it, of what nccl_memory.c takes;
 * nccl_end.c ends it, nccl_shrink.c goes on with fewer ranks.
 */
#ifndef TAM_TRANSPORT_NCCL_COMM_H
#define TAM_TRANSPORT_NCCL_COMM_H

#include "lib/base/base.h"
#include "collectives/transport/sum.h"
#include "lib/contracts/transport.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

/* Since 2.28.7 and 2.27. Absent before, and in headers of that age: NULL then. */
#pragma weak ncclCommRevoke
#pragma weak ncclCommShrink
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *child,
                            ncclConfig_t *config, int flags);

enum { TAM_NCCL_DEFAULT_FLAGS = 0 };

typedef struct tam_nccl tam_nccl;

/** What only a thread that may hang can do: the helper. */
typedef void tam_nccl_task(tam_nccl *self);

/** The making of a communicator of the ranks that are left. */
typedef struct tam_nccl_parting {
    int *excluded; /* [nexcluded] ranks that are gone */
    int nexcluded;
    uint64_t deadline_ns;
    ncclComm_t child;  /* NCCL's threads write it; NULL: none was made */
    ncclResult_t code; /* ncclInProgress: it was not made by the deadline */
    char words[128];   /* NCCL's */
    bool done;         /* once, and not again */
} tam_nccl_parting;

struct tam_nccl {
    uint32_t rank, nranks;
    int device, version; /* of NCCL */
    uint64_t timeout_ns;
    cudaStream_t stream;    /* for exchanges from host memory */
    size_t piece, capacity; /* bytes that a rank gives at a time; the same with its hash */
    char *pinned;           /* [(1 + nranks) * capacity] sent | received */
    char *memory;           /* [nranks * capacity] on the device */
    tam_alltoall_scratch runs;
    tam_usual_link usual; /* between its ranks, the same on all of them (nccl_link.c) */

    pthread_mutex_t lock; /* of comm while not `ending`: abort may come from any thread */
    ncclComm_t comm;      /* NCCL's threads write it too, until its creation has ended */
    bool ending;          /* only the helper may touch comm */
    atomic_bool captured; /* work of it is in graphs, which may be replayed at any time */

    tam_nccl_task *task;
    pthread_t helper; /* if `helped` */
    bool helped;
    atomic_bool ended; /* the task */
    bool quiet;        /* the helper's: revoked, but not yet aborted */
    tam_nccl_parting parting;
};

/* The thread's device and capture mode: our calls must not break the caller's stream capture. */
typedef struct tam_nccl_mode {
    int device, ours;
    enum cudaStreamCaptureMode capture;
} tam_nccl_mode;

/* nccl_call.c */

/** Fail with "rank <r>: <what>: <NCCL's or CUDA's text for the code>". */
tamis_status tam_nccl_failed(const tam_nccl *self, ncclResult_t code, const char *what);
tamis_status tam_nccl_cuda_failed(const tam_nccl *self, cudaError_t code, const char *what);

/** The status of a call that only allocates, so nothing is lost: NOMEM, or UNSUPPORTED without a
 * device. */
tamis_status tam_nccl_cuda_refused(const tam_nccl *self, cudaError_t code, const char *what);

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

/** An entry of the transport's table. */
tamis_status tam_nccl_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                tam_call *call);
tamis_status tam_nccl_allreduce_sum(void *arg, float *values, size_t count, tam_call *call);
tamis_status tam_nccl_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                               const size_t *recv_at, tam_call *call);
extern const tam_stream_transport tam_nccl_stream;

/** The first use of a new communicator; tam_nccl_find_link follows. */
tamis_status tam_nccl_warm_up(tam_nccl *self, tam_call *call);

/** All-gather `bytes` of every rank, at most `piece`, from host memory.
 * @param out  [out]  those of all ranks, in pinned memory until the next call */
tamis_status tam_nccl_gather_piece(void *arg, const void *send, size_t bytes, const void **out,
                                   tam_call *call);

/* nccl_link.c */

/** Find out what is between the ranks. A collective call. */
tamis_status tam_nccl_find_link(tam_nccl *self, tam_call *call);

/** An entry of the transport's table. */
const tam_usual_link *tam_nccl_usual(const void *arg);

/* nccl_memory.c */

/** What a communicator needs before NCCL makes it, on the device of this thread. @param out  [out]
 * to be closed, even after a failure, unless it is NULL */
tamis_status tam_nccl_take(uint32_t rank, uint32_t nranks, uint64_t timeout_ns, tam_nccl **out);

/** NCCL holds nothing of it any more. */
void tam_nccl_free(tam_nccl *self);

/* nccl_end.c */

/** Begin a task, which follows another that has been awaited. @return false: no thread */
bool tam_nccl_send_helper(tam_nccl *self, tam_nccl_task *task);

/** Wait for the task. @return false: it has not ended by then */
bool tam_nccl_await_helper(tam_nccl *self, uint64_t until_ns);

/** Poll until `code`, of a call on comm, is no longer ncclInProgress, or that deadline. Helper. */
ncclResult_t tam_nccl_wait_done(ncclComm_t comm, ncclResult_t code, uint64_t deadline_ns);

/** An entry of the transport's table. */
void tam_nccl_abort(void *arg, tamis_status status, const char *cause);
void tam_nccl_close(void *arg, int clean);

/** Whether this NCCL can revoke and shrink. */
bool tam_nccl_shrinks(const tam_nccl *self);

/* nccl_shrink.c */

/** An entry of the transport's table. */
tamis_status tam_nccl_shrink(void *arg, const tam_left *left, tamis_comm **out);

#endif
