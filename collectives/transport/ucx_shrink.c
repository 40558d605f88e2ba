/* SPDX-License-Identifier: MIT
 *
 * The ranks that are left of a communicator over UCX. Each has a new worker for its data. When they
 * know who goes on (ucx_decide.h), all open a communicator of those, and compare what they say.
 * If the one that decides dies, or another before the communicator is open, all begin again: a rank
 * that had already gone on finds its communicator lost, and shrinks that one. So what is said here
 * belongs to members of control, not to ranks.
 */
#include "collectives/transport/ucx_decide.h"

#include <stdlib.h>

static const char call[] = "tamis_comm_shrink";

/* -- the communicator of those ---------------------------------------------------------------- */

/* @param  ranks  [out]  of the old communicator */
static tamis_status find_old_ranks(const tam_ucx_attempt *a, uint32_t *ranks) {
    const tam_ucx_decision *d = a->decision;
    for (uint32_t i = 0; i < d->nmembers; i++) {
        ranks[i] = 0;
        while (ranks[i] < a->self->nranks && a->self->members[ranks[i]] != d->members[i])
            ranks[i]++;
        if (ranks[i] == a->self->nranks || (i > 0 && ranks[i] <= ranks[i - 1]))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "rank %u: %s: another rank decided for ranks that were not of this "
                            "communicator",
                            a->self->rank, call);
    }
    return TAMIS_OK;
}

static const char *decision_address(const tam_ucx_decision *d, uint32_t i) {
    return (const char *)(d->members + d->nmembers) + (size_t)i * d->stride;
}

static tamis_status reach_left(tam_ucx_attempt *a) {
    const tam_ucx_decision *d = a->decision;
    uint32_t own = 0;
    while (d->members[own] != a->self->control->self)
        own++;
    TAM_TRY(tam_ucx_mesh_extend(a->data, d->nmembers));
    a->data->self = own;
    for (uint32_t i = 0; i < d->nmembers; i++)
        if (i != own)
            TAM_TRY(tam_ucx_mesh_reach(a->data, i, decision_address(d, i)));
    return TAMIS_OK;
}

/* @param  ranks  [out]  of the old communicator
 * @param  out    [out]  NULL: none was made */
static tamis_status open_and_compare(tam_ucx_attempt *a, uint32_t *ranks, tamis_comm **out) {
    tam_left left = *a->left;
    tam_ucx_mesh *data = a->data;
    tamis_comm *made = NULL;
    left.rank = a->self->control->self;
    left.nranks_before = 0; /* some may know more newcomers than others */
    tamis_status own = find_old_ranks(a, ranks);
    TAM_TRY(reach_left(a));
    a->data = NULL; /* of the communicator from here on */
    tamis_status status = tam_ucx_open(left.comm->transport, data, a->self->control,
                                       a->decision->members, left.deadline_ns, left.config, &made);
    if (status == TAMIS_OK)
        status = tam_shrink_compare(made, &left, own);
    *out = made;
    return status;
}

static tamis_status open_left(tam_ucx_attempt *a, tamis_comm **out) {
    tamis_comm *made = NULL;
    uint32_t *ranks = tam_alloc_array(a->decision->nmembers, sizeof ranks[0]);
    if (!ranks)
        return tam_fail(TAMIS_E_NOMEM, "rank %u: %s: no memory", a->self->rank, call);
    tamis_status status = open_and_compare(a, ranks, &made);
    if (status == TAMIS_OK)
        status = tam_comm_record_before(&made, ranks); /* destroys it where it fails */
    else
        tamis_comm_destroy(made);
    tam_free(ranks);
    *out = status == TAMIS_OK ? made : NULL;
    return status;
}

/* -- attempts --------------------------------------------------------------------------------- */

/* What this rank says of itself, if it decides, too. */
static tamis_status write_join(tam_ucx_attempt *a) {
    tam_ucx_mesh *control = a->self->control;
    size_t bytes = 0;
    void *address = tam_ucx_mesh_address(a->data, &bytes);
    a->own = address ? malloc(sizeof *a->own + bytes) : NULL;
    a->joined = calloc(control->nmembers, sizeof a->joined[0]);
    if (a->own) {
        *a->own =
            (tam_ucx_join){.bytes = (uint32_t)bytes, .top = a->self->members[a->self->nranks - 1]};
        memcpy(a->own + 1, address, bytes);
    }
    free(address);
    if (!a->own || !a->joined)
        return tam_fail(TAMIS_E_NOMEM, "rank %u: %s: no memory", a->self->rank, call);
    pthread_mutex_lock(&control->lock);
    a->own->nonce = ++control->attempts;
    pthread_mutex_unlock(&control->lock);
    a->joined[control->self] = a->own;
    return TAMIS_OK;
}

static void attempt_close(tam_ucx_attempt *a) {
    for (uint32_t m = 0; a->joined && m < a->self->control->nmembers; m++)
        if (a->joined[m] != a->own)
            free(a->joined[m]);
    free(a->joined);
    free(a->own);
    free(a->decision);
    if (a->data)
        tam_ucx_mesh_close(a->data, TAM_UCX_STAYS, false);
}

static tamis_status try_once(tam_ucx *self, const tam_left *left, tamis_comm **out) {
    tam_ucx_attempt a = {.self = self, .left = left, .begin_ns = tam_clock_ns(), .top = UINT32_MAX};
    tamis_status status = tam_ucx_mesh_open(false, &a.data);
    if (status == TAMIS_OK)
        status = write_join(&a);
    if (status == TAMIS_OK)
        status = tam_ucx_find_left(&a);
    if (status == TAMIS_OK)
        status = open_left(&a, out);
    attempt_close(&a);
    return status;
}

/* After a failure of the network another attempt may find who is left now. */
static bool tries_again(tamis_status status, const tam_left *left) {
    bool network =
        status == TAMIS_E_TRANSPORT || status == TAMIS_E_PROTOCOL || status == TAMIS_E_ABORTED;
    return network && !left->ranks && tam_clock_ns() < left->deadline_ns;
}

tamis_status tam_ucx_shrink(void *arg, const tam_left *left, tamis_comm **out) {
    const tam_staged *staged = arg;
    tamis_status status;
    tam_comm_revoke(left->comm);
    do
        status = try_once(staged->self, left, out);
    while (tries_again(status, left));
    if (status == TAMIS_OK)
        tam_ucx_went_on(staged->self);
    return status;
}
