/* SPDX-License-Identifier: MIT */
#include "collectives/transport/comm.h"

#include "collectives/coll/staged.h"

#include "lib/transport/wait.h"
#include "lib/base/fenv.h"

#include <stdio.h>
#include <tamis/elastic.h>

/* How long after a job's deadline its caller abandons it. */
#define GRACE_NS UINT64_C(500000000)

tamis_status tam_comm_timeout(const tamis_comm_config *config, uint64_t *out_ns) {
    tamis_comm_config own = TAMIS_COMM_CONFIG_INIT;
    if (config)
        TAM_TRY(tam_struct_copy("tamis_comm_config", &own, sizeof own, sizeof own, config));
    uint32_t ms = own.timeout_ms ? own.timeout_ms : tam_setting_number(TAM_SETTING_TIMEOUT_MS);
    *out_ns = (uint64_t)ms * 1000000u;
    return TAMIS_OK;
}

/* -- poison ----------------------------------------------------------------------------------- */

/* @param logged  `cause` has been logged */
static void poison(tamis_comm *comm, tamis_status status, const char *cause, bool logged) {
    int none = TAMIS_OK;
    pthread_mutex_lock(&comm->lock);
    if (atomic_compare_exchange_strong(&comm->poison, &none, (int)status)) {
        snprintf(comm->cause, sizeof comm->cause, "%s", cause);
        atomic_store(&comm->logged, logged);
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (none == TAMIS_OK)
        tam_comm_flight_lost(comm, status);
}

bool tam_comm_of_parent(const tamis_comm *comm) {
    return comm->forks != tam_forks();
}

tamis_status tam_comm_usable(const tamis_comm *comm) {
    if (tam_comm_of_parent(comm))
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: the communicator belongs to the process from which this one was "
                        "forked, and only that one can use it",
                        comm->rank);
    return comm->transport->usable ? comm->transport->usable(comm->self) : TAMIS_OK;
}

tamis_status tam_comm_check(tamis_comm *comm) {
    TAM_TRY(tam_comm_usable(comm));
    tamis_status status = (tamis_status)atomic_load(&comm->poison);
    if (status == TAMIS_OK)
        return TAMIS_OK;
    char sentence[sizeof comm->cause + 64];
    pthread_mutex_lock(&comm->lock);
    snprintf(sentence, sizeof sentence, "rank %u: the communicator is lost: %.440s", comm->rank,
             comm->cause);
    bool logged = atomic_exchange(&comm->logged, true);
    pthread_mutex_unlock(&comm->lock);
    return logged ? tam_pass(status, sentence) : tam_fail(status, "%s", sentence);
}

/* -- jobs ------------------------------------------------------------------------------------- */

static bool change_state(tam_job *job, int from, int to) {
    return atomic_compare_exchange_strong(&job->state, &from, to);
}

bool tam_job_commit(tam_job *job) {
    return change_state(job, TAM_JOB_RUNNING, TAM_JOB_COMMITTED);
}

void tam_job_release(tam_job *job) {
    change_state(job, TAM_JOB_COMMITTED, TAM_JOB_RUNNING);
}

static uint64_t comm_earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Collectives enqueued on devices would wait forever for their partners, other ranks until their
 * deadline. */
static void release_others(tamis_comm *comm, tamis_status status, const char *cause) {
    if (comm->transport->stream || (comm->transport->capabilities & TAM_CAP_ALARMS))
        comm->transport->abort(comm->self, status, cause);
}

/* Called before the caller can know that the job has ended. */
static void leave_exchange(tamis_comm *comm, bool exchange) {
    if (exchange)
        atomic_fetch_sub(&comm->exchanges, 1);
}

