/* SPDX-License-Identifier: MIT
 *
 * Messages of a step: an envelope, perhaps a tag, then its streams, or those that are long by
 * themselves.
 */
#include "collectives/coll/coll.h"

#include "lib/base/hash.h"
#include "lib/transport/tag.h"

/* -- buffers ---------------------------------------------------------------------------------- */

static unsigned char *buffer_of(const tam_coll *coll, uint32_t b) {
    return coll->memory + b * coll->buffer_bytes;
}

static tamis_status messages_post(tam_coll *coll, uint32_t buffer, uint32_t part,
                                  const tam_message *m) {
    TAM_TRY(coll->p2p->post(coll->self, TAM_COLL_PARTS * buffer + part, m));
    coll->in_flight[buffer]++;
    coll->wire_bytes += m->sends ? m->bytes : 0;
    return TAMIS_OK;
}

/* Where a direct stream of a message lies. Parts of sums come into the buffer, to be added: behind
 * the other stream if that one is not longer than a chunk, and so came with the header. */
static unsigned char *direct_address(const tam_coll *coll, const tam_cursor *t, uint32_t i,
                                     uint32_t buffer) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    if (!t->sends && coll->phase == TAM_PHASE_SCATTER)
        return buffer_of(coll, buffer) + TAM_COLL_HEADER +
               (p->nin > 1 && !p->in[1].direct ? 1 : i) * coll->stream_capacity;
    return tam_coll_address(coll, t->sends ? &p->out[i] : &p->in[i],
                            (uint64_t)t->chunk * coll->part, t->sends);
}

static tamis_status post_direct(tam_coll *coll, const tam_cursor *t, uint32_t buffer) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    const tam_stream *s = t->sends ? p->out : p->in;
    for (uint32_t i = 0; i < (t->sends ? p->nout : p->nin); i++) {
        size_t bytes = tam_coll_part(coll, &s[i], t->chunk);
        if (!s[i].direct || bytes == 0)
            continue;
        const tam_message m = {p->rank, TAM_CHANNEL_STREAMS, t->sends,
                               direct_address(coll, t, i, buffer), bytes};
        TAM_TRY(messages_post(coll, buffer, 1 + i, &m));
    }
    return TAMIS_OK;
}

/* Over all direct streams of a message; 0: there are none. */
static uint64_t hash_direct(tam_coll *coll, const tam_cursor *t, uint32_t buffer) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    const tam_stream *s = t->sends ? p->out : p->in;
    uint64_t hash = 0;
    for (uint32_t i = 0; i < (t->sends ? p->nout : p->nin); i++) {
        size_t bytes = tam_coll_part(coll, &s[i], t->chunk);
        if (!s[i].direct || bytes == 0)
            continue;
        const void *memory = direct_address(coll, t, i, buffer);
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
static size_t messages_fill(tam_coll *coll, const tam_cursor *t, unsigned char *message) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    unsigned char *begin = message + sizeof(tam_envelope), *at = begin;
    if (tam_cursor_tagged(coll, t)) {
        memcpy(at, coll->tag, sizeof *coll->tag);
        at += sizeof *coll->tag;
    }
    for (uint32_t i = 0; i < p->nout && !coll->empty; i++) {
        size_t bytes = p->out[i].direct ? 0 : tam_coll_part(coll, &p->out[i], t->chunk);
        if (bytes > 0)
            tam_coll_pack(coll, &p->out[i], (uint64_t)t->chunk * coll->part, bytes, at);
        at += bytes;
    }
    return (size_t)(at - begin);
}

/* For an all-to-all: the run's length, which the ranks may disagree on. */
static uint64_t extra_of(const tam_coll *coll, const tam_cursor *t) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    if (coll->phase == TAM_PHASE_RUNS)
        return t->sends ? p->out[0].bytes : p->in[0].bytes;
    return coll->counter;
}

tamis_status tam_coll_post_send(tam_coll *coll, uint32_t buffer) {
    const tam_cursor *t = &coll->sent;
    unsigned char *message = buffer_of(coll, buffer);
    tam_envelope *e = (tam_envelope *)(void *)message;
    size_t bytes = messages_fill(coll, t, message);
    *e = (tam_envelope){.call = coll->call,
                        .extra = extra_of(coll, t),
                        .streams = hash_direct(coll, t, buffer),
                        .number = (uint32_t)coll->number,
                        .rank = coll->rank,
                        .chunk = t->chunk,
                        .step = (uint8_t)coll->step,
                        .tagged = tam_cursor_tagged(coll, t)};
    tam_envelope_seal(e, bytes);
    bytes = coll->empty ? tam_cursor_bytes(coll, t) : bytes;
    const tam_message header = {tam_cursor_peer(coll, t)->rank, TAM_CHANNEL_HEADERS, true, message,
                                sizeof *e + bytes};
    coll->holders[buffer] = 1;
    coll->nsending++;
    coll->going_to[buffer - TAM_COLL_COMING] = header.peer;
    coll->messages++;
    TAM_TRY(messages_post(coll, buffer, 0, &header));
    TAM_TRY(post_direct(coll, t, buffer));
    coll->sent.nth++;
    return TAMIS_OK;
}

