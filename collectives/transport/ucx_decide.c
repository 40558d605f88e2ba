/* SPDX-License-Identifier: MIT */
#include "collectives/transport/ucx_decide.h"

#include "lib/base/hash.h"

#include <stdlib.h>

static const char call[] = "tamis_comm_shrink";

static size_t join_bytes(const tam_ucx_join *j) {
    return sizeof *j + j->bytes;
}

static size_t decision_bytes(uint32_t nmembers, uint32_t stride) {
    return sizeof(tam_ucx_decision) + nmembers * (sizeof(uint32_t) + (size_t)stride);
}

/* Both begin with one. */
static uint64_t hash_of(const void *message, size_t bytes) {
    return tam_hash((const char *)message + sizeof(uint64_t), bytes - sizeof(uint64_t));
}

static bool is_listed(const tam_left *left, uint32_t rank) {
    for (uint32_t i = 0; i < left->nranks; i++)
        if (left->ranks[i] == rank)
            return true;
    return !left->ranks;
}

/* As far as both meshes know. With both locks held. */
static bool lives(const tam_ucx_attempt *a, uint32_t rank) {
    const tam_ucx *self = a->self;
    tam_ucx_parting parting = tam_ucx_member_parting(self->mesh, rank);
    bool here = parting == TAM_UCX_GOES_ON ||
                (parting == TAM_UCX_STAYS && self->mesh->members[rank]->gone == UCS_OK);
    if (parting == TAM_UCX_GOES_ON)
        tam_ucx_mesh_watch(self->control, self->members[rank]);
    return here && self->control->members[self->members[rank]]->gone == UCS_OK;
}

static void lock_both(const tam_ucx_attempt *a) {
    pthread_mutex_lock(&a->self->mesh->lock);
    pthread_mutex_lock(&a->self->control->lock);
    tam_ucx_mesh_progress(a->self->mesh); /* its deaths are known to it */
    tam_ucx_mesh_progress(a->self->control);
}

static void unlock_both(const tam_ucx_attempt *a) {
    pthread_mutex_unlock(&a->self->control->lock);
    pthread_mutex_unlock(&a->self->mesh->lock);
}

static tamis_status ucx_shrink_late(const tam_ucx_attempt *a, const char *what) {
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank %u: %s: %s by the deadline; call again, or end the "
                    "processes that have stopped",
                    a->self->rank, call, what);
}

static tamis_status ucx_shrink_left_behind(const tam_ucx_attempt *a) {
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank %u: %s: the others went on without this rank, which came too late; it "
                    "must end",
                    a->self->rank, call);
}

/* -- the one that decides --------------------------------------------------------------------- */

static bool is_member(const tam_ucx *self, uint32_t member) {
    for (uint32_t r = 0; r < self->nranks; r++)
        if (self->members[r] == member)
            return true;
    return false;
}

static void send_decision(tam_ucx_mesh *control, tam_ucx_decision *d, uint32_t member,
                          uint32_t nonce) {
    size_t bytes = decision_bytes(d->nmembers, d->stride);
    d->nonce = nonce;
    d->hash = hash_of(d, bytes);
    tam_ucx_mesh_notify(control, member, tam_ucx_tag(TAM_UCX_DECIDE, control->self, 0), d, bytes);
}

/* The last of each member counts. A newcomer that this rank does not know is told so. */
static void take_join(tam_ucx_attempt *a, uint32_t member, tam_ucx_join *j, size_t length) {
    tam_ucx_decision none = {.nmembers = 0};
    bool whole = length >= sizeof *j && length == join_bytes(j) && j->hash == hash_of(j, length) &&
                 member < a->self->control->nmembers;
    if (whole && !is_member(a->self, member))
        send_decision(a->self->control, &none, member, j->nonce);
    if (!whole || !is_member(a->self, member)) {
        free(j);
        return;
    }
    j->left_ns += tam_clock_ns();
    free(a->joined[member]);
    a->joined[member] = j;
}

