/* SPDX-License-Identifier: MIT
 *
 * Ranks that are left of a local communicator find each other in its hub, and one of them makes the
 * next hub. Everything happens under the lock of the old one, so all get the same answer:
 *
 *     rank 0   comes . . . . . . . . . . waits . | complete, or |  rank 0 of the next hub
 *     rank 1   (dead)                            | the deadline |
 *     rank 2             comes . . . . . waits . | of the first |  rank 1 of the next hub
 *     rank 3                                                          comes: too late
 *
 * Those that have already missed one deadline have less time than the deadline, so that
 * two deadlines do not pass before the others go on.
 */
#include "lib/base/base.h"
#include "collectives/transport/local_hub.h"
#include "collectives/transport/shrink.h"

#include <stdio.h>
#include <time.h>

enum { TEXT = 96 };

/* Who let one deadline pass gets a tenth of another, and at least this, to show that it lives. */
#define BRIEF_NS UINT64_C(1000000000)

/* -- what the ranks say; all with the lock held ----------------------------------------------- */

static void fail_attempt(tam_hub *h, tamis_status status, const char *cause) {
    tam_rendezvous *m = &h->rendezvous;
    m->failed++;
    m->verdict = status;
    snprintf(m->cause, sizeof m->cause, "%s", cause);
    m->ncame = 0;
    memset(m->came, 0, h->nranks * sizeof m->came[0]);
    pthread_cond_broadcast(&h->changed);
}

static uint64_t brief_of(uint64_t timeout_ns) {
    return timeout_ns / 10 > BRIEF_NS ? timeout_ns / 10 : BRIEF_NS;
}

static void be_first(const tam_local *self, const tam_left *left) {
    tam_hub *h = self->hub;
    tam_rendezvous *m = &h->rendezvous;
    m->first = self->rank;
    m->listed = left->ranks != NULL;
    m->until_ns = left->deadline_ns;
    m->brief_ns = tam_clock_ns() + brief_of(left->comm->timeout_ns);
    memset(m->left, 0, h->nranks * sizeof m->left[0]);
    for (uint32_t i = 0; i < left->nranks; i++)
        m->left[left->ranks[i]] = true;
}

/* No list is another than any list, which names at least its rank. */
static bool says_the_same(const tam_rendezvous *m, const tam_left *left, uint32_t nranks) {
    uint32_t i = 0;
    bool same = true;
    for (uint32_t r = 0; r < nranks && same; r++) {
        bool in = i < left->nranks && left->ranks[i] == r;
        i += in;
        same = in == m->left[r];
    }
    return same;
}

static const char *say(const tam_left *left, char text[TEXT]) {
    enum { REST = 24 };
    size_t used = 0;
    uint32_t i = 0;
    text[0] = '\0';
    for (; i < left->nranks && used + REST < TEXT; i++)
        used += (size_t)snprintf(text + used, TEXT - used, " %u", left->ranks[i]);
    if (i < left->nranks)
        snprintf(text + used, TEXT - used, " and %u more", left->nranks - i);
    if (!left->ranks)
        snprintf(text, TEXT, " gives no list");
    return text;
}

static void local_shrink_differ(const tam_local *self, const tam_left *left) {
    const tam_rendezvous *m = &self->hub->rendezvous;
    char theirs[TEXT], ours[TEXT], cause[128 + 2 * TEXT];
    tam_hub_list(self->hub, m->left, true, theirs, sizeof theirs);
    snprintf(cause, sizeof cause,
             "the lists of ranks that are left differ: rank %u%s, rank %u%s; all must give the "
             "same",
             m->first, m->listed ? theirs : " gives no list", self->rank, say(left, ours));
    fail_attempt(self->hub, TAMIS_E_MISMATCH, cause);
}

/* -- the end of an attempt -------------------------------------------------------------------- */

/* Without a list. */
static bool is_awaited(const tam_hub *h, uint32_t rank, uint64_t now_ns) {
    bool missed = h->missed[rank] && now_ns >= h->rendezvous.brief_ns;
    return !h->gone[rank] && !missed;
}

/* Whether all have come that can; `gone`: one of the list never will. */
static bool is_complete(const tam_hub *h, uint64_t now_ns, bool *gone) {
    const tam_rendezvous *m = &h->rendezvous;
    bool complete = true;
    *gone = false;
    for (uint32_t r = 0; r < h->nranks; r++) {
        bool missing = !m->came[r];
        *gone = *gone || (missing && m->listed && m->left[r] && h->gone[r]);
        complete = complete && !(missing && (m->listed ? m->left[r] : is_awaited(h, r, now_ns)));
    }
    return complete;
}

/* Those that have come go on. */
static void local_shrink_agree(tam_hub *h) {
    tam_rendezvous *m = &h->rendezvous;
    tamis_status status = tam_hub_open(h->transport, m->ncame, m->ncame, &m->next);
    if (status != TAMIS_OK) {
        fail_attempt(h, status, tamis_last_error());
        return;
    }
    m->agreed = true;
    pthread_cond_broadcast(&h->changed);
}