tamis_status tam_coll_post_receive(tam_coll *coll, uint32_t buffer) {
    const tam_message header = {tam_cursor_peer(coll, &coll->posted)->rank, TAM_CHANNEL_HEADERS,
                                false, buffer_of(coll, buffer), coll->buffer_bytes};
    coll->holders[buffer] = 1;
    coll->received_bytes[buffer] = SIZE_MAX;
    coll->queue[(coll->first + coll->waiting++) % TAM_COLL_COMING] = buffer;
    TAM_TRY(messages_post(coll, buffer, 0, &header));
    coll->posted.nth++;
    return TAMIS_OK;
}

/* -- take what came --------------------------------------------------------------------------- */

/* Bytes of a message behind its envelope. */
static size_t inline_bytes(const tam_coll *coll, const tam_cursor *t) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    size_t bytes = tam_cursor_tagged(coll, t) ? sizeof(tam_tag) : 0;
    for (uint32_t i = 0; i < p->nin && !coll->empty; i++)
        bytes += p->in[i].direct ? 0 : tam_coll_part(coll, &p->in[i], t->chunk);
    return bytes;
}

static tamis_status blame(tam_coll *coll, uint32_t rank, tamis_status status) {
    if (status != TAMIS_OK)
        tam_coll_fail(coll, status, rank);
    return status;
}

/* The sender gave up: its reason becomes this rank's. A status that does not lose the communicator
 * would let the next collective begin. */
static tamis_status pass_on(tam_coll *coll, const tam_envelope *e, uint32_t from) {
    tamis_status status = (tamis_status)e->status;
    if (tamis_status_loss(status) != TAMIS_LOST_COMM)
        status = TAMIS_E_PROTOCOL;
    blame(coll, e->extra < coll->plan.nranks ? (uint32_t)e->extra : from, status);
    if (status == TAMIS_E_TIMEOUT)
        return tam_fail(status, "rank %u heard from rank %u that rank(s) %u did not answer in time",
                        coll->rank, from, coll->blamed);
    return tam_fail(status, "rank %u heard from rank %u that the exchange failed (%s) at rank %u",
                    coll->rank, from, tamis_status_name(status), coll->blamed);
}

static tamis_status messages_check_header(tam_coll *coll, uint32_t buffer) {
    const tam_cursor *t = &coll->checked;
    const tam_envelope *e = (const tam_envelope *)(const void *)buffer_of(coll, buffer);
    const tam_envelope_due due = {.call = coll->call,
                                  .number = (uint32_t)coll->number,
                                  .rank = tam_cursor_peer(coll, t)->rank,
                                  .chunk = t->chunk,
                                  .step = coll->step,
                                  .bytes = (uint32_t)inline_bytes(coll, t),
                                  .extra_known = coll->phase == TAM_PHASE_RUNS,
                                  .extra = extra_of(coll, t)};
    TAM_TRY(tam_envelope_open(e, coll->received_bytes[buffer], due.rank, coll->rank));
    if (e->status != 0)
        return pass_on(coll, e, due.rank);
    if (tam_cursor_tagged(coll, t) && e->tagged && e->bytes >= sizeof *coll->tag)
        TAM_TRY(tam_tag_compare(coll->tag, due.rank, (const tam_tag *)(const void *)(e + 1)));
    return tam_envelope_compare(e, &due, coll->rank);
}

tamis_status tam_coll_receive_header(tam_coll *coll, uint32_t buffer) {
    tam_cursor_seek(coll, &coll->checked);
    uint32_t from = tam_cursor_peer(coll, &coll->checked)->rank;
    TAM_TRY(blame(coll, from, messages_check_header(coll, buffer)));
    TAM_TRY(post_direct(coll, &coll->checked, buffer));
    coll->nchecked++;
    coll->checked.nth++;
    return TAMIS_OK;
}

