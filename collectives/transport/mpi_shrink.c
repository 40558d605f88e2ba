/* SPDX-License-Identifier: MIT
 *
 * The ranks that are left of a communicator over MPI, where MPI has User Level Failure Mitigation:
 *
 *     revoke      the old communicator: whoever waits there wakes up
 *     gather      MPIX_Comm_iagree, polled: all that live have come
 *     shrink      MPIX_Comm_shrink has no nonblocking form, so it runs on a thread of its own
 *     open        as any communicator, and compare what the callers say
 *     agree       again over the old one: all go on, or none
 *
 * A rank whose deadline passes returns, and continues where it was when it calls again: what MPI
 * has begun cannot be withdrawn. MPI alone knows who is dead: a rank that has only stopped is
 * waited for until the deadline.
 */
#include "collectives/transport/mpi_comm.h"
#include "collectives/transport/shrink.h"

static const char call[] = "tamis_comm_shrink";

#ifdef TAM_HAVE_ULFM

#include <mpi-ext.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* After its deadline a rank waits so long for the others to say that they go on. */
#define GRACE_NS UINT64_C(500000000)

typedef enum tam_mpi_phase { GATHER, SHRINK, AGREE } tam_mpi_phase;

/* What has begun on the old communicator. It lives as long as the process: an abandoned thread, or
 * MPI, may still use it. */
typedef struct tam_mpi_parting {
    tam_mpi_phase phase;
    MPI_Request request; /* of MPIX_Comm_iagree, */
    int flag;            /* and its flag */
    bool asked;          /* that, or the thread, has begun */
    MPI_Comm old, left;
    tamis_comm *made; /* on left, while it is not known whether all have theirs */
    int code;         /* of the thread, which is */
    atomic_int finished;
} tam_mpi_parting;

bool tam_mpi_tolerates(void) {
    int *on = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, (void *)&on, &found);
    return found && *on;
}

/* @return a rank that has died, -1: none */
static int find_dead(const tam_mpi *self) {
    int size = 0, first = 0, rank = -1;
    MPI_Group failed, all;
    if (MPIX_Comm_get_failed(self->comm, &failed) != MPI_SUCCESS)
        return -1;
    MPI_Group_size(failed, &size);
    if (size > 0) {
        MPI_Comm_group(self->comm, &all);
        MPI_Group_translate_ranks(failed, 1, &first, all, &rank);
        MPI_Group_free(&all);
    }
    MPI_Group_free(&failed);
    return rank;
}

bool tam_mpi_saw_death(const tam_mpi *self, int *dead) {
    int revoked = 0;
    *dead = -1;
    if (!self->tolerant)
        return false;
    MPIX_Comm_is_revoked(self->comm, &revoked);
    if (!revoked)
        *dead = find_dead(self);
    return revoked || *dead >= 0;
}

static tamis_status check_ulfm(const tam_mpi *self) {
    if (self->tolerant)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "rank %d: %s: this MPI tolerates no faults as it was started (Open MPI: mpirun "
                    "--with-ft ulfm); save the state of the reducers and start again with the "
                    "ranks that are left",
                    self->rank, call);
}

static tamis_status open_parting(tam_mpi *self) {
    if (self->parting)
        return TAMIS_OK;
    self->parting = tam_alloc(sizeof *self->parting);
    if (!self->parting)
        return tam_fail(TAMIS_E_NOMEM, "rank %d: %s: no memory", self->rank, call);
    self->parting->old = self->comm;
    atomic_init(&self->parting->finished, 0);
    return TAMIS_OK;
}

static tamis_status late(const tam_mpi *self, const char *what) {
    return tam_fail(
        TAMIS_E_TIMEOUT,
        "rank %d: %s: not all ranks that live came to %s by the deadline; call again, or "
        "end the processes that have stopped",
        self->rank, call, what);
}

/* All that live give a flag, and all of them get the same: the AND of all, whoever dies meanwhile.
 * The code only tells of deaths, and they are no surprise here. */
static tamis_status mpi_shrink_agree(const tam_mpi *self, int flag, const char *what,
                                     uint64_t deadline_ns, int *out) {
    tam_mpi_parting *p = self->parting;
    int done = 0;
    if (!p->asked) {
        p->flag = flag;
        TAM_TRY(tam_mpi_check(self, MPIX_Comm_iagree(p->old, &p->flag, &p->request),
                              "MPIX_Comm_iagree"));
        p->asked = true;
    }
    for (unsigned tries = 0;; tries++) {
        MPI_Test(&p->request, &done, MPI_STATUS_IGNORE);
        if (done)
            break;
        if (tam_clock_ns() > deadline_ns)
            return late(self, what);
        tam_back_off(tries);
    }
    p->asked = false;
    *out = p->flag;
    return TAMIS_OK;
}

static void *shrink_there(void *arg) {
    tam_mpi_parting *p = arg;
    p->code = MPIX_Comm_shrink(p->old, &p->left);
    atomic_store(&p->finished, 1);
    return NULL;
}

static bool start_thread(tam_mpi_parting *p) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, shrink_there, p) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

/* Without MPI_THREAD_MULTIPLE, or without a thread, on this thread: all ranks have just come, so
 * only a rank that stops in this moment can block it. */
