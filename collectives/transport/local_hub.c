/* SPDX-License-Identifier: MIT
 *
 * The hub of local communicators, which lives as long as one of its ranks.
 */
#include "collectives/transport/local_hub.h"

#include <stdio.h>

const char *tam_hub_list(const tam_hub *h, const bool *marks, bool wanted, char *text,
                         size_t size) {
    enum { REST = 24 };
    size_t used = 0;
    uint32_t more = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < h->nranks; r++) {
        if (marks[r] != wanted)
            continue;
        if (used + REST >= size)
            more++;
        else
            used += (size_t)snprintf(text + used, size - used, " %u", r);
    }
    if (more > 0)
        snprintf(text + used, size - used, " and %u more", more);
    return text;
}

void tam_hub_break(tam_hub *h, tamis_status status, const char *cause) {
    if (h->broken == TAMIS_OK) {
        h->broken = status;
        snprintf(h->cause, sizeof h->cause, "%s", cause);
    }
    pthread_cond_broadcast(&h->changed);
}

static void free_hub(tam_hub *h) {
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    tam_free(h->rendezvous.came);
    tam_free(h->rendezvous.left);
    tam_free(h->missed);
    tam_free(h->gone);
    tam_free(h->posted);
    tam_free(h->here);
    tam_free(h);
}

void tam_hub_leave(tam_hub *h) {
    pthread_mutex_lock(&h->lock);
    bool last = --h->users == 0;
    pthread_mutex_unlock(&h->lock);
    if (last)
        free_hub(h);
}

static bool open_lock(tam_hub *h) {
    pthread_condattr_t monotonic;
    if (pthread_mutex_init(&h->lock, NULL) != 0)
        return false;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&h->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (failed)
        pthread_mutex_destroy(&h->lock);
    return !failed;
}

tamis_status tam_hub_open(const tam_transport *transport, uint32_t nranks, uint32_t users,
                          tam_hub **out) {
    tam_hub *h = tam_alloc(sizeof *h);
    if (!h)
        goto err;
    h->transport = transport;
    h->nranks = nranks;
    h->users = users;
    h->posted = tam_alloc_array(nranks, sizeof h->posted[0]);
    h->here = tam_alloc_array(nranks, sizeof h->here[0]);
    h->gone = tam_alloc_array(nranks, sizeof h->gone[0]);
    h->missed = tam_alloc_array(nranks, sizeof h->missed[0]);
    h->rendezvous.came = tam_alloc_array(nranks, sizeof h->rendezvous.came[0]);
    h->rendezvous.left = tam_alloc_array(nranks, sizeof h->rendezvous.left[0]);
    if (!h->posted || !h->here || !h->gone || !h->missed || !h->rendezvous.came ||
        !h->rendezvous.left || !open_lock(h))
        goto err_free;
    *out = h;
    return TAMIS_OK;

err_free:
    tam_free(h->rendezvous.left);
    tam_free(h->rendezvous.came);
    tam_free(h->missed);
    tam_free(h->gone);
    tam_free(h->posted);
    tam_free(h->here);
    tam_free(h);
err:
    return tam_fail(TAMIS_E_NOMEM, "no memory for a local communicator of %u ranks", nranks);
}

void tam_local_close(void *arg, int clean) {
    tam_local *self = arg;
    tam_hub *h = self->hub;
    (void)clean; /* no rank touches another's memory outside a call */
    pthread_mutex_lock(&h->lock);
    h->gone[self->rank] = true;
    /* The other ranks learn now, not at their deadline, that this one has gone. */
    tam_hub_break(h, TAMIS_E_ABORTED, "a rank destroyed its communicator");
    pthread_mutex_unlock(&h->lock);
    tam_hub_leave(h);
    tam_free(self);
}

tamis_status tam_hub_open_rank(tam_hub *h, uint32_t rank, const tamis_comm_config *config,
                               tamis_comm **out) {
    uint32_t nranks = h->nranks;
    tam_local *self = tam_alloc(sizeof *self);
    if (!self) {
        pthread_mutex_lock(&h->lock);
        tam_hub_break(h, TAMIS_E_ABORTED, "a rank had no memory for its communicator");
        pthread_mutex_unlock(&h->lock);
        tam_hub_leave(h);
        return tam_fail(TAMIS_E_NOMEM, "no memory for rank %u of a local communicator", rank);
    }
    *self = (tam_local){.hub = h, .rank = rank};
    TAM_TRY(tam_comm_open(h->transport, self, rank, nranks, config, out));
    (*out)->ranks_per_node = nranks;
    pthread_mutex_lock(&h->lock);
    if (!h->grouped)
        h->group = (*out)->recorded.flight->group;
    h->grouped = true;
    (*out)->recorded.flight->group = h->group;
    pthread_mutex_unlock(&h->lock);
    return TAMIS_OK;
}
