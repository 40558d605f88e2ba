/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/value_sum.h"

#include "lib/base/hash.h"
#include "lib/base/numbers.h"
#include "lib/base/tree.h"
#include "lib/policy/shards.h"

enum { PIECE_MOST = 1 << 16 };

static const char bad_scale[] = "a scale is negative or infinite";

/* -- seals ------------------------------------------------------------------------------------ */

/* Nothing is sent of no values. */
static size_t sealed(size_t bytes) {
    return bytes > 0 ? bytes + TAM_SEAL : 0;
}

static void value_sum_seal(unsigned char *message, size_t bytes) {
    if (bytes > 0)
        tam_seal(message, bytes);
}

/* @return NULL, or why the message is refused */
static const char *value_sum_check_seal(const unsigned char *message, size_t bytes) {
    return bytes == 0 || tam_seal_holds(message, bytes) ? NULL : "their checksum is wrong";
}

/* -- memory ----------------------------------------------------------------------------------- */

/* The most bytes that a rank's shards, of so many values together, take, with seal. */
static size_t shards_most(const tam_value_sum *s, const tam_value_codec *type, size_t most) {
    size_t blocks = tam_shards_most(most / TAM_VALUE_BLOCK + 1, s->nranks);
    return sealed(blocks * tam_value_bytes(type, TAM_VALUE_BLOCK));
}

static void measure_owners(const tam_value_sum *s, size_t most, size_t *send, size_t *recv) {
    size_t up = shards_most(s, s->up, most), down = shards_most(s, s->down, most);
    *send = tam_max(tam_value_bytes(s->up, most) + s->nranks * TAM_SEAL, down);
    *recv = s->nranks * tam_max(up, down);
}

static tamis_status open_messages(tam_value_sum *s, size_t most) {
    size_t send, recv, bytes;
    if (s->way == TAM_SUM_BY_OWNERS) {
        measure_owners(s, most, &send, &recv);
        s->gathers = shards_most(s, s->down, most);
    } else {
        s->piece = tam_min(PIECE_MOST, (most / TAM_VALUE_BLOCK + 1) * TAM_VALUE_BLOCK);
        bytes = tam_max(tam_value_bytes(s->up, s->piece), tam_value_bytes(s->down, s->piece));
        send = s->gathers = sealed(bytes);
        recv = s->nranks * send;
    }
    s->send = tam_alloc(send);
    s->recv = tam_alloc(recv);
    s->send_at = tam_alloc_array((size_t)s->nranks + 1, sizeof s->send_at[0]);
    s->recv_at = tam_alloc_array((size_t)s->nranks + 1, sizeof s->recv_at[0]);
    s->decoded = tam_alloc_array((size_t)s->nranks * TAM_VALUE_BLOCK, sizeof s->decoded[0]);
    bool all = s->send && s->recv && s->send_at && s->recv_at && s->decoded;
    return all ? TAMIS_OK
               : tam_fail(TAMIS_E_NOMEM, "no memory for messages of %zu bytes", send + recv);
}

tamis_status tam_value_sum_open(tam_value_sum *s, size_t most) {
    size_t bytes = tam_max(tam_value_bytes(s->up, most), tam_value_bytes(s->down, most));
    if (!tam_value_sum_quantizes(s))
        return TAMIS_OK;
    s->encoded = tam_alloc(tam_max(bytes, 1));
    if (!s->encoded)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %zu values as %s", most, s->up->name);
    return s->way == TAM_SUM_STAGED ? TAMIS_OK : open_messages(s, most);
}

void tam_value_sum_close(tam_value_sum *s, bool in_flight) {
    if (!in_flight) {
        tam_free(s->encoded);
        tam_free(s->send);
        tam_free(s->recv);
        tam_free(s->send_at);
        tam_free(s->recv_at);
    }
    tam_free(s->decoded);
}

/* -- a sum ------------------------------------------------------------------------------------ */

typedef struct job {
    tam_value_sum *sum;
    tam_link *link;
    float *values, *errors;
    size_t count;
    tam_owned own[2]; /* this rank's shards */
    uint32_t nown;
} job;

static tamis_status value_sum_refuse(const job *j, uint32_t r, const char *why) {
    const tam_value_sum *w = j->sum;
    return tam_fail(TAMIS_E_PROTOCOL, "values of rank %u, as received by rank %u, were refused: %s",
                    w->first + r * w->stride, w->first + j->link->rank * w->stride, why);
}

/* Values become what all others see of them. */
static tamis_status value_sum_encode_values(const job *j) {
    tam_value_sum *w = j->sum;
    tam_value_encode(w->up, j->values, j->count, w->encoded, j->errors);
    bool good = tam_value_decode(w->up, w->encoded, j->count, j->values);
    return good ? TAMIS_OK : value_sum_refuse(j, j->link->rank, bad_scale);
}

