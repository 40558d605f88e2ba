/* SPDX-License-Identifier: MIT */
#include "collectives/transport/newcomers.h"

#include "collectives/transport/rendezvous.h"
#include "collectives/transport/sockets.h"
#include "collectives/transport/strangers.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define OFFER_MAGIC UINT64_C(0x74616d69736f6666)
#define RETRY_NS UINT64_C(100000000)
#define AT_ONCE_NS UINT64_C(1000000000)

struct tam_newcomers {
    int listener;
    tam_strangers strangers;
    uint32_t count;  /* that wait */
    uint32_t noffer; /* of these, the first: they have an offer */
    int sockets[TAM_NEWCOMERS];
    bool lost[TAM_NEWCOMERS]; /* with an offer, but gone or late */
};

/* -- ranks of the job ------------------------------------------------------------------------- */

tamis_status tam_newcomers_open(const char *place, tam_newcomers **out) {
    int listener;
    TAM_TRY(tam_rendezvous_listen(place, &listener));
    tam_newcomers *n = tam_alloc(sizeof *n);
    if (!n) {
        close(listener);
        return tam_fail(TAMIS_E_NOMEM, "no memory to wait for newcomers");
    }
    n->listener = listener;
    *out = n;
    return TAMIS_OK;
}

/* Whoever finds no room, or takes this for the rendezvous of a job's begin, may come again. */
static void newcomers_admit(void *arg, int socket, const tam_greeting *said) {
    tam_newcomers *n = arg;
    if (said->magic != TAM_GREETING_MAGIC || said->nranks != 0 || n->count == TAM_NEWCOMERS) {
        close(socket);
        return;
    }
    tam_socket_keep_alive(socket);
    n->lost[n->count] = false;
    n->sockets[n->count++] = socket;
}

static bool has_left(int socket) {
    char byte;
    return tam_socket_move_some(socket, &byte, 1, false) != 0; /* it has nothing to say now */
}

uint32_t tam_newcomers_look(tam_newcomers *n) {
    tam_strangers_read(&n->strangers, n->listener, newcomers_admit, n);
    for (uint32_t i = 0; i < n->count;) {
        if (!has_left(n->sockets[i])) {
            i++;
            continue;
        }
        close(n->sockets[i]);
        n->sockets[i] = n->sockets[--n->count];
    }
    return n->count;
}

void tam_newcomers_offer(tam_newcomers *n, tam_offer first) {
    first.magic = OFFER_MAGIC;
    n->noffer = n->count;
    for (uint32_t i = 0; i < n->noffer; i++) {
        tam_offer one = first;
        one.rank += i;
        one.member += i;
        n->lost[i] = tam_socket_move(n->sockets[i], &one, sizeof one, true,
                                     tam_clock_ns() + AT_ONCE_NS) <= 0;
    }
}

void tam_newcomers_take(tam_newcomers *n, void *bytes, size_t length, uint64_t until_ns) {
    for (uint32_t i = 0; i < n->noffer; i++) {
        char *own = (char *)bytes + i * length;
        if (!n->lost[i])
            n->lost[i] = tam_socket_move(n->sockets[i], own, length, false, until_ns) <= 0;
        if (n->lost[i])
            memset(own, 0, length);
    }
}

void tam_newcomers_give(tam_newcomers *n, void *bytes, size_t length, uint64_t until_ns) {
    for (uint32_t i = 0; i < n->noffer; i++)
        if (!n->lost[i])
            n->lost[i] = tam_socket_move(n->sockets[i], bytes, length, true, until_ns) <= 0;
}

void tam_newcomers_dismiss(tam_newcomers *n) {
    for (uint32_t i = 0; i < n->noffer; i++)
        close(n->sockets[i]);
    n->count -= n->noffer;
    memmove(n->sockets, n->sockets + n->noffer, n->count * sizeof n->sockets[0]);
    n->noffer = 0;
}

void tam_newcomers_close(tam_newcomers *n) {
    if (!n)
        return;
    tam_strangers_close(&n->strangers);
    for (uint32_t i = 0; i < n->count; i++)
        close(n->sockets[i]);
    close(n->listener);
    tam_free(n);
}

/* -- a newcomer ------------------------------------------------------------------------------- */

static bool is_offer(const tam_offer *o) {
    return o->magic == OFFER_MAGIC && o->nold > 0 && o->rank >= o->nold && o->rank < o->nranks &&
           o->member < o->nmembers && o->nmembers <= TAM_STAR_MOST;
}

/* @param  socket  [out]  -1: nobody listens, or what does has no offer */
static tamis_status await_offer(const char *place, uint64_t deadline_ns, tam_offer *offer,
                                int *socket) {
    tam_greeting mine = {.magic = TAM_GREETING_MAGIC};
    int s;
    *socket = -1;
    TAM_TRY(tam_rendezvous_dial(place, deadline_ns, &s));
    if (s < 0)
        return TAMIS_OK;
    tam_socket_keep_alive(s);
    if (tam_socket_move(s, &mine, sizeof mine, true, deadline_ns) > 0 &&
        tam_socket_move(s, offer, sizeof *offer, false, deadline_ns) > 0 && is_offer(offer))
        *socket = s;
    else
        close(s);
    return TAMIS_OK;
}

static tamis_status newcomer_star(int socket, const tam_offer *offer, uint64_t deadline_ns,
                                  tam_star *star) {
    uint64_t until_ns = tam_clock_ns() + offer->left_ns;
    *star = (tam_star){.rank = offer->rank,
                       .nranks = offer->nranks,
                       .deadline_ns = until_ns < deadline_ns ? until_ns : deadline_ns,
                       .sockets = tam_alloc_array(offer->nranks, sizeof star->sockets[0])};
    if (!star->sockets) {
        close(socket);
        return tam_fail(TAMIS_E_NOMEM, "no memory for the connections of %u ranks", offer->nranks);
    }
    memset(star->sockets, -1, offer->nranks * sizeof star->sockets[0]);
    star->sockets[0] = socket;
    return TAMIS_OK;
}

tamis_status tam_newcomer_come(const char *place, uint64_t deadline_ns, tam_offer *offer,
                               tam_star *star) {
    int s;
    TAM_TRY(await_offer(place, deadline_ns, offer, &s));
    while (s < 0 && tam_socket_left_ms(deadline_ns) > 0) {
        tam_sleep(RETRY_NS);
        TAM_TRY(await_offer(place, deadline_ns, offer, &s));
    }
    if (s >= 0)
        return newcomer_star(s, offer, deadline_ns, star);
    return tam_fail(TAMIS_E_TIMEOUT,
                    "no job took this process in at TAMIS_RENDEZVOUS=%.200s by the deadline; its "
                    "ranks must call tamis_comm_grow between their steps",
                    place);
}
