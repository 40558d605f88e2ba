/* SPDX-License-Identifier: MIT */
#include "tests/support/mail.h"

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
    struct mail *mail;
    uint32_t rank;
    parcel parcels[TAMIS_TICKETS]; /* by ticket: sends and receives in flight */
    uint32_t done[TAMIS_TICKETS], ndone;
    size_t bytes[TAMIS_TICKETS];
} box;

struct mail {
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
    box *peer = &own->mail->boxes[p->message.peer];
    parcel *first = NULL;
    for (uint32_t t = 0; t < TAMIS_TICKETS; t++) {
        parcel *q = &peer->parcels[t];
        if (q->posted && q->message.sends != p->message.sends && q->message.peer == own->rank &&
            q->message.lane == p->message.lane && (!first || q->order < first->order))
            first = q;
    }
    return first;
}

/* A send of `from`, a receive of `to`. @return false: it is too long */
static bool carry(mail *m, box *from, parcel *send, box *to, parcel *recv) {
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
    mail *m = own->mail;
    parcel *p = &own->parcels[message->ticket];
    bool fits = true;
    pthread_mutex_lock(&m->lock);
    if (p->posted)
        abort(); /* a ticket is used twice */
    *p = (parcel){*message, m->order++, true};
    parcel *other = find(own, p);
    box *peer = &m->boxes[message->peer];
    if (other && message->sends)
        fits = carry(m, own, p, peer, other);
    else if (other)
        fits = carry(m, peer, other, own, p);
    pthread_mutex_unlock(&m->lock);
    return fits ? TAMIS_OK : TAMIS_E_TRANSPORT;
}

static tamis_status test(void *context, uint32_t tickets[TAMIS_TICKETS],
                         size_t bytes[TAMIS_TICKETS], uint32_t *count) {
    box *own = context;
    pthread_mutex_lock(&own->mail->lock);
    memcpy(tickets, own->done, own->ndone * sizeof tickets[0]);
    memcpy(bytes, own->bytes, own->ndone * sizeof bytes[0]);
    *count = own->ndone;
    own->ndone = 0;
    pthread_mutex_unlock(&own->mail->lock);
    return TAMIS_OK;
}

static void cancel(void *context, uint32_t ticket) {
    box *own = context;
    pthread_mutex_lock(&own->mail->lock);
    own->parcels[ticket].posted = false;
    pthread_mutex_unlock(&own->mail->lock);
}

static tamis_status post_p2p(void *self, uint32_t ticket, const tam_message *m) {
    const tamis_message message = {ticket, m->peer, m->lane, m->sends, m->memory, m->bytes};
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

static void abort_p2p(void *self) {
    (void)self;
}

static void close_p2p(void *self, int clean) {
    (void)self;
    (void)clean;
}

const tam_p2p mail_p2p = {.name = "mail",
                          .post = post_p2p,
                          .test = test_p2p,
                          .cancel = cancel,
                          .abort = abort_p2p,
                          .close = close_p2p};

void *mail_end(mail *m, uint32_t rank) {
    return &m->boxes[rank];
}

mail *mail_create(uint32_t nranks, uint64_t flip) {
    mail *m = calloc(1, sizeof *m + nranks * sizeof m->boxes[0]);
    assert_non_null(m);
    pthread_mutex_init(&m->lock, NULL);
    m->nranks = nranks;
    m->flip = flip;
    for (uint32_t r = 0; r < nranks; r++) {
        m->boxes[r].mail = m;
        m->boxes[r].rank = r;
    }
    return m;
}

void mail_destroy(mail *m) {
    pthread_mutex_destroy(&m->lock);
    free(m);
}

tamis_callbacks mail_callbacks(mail *m, uint32_t rank) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    callbacks.rank = rank;
    callbacks.nranks = m->nranks;
    callbacks.post = post;
    callbacks.test = test;
    callbacks.cancel = cancel;
    callbacks.context = &m->boxes[rank];
    return callbacks;
}

void mail_comms(mail *m, tamis_comm **comms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    for (uint32_t r = 0; r < m->nranks; r++) {
        const tamis_callbacks callbacks = mail_callbacks(m, r);
        if (tamis_comm_create_callback(&callbacks, &config, &comms[r]) != TAMIS_OK)
            fail_msg("tamis_comm_create_callback: %s", tamis_last_error());
    }
}

uint64_t mail_count(mail *m, uint64_t *bytes) {
    pthread_mutex_lock(&m->lock);
    uint64_t count = m->count;
    *bytes = m->total;
    pthread_mutex_unlock(&m->lock);
    return count;
}