/* Sums, whose owner keeps what rounding takes from them. The values are not needed any more. */
static void encode_own(const job *j, const tam_owned *own) {
    tam_value_sum *w = j->sum;
    float *sums = j->values + own->begin;
    if (own->length == 0)
        return;
    tam_value_encode(w->down, sums, own->length, w->encoded + tam_value_bytes(w->down, own->begin),
                     sums);
    for (size_t i = 0; i < own->length; i++)
        j->errors[own->begin + i] = tam_value_add_errors(j->errors[own->begin + i], sums[i]);
}

static tamis_status value_sum_decode_sums(const job *j) {
    bool good = tam_value_decode(j->sum->down, j->sum->encoded, j->count, j->values);
    return good ? TAMIS_OK : value_sum_refuse(j, j->link->rank, bad_scale);
}

static tamis_status sum_staged(const job *j) {
    tam_value_sum *w = j->sum;
    tam_link *link = j->link;
    const tam_encoded_transport *encoded = link->transport->encoded;
    TAM_TRY(encoded->scatter(link->self, w->up, w->encoded, j->values, j->count, &link->call));
    for (uint32_t i = 0; i < j->nown; i++)
        encode_own(j, &j->own[i]);
    TAM_TRY(encoded->spread(link->self, w->down, w->encoded, j->count, &link->call));
    return value_sum_decode_sums(j);
}

/* -- by adding up the values of all ranks ----------------------------------------------------- */

/* A block of all ranks, `stride` bytes apart. */
static tamis_status value_sum_add_block(const job *j, const unsigned char *from, size_t stride,
                                        size_t length, float *sums) {
    tam_value_sum *w = j->sum;
    for (uint32_t r = 0; r < w->nranks; r++) {
        if (!tam_value_decode(w->up, from + r * stride, length, w->decoded + r * TAM_VALUE_BLOCK))
            return value_sum_refuse(j, r, bad_scale);
    }
    tam_tree_add_up(w->decoded, TAM_VALUE_BLOCK, w->nranks, length, sums);
    return TAMIS_OK;
}

static tamis_status value_sum_add_up(const job *j, const unsigned char *from, size_t stride,
                                     size_t length, float *sums) {
    tam_value_sum *w = j->sum;
    for (size_t at = 0; at < length; at += TAM_VALUE_BLOCK)
        TAM_TRY(value_sum_add_block(j, from + tam_value_bytes(w->up, at), stride,
                                    tam_min(length - at, TAM_VALUE_BLOCK), sums + at));
    return TAMIS_OK;
}

static tamis_status check_seals(const job *j, const unsigned char *from, size_t stride,
                                size_t bytes) {
    for (uint32_t r = 0; r < j->sum->nranks; r++) {
        const char *why = value_sum_check_seal(from + r * stride, bytes);
        if (why)
            return value_sum_refuse(j, r, why);
    }
    return TAMIS_OK;
}

/* -- by owners -------------------------------------------------------------------------------- */

/* The shards of a rank, out of the encoded buffer or, with `into_encoded`, into it, and seal.
 * @return bytes without seal */
static size_t copy_shards(const job *j, uint32_t r, const tam_value_codec *type,
                          unsigned char *message, bool into_encoded) {
    tam_owned owned[2];
    uint32_t n = tam_shards_of(j->count, TAM_VALUE_BLOCK, j->link->nranks, r, owned);
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned char *here = j->sum->encoded + tam_value_bytes(type, owned[i].begin);
        size_t bytes = tam_value_bytes(type, owned[i].length);
        memcpy(into_encoded ? here : message + at, into_encoded ? message + at : here, bytes);
        at += bytes;
    }
    return at;
}

static size_t shards_bytes(const job *j, uint32_t r, const tam_value_codec *type) {
    tam_owned owned[2];
    uint32_t n = tam_shards_of(j->count, TAM_VALUE_BLOCK, j->link->nranks, r, owned);
    return tam_value_bytes(type, owned[0].length) +
           (n > 1 ? tam_value_bytes(type, owned[1].length) : 0);
}

static tamis_status bring_to_owners(const job *j, size_t own_bytes) {
    tam_value_sum *w = j->sum;
    tam_link *link = j->link;
    for (uint32_t r = 0; r < link->nranks; r++) {
        unsigned char *message = w->send + w->send_at[r];
        size_t bytes = copy_shards(j, r, w->up, message, false);
        value_sum_seal(message, bytes);
        w->send_at[r + 1] = w->send_at[r] + sealed(bytes);
        w->recv_at[r + 1] = (r + 1) * sealed(own_bytes);
    }
    return link->transport->alltoall(link->self, w->send, w->send_at, w->recv, w->recv_at,
                                     &link->call);
}

