/* SPDX-License-Identifier: MIT */
#include "collectives/coll/coll.h"

#include "lib/base/hash.h"
#include "lib/base/tag.h"

#include <stdio.h>
#include <xxhash.h>

/* -- memory ----------------------------------------------------------------------------------- */

/* Partial sums of a chunk, in buffers: one for each level of the tree that a stage spans. A rank
 * that plays two places has them twice, but in its first stage both in the same buffers. */
static bool has_buffers(const tam_plan *plan) {
    for (uint32_t i = 0; i < plan->nstages; i++) {
        uint32_t levels = 1;
        for (uint32_t radix = plan->radix[i]; radix > 1; radix /= 2)
            levels++;
        if (levels * (i > 0 && plan->nplaces != plan->nranks ? 2 : 1) >= TAM_COLL_COMING)
            return false;
    }
    return true;
}

tamis_status tam_coll_open(tam_coll *coll, const tam_wire *wire, void *self, uint32_t rank,
                           const tam_plan *plan, size_t chunk) {
    uint32_t place = tam_plan_place(plan, rank), alone = 2 * plan->nranks - plan->nplaces;
    uint32_t streams = plan->nplaces == plan->nranks ? 1 : 2; /* of a message, each way, at most */
    char text[64];
    *coll = (tam_coll){.wire = wire,
                       .self = self,
                       .rank = rank,
                       .plan = *plan,
                       .place = {place, place + 1},
                       .nplaces = place < alone ? 1 : 2,
                       .chunk = chunk / streams,
                       .room = TAM_COLL_HEAD + chunk};
    if (!has_buffers(plan))
        return tam_fail(TAMIS_E_UNSUPPORTED, "the stages %s of %u ranks are too large",
                        tam_plan_text(plan, text, sizeof text), plan->nranks);
    coll->memory = tam_alloc_array(TAM_COLL_BUFFERS, coll->room);
    coll->peers = tam_alloc_array(plan->nranks, sizeof coll->peers[0]); /* of an all-to-all */
    if (!coll->memory || !coll->peers)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the messages of %u ranks", plan->nranks);
    return tam_coll_weigh(coll);
}

void tam_coll_close(tam_coll *coll, bool lingers) {
    tam_free(coll->weights);
    tam_free(coll->peers);
    if (!lingers)
        tam_free(coll->memory);
}

/* -- turns ------------------------------------------------------------------------------------ */

static const tam_peer *peer_of(const tam_coll *coll, const tam_turn *t) {
    return &coll->peers[(t->first + t->nth) % coll->npeers];
}

static size_t bytes_of(const tam_coll *coll, const tam_turn *t) {
    const tam_peer *p = peer_of(coll, t);
    const tam_stream *s = t->sends ? p->out : p->in;
    size_t bytes = 0;
    for (uint32_t i = 0; i < (t->sends ? p->nout : p->nin); i++)
        bytes += tam_coll_part(coll, &s[i], t->chunk);
    return bytes;
}

/* Ranks of a group hear from each other once, even if they have nothing to say. */
static bool exists(const tam_coll *coll, const tam_turn *t) {
    return (t->chunk == 0 && coll->phase != TAM_PHASE_RUNS) || bytes_of(coll, t) > 0;
}

/* Go to the first turn from this one on that has a message. @return false: there is none */
static bool settle(const tam_coll *coll, tam_turn *t) {
    for (; coll->npeers > 0 && t->chunk < coll->nchunks; t->chunk++, t->nth = 0) {
        for (; t->nth < coll->npeers; t->nth++) {
            if (exists(coll, t))
                return true;
        }
    }
    return false;
}

static bool tagged(const tam_coll *coll, const tam_turn *t) {
    return coll->tag && coll->step == 0 && t->chunk == 0;
}

/* -- buffers ---------------------------------------------------------------------------------- */

static unsigned char *buffer_of(const tam_coll *coll, uint32_t b) {
    return coll->memory + b * coll->room;
}

static bool find_free(const tam_coll *coll, uint32_t from, uint32_t to, uint32_t *buffer) {
    for (uint32_t b = from; b < to; b++) {
        if (coll->holders[b] == 0) {
            *buffer = b;
            return true;
        }
    }
    return false;
}

static tamis_status post(tam_coll *coll, uint32_t buffer, uint32_t part, const tam_message *m) {
    TAM_TRY(coll->wire->post(coll->self, TAM_COLL_PARTS * buffer + part, m));
    coll->in_flight[buffer]++;
    coll->wire_bytes += m->sends ? m->bytes : 0;
    return TAMIS_OK;
}