static void add_part(tam_coll *coll, uint32_t buffer, const tam_stream *s, unsigned char *from) {
    uint32_t which = s->vrank == coll->vrank[0] ? 0 : 1, chunk = coll->taken.chunk;
    tam_coll_add(coll, which, tam_cursor_peer(coll, &coll->taken)->digit, chunk, (int32_t)buffer,
                 (float *)(void *)from);
    if (coll->taken.nth == coll->last[which])
        tam_coll_add_up(coll, which, chunk);
}

/* Where stream i of a message lies that came with its header, or by itself; `at`: of the next that
 * came with the header. */
static unsigned char *received(tam_coll *coll, uint32_t buffer, uint32_t i, unsigned char **at) {
    const tam_cursor *t = &coll->taken;
    const tam_stream *s = &tam_cursor_peer(coll, t)->in[i];
    unsigned char *here = *at;
    if (s->direct)
        return direct_address(coll, t, i, buffer);
    *at += coll->empty ? 0 : tam_coll_part(coll, s, t->chunk);
    return here;
}

/* Coded values become floats in the buffer in which they came, whose streams are moved away first.
 * No sum that begins with coded values is fused, so the room for own parts is free. */
static tamis_status decode_streams(tam_coll *coll, uint32_t buffer, unsigned char *at) {
    const tam_peer *p = tam_cursor_peer(coll, &coll->taken);
    unsigned char *aside = buffer_of(coll, TAM_COLL_BUFFERS);
    for (uint32_t i = 0; i < p->nin && !coll->empty; i++)
        memcpy(aside + i * coll->stream_capacity, received(coll, buffer, i, &at),
               tam_coll_part(coll, &p->in[i], coll->taken.chunk));
    for (uint32_t i = 0; i < p->nin; i++) {
        unsigned char *to = buffer_of(coll, buffer) + TAM_COLL_HEADER + i * coll->stream_capacity;
        size_t count;
        tam_coll_elements(coll, p->in[i].vrank, coll->taken.chunk, &count);
        if (!coll->empty && !tam_value_decode(coll->type, aside + i * coll->stream_capacity, count,
                                              (float *)(void *)to))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "values of rank %u, as received by rank %u, were refused: a scale is "
                            "negative or infinite",
                            p->rank, coll->rank);
        if (count > 0)
            add_part(coll, buffer, &p->in[i], to);
    }
    return TAMIS_OK;
}

static tamis_status take_streams(tam_coll *coll, uint32_t buffer) {
    const tam_cursor *t = &coll->taken;
    const tam_peer *p = tam_cursor_peer(coll, t);
    unsigned char *at = buffer_of(coll, buffer) + sizeof(tam_envelope);
    at += tam_cursor_tagged(coll, t) ? sizeof(tam_tag) : 0;
    if (coll->packed && coll->phase == TAM_PHASE_SCATTER)
        return decode_streams(coll, buffer, at);
    for (uint32_t i = 0; i < p->nin; i++) {
        const tam_stream *s = &p->in[i];
        size_t bytes = tam_coll_part(coll, s, t->chunk);
        unsigned char *from = received(coll, buffer, i, &at);
        if (bytes > 0 && coll->phase == TAM_PHASE_SCATTER)
            add_part(coll, buffer, s, from);
        else if (bytes > 0 && !s->direct && !coll->empty)
            tam_coll_unpack(coll, s, (uint64_t)t->chunk * coll->part, bytes, from);
    }
    return TAMIS_OK;
}

tamis_status tam_coll_take(tam_coll *coll) {
    uint32_t buffer = coll->queue[coll->first];
    const tam_envelope *e = (const tam_envelope *)(const void *)buffer_of(coll, buffer);
    tam_cursor_seek(coll, &coll->taken);
    const tam_peer *p = tam_cursor_peer(coll, &coll->taken);
    uint64_t streams = hash_direct(coll, &coll->taken, buffer);
    TAM_TRY(blame(coll, p->rank, tam_envelope_check(e, streams, coll->rank)));
    bool counts = coll->phase == TAM_PHASE_SCATTER && coll->taken.chunk == 0;
    if (counts && p->nin > 0 && p->in[0].vrank == coll->vrank[0]) /* the other receives it too */
        coll->received += e->extra;
    TAM_TRY(blame(coll, p->rank, take_streams(coll, buffer)));
    coll->holders[buffer]--;
    coll->first = (coll->first + 1) % TAM_COLL_COMING;
    coll->waiting--;
    coll->nchecked--;
    coll->taken.nth++;
    return TAMIS_OK;
}