static void take_joins(tam_ucx_attempt *a) {
    uint32_t member;
    size_t length;
    tam_ucx_join *j;
    while ((j = tam_ucx_mesh_poll(a->self->control, tam_ucx_tag(TAM_UCX_JOIN, 0, 0),
                                  TAM_UCX_ANY_MEMBER, &length, &member)))
        take_join(a, member, j, length);
}

/* @param  complete  [out]  all have come that can */
static tamis_status look_around(const tam_ucx_attempt *a, bool *complete) {
    const tam_ucx *self = a->self;
    *complete = true;
    for (uint32_t r = 0; r < self->nranks; r++) {
        if (a->joined[self->members[r]] || !is_listed(a->left, r))
            continue;
        if (a->left->ranks && !lives(a, r))
            return tam_fail(TAMIS_E_TIMEOUT,
                            "rank %u: %s: of the ranks that are left, rank %u is gone, too; shrink "
                            "without it",
                            self->rank, call, r);
        *complete = *complete && !lives(a, r);
    }
    return TAMIS_OK;
}

static bool goes_on(const tam_ucx_attempt *a, uint32_t rank) {
    uint32_t member = a->self->members[rank];
    return a->joined[member] && member <= a->top && is_listed(a->left, rank);
}

/* Three quarters of the time of whoever has least: nobody is kept waiting beyond its own. */
static uint64_t latest_ns(const tam_ucx_attempt *a) {
    const tam_ucx *self = a->self;
    uint64_t first_ns = a->left->deadline_ns;
    for (uint32_t r = 0; r < self->nranks; r++) {
        const tam_ucx_join *j = a->joined[self->members[r]];
        if (goes_on(a, r) && r != self->rank && j->left_ns < first_ns)
            first_ns = j->left_ns;
    }
    return first_ns > a->begin_ns ? a->begin_ns + (first_ns - a->begin_ns) / 4 * 3 : first_ns;
}

static tam_ucx_decision *write_decision(const tam_ucx_attempt *a) {
    const tam_ucx *self = a->self;
    uint32_t nmembers = 0, stride = 0;
    for (uint32_t r = 0; r < self->nranks; r++) {
        uint32_t bytes = goes_on(a, r) ? a->joined[self->members[r]]->bytes : 0;
        nmembers += goes_on(a, r);
        stride = bytes > stride ? bytes : stride;
    }
    tam_ucx_decision *d = calloc(1, decision_bytes(nmembers, stride));
    if (!d)
        return NULL;
    d->nmembers = nmembers;
    d->stride = stride;
    for (uint32_t r = 0, i = 0; r < self->nranks; r++) {
        const tam_ucx_join *j = a->joined[self->members[r]];
        if (!goes_on(a, r))
            continue;
        d->members[i] = self->members[r];
        memcpy((char *)(d->members + nmembers) + (size_t)i++ * stride, j + 1, j->bytes);
    }
    return d;
}

/* The members, and who lives and is none. */
static tamis_status ucx_shrink_decide(tam_ucx_attempt *a) {
    const tam_ucx *self = a->self;
    for (uint32_t r = 0; r < self->nranks; r++) {
        const tam_ucx_join *j = a->joined[self->members[r]];
        a->top = j && j->top < a->top ? j->top : a->top;
    }
    tam_ucx_decision *d = a->decision = write_decision(a);
    if (!d)
        return tam_fail(TAMIS_E_NOMEM, "rank %u: %s: no memory", self->rank, call);
    for (uint32_t r = 0; r < self->nranks; r++) {
        const tam_ucx_join *j = a->joined[self->members[r]];
        if (r != self->rank && (goes_on(a, r) || lives(a, r)))
            send_decision(self->control, d, self->members[r], j ? j->nonce : 0);
    }
    return TAMIS_OK;
}

