/* SPDX-License-Identifier: MIT */
#include "collectives/transport/simulated.h"

#include <math.h>

enum {
    CALM = 8,    /* senders at once that no link minds */
    SHELVES = 32 /* lists of messages that came early, by sender: of many ranks they are many */
};

typedef struct parcel {
    double at;   /* when it reaches its receiver's link; first, if it uses one, its node's cable */
    double left; /* when it has left its sender's link */
    bool on_cable;
    uint64_t order; /* of posting: breaks ties */
    uint32_t from, to, channel;
    size_t bytes, held;
    unsigned char *memory;
    struct parcel *next; /* of those that nobody expects yet */
} parcel;

typedef struct shelf {
    parcel *first, **end;
} shelf;

typedef struct end {
    tam_sim *sim;
    uint32_t rank;
    double clock, near_free, far_free; /* free: links that send, */
    double near_in, far_in;            /* and that receive */
    uint32_t coming;                   /* messages from other nodes in flight to it */
    struct last {
        uint32_t to;
        double at;
    } * lasts; /* [nlasts] when the last message to each peer arrives: none overtakes another */
    uint32_t nlasts, lasts_capacity;
    struct {
        bool posted;
        uint64_t order;
        tam_message message;
    } receives[TAM_P2P_TICKETS];
    uint64_t nposted;
    tam_done done[TAM_P2P_TICKETS];
    uint32_t ndone;
    shelf early[SHELVES];
    bool finished;
} end;

struct tam_sim {
    tam_sim_config config;
    end *ends;
    double *cable_free; /* [nodes] */
    parcel **heap;
    size_t count, capacity;
    uint64_t order, random;
    tam_sim_counts counts;
};

/* -- random numbers (splitmix64, Steele et al. 2014) ------------------------------------------ */