static tamis_status shrink_old(const tam_mpi *self, uint64_t deadline_ns) {
    tam_mpi_parting *p = self->parting;
    if (!p->asked) {
        p->asked = true;
        if (!self->threaded || !start_thread(p))
            shrink_there(p);
    }
    for (unsigned tries = 0; !atomic_load(&p->finished); tries++) {
        if (tam_clock_ns() > deadline_ns)
            return late(self, "MPIX_Comm_shrink");
        tam_back_off(tries);
    }
    atomic_store(&p->finished, 0);
    p->asked = false;
    return tam_mpi_check(self, p->code, "MPIX_Comm_shrink");
}

/* @param  ranks  [out]  [nranks of the new one] of the old one */
static void translate(const tam_mpi_parting *p, int nranks, uint32_t *ranks) {
    MPI_Group old, new;
    MPI_Comm_group(p->old, &old);
    MPI_Comm_group(p->left, &new);
    for (int r = 0; r < nranks; r++) {
        int there = 0;
        MPI_Group_translate_ranks(new, 1, &r, old, &there);
        ranks[r] = (uint32_t)there;
    }
    MPI_Group_free(&old);
    MPI_Group_free(&new);
}

static tamis_status mpi_shrink_check_list(const tam_mpi *self, const tam_left *left,
                                          const uint32_t *ranks, uint32_t nranks) {
    if (!left->ranks ||
        (left->nranks == nranks && memcmp(left->ranks, ranks, nranks * sizeof ranks[0]) == 0))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_MISMATCH,
                    "rank %d: %s: the list names %u ranks, but MPI finds %u that live, or others; "
                    "give no list, and all that live go on",
                    self->rank, call, left->nranks, nranks);
}

/* @param out  [out]  NULL: none was made */
static tamis_status mpi_shrink_open_left(const tam_mpi *self, const tam_left *left,
                                         tamis_comm **out) {
    tam_mpi_parting *p = self->parting;
    int nranks = 0;
    MPI_Comm_set_errhandler(p->left, MPI_ERRORS_RETURN);
    MPI_Comm_size(p->left, &nranks);
    uint32_t *ranks = tam_alloc_array((size_t)nranks, sizeof ranks[0]);
    if (!ranks)
        return tam_fail(TAMIS_E_NOMEM, "rank %d: %s: no memory", self->rank, call);
    translate(p, nranks, ranks);
    tamis_status own = mpi_shrink_check_list(self, left, ranks, (uint32_t)nranks);
    tamis_status status =
        tam_mpi_open(p->left, self->threaded, left->deadline_ns, left->config, out);
    if (status == TAMIS_OK)
        status = tam_shrink_compare(*out, left, own);
    if (status == TAMIS_OK && tam_comm_record_before(out, ranks) != TAMIS_OK) {
        *out = NULL;
        status = TAMIS_E_NOMEM;
    }
    tam_free(ranks);
    return status;
}

/* The others may still rely on a communicator that not all have. */
static void mpi_shrink_drop(tam_mpi_parting *p) {
    if (!p->made)
        return;
    MPIX_Comm_revoke(p->left);
    tam_comm_revoke(p->made);
    tamis_comm_destroy(p->made);
    p->made = NULL;
}

/* @param own  of this rank so far, with its sentence */
static tamis_status mpi_shrink_end_together(tam_mpi *self, tamis_status own, tamis_comm **out) {
    tam_mpi_parting *p = self->parting;
    char sentence[512];
    int all = 0;
    snprintf(sentence, sizeof sentence, "%s", own != TAMIS_OK ? tamis_last_error() : "");
    p->phase = AGREE;
    TAM_TRY(mpi_shrink_agree(self, own == TAMIS_OK, "its end", tam_clock_ns() + GRACE_NS, &all));
    p->phase = GATHER;
    if (all && p->made) {
        *out = p->made;
        p->made = NULL;
        return TAMIS_OK;
    }
    mpi_shrink_drop(p);
    if (own != TAMIS_OK)
        return tam_pass(own, sentence);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %d: %s: another rank could not go on; call it again",
                    self->rank, call);
}

tamis_status tam_mpi_shrink(void *arg, const tam_left *left, tamis_comm **out) {
    const tam_staged *staged = arg;
    tam_mpi *self = staged->self;
    int flag = 0;
    TAM_TRY(check_ulfm(self));
    TAM_TRY(open_parting(self));
    tam_mpi_parting *p = self->parting;
    tam_comm_revoke(left->comm);
    MPIX_Comm_revoke(p->old);
    if (p->phase == AGREE)
        return mpi_shrink_end_together(self, TAMIS_OK,
                                       out); /* what this rank said then is what counts */
    if (p->phase == GATHER)
        TAM_TRY(mpi_shrink_agree(self, 1, "gathering the ranks", left->deadline_ns, &flag));
    p->phase = SHRINK;
    TAM_TRY(shrink_old(self, left->deadline_ns));
    return mpi_shrink_end_together(self, mpi_shrink_open_left(self, left, &p->made), out);
}

#else

bool tam_mpi_tolerates(void) {
    return false;
}

bool tam_mpi_saw_death(const tam_mpi *self, int *dead) {
    (void)self, (void)dead;
    return false;
}

tamis_status tam_mpi_shrink(void *arg, const tam_left *left, tamis_comm **out) {
    (void)arg, (void)left, (void)out;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "%s: the MPI of this build cannot go on after a rank has died (no ULFM: "
                    "MPIX_Comm_shrink, as in Open MPI 5); save the state of the reducers and start "
                    "again with the ranks that are left",
                    call);
}

#endif
