/* SPDX-License-Identifier: MIT
 *
 * A communicator over NCCL of the ranks that are left. NCCL makes it out of the old one, which is
 * revoked first: ncclCommRevoke ends what has been launched and leaves the communicator, where
 * ncclCommAbort would free it. Both calls, and the abort that ends a making that does not end, are
 * the helper's (nccl_end.c), as each of them may hang.
 *
 * NCCL cannot tell who is left, and ranks that do not name the same are not refused by it: they
 * wait for each other until their deadline. So the ranks compare their lists once all have come.
 */
#include "collectives/transport/nccl_comm.h"

#include "collectives/transport/shrink.h"

#include <stdio.h>

#define GRACE_NS UINT64_C(5000000000) /* for the abort of a making that has not ended in time */

static const char call[] = "tamis_comm_shrink";
static const char other_way[] =
    "shrink the communicator it was made over, call tamis_comm_create_nccl over that one, and give "
    "it to tamis_reducer_migrate";

static const atomic_int no_poison;

/* -- the task --------------------------------------------------------------------------------- */

/* Where nobody is gone, NCCL has nothing to exclude, and splits. */
static ncclResult_t make_child(tam_nccl *self, tam_nccl_parting *p) {
    if (p->nexcluded > 0)
        return ncclCommShrink(self->comm, p->excluded, p->nexcluded, &p->child, NULL,
                              TAM_NCCL_DEFAULT_FLAGS);
    return ncclCommSplit(self->comm, 0, (int)self->rank, &p->child, NULL);
}

/* Only an abort of the old one ends a making that waits. The child may then exist, half made. */
static void nccl_shrink_part(tam_nccl *self) {
    tam_nccl_parting *p = &self->parting;
    p->code = tam_nccl_wait_done(self->comm, make_child(self, p), p->deadline_ns);
    if (p->code == ncclSuccess && p->child)
        return;
    snprintf(p->words, sizeof p->words, "%s", ncclGetLastError(NULL));
    self->quiet = false;
    ncclCommAbort(self->comm);
    if (p->child)
        ncclCommAbort(p->child);
    p->child = NULL;
}

/* -- what can be known before ----------------------------------------------------------------- */

static tamis_status nccl_shrink_check(const tam_nccl *self, const tam_left *left) {
    if (!left->ranks)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "rank %u: tamis_shrink.ranks is NULL: NCCL cannot find out who is left; "
                        "name the ranks, or %s",
                        self->rank, other_way);
    if (!tam_nccl_shrinks(self))
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "rank %u: %s: NCCL %d has no ncclCommRevoke and ncclCommShrink, which came "
                        "with 2.28.7 and 2.27; %s",
                        self->rank, call, self->version, other_way);
    if (atomic_load(&self->captured))
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "rank %u: %s: steps were captured as graphs, which NCCL can abort but not "
                        "revoke; set TAMIS_GRAPHS=off and capture none, or %s",
                        self->rank, call, other_way);
    if (self->parting.done)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: %s was called before, and NCCL has no second try; shrink the "
                        "smaller communicator, or %s",
                        self->rank, call, other_way);
    return TAMIS_OK;
}

static bool list_excluded(const tam_left *left, tam_nccl_parting *p) {
    uint32_t all = left->comm->nranks, next = 0;
    if (!p->excluded)
        p->excluded = tam_alloc_array(all, sizeof p->excluded[0]);
    if (!p->excluded)
        return false;
    p->nexcluded = 0;
    for (uint32_t r = 0; r < all; r++) {
        if (next < left->nranks && left->ranks[next] == r)
            next++;
        else
            p->excluded[p->nexcluded++] = (int)r;
    }
    return true;
}

static uint32_t nccl_shrink_new_rank_of(const tam_left *left) {
    uint32_t rank = 0;
    while (left->ranks[rank] != left->comm->rank)
        rank++;
    return rank;
}

/* -- making it -------------------------------------------------------------------------------- */