/* Where a direct stream of a message lies. Parts of sums come into the buffer, to be added. */
static unsigned char *direct_place(const tam_coll *coll, const tam_turn *t, uint32_t i,
                                   uint32_t buffer) {
    const tam_peer *p = peer_of(coll, t);
    if (!t->sends && coll->phase == TAM_PHASE_SCATTER)
        return buffer_of(coll, buffer) + TAM_COLL_HEAD + i * coll->chunk;
    return tam_coll_place(coll, t->sends ? &p->out[i] : &p->in[i], (uint64_t)t->chunk * coll->chunk,
                          t->sends);
}

static tamis_status post_direct(tam_coll *coll, const tam_turn *t, uint32_t buffer) {
    const tam_peer *p = peer_of(coll, t);
    const tam_stream *s = t->sends ? p->out : p->in;
    for (uint32_t i = 0; i < (t->sends ? p->nout : p->nin); i++) {
        size_t bytes = tam_coll_part(coll, &s[i], t->chunk);
        if (!s[i].direct || bytes == 0)
            continue;
        const tam_message m = {p->rank, t->sends, direct_place(coll, t, i, buffer), bytes};
        TAM_TRY(post(coll, buffer, 1 + i, &m));
    }
    return TAMIS_OK;
}

/* Over all direct streams of a message; 0: there are none. */
static uint64_t hash_direct(tam_coll *coll, const tam_turn *t, uint32_t buffer) {
    const tam_peer *p = peer_of(coll, t);
    const tam_stream *s = t->sends ? p->out : p->in;
    uint64_t hash = 0;
    for (uint32_t i = 0; i < (t->sends ? p->nout : p->nin); i++) {
        size_t bytes = tam_coll_part(coll, &s[i], t->chunk);
        if (!s[i].direct || bytes == 0)
            continue;
        const void *memory = direct_place(coll, t, i, buffer);
        bool known = t->sends && coll->known.memory == memory && coll->known.bytes == bytes;
        uint64_t own = known ? coll->known.hash : tam_hash(memory, bytes);
        if (t->sends) {
            coll->known.memory = memory;
            coll->known.bytes = bytes;
            coll->known.hash = own;
        }
        hash = (hash ^ own) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    }
    return hash;
}

/* -- send and receive ------------------------------------------------------------------------- */

/* -> bytes behind the envelope. */
static size_t fill(tam_coll *coll, const tam_turn *t, unsigned char *message) {
    const tam_peer *p = peer_of(coll, t);
    unsigned char *begin = message + sizeof(tam_envelope), *at = begin;
    if (tagged(coll, t)) {
        memcpy(at, coll->tag, sizeof *coll->tag);
        at += sizeof *coll->tag;
    }
    for (uint32_t i = 0; i < p->nout && !coll->empty; i++) {
        size_t bytes = p->out[i].direct ? 0 : tam_coll_part(coll, &p->out[i], t->chunk);
        if (bytes > 0)
            tam_coll_pack(coll, &p->out[i], (uint64_t)t->chunk * coll->chunk, bytes, at);
        at += bytes;
    }
    return (size_t)(at - begin);
}

static tamis_status post_send(tam_coll *coll, uint32_t buffer) {
    const tam_turn *t = &coll->sent;
    unsigned char *message = buffer_of(coll, buffer);
    tam_envelope *e = (tam_envelope *)(void *)message;
    size_t bytes = fill(coll, t, message);
    *e = (tam_envelope){.call = coll->call,
                        .note = coll->note,
                        .number = coll->number,
                        .rank = coll->rank,
                        .chunk = t->chunk,
                        .step = (uint8_t)coll->step,
                        .tagged = tagged(coll, t)};
    tam_envelope_seal(e, bytes, hash_direct(coll, t, buffer));
    bytes = coll->empty ? bytes_of(coll, t) : bytes;
    const tam_message head = {peer_of(coll, t)->rank, true, message, sizeof *e + bytes};
    coll->holders[buffer] = 1;
    coll->nsending++;
    coll->messages++;
    TAM_TRY(post(coll, buffer, 0, &head));
    TAM_TRY(post_direct(coll, t, buffer));
    coll->sent.nth++;
    return TAMIS_OK;
}

static tamis_status post_receive(tam_coll *coll, uint32_t buffer) {
    const tam_message head = {peer_of(coll, &coll->posted)->rank, false, buffer_of(coll, buffer),
                              coll->room};
    coll->holders[buffer] = 1;
    coll->queue[(coll->first + coll->waiting++) % TAM_COLL_COMING] = buffer;
    TAM_TRY(post(coll, buffer, 0, &head));
    TAM_TRY(post_direct(coll, &coll->posted, buffer));
    coll->posted.nth++;
    return TAMIS_OK;
}

/* -- take what came --------------------------------------------------------------------------- */

