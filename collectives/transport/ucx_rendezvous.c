/* SPDX-License-Identifier: MIT
 *
 * How ranks learn each other's addresses: by all-gathers over any network, the rendezvous, which is
 * not needed afterwards.
 */
#include "collectives/transport/ucx_comm.h"

#include "lib/base/hash.h"

#include <stdio.h>
#include <stdlib.h>

#define CARD_MAGIC UINT64_C(0x7563786361726432)

enum { ADDRESS_MOST = 1 << 20, PIECE = 1024 };

/* What a rank shows the others before its address, and again when it has endpoints to all. */
typedef struct card {
    uint64_t magic, status, rank, nranks, member; /* of control */
    uint64_t data, bytes, hash; /* bytes of its address for data, of that and the one for control */
    char cause[208];
} card;

static tamis_status rendezvous_gather(const tamis_callbacks *rendezvous, const void *send,
                                      void *recv, size_t bytes) {
    tamis_status status = rendezvous->allgather(rendezvous->context, send, recv, bytes);
    bool passes = (int)status >= TAMIS_E_TIMEOUT && (int)status <= TAMIS_E_DEVICE;
    if (status == TAMIS_OK)
        return TAMIS_OK;
    return tam_fail(passes ? status : TAMIS_E_TRANSPORT,
                    "rank %u: the all-gather of the addresses returned %d (%s)", rendezvous->rank,
                    (int)status, tamis_status_name(status));
}

static tamis_status judge_cards(const card *cards, const tamis_callbacks *rendezvous) {
    for (uint32_t r = 0; r < rendezvous->nranks; r++) {
        const card *c = &cards[r];
        if (c->magic == 0)
            return tam_fail(TAMIS_E_TRANSPORT, "who was to be rank %u has gone, or did not answer",
                            r);
        if (c->magic != CARD_MAGIC || c->bytes > ADDRESS_MOST || c->status > TAMIS_E_DEVICE ||
            c->rank != r || c->member >= TAM_UCX_MEMBERS || c->cause[sizeof c->cause - 1])
            return tam_fail(TAMIS_E_PROTOCOL, "what rank %u shows of itself is not of this version",
                            r);
        if (c->status != TAMIS_OK)
            return tam_fail((tamis_status)c->status, "rank %u could not connect: %s", r, c->cause);
        if (c->nranks != rendezvous->nranks)
            return tam_fail(TAMIS_E_MISMATCH, "rank %u says that there are %llu ranks, rank %u %u",
                            r, (unsigned long long)c->nranks, rendezvous->rank, rendezvous->nranks);
    }
    return TAMIS_OK;
}

/* @param  own    of this rank so far, with its sentence
 * @param  cards  [out]  [nranks] */
static tamis_status show_cards(const tamis_callbacks *rendezvous, tamis_status own, card mine,
                               card *cards) {
    mine.magic = CARD_MAGIC;
    mine.status = own;
    mine.rank = rendezvous->rank;
    mine.nranks = rendezvous->nranks;
    if (own != TAMIS_OK)
        snprintf(mine.cause, sizeof mine.cause, "%.200s", tamis_last_error());
    TAM_TRY(rendezvous_gather(rendezvous, &mine, cards, sizeof mine));
    return own != TAMIS_OK ? tam_pass(own, mine.cause) : judge_cards(cards, rendezvous);
}

/* An endpoint of data; what makes one of control, unless it is known. */
static tamis_status take_address(tam_ucx_mesh *data, tam_ucx_mesh *control, uint32_t rank,
                                 const card *c, const char *address) {
    size_t bytes = (size_t)(c->bytes - c->data);
    if (c->member >= control->nmembers || c->data <= sizeof(tam_identity) ||
        c->bytes <= c->data + sizeof(tam_identity) ||
        tam_hash(address, (size_t)c->bytes) != c->hash)
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u got another address than rank %u gave",
                        data->self, rank);
    tam_ucx_member *m = control->members[c->member];
    bool known = m->address || m->endpoint || m->gone != UCS_OK;
    if (!known && !(m->address = malloc(bytes)))
        return tam_fail(TAMIS_E_NOMEM, "no memory for the address of rank %u", rank);
    if (!known)
        memcpy(m->address, address + c->data, bytes);
    return tam_ucx_mesh_reach(data, rank, address);
}

static tamis_status reach_all(tam_ucx_mesh *data, tam_ucx_mesh *control, const card *cards,
                              const char *addresses, size_t stride) {
    tamis_status status = TAMIS_OK;
    pthread_mutex_lock(&control->lock); /* others may use it already */
    for (uint32_t r = 0; r < data->nmembers && status == TAMIS_OK; r++)
        if (r != data->self)
            status = take_address(data, control, r, &cards[r], addresses + r * stride);
    pthread_mutex_unlock(&control->lock);
    return status;
}

/* The longest address, for all. */
static size_t longest_of(const card *cards, uint32_t nranks) {
    size_t most = 0;
    for (uint32_t r = 0; r < nranks; r++)
        most = cards[r].bytes > most ? cards[r].bytes : most;
    return most;
}

