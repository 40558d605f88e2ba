/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/wire_sum.h"

#include "lib/base/tree.h"

#include <float.h>
#include <xxhash.h>

enum { PIECE_MOST = 1 << 16, SEAL = 8 };

/* -- messages --------------------------------------------------------------------------------- */

/* Nothing is sent of no values. */
static size_t message_bytes(const tam_wire_type *wire, size_t count) {
    return count ? tam_wire_bytes(wire, count) + SEAL : 0;
}

static void pack(const tam_wire_type *wire, const float *values, size_t count,
                 unsigned char *message, float *errors) {
    size_t bytes = tam_wire_bytes(wire, count);
    tam_wire_encode(wire, values, count, message, errors);
    uint64_t hash = XXH3_64bits(message, bytes);
    if (count > 0)
        memcpy(message + bytes, &hash, SEAL);
}

static const char bad_scale[] = "a scale is negative or infinite";

/* @return NULL, or why the message is refused */
static const char *check_seal(const tam_wire_type *wire, const unsigned char *message,
                              size_t count) {
    size_t bytes = tam_wire_bytes(wire, count);
    uint64_t hash;
    if (count == 0)
        return NULL;
    memcpy(&hash, message + bytes, SEAL);
    return hash == XXH3_64bits(message, bytes) ? NULL : "their checksum is wrong";
}

static const char *unpack(const tam_wire_type *wire, const unsigned char *message, size_t count,
                          float *values) {
    const char *why = check_seal(wire, message, count);
    if (why)
        return why;
    return tam_wire_decode(wire, message, count, values) ? NULL : bad_scale;
}

/* -- memory ----------------------------------------------------------------------------------- */

static size_t whole_blocks(size_t count) {
    return (count + TAM_WIRE_BLOCK - 1) / TAM_WIRE_BLOCK * TAM_WIRE_BLOCK;
}

tamis_status tam_wire_sum_open(tam_wire_sum *s, size_t most) {
    size_t slice = whole_blocks(most / s->nranks + 1), ranks = s->nranks;
    if (!tam_wire_sum_rounds(s))
        return TAMIS_OK;
    s->most = most / s->nranks + (most % s->nranks > 0);
    s->piece = slice < PIECE_MOST ? slice : PIECE_MOST;
    size_t up = message_bytes(s->up, s->piece), down = message_bytes(s->down, s->piece);
    size_t message = ranks * (up > down ? up : down);
    s->send = tam_alloc(message);
    s->recv = tam_alloc_array(message, s->gathers ? ranks : 1);
    s->send_at = tam_alloc_array(ranks + 1, sizeof s->send_at[0]);
    s->recv_at = tam_alloc_array(ranks + 1, sizeof s->recv_at[0]);
    s->sums = tam_alloc_array(s->piece, sizeof s->sums[0]);
    s->came = tam_alloc_array(ranks * TAM_WIRE_BLOCK, sizeof s->came[0]);
    if (s->send && s->recv && s->send_at && s->recv_at && s->sums && s->came)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NOMEM, "no memory to sum %zu values of %zu bytes at a time", s->piece,
                    message);
}

size_t tam_wire_sum_gathers(const tam_wire_sum *s) {
    if (!tam_wire_sum_rounds(s))
        return 0;
    return s->gathers ? s->nranks * message_bytes(s->up, s->piece)
                      : message_bytes(s->down, s->piece);
}

void tam_wire_sum_close(tam_wire_sum *s, bool lingers) {
    if (!lingers) {
        tam_free(s->send);
        tam_free(s->recv);
        tam_free(s->send_at);
        tam_free(s->recv_at);
    }
    tam_free(s->sums);
    tam_free(s->came);
}

/* -- a piece of every slice ------------------------------------------------------------------- */

typedef struct step {
    tam_wire_sum *sum;
    tam_link *link;
    float *values, *errors;
    size_t count, at; /* the pieces begin `at` values behind the begins of their slices */
} step;

/* Where the piece of slice r begins. */
static size_t piece_of(const step *s, uint32_t r, size_t *length) {
    size_t begin = tam_slice_begin(s->count, r, s->link->nranks) + s->at;
    size_t end = tam_slice_begin(s->count, r + 1, s->link->nranks);
    *length = begin < end ? end - begin : 0;
    *length = *length < s->sum->piece ? *length : s->sum->piece;
    return begin;
}

static void encode_all(const step *s) {
    tam_wire_sum *w = s->sum;
    w->send_at[0] = 0;
    for (uint32_t r = 0; r < s->link->nranks; r++) {
        size_t length, begin = piece_of(s, r, &length);
        pack(w->up, s->values + begin, length, w->send + w->send_at[r], s->errors + begin);
        w->send_at[r + 1] = w->send_at[r] + message_bytes(w->up, length);
    }
}

static uint32_t name_of(const step *s, uint32_t r) {
    return s->sum->first + r * s->sum->stride;
}

static tamis_status refuse(const step *s, uint32_t r, const char *why) {
    return tam_fail(TAMIS_E_PROTOCOL, "values of rank %u, as received by rank %u, were refused: %s",
                    name_of(s, r), name_of(s, s->link->rank), why);
}

