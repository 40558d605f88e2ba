/* SPDX-License-Identifier: MIT */
#include "tests/explore/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LETTERS_MOST = 2 * TAMIS_TICKETS };

#define MS UINT64_C(1000000)

typedef struct letter {
    uint32_t ticket;
    size_t bytes;
    void *memory;
    bool copied;       /* the memory is the network's, the sender's part is complete */
    uint64_t ready_ns; /* not brought before */
} letter;

typedef struct line {
    letter sends[LETTERS_MOST], receives[LETTERS_MOST];
    uint32_t nsends, nreceives;
    bool held;
} line;

typedef struct end {
    net *net;
    actor *owner;
    uint32_t nth;
    uint32_t tickets[LETTERS_MOST], count;
    size_t bytes[LETTERS_MOST];
    bool cut; /* a message was longer than its receive */
} end;

struct net {
    world *world;
    uint32_t generation, nranks;
    end ends[RANKS];
    line lines[RANKS][RANKS][LANES]; /* from, to */
};

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    if (!memory)
        abort();
    return memory;
}

static void append(letter *letters, uint32_t *count, letter one) {
    if (*count == LETTERS_MOST)
        abort();
    letters[(*count)++] = one;
}

static void take_out(letter *letters, uint32_t *count, uint32_t nth) {
    --*count;
    memmove(letters + nth, letters + nth + 1, (*count - nth) * sizeof letters[0]);
}

static void complete(end *e, uint32_t ticket, size_t bytes) {
    if (e->count == LETTERS_MOST)
        abort();
    e->tickets[e->count] = ticket;
    e->bytes[e->count++] = bytes;
    e->owner->woken = true;
}

/* -- post ------------------------------------------------------------------------------------- */

static uint64_t lateness_ms(fault what) {
    return what == LATE_HALF   ? TIMEOUT_MS / 2
           : what == LATE_EDGE ? TIMEOUT_MS
           : what == LATE_LONG ? 2 * TIMEOUT_MS
                               : 0;
}

static void send_off(end *e, const tamis_message *m, fault what) {
    net *n = e->net;
    line *l = &n->lines[e->nth][m->peer][m->channel];
    letter one = {.ticket = m->ticket,
                  .bytes = m->bytes,
                  .memory = m->memory,
                  .ready_ns = n->world->now_ns + lateness_ms(what) * MS};
    if (what == STUCK)
        return;
    if (what == LOST) {
        complete(e, m->ticket, m->bytes);
        return;
    }
    if (n->world->set->eager) {
        one.copied = true;
        one.memory = allocate(m->bytes);
        memcpy(one.memory, m->memory, m->bytes);
        complete(e, m->ticket, m->bytes);
    }
    append(l->sends, &l->nsends, one);
}

static tamis_status post(void *context, const tamis_message *m) {
    end *e = context;
    actor *self = e->owner;
    if (self->leaving)
        return TAMIS_E_ABORTED;
    if (!m->sends) {
        line *l = &e->net->lines[m->peer][e->nth][m->channel];
        append(l->receives, &l->nreceives, (letter){m->ticket, m->bytes, m->memory, false, 0});
        return TAMIS_OK;
    }
    fault what = (fault)world_decide(self->world, FAULTS, 0);
    if (what != AS_USUAL && what <= FAULTS_OF_RANKS && !world_suffer(self, what))
        return TAMIS_E_ABORTED;
    world_trace(self->world, "rank %u sends %zu bytes to %u, channel %u, network %u%s%s", self->id,
                m->bytes, net_rank(e->net, m->peer), m->channel, e->net->generation,
                what > FAULTS_OF_RANKS ? ": " : "", what > FAULTS_OF_RANKS ? fault_name(what) : "");
    if (what == REFUSED)
        return TAMIS_E_TRANSPORT;
    send_off(e, m, what);
    return TAMIS_OK;
}

/* -- test, cancel ----------------------------------------------------------------------------- */

static tamis_status test(void *context, uint32_t tickets[TAMIS_TICKETS],
                         size_t bytes[TAMIS_TICKETS], uint32_t *count) {
    end *e = context;
    uint32_t n = e->count < TAMIS_TICKETS ? e->count : TAMIS_TICKETS;
    if (e->owner->leaving)
        return TAMIS_E_ABORTED;
    if (e->cut)
        return TAMIS_E_TRANSPORT;
    memcpy(tickets, e->tickets, n * sizeof tickets[0]);
    memcpy(bytes, e->bytes, n * sizeof bytes[0]);
    *count = n;
    e->count -= n;
    memmove(e->tickets, e->tickets + n, e->count * sizeof tickets[0]);
    memmove(e->bytes, e->bytes + n, e->count * sizeof bytes[0]);
    if (n > 0)
        e->owner->pauses = 0;
    return TAMIS_OK;
}

static void withdraw(letter *letters, uint32_t *count, uint32_t ticket) {
    for (uint32_t i = *count; i-- > 0;)
        if (!letters[i].copied && letters[i].ticket == ticket)
            take_out(letters, count, i);
}