/* A rank without memory takes part all the same, and says so afterwards.
 * @param  all     [out]  [nranks * stride]; NULL: nothing is kept
 * @param  pieces  [nranks * PIECE] */
static tamis_status gather_addresses(const tamis_callbacks *rendezvous, const char *address,
                                     size_t bytes, size_t stride, char *all, char *pieces) {
    char mine[PIECE];
    for (size_t at = 0; at < stride; at += PIECE) {
        size_t length = stride - at < PIECE ? stride - at : PIECE;
        size_t own = bytes <= at ? 0 : bytes - at < length ? bytes - at : length;
        memset(mine, 0, sizeof mine);
        memcpy(mine, address + at * (own > 0), own);
        TAM_TRY(rendezvous_gather(rendezvous, mine, pieces, length));
        for (uint32_t r = 0; all && r < rendezvous->nranks; r++)
            memcpy(all + r * stride + at, pieces + r * length, length);
    }
    return TAMIS_OK;
}

/* @param  met  [out]  false: the all-gather failed, and is not to be called again */
static tamis_status exchange_addresses(tam_ucx_mesh *data, tam_ucx_mesh *control,
                                       const tamis_callbacks *rendezvous, const void *address,
                                       const card *mine, const card *cards, char *pieces,
                                       bool *met) {
    size_t stride = longest_of(cards, rendezvous->nranks);
    size_t bytes = (size_t)mine->bytes < stride ? (size_t)mine->bytes : stride;
    char *all = tam_alloc_array(rendezvous->nranks, stride);
    tamis_status status = gather_addresses(rendezvous, address, bytes, stride, all, pieces);
    *met = status == TAMIS_OK;
    if (status == TAMIS_OK && !all)
        status =
            tam_fail(TAMIS_E_NOMEM, "no memory for the addresses of %u ranks", rendezvous->nranks);
    if (status == TAMIS_OK && cards[rendezvous->rank].hash != mine->hash)
        status =
            tam_fail(TAMIS_E_PROTOCOL,
                     "rank %u: the all-gather of the addresses returned something else in this "
                     "rank's place than it was given",
                     rendezvous->rank);
    if (status == TAMIS_OK)
        status = reach_all(data, control, cards, all, stride);
    tam_free(all);
    return status;
}

/* @param  address  [out]  to be freed; NULL after a failure */
static tamis_status prepare(tam_ucx_mesh *data, tam_ucx_mesh *control,
                            const tamis_callbacks *rendezvous, card *mine, char **address) {
    size_t nfirst = 0, nsecond = 0;
    TAM_TRY(tam_ucx_mesh_extend(data, rendezvous->nranks));
    data->self = rendezvous->rank;
    mine->member = control->self;
    void *first = tam_ucx_mesh_address(data, &nfirst);
    void *second = tam_ucx_mesh_address(control, &nsecond);
    *address = first && second ? realloc(first, nfirst + nsecond) : NULL;
    if (*address) {
        memcpy(*address + nfirst, second, nsecond);
        mine->data = nfirst;
        mine->bytes = nfirst + nsecond;
        mine->hash = tam_hash(*address, nfirst + nsecond);
    } else {
        free(first);
    }
    free(second);
    return *address ? TAMIS_OK : tam_fail(TAMIS_E_NOMEM, "no memory for the address of a worker");
}

static tamis_status connect_all(tam_ucx_mesh *data, tam_ucx_mesh *control, tamis_status own,
                                const tamis_callbacks *rendezvous, card *cards, char *pieces,
                                uint32_t *members) {
    card mine = {0};
    char *address = NULL;
    if (own == TAMIS_OK)
        own = prepare(data, control, rendezvous, &mine, &address);
    tamis_status status = show_cards(rendezvous, own, mine, cards);
    for (uint32_t r = 0; status == TAMIS_OK && r < rendezvous->nranks; r++)
        members[r] = (uint32_t)cards[r].member;
    if (status == TAMIS_OK) {
        bool met;
        own = exchange_addresses(data, control, rendezvous, address, &mine, cards, pieces, &met);
        status = met ? show_cards(rendezvous, own, mine, cards) : own;
    }
    free(address);
    return status;
}

tamis_status tam_ucx_connect(tam_ucx_mesh *data, tam_ucx_mesh *control, tamis_status own,
                             const tamis_callbacks *rendezvous, uint32_t *members) {
    card *cards = tam_alloc_array(rendezvous->nranks, sizeof *cards);
    char *pieces = tam_alloc_array(rendezvous->nranks, PIECE);
    tamis_status status = cards && pieces /* else the others wait for this rank */
                              ? connect_all(data, control, own, rendezvous, cards, pieces, members)
                              : tam_fail(TAMIS_E_NOMEM, "no memory for the addresses of %u ranks",
                                         rendezvous->nranks);
    tam_free(cards);
    tam_free(pieces);
    return status;
}