/* The next attempt begins with a list of its own. */
static void refuse_incomplete(tam_hub *h, tamis_status status, const char *why) {
    tam_rendezvous *m = &h->rendezvous;
    char missing[TEXT], cause[256];
    for (uint32_t r = 0; r < h->nranks; r++)
        m->left[r] = m->left[r] && !m->came[r];
    snprintf(cause, sizeof cause, "of the ranks that are left, rank(s)%s %s; shrink without them",
             tam_hub_list(h, m->left, true, missing, sizeof missing), why);
    fail_attempt(h, status, cause);
}

/* Until something changes, or one of the two times has come. */
static void await_change(tam_hub *h, uint64_t now_ns) {
    const tam_rendezvous *m = &h->rendezvous;
    bool brief = now_ns < m->brief_ns && m->brief_ns < m->until_ns;
    uint64_t until_ns = brief ? m->brief_ns : m->until_ns;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(&h->changed, &h->lock, &until);
}

static void local_shrink_await_end(tam_local *self, uint32_t failed) {
    tam_hub *h = self->hub;
    tam_rendezvous *m = &h->rendezvous;
    bool gone;
    while (m->failed == failed && !m->agreed) {
        uint64_t now_ns = tam_clock_ns();
        bool late = now_ns >= m->until_ns;
        if (is_complete(h, now_ns, &gone) || (late && !m->listed))
            local_shrink_agree(h);
        else if (gone)
            refuse_incomplete(h, TAMIS_E_ABORTED, "destroyed the communicator");
        else if (late)
            refuse_incomplete(h, TAMIS_E_TIMEOUT, "did not come by the deadline");
        else
            await_change(h, now_ns);
    }
}

/* -- one rank --------------------------------------------------------------------------------- */

static tamis_status come_late(const tam_local *self) {
    char text[TEXT];
    const tam_hub *h = self->hub;
    tam_hub_list(h, h->rendezvous.came, true, text, sizeof text);
    if (h->rendezvous.came[self->rank])
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: tamis_comm_shrink was called again, but ranks%s have already "
                        "gone on; shrink the smaller communicator",
                        self->rank, text);
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank %u came to tamis_comm_shrink too late: ranks%s have gone on without it, "
                    "and it cannot join them",
                    self->rank, text);
}

static tamis_status report_verdict(tam_local *self) {
    const tam_rendezvous *m = &self->hub->rendezvous;
    self->failed = m->failed;
    return tam_fail(m->verdict, "rank %u: tamis_comm_shrink: %s", self->rank, m->cause);
}

/* A rank that missed an attempt gets its result, so that all get the same answers. */
static tamis_status rendezvous(tam_local *self, const tam_left *left) {
    tam_hub *h = self->hub;
    tam_rendezvous *m = &h->rendezvous;
    uint32_t failed = m->failed;
    if (m->agreed)
        return come_late(self);
    if (self->failed < failed)
        return report_verdict(self);
    if (m->ncame == 0)
        be_first(self, left);
    if (!says_the_same(m, left, h->nranks))
        local_shrink_differ(self, left);
    else {
        m->came[self->rank] = true;
        m->ncame++;
        pthread_cond_broadcast(&h->changed);
        local_shrink_await_end(self, failed);
    }
    return m->failed == failed ? TAMIS_OK : report_verdict(self);
}

/* @param  ranks  [out]  [nranks] who is left. @return the new number of `rank` */
static uint32_t list_left(const tam_hub *h, uint32_t rank, uint32_t *ranks) {
    uint32_t count = 0, new_rank = 0;
    for (uint32_t r = 0; r < h->nranks; r++) {
        if (r == rank)
            new_rank = count;
        if (h->rendezvous.came[r])
            ranks[count++] = r;
    }
    return new_rank;
}

/* The other ranks learn now, whatever call they are in, that this one will not come there. */
static void leave_the_old(tam_local *self, tamis_comm *comm) {
    char cause[96];
    snprintf(cause, sizeof cause, "rank %u goes on with fewer ranks (tamis_comm_shrink)",
             self->rank);
    pthread_mutex_lock(&self->hub->lock);
    tam_hub_break(self->hub, TAMIS_E_ABORTED, cause);
    pthread_mutex_unlock(&self->hub->lock);
    tam_comm_revoke(comm);
}

tamis_status tam_local_shrink(void *arg, const tam_left *left, tamis_comm **out) {
    tam_local *self = arg;
    tam_hub *h = self->hub;
    uint32_t new_rank = 0;
    uint32_t *ranks =
        tam_alloc_array(h->nranks, sizeof ranks[0]); /* before the others rely on it */
    if (!ranks)
        return tam_fail(TAMIS_E_NOMEM, "rank %u: no memory to list who is left", self->rank);
    leave_the_old(self, left->comm);
    pthread_mutex_lock(&h->lock);
    tamis_status status = rendezvous(self, left);
    if (status == TAMIS_OK)
        new_rank = list_left(h, self->rank, ranks);
    tam_hub *next = h->rendezvous.next;
    pthread_mutex_unlock(&h->lock);
    if (status == TAMIS_OK)
        status = tam_hub_open_rank(next, new_rank, left->config, out);
    if (status == TAMIS_OK)
        status = tam_comm_record_before(out, ranks);
    tam_free(ranks);
    return status;
}