/* Of a message behind its envelope. */
static size_t inline_bytes(const tam_coll *coll, const tam_turn *t) {
    const tam_peer *p = peer_of(coll, t);
    size_t bytes = tagged(coll, t) ? sizeof(tam_tag) : 0;
    for (uint32_t i = 0; i < p->nin && !coll->empty; i++)
        bytes += p->in[i].direct ? 0 : tam_coll_part(coll, &p->in[i], t->chunk);
    return bytes;
}

static tamis_status check(tam_coll *coll, uint32_t buffer) {
    const tam_turn *t = &coll->taken;
    const tam_envelope *e = (const tam_envelope *)(const void *)buffer_of(coll, buffer);
    const tam_envelope_due due = {.call = coll->call,
                                  .number = coll->number,
                                  .rank = peer_of(coll, t)->rank,
                                  .chunk = t->chunk,
                                  .step = coll->step,
                                  .bytes = (uint32_t)inline_bytes(coll, t)};
    TAM_TRY(tam_envelope_open(e, coll->came_bytes[buffer], hash_direct(coll, t, buffer), due.rank,
                              coll->rank));
    if (tagged(coll, t) && e->tagged && e->bytes >= sizeof *coll->tag)
        TAM_TRY(tam_tag_compare(coll->tag, due.rank, (const tam_tag *)(const void *)(e + 1)));
    return tam_envelope_compare(e, &due, coll->rank);
}

static void add_part(tam_coll *coll, uint32_t buffer, const tam_stream *s, unsigned char *from) {
    uint32_t which = s->place == coll->place[0] ? 0 : 1, chunk = coll->taken.chunk;
    tam_coll_add(coll, which, peer_of(coll, &coll->taken)->digit, chunk, (int32_t)buffer,
                 (float *)(void *)from);
    if (coll->taken.nth == coll->last[which])
        tam_coll_add_up(coll, which, chunk);
}

static void take_streams(tam_coll *coll, uint32_t buffer) {
    const tam_turn *t = &coll->taken;
    const tam_peer *p = peer_of(coll, t);
    unsigned char *from = buffer_of(coll, buffer) + sizeof(tam_envelope);
    from += tagged(coll, t) ? sizeof(tam_tag) : 0;
    for (uint32_t i = 0; i < p->nin; i++) {
        const tam_stream *s = &p->in[i];
        size_t bytes = tam_coll_part(coll, s, t->chunk);
        if (bytes > 0 && coll->phase == TAM_PHASE_SCATTER)
            add_part(coll, buffer, s, s->direct ? direct_place(coll, t, i, buffer) : from);
        else if (bytes > 0 && !s->direct && !coll->empty)
            tam_coll_unpack(coll, s, (uint64_t)t->chunk * coll->chunk, bytes, from);
        from += s->direct || coll->empty ? 0 : bytes;
    }
}

static tamis_status take(tam_coll *coll) {
    uint32_t buffer = coll->queue[coll->first];
    const tam_envelope *e = (const tam_envelope *)(const void *)buffer_of(coll, buffer);
    settle(coll, &coll->taken);
    TAM_TRY(check(coll, buffer));
    const tam_peer *p = peer_of(coll, &coll->taken);
    bool counts = coll->phase == TAM_PHASE_SCATTER && coll->taken.chunk == 0;
    if (counts && p->nin > 0 && p->in[0].place == coll->place[0]) /* the other place hears it too */
        coll->heard += e->note;
    take_streams(coll, buffer);
    coll->holders[buffer]--;
    coll->first = (coll->first + 1) % TAM_COLL_COMING;
    coll->waiting--;
    coll->taken.nth++;
    return TAMIS_OK;
}

/* -- advance ---------------------------------------------------------------------------------- */

static tamis_status test(tam_coll *coll) {
    tam_done done[TAM_COLL_TICKETS];
    uint32_t count = 0;
    if (coll->waiting + coll->nsending == 0)
        return TAMIS_OK;
    TAM_TRY(coll->wire->test(coll->self, done, &count));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t buffer = done[i].ticket / TAM_COLL_PARTS;
        coll->in_flight[buffer]--;
        if (buffer < TAM_COLL_COMING && done[i].ticket % TAM_COLL_PARTS == 0)
            coll->came_bytes[buffer] = done[i].bytes;
        if (buffer >= TAM_COLL_COMING && coll->in_flight[buffer] == 0) {
            coll->holders[buffer] = 0;
            coll->nsending--;
        }
    }
    return TAMIS_OK;
}

