/* SPDX-License-Identifier: MIT */
#include "tests/support/loopback.h"

#include "tests/support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

typedef struct parcel {
    tamis_message message;
    uint64_t order;
    bool posted;
} parcel;

typedef struct box {
    struct loopback *loopback;
    uint32_t rank;
    parcel parcels[TAMIS_TICKETS]; /* by ticket: sends and receives in flight */
    uint32_t done[TAMIS_TICKETS], ndone;
    size_t bytes[TAMIS_TICKETS];
} box;

struct loopback {
    pthread_mutex_t lock;
    uint32_t nranks;
    uint64_t order, flip, count, total;
    box boxes[];
};

static void complete(box *b, parcel *p, size_t bytes) {
    p->posted = false;
    b->done[b->ndone] = p->message.ticket;
    b->bytes[b->ndone++] = bytes;
}

/* The earliest message that `p` of box `own` matches. */
static parcel *find(box *own, const parcel *p) {
    box *peer = &own->loopback->boxes[p->message.peer];
    parcel *first = NULL;
    for (uint32_t t = 0; t < TAMIS_TICKETS; t++) {
        parcel *q = &peer->parcels[t];
        if (q->posted && q->message.sends != p->message.sends && q->message.peer == own->rank &&
            q->message.channel == p->message.channel && (!first || q->order < first->order))
            first = q;
    }
    return first;
}

/* A send of `from`, a receive of `to`. @return false: it is too long */
static bool deliver(loopback *m, box *from, parcel *send, box *to, parcel *recv) {
    size_t bytes = send->message.bytes;
    if (bytes > recv->message.bytes)
        return false;
    memcpy(recv->message.memory, send->message.memory, bytes);
    m->total += bytes;
    if (++m->count == m->flip)
        ((unsigned char *)recv->message.memory)[m->flip * 7 % bytes] ^= 16;
    complete(from, send, bytes);
    complete(to, recv, bytes);
    return true;
}

static tamis_status post(void *context, const tamis_message *message) {
    box *own = context;
    loopback *m = own->loopback;
    parcel *p = &own->parcels[message->ticket];
    bool fits = true;
    pthread_mutex_lock(&m->lock);
    if (p->posted)
        abort(); /* a ticket is used twice */
    *p = (parcel){*message, m->order++, true};
    parcel *other = find(own, p);
    box *peer = &m->boxes[message->peer];
    if (other && message->sends)
        fits = deliver(m, own, p, peer, other);
    else if (other)
        fits = deliver(m, peer, other, own, p);
    pthread_mutex_unlock(&m->lock);
    return fits ? TAMIS_OK : TAMIS_E_TRANSPORT;
}

static tamis_status test(void *context, uint32_t tickets[TAMIS_TICKETS],
                         size_t bytes[TAMIS_TICKETS], uint32_t *count) {
    box *own = context;
    pthread_mutex_lock(&own->loopback->lock);
    memcpy(tickets, own->done, own->ndone * sizeof tickets[0]);
    memcpy(bytes, own->bytes, own->ndone * sizeof bytes[0]);
    *count = own->ndone;
    own->ndone = 0;
    pthread_mutex_unlock(&own->loopback->lock);
    return TAMIS_OK;
}

static void cancel(void *context, uint32_t ticket) {
    box *own = context;
    pthread_mutex_lock(&own->loopback->lock);
    own->parcels[ticket].posted = false;
    pthread_mutex_unlock(&own->loopback->lock);
}

static tamis_status post_p2p(void *self, uint32_t ticket, const tam_message *m) {
    const tamis_message message = {ticket, m->peer, m->channel, m->sends, m->memory, m->bytes};
    return post(self, &message);
}

static tamis_status test_p2p(void *self, tam_done *done, uint32_t *count) {
    uint32_t tickets[TAMIS_TICKETS];
    size_t bytes[TAMIS_TICKETS];
    tamis_status status = test(self, tickets, bytes, count);
    for (uint32_t i = 0; i < *count; i++)
        done[i] = (tam_done){tickets[i], bytes[i]};
    return status;
}

static void abort_p2p(void *self, tamis_status status, const char *cause) {
    (void)self, (void)status, (void)cause;
}

static bool close_p2p(void *self, int clean) {
    (void)self;
    (void)clean;
    return true;
}

const tam_p2p loopback_p2p = {.name = "loopback",
                              .post = post_p2p,
                              .test = test_p2p,
                              .cancel = cancel,
                              .abort = abort_p2p,
                              .close = close_p2p};

void *loopback_end(loopback *m, uint32_t rank) {
    return &m->boxes[rank];
}

loopback *loopback_create(uint32_t nranks, uint64_t flip) {
    loopback *m = calloc(1, sizeof *m + nranks * sizeof m->boxes[0]);
    assert_non_null(m);
    pthread_mutex_init(&m->lock, NULL);
    m->nranks = nranks;
    m->flip = flip;
    for (uint32_t r = 0; r < nranks; r++) {
        m->boxes[r].loopback = m;
        m->boxes[r].rank = r;
    }
    return m;
}

void loopback_destroy(loopback *m) {
    pthread_mutex_destroy(&m->lock);
    free(m);
}

tamis_callbacks loopback_callbacks(loopback *m, uint32_t rank) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    callbacks.rank = rank;
    callbacks.nranks = m->nranks;
    callbacks.post = post;
    callbacks.test = test;
    callbacks.cancel = cancel;
    callbacks.context = &m->boxes[rank];
    return callbacks;
}

void loopback_comms(loopback *m, tamis_comm **comms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    for (uint32_t r = 0; r < m->nranks; r++) {
        const tamis_callbacks callbacks = loopback_callbacks(m, r);
        if (tamis_comm_create_callback(&callbacks, &config, &comms[r]) != TAMIS_OK)
            fail_msg("tamis_comm_create_callback: %s", tamis_last_error());
    }
}

uint64_t loopback_count(loopback *m, uint64_t *bytes) {
    pthread_mutex_lock(&m->lock);
    uint64_t count = m->count;
    *bytes = m->total;
    pthread_mutex_unlock(&m->lock);
    return count;
}