static tamis_status await_quiet(tam_nccl *self, uint64_t deadline_ns) {
    if (!tam_nccl_await_helper(self, deadline_ns))
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u: %s: NCCL did not end what was under way by the deadline",
                        self->rank, call);
    if (!self->quiet)
        return tam_fail(TAMIS_E_TRANSPORT,
                        "rank %u: %s: NCCL could not revoke the communicator; %s", self->rank, call,
                        other_way);
    return TAMIS_OK;
}

static tamis_status nccl_shrink_explain(const tam_nccl *self, const tam_nccl_parting *p) {
    if (p->code == ncclInProgress || p->code == ncclSuccess)
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u: %s: not all ranks of the list came to NCCL by the deadline, or "
                        "they gave other lists; %s",
                        self->rank, call, other_way);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %u: %s: %s; %s (NCCL_DEBUG=WARN says more)",
                    self->rank, call, ncclGetErrorString(p->code), p->words);
}

static tamis_status nccl_shrink_make(tam_nccl *self, uint64_t deadline_ns, ncclComm_t *out) {
    tam_nccl_parting *p = &self->parting;
    p->deadline_ns = deadline_ns;
    p->done = true;
    if (!tam_nccl_send_helper(self, nccl_shrink_part))
        return tam_fail(TAMIS_E_NOMEM, "rank %u: %s: no thread", self->rank, call);
    if (!tam_nccl_await_helper(self, deadline_ns + GRACE_NS))
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u: %s: NCCL did not return by the deadline, nor aborted", self->rank,
                        call);
    *out = p->child;
    p->child = NULL;
    return *out ? TAMIS_OK : nccl_shrink_explain(self, p);
}

/* @param made  [out]  to be closed, even after a failure, unless it is NULL */
static tamis_status make_working(tam_nccl *self, const tam_left *left, tam_nccl **made) {
    tam_call limit = {.deadline_ns = left->deadline_ns,
                      .poison = &no_poison,
                      .purpose = call,
                      .begin_ns = tam_clock_ns()};
    uint64_t timeout_ns;
    TAM_TRY(tam_comm_timeout(left->config, &timeout_ns));
    TAM_TRY(await_quiet(self, left->deadline_ns)); /* before cudaMalloc, which waits for kernels */
    TAM_TRY(tam_nccl_take(nccl_shrink_new_rank_of(left), left->nranks, timeout_ns, made));
    TAM_TRY(nccl_shrink_make(self, left->deadline_ns, &(*made)->comm));
    TAM_TRY(tam_nccl_warm_up(*made, &limit));
    return tam_nccl_find_link(*made, &limit);
}

static tamis_status nccl_shrink_open_left(tam_nccl *made, const tam_left *left, tamis_comm **out) {
    tamis_comm *comm = NULL;
    TAM_TRY(
        tam_comm_open(left->comm->transport, made, made->rank, made->nranks, left->config, &comm));
    tamis_status status = tam_shrink_compare(comm, left, TAMIS_OK);
    if (status == TAMIS_OK)
        status = tam_comm_record_before(&comm, left->ranks);
    else
        tamis_comm_destroy(comm);
    if (status == TAMIS_OK)
        *out = comm;
    return status;
}

tamis_status tam_nccl_shrink(void *arg, const tam_left *left, tamis_comm **out) {
    tam_nccl *self = arg, *made = NULL;
    tam_nccl_mode before;
    TAM_TRY(nccl_shrink_check(self, left));
    if (!list_excluded(left, &self->parting))
        return tam_fail(TAMIS_E_NOMEM, "rank %u: %s: no memory to list the ranks", self->rank,
                        call);
    tam_comm_revoke(left->comm);
    cudaError_t code = tam_nccl_enter(self, &before);
    if (code != cudaSuccess)
        return tam_nccl_cuda_failed(self, code, "choosing the device");
    tamis_status status = make_working(self, left, &made);
    if (status == TAMIS_OK) {
        status = nccl_shrink_open_left(made, left, out);
        made = NULL;
    }
    if (made)
        tam_nccl_close(made, 0);
    tam_nccl_leave(&before);
    return status;
}