/* A block of all ranks, `stride` bytes apart. */
static tamis_status add_block(const step *s, const unsigned char *from, size_t stride,
                              size_t length, float *sums) {
    tam_wire_sum *w = s->sum;
    for (uint32_t r = 0; r < w->nranks; r++) {
        if (!tam_wire_decode(w->up, from + r * stride, length, w->came + r * TAM_WIRE_BLOCK))
            return refuse(s, r, bad_scale);
    }
    tam_tree_add_up(w->came, TAM_WIRE_BLOCK, w->nranks, length, sums);
    return TAMIS_OK;
}

/* The piece of one slice from all ranks, `stride` bytes apart. */
static tamis_status add_up(const step *s, const unsigned char *from, size_t stride, size_t length) {
    tam_wire_sum *w = s->sum;
    for (uint32_t r = 0; r < w->nranks; r++) {
        const char *why = check_seal(w->up, from + r * stride, length);
        if (why)
            return refuse(s, r, why);
    }
    for (size_t at = 0; at < length; at += TAM_WIRE_BLOCK) {
        size_t rest = length - at;
        TAM_TRY(add_block(s, from + tam_wire_bytes(w->up, at), stride,
                          rest < TAM_WIRE_BLOCK ? rest : TAM_WIRE_BLOCK, w->sums + at));
    }
    return TAMIS_OK;
}

/* Of fp2, whose errors are as large as the values, two may exceed float32: an Inf would never leave
 * the residual again. */
static float add_errors(float a, float b) {
    float sum = a + b;
    return sum > FLT_MAX ? FLT_MAX : sum < -FLT_MAX ? -FLT_MAX : sum;
}

/* What rounding takes from the sums of a slice its owner keeps. */
static void encode_sums(const step *s, uint32_t owner, unsigned char *to) {
    tam_wire_sum *w = s->sum;
    size_t length, begin = piece_of(s, owner, &length);
    bool own = owner == s->link->rank;
    pack(w->down, w->sums, length, to, own ? w->sums : NULL);
    for (size_t i = 0; own && i < length; i++)
        s->errors[begin + i] = add_errors(s->errors[begin + i], w->sums[i]);
}

static tamis_status decode_sums(const step *s, uint32_t owner, const unsigned char *from) {
    size_t length, begin = piece_of(s, owner, &length);
    const char *why = unpack(s->sum->down, from, length, s->values + begin);
    return why ? refuse(s, owner, why) : TAMIS_OK;
}

/* By everybody. */
static tamis_status sum_everything(const step *s) {
    tam_wire_sum *w = s->sum;
    tam_link *link = s->link;
    size_t bytes = w->send_at[link->nranks], length;
    TAM_TRY(link->transport->allgather(link->self, w->send, bytes, w->recv, &link->call));
    for (uint32_t r = 0; r < link->nranks; r++) {
        piece_of(s, r, &length);
        TAM_TRY(add_up(s, w->recv + w->send_at[r], bytes, length));
        encode_sums(s, r, w->send);
        TAM_TRY(decode_sums(s, r, w->send));
    }
    return TAMIS_OK;
}

/* By the owners of slices. */
static tamis_status sum_own(const step *s) {
    tam_wire_sum *w = s->sum;
    tam_link *link = s->link;
    size_t own, longest = 0, length;
    piece_of(s, link->rank, &own);
    size_t bytes = message_bytes(w->up, own);
    for (uint32_t r = 0; r < link->nranks; r++) {
        piece_of(s, r, &length);
        longest = length > longest ? length : longest;
        w->recv_at[r + 1] = (r + 1) * bytes;
    }
    size_t down = message_bytes(w->down, longest);
    TAM_TRY(link->transport->alltoall(link->self, w->send, w->send_at, w->recv, w->recv_at,
                                      &link->call));
    tamis_status came = add_up(s, w->recv, bytes, own);
    memset(w->send, 0, down);
    encode_sums(s, link->rank, w->send);
    if (came != TAMIS_OK && own > 0) /* only this rank knows: so all refuse its sums */
        w->send[message_bytes(w->down, own) - 1] ^= 1;
    TAM_TRY(link->transport->allgather(link->self, w->send, down, w->recv, &link->call));
    TAM_TRY(came);
    for (uint32_t r = 0; r < link->nranks; r++)
        TAM_TRY(decode_sums(s, r, w->recv + r * down));
    return TAMIS_OK;
}

tamis_status tam_wire_sum_run(tam_wire_sum *w, tam_link *link, float *values, size_t count,
                              float *errors) {
    size_t longest = w->steady ? w->most : count / link->nranks + (count % link->nranks > 0);
    if (!tam_wire_sum_rounds(w))
        return link->transport->allreduce_sum(link->self, values, count, &link->call);
    for (size_t at = 0; at < longest; at += w->piece) {
        step s = {w, link, values, errors, count, at};
        encode_all(&s);
        TAM_TRY(w->gathers ? sum_everything(&s) : sum_own(&s));
    }
    return TAMIS_OK;
}