static double uniform(tam_sim *s) {
    uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

/* -- the queue of events ---------------------------------------------------------------------- */

static bool simulated_earlier(const parcel *a, const parcel *b) {
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static bool push_parcel(tam_sim *s, parcel *p) {
    if (s->count == s->capacity) {
        size_t capacity = 2 * s->capacity + 64;
        parcel **heap = tam_alloc_array(capacity, sizeof(parcel *));
        if (!heap)
            return false;
        if (s->count > 0)
            memcpy(heap, s->heap, s->count * sizeof(parcel *));
        tam_free(s->heap);
        s->heap = heap;
        s->capacity = capacity;
    }
    size_t i = s->count++;
    for (; i > 0 && simulated_earlier(p, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = p;
    s->counts.most_in_flight =
        s->count > s->counts.most_in_flight ? s->count : s->counts.most_in_flight;
    return true;
}

static parcel *pop_parcel(tam_sim *s) {
    parcel *top = s->heap[0], *last = s->heap[--s->count];
    size_t i = 0;
    for (size_t child = 1; child < s->count; child = 2 * i + 1) {
        if (child + 1 < s->count && simulated_earlier(s->heap[child + 1], s->heap[child]))
            child++;
        if (!simulated_earlier(s->heap[child], last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    if (s->count > 0)
        s->heap[i] = last;
    return top;
}

static void free_parcel(parcel *p) {
    tam_free(p->memory);
    tam_free(p);
}

static void free_parcels(parcel *p) {
    for (parcel *next; p; p = next) {
        next = p->next;
        free_parcel(p);
    }
}

/* -- sending ---------------------------------------------------------------------------------- */

static bool is_far(const tam_sim *s, uint32_t a, uint32_t b) {
    uint32_t g = s->config.net.ranks_per_node ? s->config.net.ranks_per_node : 1;
    return a / g != b / g;
}

static double latest(double a, double b) {
    return a > b ? a : b;
}

static double travel_s(tam_sim *s, bool far) {
    double latency_s = far ? s->config.net.far_s : s->config.net.near_s;
    if (s->config.jitter > 0.0)
        latency_s *= 1.0 - s->config.jitter * log(uniform(s)); /* exponential */
    if (far && s->config.loss > 0.0) {
        while (uniform(s) < s->config.loss)
            latency_s += s->config.resend_s;
    }
    return latency_s;
}

/* When it has left the cable of its node, at which it arrives at p->at: cables are taken in the
 * order of time, not in that in which ranks happen to be advanced. */
static double leave_cable(tam_sim *s, const parcel *p) {
    const tam_net *net = &s->config.net;
    double *cable = &s->cable_free[p->from / (net->ranks_per_node ? net->ranks_per_node : 1)];
    *cable = latest(p->at, *cable) + (double)p->bytes * net->cable_s_per_byte;
    return latest(p->left, *cable);
}

static bool keep_order(end *from, parcel *p) {
    uint32_t i = 0;
    while (i < from->nlasts && from->lasts[i].to != p->to)
        i++;
    if (i == from->lasts_capacity) {
        uint32_t capacity = 2 * i + 8;
        struct last *lasts = tam_alloc_array(capacity, sizeof *lasts);
        if (!lasts)
            return false;
        if (i > 0)
            memcpy(lasts, from->lasts, i * sizeof *lasts);
        tam_free(from->lasts);
        from->lasts = lasts;
        from->lasts_capacity = capacity;
    }
    if (i < from->nlasts)
        p->at = latest(p->at, from->lasts[i].at);
    from->nlasts += i == from->nlasts;
    from->lasts[i] = (struct last){p->to, p->at};
    return true;
}

static void simulated_count(tam_sim *s, size_t bytes, bool far) {
    s->counts.messages++;
    s->counts.bytes += bytes;
    s->counts.far_messages += far;
    s->counts.far_bytes += far ? bytes : 0;
}

static void handle(tam_sim *s, end *e, size_t bytes) {
    e->clock += 0.5 * (s->config.net.message_s + s->config.net.copy_s_per_byte * (double)bytes);
}

/* Onto its way to the receiver, from p->left on. */
static tamis_status simulated_launch(tam_sim *s, parcel *p) {
    p->at = p->left + travel_s(s, is_far(s, p->from, p->to));
    if (keep_order(&s->ends[p->from], p) && push_parcel(s, p))
        return TAMIS_OK;
    free_parcel(p);
    return tam_fail(TAMIS_E_NOMEM, "no memory for a simulated message");
}

/* Through its sender's link, and to the cable if there is one. */
static tamis_status depart(end *e, parcel *p, bool far) {
    const tam_net *net = &e->sim->config.net;
    double *link = far ? &e->far_free : &e->near_free;
    p->at = latest(e->clock, *link);
    *link = p->at + (double)p->bytes * (far ? net->far_s_per_byte : net->near_s_per_byte);
    p->left = *link;
    p->on_cable = far && net->cable_s_per_byte > 0.0;
    if (!p->on_cable)
        return simulated_launch(e->sim, p);
    if (push_parcel(e->sim, p))
        return TAMIS_OK;
    free_parcel(p);
    return tam_fail(TAMIS_E_NOMEM, "no memory for a simulated message");
}

static tamis_status send_parcel(end *e, uint32_t ticket, const tam_message *m) {
    tam_sim *s = e->sim;
    bool far = is_far(s, e->rank, m->peer);
    parcel *p = tam_alloc(sizeof *p);
    if (!p)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a simulated message");
    handle(s, e, m->bytes);
    *p = (parcel){.order = ++s->order,
                  .from = e->rank,
                  .to = m->peer,
                  .channel = m->channel,
                  .bytes = m->bytes};
    p->held = s->config.held && s->config.held < m->bytes ? s->config.held : m->bytes;
    p->memory = tam_alloc(p->held);
    if (!p->memory) {
        free_parcel(p);
        return tam_fail(TAMIS_E_NOMEM, "no memory for a simulated message");
    }
    memcpy(p->memory, m->memory, p->held);
    if (p->order == s->config.flip)
        p->memory[uniform(s) * (double)p->held > 1.0 ? p->held - 1 : 0] ^= 4;
    s->ends[m->peer].coming += far;
    simulated_count(s, m->bytes, far);
    e->done[e->ndone++] = (tam_done){ticket, m->bytes};
    return depart(e, p, far);
}

/* -- receiving -------------------------------------------------------------------------------- */

static void deliver(end *e, uint32_t ticket, parcel *p) {
    const tam_message *m = &e->receives[ticket].message;
    size_t bytes = p->held < m->bytes ? p->held : m->bytes;
    memcpy(m->memory, p->memory, bytes);
    e->receives[ticket].posted = false;
    e->done[e->ndone++] = (tam_done){ticket, p->held};
    free_parcel(p);
}

/* The ticket of the first receive posted for this sender and channel. */
static bool simulated_expected(const end *e, const parcel *p, uint32_t *ticket) {
    uint64_t first = UINT64_MAX;
    for (uint32_t t = 0; t < TAM_P2P_TICKETS; t++) {
        if (e->receives[t].posted && e->receives[t].message.peer == p->from &&
            e->receives[t].message.channel == p->channel && e->receives[t].order < first) {
            first = e->receives[t].order;
            *ticket = t;
        }
    }
    return first != UINT64_MAX;
}

static tamis_status receive_parcel(end *e, uint32_t ticket, const tam_message *m) {
    e->receives[ticket].posted = true;
    e->receives[ticket].order = e->nposted++;
    e->receives[ticket].message = *m;
    shelf *early = &e->early[m->peer % SHELVES];
    for (parcel **p = &early->first; *p; p = &(*p)->next) {
        parcel *found = *p;
        if (found->from != m->peer || found->channel != m->channel)
            continue;
        *p = found->next;
        if (!*p)
            early->end = p;
        deliver(e, ticket, found);
        break;
    }
    return TAMIS_OK;
}

/* @return whether a receive was waiting for it */
static bool arrive(tam_sim *s, parcel *p) {
    const tam_net *net = &s->config.net;
    end *e = &s->ends[p->to];
    bool far = is_far(s, p->from, p->to);
    uint32_t ticket;
    double carry_s = (double)p->bytes * (far ? net->far_s_per_byte : net->near_s_per_byte);
    double *link = far ? &e->far_in : &e->near_in;
    double at = latest(p->at, *link + carry_s);
    if (far && e->coming-- > CALM)
        at += net->incast_s;
    *link = at;
    e->clock = latest(e->clock, at);
    handle(s, e, p->bytes);
    if (simulated_expected(e, p, &ticket)) {
        deliver(e, ticket, p);
        return true;
    }
    shelf *early = &e->early[p->from % SHELVES];
    *early->end = p;
    early->end = &p->next;
    return false;
}

/* -- the p2p link ----------------------------------------------------------------------------- */

static tamis_status post_sim(void *self, uint32_t ticket, const tam_message *message) {
    return message->sends ? send_parcel(self, ticket, message)
                          : receive_parcel(self, ticket, message);
}

static tamis_status test_sim(void *self, tam_done *done, uint32_t *count) {
    end *e = self;
    *count = e->ndone;
    if (e->ndone > 0)
        memcpy(done, e->done, e->ndone * sizeof done[0]);
    e->ndone = 0;
    return TAMIS_OK;
}

static void cancel_sim(void *self, uint32_t ticket) {
    end *e = self;
    e->receives[ticket].posted = false;
}

static void abort_sim(void *self, tamis_status status, const char *cause) {
    (void)self, (void)status, (void)cause; /* nothing blocks */
}

static bool close_end(void *self, int clean) {
    (void)self, (void)clean; /* tam_sim_close frees all ends */
    return true;
}

const tam_p2p tam_sim_p2p = {
    .name = "simulated",
    .post = post_sim,
    .test = test_sim,
    .cancel = cancel_sim,
    .abort = abort_sim,
    .close = close_end,
};

void *tam_sim_end(tam_sim *sim, uint32_t rank) {
    return &sim->ends[rank];
}

tam_sim_counts tam_sim_counted(const tam_sim *sim) {
    return sim->counts;
}

/* -- the whole -------------------------------------------------------------------------------- */

tamis_status tam_sim_open(const tam_sim_config *config, tam_sim **out) {
    tam_sim *s = tam_alloc(sizeof *s);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a simulated network");
    s->config = *config;
    s->random = config->seed;
    s->ends = tam_alloc_array(config->nranks, sizeof s->ends[0]);
    s->cable_free = tam_alloc_array(config->nranks, sizeof s->cable_free[0]);
    if (!s->ends || !s->cable_free) {
        tam_sim_close(s);
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u simulated ranks", config->nranks);
    }
    for (uint32_t r = 0; r < config->nranks; r++) {
        s->ends[r].sim = s;
        s->ends[r].rank = r;
        for (int i = 0; i < SHELVES; i++)
            s->ends[r].early[i].end = &s->ends[r].early[i].first;
    }
    *out = s;
    return TAMIS_OK;
}

void tam_sim_close(tam_sim *s) {
    for (size_t i = 0; i < s->count; i++)
        free_parcel(s->heap[i]);
    for (uint32_t r = 0; s->ends && r < s->config.nranks; r++) {
        for (int i = 0; i < SHELVES; i++)
            free_parcels(s->ends[r].early[i].first);
        tam_free(s->ends[r].lasts);
    }
    tam_free(s->heap);
    tam_free(s->ends);
    tam_free(s->cable_free);
    tam_free(s);
}

static bool is_dead(const tam_sim *s, uint32_t rank) {
    return s->config.has_dead && s->config.dead == rank;
}

static tamis_status step(tam_sim *s, uint32_t rank, tam_sim_advance advance, void *context,
                         uint32_t *left) {
    bool done = false;
    if (s->ends[rank].finished || is_dead(s, rank))
        return TAMIS_OK;
    TAM_TRY(advance(context, rank, &done));
    s->ends[rank].finished = done;
    *left -= done;
    return TAMIS_OK;
}

tamis_status tam_sim_run(tam_sim *s, tam_sim_advance advance, void *context, double *seconds) {
    uint32_t n = s->config.nranks, left = n - s->config.has_dead;
    for (uint32_t r = 0; r < n; r++)
        s->ends[r].finished = false;
    for (uint32_t r = 0; r < n; r++)
        TAM_TRY(step(s, r, advance, context, &left));
    while (s->count > 0) {
        parcel *p = pop_parcel(s);
        uint32_t to = p->to;
        if (p->on_cable) {
            p->on_cable = false;
            p->left = leave_cable(s, p);
            TAM_TRY(simulated_launch(s, p));
        } else if (arrive(s, p))
            TAM_TRY(step(s, to, advance, context, &left));
    }
    *seconds = 0.0;
    for (uint32_t r = 0; r < n; r++)
        *seconds = latest(*seconds, is_dead(s, r) ? 0.0 : s->ends[r].clock);
    if (left == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_STATE, "%u of %u simulated ranks wait for messages that nobody sends",
                    left, n);
}
