/* SPDX-License-Identifier: MIT
 *
 * A communicator: a transport, the status that lost it (poison), and the thread that drives it.
 *
 * Jobs are the exchanges of steps. With TAM_CAP_THREADED they run one after another on the
 * communicator's thread. Otherwise they run inside tam_comm_finish, on the caller's thread, which
 * first runs all jobs submitted before. Either way they run in the order of submission, which is
 * the same on all ranks.
 */
#ifndef TAM_TRANSPORT_COMM_H
#define TAM_TRANSPORT_COMM_H

#include "collectives/transport/recorded.h"
#include "lib/base/sync.h"
#include "lib/contracts/transport.h"
#include "lib/policy/cost.h"
#include "lib/policy/plan.h"

#include <stdatomic.h>

typedef enum tam_job_state {
    TAM_JOB_IDLE,
    TAM_JOB_QUEUED,
    TAM_JOB_RUNNING,
    TAM_JOB_COMMITTED, /* changes what the caller sees: cannot be abandoned */
    TAM_JOB_DONE,
    TAM_JOB_ABANDONED /* the caller stopped waiting; nothing of the caller's may be touched */
} tam_job_state;

typedef struct tam_job {
    tamis_status (*run)(struct tam_job *job, tam_link *link);
    atomic_int state;
    tamis_status status;
    char message[512];    /* of a failure */
    uint64_t deadline_ns; /* 0: the timeout, counted from its start */
    const char *purpose;  /* the public call that waits for it, and */
    uint64_t number;      /* of the step, counted from 1; 0: it belongs to none */
    uint64_t wire_bytes;
    bool watches; /* only watches collectives that are enqueued on a stream */
    struct tam_job *next;
} tam_job;

enum {
    TAM_RECORD_BYTES = 448, /* per rank */
    TAM_JOB_BYTES = 1088
};

struct tamis_comm {
    const tam_transport *transport;
    void *self;
    unsigned forks; /* tam_forks at its creation */
    uint32_t rank, nranks;
    uint32_t *before;        /* [nranks] in the communicator that was shrunk; NULL: none was */
    char plan[64];           /* its stages, as text */
    tam_plan stages;         /* how its collectives go */
    uint32_t ranks_per_node; /* found; 1: unknown */
    uint64_t timeout_ns;
    tam_recorded recorded; /* what jobs see of the transport; under the comm's order of jobs */
    unsigned char
        *records; /* [nranks * TAM_RECORD_BYTES] for handshakes, which must not allocate */
    unsigned char *job_memory; /* [TAM_JOB_BYTES] the job of a handshake: it may outlive its call */

    uint64_t reducers;   /* made so far, the same on all ranks: gives each its serial */
    uint32_t generation; /* communicators that were shrunk, or grew, before this one */
    uint32_t joined;     /* of its ranks, the last: newcomers when it was made */
    uint64_t root; /* of this process: the same for all that are made of one by shrink, grow */
    bool came;     /* this process has joined its job */

    bool measured; /* costs, by the first reducer that chooses (calibrate_costs.h) */
    tam_costs costs;

    atomic_int exchanges;  /* jobs under way that do not only watch */
    atomic_int blocked;    /* threads that wait for a job */
    const void *last_step; /* of stream transports: the step object that enqueued last */

    atomic_int waiting; /* tamis_waiting, of jobs that begin from here on */
    atomic_int poison;  /* a status; set once */
    char cause[512];    /* sentence of the first failure, under the lock */
    atomic_bool logged; /* it has been logged: later calls fail silently */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    tam_job *first, *last;
    bool threaded, closing, finished;
    pthread_t thread;
};

/** Takes ownership of `self`, even on failure. */
tamis_status tam_comm_open(const tam_transport *transport, void *self, uint32_t rank,
                           uint32_t nranks, const tamis_comm_config *config, tamis_comm **out);

/** Open a communicator over p2p links, whose stages it tells. */
struct tam_staged;
tamis_status tam_comm_open_staged(const tam_transport *transport, struct tam_staged *self,
                                  uint32_t rank, uint32_t nranks, const tamis_comm_config *config,
                                  tamis_comm **out);

/** Timeout of a configuration, in ns. */
tamis_status tam_comm_timeout(const tamis_comm_config *config, uint64_t *out_ns);

/** Whether it belongs to a process from which this one was forked: then nothing of it is freed, for
 * its threads are not there, and what it shares with other ranks is the parent's. */
bool tam_comm_of_parent(const tamis_comm *comm);

/** STATE: it is a parent's, or its transport was shut down. */
tamis_status tam_comm_usable(const tamis_comm *comm);

/** The poison, with a sentence for tamis_last_error; TAMIS_OK if there is none. */
tamis_status tam_comm_check(tamis_comm *comm);

/** Poison the communicator with `status`, whose sentence is tamis_last_error; wakes waiters. */
void tam_comm_lose(tamis_comm *comm, tamis_status status);

/** Record an event of a step, counted from 0, of the caller's. */
void tam_comm_record(tamis_comm *comm, tam_flight_kind kind, uint64_t step, tamis_status status);

/** Warn if events could not be written where TAMIS_FLIGHT says, before a failure loses them. */
void tam_comm_flight_check(const tamis_comm *comm);

/** Record and write that the communicator was lost by this thread's last failure. */
void tam_comm_flight_lost(const tamis_comm *comm, tamis_status status);

/** Lose it because this rank goes on with fewer; tells other ranks where the transport can. */
void tam_comm_revoke(tamis_comm *comm);

/** Begin a job. It must stay allocated until it is done. */
void tam_comm_submit(tamis_comm *comm, tam_job *job);

/** Now plus the timeout. */
uint64_t tam_comm_deadline(const tamis_comm *comm);

/** Wait for a job until then at most, or run it. Failures that lose the comm have poisoned it. */
tamis_status tam_comm_finish(tamis_comm *comm, tam_job *job, uint64_t until_ns);

/** Whether finish would return at once; without a thread the job is run. */
bool tam_comm_test(tamis_comm *comm, tam_job *job);

/** Without a thread: run a job, and those before it. With one: nothing. */
void tam_comm_drive(tamis_comm *comm, tam_job *job, uint64_t until_ns);

/** After a failure: end what is under way, if nobody waits for it any more.
 * @return whether memory that the transport was given is free. True while there is no failure, for
 * memory of exchanges that have ended */
bool tam_comm_silence(const tamis_comm *comm);

/** Submit and finish. */
tamis_status tam_comm_run(tamis_comm *comm, tam_job *job);

/** From inside a job, before it changes anything of the caller's.
 * @return false: the caller has stopped waiting; change nothing */
bool tam_job_commit(tam_job *job);

/** The change is complete; from here on the job may be abandoned as before. */
void tam_job_release(tam_job *job);

#endif