static void run_job(tamis_comm *comm, tam_job *job, uint64_t latest_ns) {
    uint64_t deadline_ns = job->deadline_ns ? job->deadline_ns : tam_clock_ns() + comm->timeout_ns;
    bool exchange = !job->watches;
    if (!change_state(job, TAM_JOB_QUEUED, TAM_JOB_RUNNING)) {
        leave_exchange(comm, exchange);
        return;
    }
    tam_recorded_wrap(&comm->recorded, comm->transport, comm->self);
    tam_link link = {
        .transport = &comm->recorded.row,
        .self = &comm->recorded,
        .rank = comm->rank,
        .nranks = comm->nranks,
        .call = {.deadline_ns = comm_earlier(deadline_ns, latest_ns),
                 .poison = &comm->poison,
                 .purpose = job->purpose,
                 .number = job->number,
                 .begin_ns = tam_clock_ns(),
                 .waiting = (tamis_waiting)atomic_load(&comm->waiting),
                 .blocked = &comm->blocked},
    };
    fenv_t theirs;
    tamis_status status = tam_comm_check(comm);
    if (status == TAMIS_OK) {
        tam_fenv_hold(&theirs);
        status = job->run(job, &link);
        tam_fenv_release(&theirs);
    }
    leave_exchange(comm, exchange);
    if (atomic_load(&job->state) == TAM_JOB_ABANDONED)
        return;
    if (status != TAMIS_OK)
        snprintf(job->message, sizeof job->message, "%s", tamis_last_error());
    if (tamis_status_loss(status) == TAMIS_LOST_COMM) {
        poison(comm, status, tamis_last_error(), true);
        release_others(comm, status, tamis_last_error());
        status = (tamis_status)atomic_load(&comm->poison); /* another failure may have been first */
    }
    job->status = status;
    job->wire_bytes = link.call.wire_bytes;
    int running = TAM_JOB_RUNNING;
    if (!atomic_compare_exchange_strong(&job->state, &running, TAM_JOB_DONE))
        change_state(job, TAM_JOB_COMMITTED, TAM_JOB_DONE);
}

static tam_job *take_job(tamis_comm *comm) {
    pthread_mutex_lock(&comm->lock);
    while (!comm->first && !comm->closing)
        pthread_cond_wait(&comm->changed, &comm->lock);
    tam_job *job = comm->first;
    if (job) {
        comm->first = job->next;
        if (!comm->first)
            comm->last = NULL;
    }
    pthread_mutex_unlock(&comm->lock);
    return job;
}