/* Where messages are complete early, so that many would be told late, one that is withdrawn is not
 * told any more; elsewhere it is, as over MPI. */
static void cancel(void *context, uint32_t ticket) {
    end *e = context;
    for (uint32_t peer = 0; peer < e->net->nranks; peer++)
        for (uint32_t channel = 0; channel < LANES; channel++) {
            line *out = &e->net->lines[e->nth][peer][channel];
            line *in = &e->net->lines[peer][e->nth][channel];
            withdraw(out->sends, &out->nsends, ticket);
            withdraw(in->receives, &in->nreceives, ticket);
        }
    for (uint32_t i = e->count; e->net->world->set->eager && i-- > 0;)
        if (e->tickets[i] == ticket) {
            e->count--;
            memmove(e->tickets + i, e->tickets + i + 1, (e->count - i) * sizeof e->tickets[0]);
            memmove(e->bytes + i, e->bytes + i + 1, (e->count - i) * sizeof e->bytes[0]);
        }
}

/* -- bring ------------------------------------------------------------------------------------ */

static end *end_of(net *n, uint32_t id) {
    for (uint32_t i = 0; i < n->nranks; i++)
        if (n->ends[i].owner->id == id)
            return &n->ends[i];
    return NULL;
}

static bool has_one(const net *n, const line *l) {
    return !l->held && l->nsends > 0 && l->nreceives > 0 &&
           l->sends[0].ready_ns <= n->world->now_ns;
}

static line *find(net *n, uint32_t id, uint32_t nth, uint32_t *count) {
    const end *e = end_of(n, id);
    *count = 0;
    for (uint32_t from = 0; e && from < n->nranks; from++)
        for (uint32_t channel = 0; channel < LANES; channel++) {
            line *l = &n->lines[from][e->nth][channel];
            if (has_one(n, l) && (*count)++ == nth)
                return l;
        }
    return NULL;
}

uint32_t net_count(const net *n, uint32_t id) {
    uint32_t count;
    find((net *)(uintptr_t)n, id, UINT32_MAX, &count);
    return count;
}

void net_hold(net *n, uint32_t id, uint32_t nth) {
    uint32_t count;
    find(n, id, nth, &count)->held = true;
}

bool net_release(net *n) {
    bool any = false;
    for (uint32_t i = 0; i < RANKS * RANKS * LANES; i++) {
        line *l = &n->lines[i / LANES / RANKS][i / LANES % RANKS][i % LANES];
        any = any || l->held;
        l->held = false;
    }
    return any;
}

static void carry(end *from, end *to, line *l) {
    letter *send = &l->sends[0], *receive = &l->receives[0];
    size_t bytes = send->bytes < receive->bytes ? send->bytes : receive->bytes;
    memcpy(receive->memory, send->memory, bytes);
    to->cut = to->cut || bytes < send->bytes;
    to->net->world->cut = to->net->world->cut || to->cut;
    complete(to, receive->ticket, bytes);
    if (send->copied)
        free(send->memory);
    else
        complete(from, send->ticket, send->bytes);
    take_out(l->sends, &l->nsends, 0);
    take_out(l->receives, &l->nreceives, 0);
}

void net_bring(net *n, uint32_t id) {
    end *to = end_of(n, id);
    for (uint32_t from = 0; to && from < n->nranks; from++)
        for (uint32_t channel = 0; channel < LANES; channel++) {
            line *l = &n->lines[from][to->nth][channel];
            while (has_one(n, l))
                carry(&n->ends[from], to, l);
        }
}

/* -- life ------------------------------------------------------------------------------------- */

net *net_create(world *w, uint32_t generation, const uint32_t *list, uint32_t nranks) {
    net *n = allocate(sizeof *n);
    n->world = w;
    n->generation = generation;
    n->nranks = nranks;
    for (uint32_t i = 0; i < nranks; i++) {
        n->ends[i].net = n;
        n->ends[i].owner = &w->ranks[list[i]];
        n->ends[i].nth = i;
    }
    return n;
}

void net_destroy(net *n) {
    for (uint32_t i = 0; n && i < RANKS * RANKS * LANES; i++) {
        line *l = &n->lines[i / LANES / RANKS][i / LANES % RANKS][i % LANES];
        for (uint32_t s = 0; s < l->nsends; s++)
            if (l->sends[s].copied)
                free(l->sends[s].memory);
    }
    free(n);
}

bool net_callbacks(net *n, uint32_t id, tamis_callbacks *out) {
    end *e = end_of(n, id);
    *out = (tamis_callbacks)TAMIS_CALLBACKS_INIT;
    if (!e)
        return false;
    out->rank = e->nth;
    out->nranks = n->nranks;
    out->context = e;
    out->post = post;
    out->test = test;
    out->cancel = cancel;
    return true;
}

uint32_t net_nranks(const net *n) {
    return n->nranks;
}

uint32_t net_rank(const net *n, uint32_t nth) {
    return n->ends[nth].owner->id;
}