static tamis_status sum_own(const job *j, size_t own_bytes) {
    size_t at = 0;
    TAM_TRY(check_seals(j, j->sum->recv, sealed(own_bytes), own_bytes));
    for (uint32_t i = 0; i < j->nown; i++) {
        const tam_owned *own = &j->own[i];
        TAM_TRY(value_sum_add_up(j, j->sum->recv + at, sealed(own_bytes), own->length,
                                 j->values + own->begin));
        at += tam_value_bytes(j->sum->up, own->length);
    }
    return TAMIS_OK;
}

/* @param  good  else only this rank knows that it has no sums: so all refuse them */
static tamis_status bring_from_owners(const job *j, bool good, size_t longest) {
    tam_value_sum *w = j->sum;
    tam_link *link = j->link;
    memset(w->send, 0, longest);
    size_t bytes = copy_shards(j, link->rank, w->down, w->send, false);
    value_sum_seal(w->send, bytes);
    if (!good)
        w->send[sealed(bytes) - 1] ^= 1;
    return link->transport->allgather(link->self, w->send, longest, w->recv, &link->call);
}

static tamis_status take_sums(const job *j, size_t longest) {
    tam_value_sum *w = j->sum;
    for (uint32_t r = 0; r < w->nranks; r++) {
        const char *why = value_sum_check_seal(w->recv + r * longest, shards_bytes(j, r, w->down));
        if (why)
            return value_sum_refuse(j, r, why);
        copy_shards(j, r, w->down, w->recv + r * longest, true);
    }
    return value_sum_decode_sums(j);
}

static tamis_status sum_by_owners(const job *j) {
    tam_value_sum *w = j->sum;
    size_t own_bytes = shards_bytes(j, j->link->rank, w->up), longest = 0;
    for (uint32_t r = 0; r < w->nranks; r++)
        longest = tam_max(longest, sealed(shards_bytes(j, r, w->down)));
    TAM_TRY(bring_to_owners(j, own_bytes));
    tamis_status summed = sum_own(j, own_bytes);
    for (uint32_t i = 0; i < j->nown; i++)
        encode_own(j, &j->own[i]);
    TAM_TRY(bring_from_owners(j, summed == TAMIS_OK, longest));
    TAM_TRY(summed);
    return take_sums(j, longest);
}

/* -- by all ----------------------------------------------------------------------------------- */

/* Everybody quantizes the sums from `begin` on, and who owns them keeps what it takes. */
static void round_sums(const job *j, size_t begin, size_t length) {
    tam_value_sum *w = j->sum;
    float *sums = j->values + begin;
    tam_value_encode(w->down, sums, length, w->encoded + tam_value_bytes(w->down, begin), sums);
    for (uint32_t i = 0; i < j->nown; i++) {
        size_t from = tam_max(begin, j->own[i].begin);
        size_t to = tam_min(begin + length, j->own[i].begin + j->own[i].length);
        for (size_t at = from; at < to; at++)
            j->errors[at] = tam_value_add_errors(j->errors[at], j->values[at]);
    }
}

static tamis_status sum_piece(const job *j, size_t begin, size_t length) {
    tam_value_sum *w = j->sum;
    tam_link *link = j->link;
    size_t bytes = tam_value_bytes(w->up, length), message = sealed(bytes);
    memcpy(w->send, w->encoded + tam_value_bytes(w->up, begin), bytes);
    value_sum_seal(w->send, bytes);
    TAM_TRY(link->transport->allgather(link->self, w->send, message, w->recv, &link->call));
    TAM_TRY(check_seals(j, w->recv, message, bytes));
    return value_sum_add_up(j, w->recv, message, length, j->values + begin);
}

/* The encoded values are needed until the last piece has left, and so are its sums until then. */
static tamis_status sum_by_all(const job *j) {
    size_t piece = j->sum->piece;
    for (size_t at = 0; at < j->count; at += piece)
        TAM_TRY(sum_piece(j, at, tam_min(piece, j->count - at)));
    for (size_t at = 0; at < j->count; at += piece)
        round_sums(j, at, tam_min(piece, j->count - at));
    return value_sum_decode_sums(j);
}

tamis_status tam_value_sum_run(tam_value_sum *w, tam_link *link, float *values, size_t count,
                               float *errors) {
    job j = {w, link, values, errors, count, {{0, 0}}, 0};
    if (!tam_value_sum_quantizes(w))
        return link->transport->allreduce_sum(link->self, values, count, &link->call);
    j.nown = tam_shards_of(count, TAM_VALUE_BLOCK, link->nranks, link->rank, j.own);
    TAM_TRY(value_sum_encode_values(&j));
    return w->way == TAM_SUM_STAGED      ? sum_staged(&j)
           : w->way == TAM_SUM_BY_OWNERS ? sum_by_owners(&j)
                                         : sum_by_all(&j);
}