static void *comm_drive(void *argument) {
    tamis_comm *comm = argument;
    tam_thread_claim();
    for (tam_job *job; (job = take_job(comm));) {
        run_job(comm, job, UINT64_MAX);
        pthread_mutex_lock(&comm->lock);
        pthread_cond_broadcast(&comm->changed);
        pthread_mutex_unlock(&comm->lock);
    }
    pthread_mutex_lock(&comm->lock);
    comm->finished = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

void tam_comm_submit(tamis_comm *comm, tam_job *job) {
    job->next = NULL;
    job->message[0] = '\0';
    if (!job->watches)
        atomic_fetch_add(&comm->exchanges, 1);
    atomic_store(&job->state, TAM_JOB_QUEUED);
    pthread_mutex_lock(&comm->lock);
    if (comm->last)
        comm->last->next = job;
    else
        comm->first = job;
    comm->last = job;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void run_until(tamis_comm *comm, tam_job *job, uint64_t until_ns) {
    while (atomic_load(&job->state) == TAM_JOB_QUEUED)
        run_job(comm, take_job(comm), until_ns);
}

static void comm_wait_for(tamis_comm *comm, tam_job *job, uint64_t until_ns) {
    until_ns = GRACE_NS + (job->deadline_ns ? comm_earlier(until_ns, job->deadline_ns) : until_ns);
    atomic_fetch_add(&comm->blocked, 1);
    pthread_mutex_lock(&comm->lock);
    while (atomic_load(&job->state) != TAM_JOB_DONE) {
        if (tam_lock_wait(&comm->lock, &comm->changed, until_ns))
            continue;
        if (change_state(job, TAM_JOB_QUEUED, TAM_JOB_ABANDONED) ||
            change_state(job, TAM_JOB_RUNNING, TAM_JOB_ABANDONED))
            break;
        until_ns += GRACE_NS; /* committed: only memory is being written, it ends by itself */
    }
    pthread_mutex_unlock(&comm->lock);
    atomic_fetch_sub(&comm->blocked, 1);
}

void tam_comm_drive(tamis_comm *comm, tam_job *job, uint64_t until_ns) {
    if (!comm->threaded)
        run_until(comm, job, until_ns);
}

bool tam_comm_test(tamis_comm *comm, tam_job *job) {
    if (!comm->threaded)
        run_until(comm, job, tam_comm_deadline(comm));
    return atomic_load(&job->state) == TAM_JOB_DONE;
}

uint64_t tam_comm_deadline(const tamis_comm *comm) {
    return tam_clock_ns() + comm->timeout_ns;
}

/* The job's thread may be anywhere, so the rank that it waits for is unknown; and it may have no
 * time to release the streams. */
static void comm_give_up(tamis_comm *comm, const tam_job *job, uint64_t begin_ns) {
    const tam_call call = {.purpose = job->purpose, .number = job->number, .begin_ns = begin_ns};
    char waited[TAM_WAIT_TEXT], text[TAM_WAIT_TEXT + 96];
    snprintf(text, sizeof text, "rank %u%s, and the transport did not return by its deadline",
             comm->rank, tam_wait_time_text(&call, waited));
    poison(comm, TAMIS_E_TIMEOUT, text, false);
    release_others(comm, TAMIS_E_TIMEOUT, text);
}

tamis_status tam_comm_finish(tamis_comm *comm, tam_job *job, uint64_t until_ns) {
    uint64_t begin_ns = tam_clock_ns();
    if (comm->threaded)
        comm_wait_for(comm, job, until_ns);
    else
        run_until(comm, job, until_ns);
    if (atomic_load(&job->state) == TAM_JOB_ABANDONED) {
        comm_give_up(comm, job, begin_ns);
        return tam_comm_check(comm);
    }
    atomic_store(&job->state, TAM_JOB_IDLE);
    if (job->status != TAMIS_OK)
        return tam_pass(job->status, job->message);
    return TAMIS_OK;
}

tamis_status tam_comm_run(tamis_comm *comm, tam_job *job) {
    TAM_TRY(tam_comm_usable(comm));
    tam_comm_submit(comm, job);
    return tam_comm_finish(comm, job, tam_comm_deadline(comm));
}

/* -- life ------------------------------------------------------------------------------------- */

static atomic_ullong roots;

tamis_status tam_comm_open(const tam_transport *transport, void *self, uint32_t rank,
                           uint32_t nranks, const tamis_comm_config *config, tamis_comm **out) {
    tamis_comm *comm = tam_alloc(sizeof *comm);
    if (!comm)
        goto err_close;
    comm->transport = transport;
    comm->self = self;
    comm->forks = tam_forks();
    comm->root = atomic_fetch_add(&roots, 1);
    comm->rank = rank;
    comm->nranks = nranks;
    comm->stages = tam_plan_linear(nranks);
    comm->ranks_per_node = 1;
    snprintf(comm->plan, sizeof comm->plan, "%u", nranks);
    atomic_init(&comm->waiting, (int)tam_setting_number(TAM_SETTING_WAIT));
    comm->records = tam_alloc_array(nranks, TAM_RECORD_BYTES);
    comm->job_memory = tam_alloc(TAM_JOB_BYTES);
    comm->recorded.flight = tam_flight_open(rank, nranks);
    if (!comm->records || !comm->job_memory || !comm->recorded.flight ||
        tam_comm_timeout(config, &comm->timeout_ns) != TAMIS_OK ||
        !tam_lock_open(&comm->lock, &comm->changed))
        goto err_free;
    comm->recorded.flight->transport = transport->name;
    comm->recorded.flight->plan = comm->plan;
    tam_comm_flight_check(comm);
    comm->threaded = transport->capabilities & TAM_CAP_THREADED;
    if (comm->threaded && !tam_thread_start(&comm->thread, comm_drive, comm))
        goto err_lock;
    tam_log(TAM_INFO, "communicator: rank %u of %u over %s%s", rank, nranks, transport->name,
            comm->threaded ? ", driven by a thread" : "");
    *out = comm;
    return TAMIS_OK;

err_lock:
    tam_lock_close(&comm->lock, &comm->changed);
err_free:
    tam_flight_close(comm->recorded.flight);
    tam_free(comm->job_memory);
    tam_free(comm->records);
    tam_free(comm);
err_close:
    transport->close(self, 1);
    return tam_fail(TAMIS_E_NOMEM, "no memory or no thread for a communicator");
}

static double gbit(double s_per_byte) {
    return s_per_byte > 0.0 ? 8e-9 / s_per_byte : 0.0;
}

static void log_measured(const tam_staged *s) {
    char plan[64], tried[192] = "; no other stages promise more than the usual ones";
    const tam_net *net = &s->net;
    for (uint32_t i = 0, at = 0; i < s->ntried; i++) {
        int wrote = snprintf(
            tried + at, sizeof tried - at, "%s %s saved %.0f %%%s",
            i > 0 ? "," : "; of the usual stages' time",
            tam_plan_text(&s->tried[i], plan, sizeof plan), 100.0 * s->gain[i],
            memcmp(&s->tried[i], &s->coll.plan, sizeof s->tried[i]) == 0 ? " and are taken" : "");
        at += wrote > 0 && (size_t)wrote < sizeof tried - at ? (uint32_t)wrote : 0;
    }
    tam_log(TAM_INFO,
            "communicator: measured %.1f us and %.2f Gbit/s between nodes, %.1f us and %.2f Gbit/s "
            "inside, %.2f us a message%s",
            1e6 * net->far_s, gbit(net->far_s_per_byte), 1e6 * net->near_s,
            gbit(net->near_s_per_byte), 1e6 * net->message_s, tried);
}

tamis_status tam_comm_open_staged(const tam_transport *transport, tam_staged *self, uint32_t rank,
                                  uint32_t nranks, const tamis_comm_config *config,
                                  tamis_comm **out) {
    const tam_staged made = *self; /* lost if opening fails */
    TAM_TRY(tam_comm_open(transport, self, rank, nranks, config, out));
    tamis_comm *comm = *out;
    comm->stages = made.coll.plan;
    comm->ranks_per_node = made.net.ranks_per_node;
    tam_plan_whole_text(&comm->stages, comm->plan, sizeof comm->plan);
    tam_log(TAM_INFO, "communicator: rank %u of %u exchanges in stages %s, %u ranks a node", rank,
            nranks, comm->plan, made.net.ranks_per_node);
    if (rank == 0 && made.measured)
        log_measured(&made);
    return TAMIS_OK;
}

uint32_t tamis_comm_rank(const tamis_comm *comm) {
    return comm ? comm->rank : 0;
}

uint32_t tamis_comm_nranks(const tamis_comm *comm) {
    return comm ? comm->nranks : 0;
}

uint32_t tamis_comm_rank_before(const tamis_comm *comm, uint32_t rank) {
    if (!comm || rank >= comm->nranks)
        return 0;
    return comm->before ? comm->before[rank] : rank;
}

const char *tamis_comm_plan(const tamis_comm *comm) {
    return comm ? comm->plan : "";
}

const char *tamis_comm_transport(const tamis_comm *comm) {
    return comm ? comm->transport->name : "";
}

tamis_status tamis_comm_status(const tamis_comm *comm) {
    return comm ? (tamis_status)atomic_load(&comm->poison) : TAMIS_E_ARGUMENT;
}

tamis_status tamis_comm_set_waiting(tamis_comm *comm, tamis_waiting waiting) {
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_set_waiting: comm is NULL");
    if ((unsigned)waiting > TAMIS_WAITING_SLEEP)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_set_waiting: %d is not a tamis_waiting",
                        (int)waiting);
    atomic_store(&comm->waiting, (int)waiting);
    return TAMIS_OK;
}

void tam_comm_lose(tamis_comm *comm, tamis_status status) {
    poison(comm, status, tamis_last_error(), true);
    comm->transport->abort(comm->self, status, tamis_last_error());
}

void tam_comm_revoke(tamis_comm *comm) {
    static const char cause[] = "tamis_comm_shrink was called on this rank";
    poison(comm, TAMIS_E_ABORTED, cause, true);
    comm->transport->abort(comm->self, TAMIS_E_ABORTED, cause);
}

static const char abort_called[] = "tamis_comm_abort was called on this rank";

tamis_status tamis_comm_abort(tamis_comm *comm) {
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_abort: comm is NULL");
    TAM_TRY(tam_comm_usable(comm));
    poison(comm, TAMIS_E_ABORTED, abort_called, false);
    comm->transport->abort(comm->self, TAMIS_E_ABORTED, abort_called);
    return TAMIS_OK;
}

/* Waits for jobs that nobody waited for: the thread ends when the queue is empty. */
static bool stop_thread(tamis_comm *comm) {
    uint64_t until_ns = tam_comm_deadline(comm) + GRACE_NS;
    pthread_mutex_lock(&comm->lock);
    comm->closing = true;
    pthread_cond_broadcast(&comm->changed);
    while (!comm->finished && tam_lock_wait(&comm->lock, &comm->changed, until_ns))
        ;
    bool finished = comm->finished;
    pthread_mutex_unlock(&comm->lock);
    if (finished)
        pthread_join(comm->thread, NULL);
    return finished;
}

bool tam_comm_silence(const tamis_comm *comm) {
    const tam_transport *transport = comm->transport;
    if (atomic_load(&comm->poison) == TAMIS_OK || !(transport->capabilities & TAM_CAP_IN_FLIGHT))
        return true;
    return atomic_load(&comm->exchanges) == 0 && transport->silence &&
           transport->silence(comm->self);
}

void tamis_comm_destroy(tamis_comm *comm) {
    if (!comm || tam_comm_of_parent(comm))
        return;
    if (comm->threaded && !stop_thread(comm)) {
        tam_log(TAM_WARN, "rank %u: the transport's thread does not end; its memory is not freed",
                comm->rank);
        return;
    }
    bool clean = atomic_load(&comm->poison) == TAMIS_OK;
    if (tam_comm_silence(comm)) {
        tam_free(comm->job_memory);
        tam_free(comm->records);
    }
    comm->transport->close(comm->self, clean);
    tam_free(comm->before);
    tam_lock_close(&comm->lock, &comm->changed);
    tam_flight_close(comm->recorded.flight);
    tam_free(comm);
}