static tamis_status work(tam_coll *coll, bool *moved) {
    uint32_t buffer;
    while (coll->waiting > 0 && coll->in_flight[coll->queue[coll->first]] == 0) {
        TAM_TRY(take(coll));
        *moved = true;
    }
    while (settle(coll, &coll->posted) && find_free(coll, 0, TAM_COLL_COMING, &buffer)) {
        TAM_TRY(post_receive(coll, buffer));
        *moved = true;
    }
    while (settle(coll, &coll->sent) &&
           find_free(coll, TAM_COLL_COMING, TAM_COLL_BUFFERS, &buffer)) {
        TAM_TRY(post_send(coll, buffer));
        *moved = true;
    }
    return TAMIS_OK;
}

static bool step_done(tam_coll *coll) {
    return coll->waiting == 0 && !settle(coll, &coll->posted) && !settle(coll, &coll->sent);
}

static void next_step(tam_coll *coll) {
    coll->note += coll->heard;
    coll->heard = 0;
    if (++coll->step < coll->nsteps)
        tam_coll_meet(coll);
}

tamis_status tam_coll_advance(tam_coll *coll, bool *moved, bool *done) {
    *moved = false;
    for (bool again = true; again;) {
        again = false;
        TAM_TRY(test(coll));
        if (coll->step < coll->nsteps)
            TAM_TRY(work(coll, &again));
        if (coll->step < coll->nsteps && step_done(coll)) {
            next_step(coll);
            again = true;
        }
        *moved = *moved || again;
    }
    *done = coll->step == coll->nsteps && coll->nsending == 0;
    return TAMIS_OK;
}

/* -- begin ------------------------------------------------------------------------------------ */

static void describe(tam_coll *coll, uint64_t size) {
    const tam_tag *tag = coll->tag;
    struct {
        uint64_t kind, size, reducer, step, begin;
        uint32_t radix[TAM_PLAN_STAGES];
    } all = {(uint64_t)coll->kind, size, tag ? tag->reducer : 0, tag ? tag->step : 0,
             tag ? tag->begin : 0, {0}};
    memcpy(all.radix, coll->plan.radix, sizeof all.radix);
    coll->call = XXH3_64bits_withSeed(&all, sizeof all, coll->plan.nranks);
}

static void begin(tam_coll *coll, tam_phase kind, uint64_t size, uint32_t nsteps) {
    coll->kind = kind;
    coll->number++;
    coll->step = 0;
    coll->nsteps = coll->plan.nranks > 1 ? nsteps : 0;
    coll->heard = 0;
    describe(coll, size);
    if (coll->nsteps > 0)
        tam_coll_meet(coll);
}

void tam_coll_begin_gather(tam_coll *coll, const void *send, size_t bytes, void *recv) {
    coll->recv = recv;
    coll->bytes = bytes;
    coll->tag = NULL;
    coll->note = 0;
    if (!coll->empty && bytes > 0)
        memcpy(coll->recv + coll->rank * bytes, send, bytes);
    begin(coll, TAM_PHASE_GATHER, bytes, coll->plan.nstages);
}

void tam_coll_begin_sum(tam_coll *coll, float *values, size_t count, const tam_tag *tag) {
    coll->recv = (unsigned char *)(void *)values;
    coll->bytes = count;
    coll->tag = tag;
    coll->note = tag ? tag->note : 0;
    begin(coll, TAM_PHASE_SCATTER, count, 2 * coll->plan.nstages);
}

void tam_coll_begin_runs(tam_coll *coll, const void *send, const size_t *send_at, void *recv,
                         const size_t *recv_at) {
    uint32_t own = coll->rank;
    coll->send = send;
    coll->recv = recv;
    coll->send_at = send_at;
    coll->recv_at = recv_at;
    coll->tag = NULL;
    coll->note = 0;
    if (!coll->empty && send_at[own + 1] > send_at[own])
        memcpy(coll->recv + recv_at[own], coll->send + send_at[own],
               send_at[own + 1] - send_at[own]);
    begin(coll, TAM_PHASE_RUNS, 0, 1);
}

/* -- failures --------------------------------------------------------------------------------- */

void tam_coll_cancel(tam_coll *coll) {
    for (uint32_t t = 0; t < TAM_COLL_TICKETS; t++) {
        if (coll->in_flight[t / TAM_COLL_PARTS] > 0)
            coll->wire->cancel(coll->self, t);
    }
}

const char *tam_coll_missing(const tam_coll *coll, char *text, size_t size) {
    tam_turn t = coll->taken;
    uint32_t before = UINT32_MAX;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < coll->waiting && settle(coll, &t); i++, t.nth++) {
        uint32_t from = peer_of(coll, &t)->rank;
        bool here = coll->in_flight[coll->queue[(coll->first + i) % TAM_COLL_COMING]] == 0;
        if (here || from == before || used + 16 > size)
            continue;
        before = from;
        used += (size_t)snprintf(text + used, size - used, " %u", from);
    }
    return text;
}