static tamis_status ucx_shrink_collect(tam_ucx_attempt *a) {
    bool complete;
    for (unsigned tries = 0;; tries++) {
        lock_both(a);
        take_joins(a);
        tamis_status status = look_around(a, &complete);
        if (status == TAMIS_OK && (complete || (!a->left->ranks && tam_clock_ns() > latest_ns(a))))
            status = ucx_shrink_decide(a);
        unlock_both(a);
        if (a->decision || status != TAMIS_OK)
            return status;
        if (tam_clock_ns() > a->left->deadline_ns)
            return ucx_shrink_late(a, "not all ranks of the list came");
        tam_back_off(tries);
    }
}

/* -- the others ------------------------------------------------------------------------------- */

static void send_join(const tam_ucx_attempt *a, uint32_t member) {
    tam_ucx_mesh *control = a->self->control;
    uint64_t now_ns = tam_clock_ns(), until_ns = a->left->deadline_ns;
    a->own->left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    a->own->hash = hash_of(a->own, join_bytes(a->own));
    tam_ucx_mesh_notify(control, member, tam_ucx_tag(TAM_UCX_JOIN, control->self, 0), a->own,
                        join_bytes(a->own));
}

static bool is_decision(const tam_ucx_attempt *a, const tam_ucx_decision *d, size_t length) {
    return length >= sizeof *d && d->nmembers <= a->self->control->nmembers &&
           length == decision_bytes(d->nmembers, d->stride) && d->hash == hash_of(d, length);
}

static bool names_this_rank(const tam_ucx_attempt *a, const tam_ucx_decision *d) {
    for (uint32_t i = 0; i < d->nmembers; i++)
        if (d->members[i] == a->self->control->self)
            return true;
    return false;
}

/* One that names this rank counts if it answers this attempt, of the rank that was joined. */
static void take_decisions(tam_ucx_attempt *a, uint32_t joined) {
    tam_ucx_mesh *control = a->self->control;
    uint32_t member;
    size_t length;
    tam_ucx_decision *d;
    while (!a->decision && (d = tam_ucx_mesh_poll(control, tam_ucx_tag(TAM_UCX_DECIDE, 0, 0),
                                                  TAM_UCX_ANY_MEMBER, &length, &member))) {
        bool whole = is_decision(a, d, length), named = whole && names_this_rank(a, d);
        if (whole && !named)
            control->left_behind = true;
        if (whole && !named && member == joined && d->nonce == a->own->nonce)
            a->refused = true;
        if (named && member == joined && d->nonce == a->own->nonce &&
            d->nmembers <= a->self->nranks)
            a->decision = d;
        else
            free(d);
    }
}

/* @param  first  the rank that decides. OK without a decision: it is gone */
static tamis_status join_first(tam_ucx_attempt *a, uint32_t first) {
    uint32_t member = a->self->members[first];
    bool living = true;
    for (unsigned tries = 0; living && !a->decision; tries++) {
        lock_both(a);
        if (tries == 0)
            send_join(a, member);
        take_decisions(a, member);
        living = lives(a, first);
        unlock_both(a);
        if (a->refused && !a->left->ranks)
            return ucx_shrink_left_behind(a);
        if (!a->decision && tam_clock_ns() > a->left->deadline_ns)
            return ucx_shrink_late(a, "no rank said who goes on");
        tam_back_off(tries);
    }
    return TAMIS_OK;
}

static uint32_t find_first(const tam_ucx_attempt *a) {
    uint32_t first = 0;
    lock_both(a);
    while (first != a->self->rank && !(lives(a, first) && is_listed(a->left, first)))
        first++;
    unlock_both(a);
    return first;
}

/* With a list the caller says who goes on. */
tamis_status tam_ucx_find_left(tam_ucx_attempt *a) {
    tam_ucx_mesh *control = a->self->control;
    while (!a->decision) {
        lock_both(a);
        take_decisions(a, control->self);
        bool left_behind = control->left_behind && !a->left->ranks;
        unlock_both(a);
        if (left_behind)
            return ucx_shrink_left_behind(a);
        uint32_t first = find_first(a);
        TAM_TRY(first == a->self->rank ? ucx_shrink_collect(a) : join_first(a, first));
    }
    control->left_behind = false;
    return TAMIS_OK;
}
