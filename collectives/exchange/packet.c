/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/packet.h"

#include "lib/base/tree.h"

_Static_assert(sizeof(tam_header) == 28, "the header is wire format");

/* -- memory ----------------------------------------------------------------------------------- */

/* A u32 list is what the caller works with, so it is selected into and read in the message
 * itself. */
static bool in_place(const tam_packets *s) {
    return s->index_codec == TAMIS_INDEX_U32;
}

static size_t index_capacity(const tam_packets *s, size_t limit) {
    return tam_header_round((size_t)tam_index_codec_of(s->index_codec)->bytes(s->span, limit));
}

static size_t value_capacity(const tam_packets *s, size_t limit) {
    return s->with_values ? tam_header_round(tam_value_bytes(s->value_codec, limit)) : 0;
}

/* Led: bytes of one of the P pieces of a payload. */
static size_t piece_of(const tam_packets *s, size_t payload) {
    return tam_header_round((payload + s->nranks - 1) / s->nranks);
}

/* This rank's packet; led: its payload is as long as P pieces. */
static size_t own_capacity(const tam_packets *s) {
    size_t payload = index_capacity(s, s->capacity) + value_capacity(s, s->capacity);
    return s->header_bytes + (s->led ? s->nranks * piece_of(s, payload) : payload);
}

/* What one rank sends to all. */
static size_t message_capacity(const tam_packets *s) {
    size_t payload = own_capacity(s) - s->header_bytes;
    return s->header_bytes + (s->headers_only ? 0 : s->led ? payload / s->nranks : payload);
}

/* Decoded lists; led: there is only one. */
static size_t nlists(const tam_packets *s) {
    return in_place(s) ? 0 : s->led ? 1 : s->nranks;
}

static uint32_t *packet_list_of(const tam_packets *s, uint32_t r) {
    return s->lists + (s->led ? 0 : r * s->capacity);
}

/* All of it is touched, so a size that nobody meant would fill the machine before it fails. */
static tamis_status packet_check_bytes(const tam_packets *s) {
    const uint32_t limit = tam_setting_number(TAM_SETTING_MESSAGE_GIB);
    unsigned __int128 bytes = (unsigned __int128)s->nranks * message_capacity(s) + s->beside;
    if (index_capacity(s, s->capacity) > UINT32_MAX)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "the indices of a bucket with room for %zu entries of "
                        "each rank would exceed 4 GiB; lower the density or use smaller buckets",
                        s->capacity);
    bytes += (unsigned __int128)nlists(s) * s->capacity * sizeof s->lists[0];
    bytes += own_capacity(s) + (s->led ? own_capacity(s) + message_capacity(s) : 0);
    if (bytes <= (unsigned __int128)limit << 30)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "the messages of a bucket would take %.1f GiB on each of %u ranks, with room "
                    "for %zu entries of each rank; the limit is %u GiB (TAMIS_MESSAGE_GIB). Lower "
                    "the density, set tamis_reducer_config.capacity, use smaller buckets, or a "
                    "scheme whose ranks share k, as tamis",
                    (double)bytes / (1 << 30), s->nranks, s->capacity, limit);
}

/* own header and payload | relay | headers, each with a piece | the payload */
static tamis_status open_led_memory(tam_packets *s) {
    size_t message = message_capacity(s), own = own_capacity(s), payload = own - s->header_bytes;
    s->send_at = tam_alloc_array(2 * ((size_t)s->nranks + 1), sizeof s->send_at[0]);
    s->memory = tam_alloc(own + message + s->nranks * message + payload);
    if (!s->send_at || !s->memory)
        return tam_fail(TAMIS_E_NOMEM, "no memory for packets of %zu indices of one rank",
                        s->capacity);
    s->recv_at = s->send_at + s->nranks + 1;
    s->relay = s->memory + own;
    s->headers = s->relay + message;
    return TAMIS_OK;
}

static tamis_status packet_open_memory(tam_packets *s) {
    size_t own = own_capacity(s), bytes = own + s->nranks * message_capacity(s);
    s->memory = tam_alloc(bytes);
    if (!s->memory)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %zu bytes of packets", bytes);
    s->headers = s->memory + own;
    return TAMIS_OK;
}

static tamis_status open_lists(tam_packets *s) {
    if (in_place(s))
        return TAMIS_OK;
    s->own = tam_alloc_array(s->capacity, sizeof s->own[0]);
    s->lists = tam_alloc_array(s->capacity, nlists(s) * sizeof s->lists[0]);
    if (!s->own || !s->lists)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %zu lists of %zu indices", nlists(s),
                        s->capacity);
    return TAMIS_OK;
}

tamis_status tam_packets_open(tam_packets *s) {
    s->header_bytes = tam_header_bytes((size_t)s->ncounters + s->nwords);
    TAM_TRY(packet_check_bytes(s));
    TAM_TRY(s->led ? open_led_memory(s) : packet_open_memory(s));
    s->send = s->memory;
    tam_packets_limit(s, s->capacity);
    return open_lists(s);
}

void tam_packets_limit(tam_packets *s, size_t limit) {
    s->limit = limit;
    s->index_step = index_capacity(s, limit);
    s->value_step = value_capacity(s, limit);
    if (s->led) {
        s->header_step = s->header_bytes + piece_of(s, s->index_step + s->value_step);
        s->payload_step = 0; /* there is one */
        s->payloads = s->headers + s->nranks * s->header_step;
    } else if (s->growing) {
        s->header_step = s->header_bytes;
        s->payloads = s->headers + s->nranks * s->header_bytes;
    } else {
        s->header_step = s->payload_step = s->header_bytes + s->index_step + s->value_step;
        s->payloads = s->headers + s->header_bytes;
    }
}

void tam_packets_close(tam_packets *s) {
    tam_free(s->memory);
    tam_free(s->own);
    tam_free(s->lists);
    tam_free(s->send_at);
    s->memory = NULL;
    s->send_at = NULL;
    s->own = s->lists = NULL;
}

/* -- where things lie ------------------------------------------------------------------------- */

tam_header *tam_packet_own_header(tam_packets *s) {
    return (tam_header *)(void *)s->send;
}

tam_header *tam_packet_begin(tam_packets *s) {
    tam_header *h = tam_packet_own_header(s);
    *h = (tam_header){0};
    return h;
}

float *tam_packet_own_counters(tam_packets *s) {
    return (float *)(void *)(s->send + sizeof(tam_header));
}

static unsigned char *own_payload(tam_packets *s) {
    return s->send + s->header_bytes;
}

uint32_t *tam_packet_own_indices(tam_packets *s) {
    return in_place(s) ? (uint32_t *)(void *)own_payload(s) : s->own;
}

/* Until a growing packet is sent, its values lie behind the room for the longest list. */
void *tam_packet_own_values(tam_packets *s) {
    return own_payload(s) + index_capacity(s, s->limit);
}

uint32_t *tam_packet_own_words(tam_packets *s) {
    return (uint32_t *)(void *)(tam_packet_own_counters(s) + s->ncounters);
}

const tam_header *tam_packet_header_of(const tam_packets *s, uint32_t r) {
    return (const tam_header *)(const void *)(s->headers + r * s->header_step);
}

const uint32_t *tam_packet_words_of(const tam_packets *s, uint32_t r) {
    return (const uint32_t *)(const void *)(tam_packet_header_of(s, r) + 1) + s->ncounters;
}

void tam_packets_total(const tam_packets *s, float *totals) {
    const float *first = (const float *)(const void *)(tam_packet_header_of(s, 0) + 1);
    tam_tree_add_up(first, s->header_step / sizeof first[0], s->nranks, s->ncounters, totals);
}

tam_headers tam_packet_headers(const tam_packets *s) {
    return (tam_headers){s->headers, s->header_step, s->rank, s->nranks, s->ncounters};
}

static const unsigned char *payload_of(const tam_packets *s, uint32_t r) {
    return s->payloads + r * s->payload_step;
}

const uint32_t *tam_packet_indices_of(const tam_packets *s, uint32_t r) {
    return in_place(s) ? (const uint32_t *)(const void *)payload_of(s, r) : packet_list_of(s, r);
}

const void *tam_packet_values_of(const tam_packets *s, uint32_t r) {
    return payload_of(s, r) + s->index_step;
}

/* -- send ------------------------------------------------------------------------------------- */

static tam_header_due due_of(const tam_packets *s, uint32_t r) {
    return (tam_header_due){s->config, s->step, s->last_result, r, (uint32_t)s->limit};
}

static uint32_t packet_check_of(const tam_packets *s, uint32_t r, const tam_header *header,
                                const void *indices, const void *values) {
    const tam_header_due due = due_of(s, r);
    uint64_t sums = tam_sum_header(header, s->header_bytes);
    if (!s->headers_only)
        sums += tam_sum_bytes(TAM_SUM_INDICES, indices, header->index_bytes);
    if (!s->headers_only && s->with_values)
        sums +=
            tam_sum_bytes(TAM_SUM_VALUES, values, tam_value_bytes(s->value_codec, header->count));
    return tam_header_check_of(&due, sums);
}

/* Led: the other ranks do not even send the encoding of an empty list. */
static bool has_payload(const tam_packets *s, uint32_t r) {
    return !s->led || r == s->leader;
}

/* Uses this rank's own place in the received lists for its positions. */
static size_t encode(tam_packets *s, size_t count) {
    if (in_place(s) || !has_payload(s, s->rank))
        return 4 * count;
    uint32_t *positions = packet_list_of(s, s->rank);
    tam_strided_number(&s->ranges[s->rank], s->own, count, positions);
    return tam_index_codec_of(s->index_codec)->encode(positions, count, s->span, own_payload(s));
}

static void packet_seal(tam_packets *s) {
    const tam_header_due due = due_of(s, s->rank);
    tam_header *h = tam_packet_own_header(s);
    tam_header_address(h, &due);
    h->index_bytes = (uint32_t)encode(s, h->count);
    h->check = packet_check_of(s, s->rank, h, own_payload(s), tam_packet_own_values(s));
}

/* -- check ------------------------------------------------------------------------------------ */

static tamis_status packet_refuse(const tam_packets *s, uint32_t r, tam_refusal why) {
    return tam_fail(TAMIS_E_PROTOCOL, "the packet of rank %u was refused: %s",
                    tam_packet_rank(s, r), tam_refusal_words(why));
}

/* A header holds the step modulo TAM_HEADER_STEPS: the nearest that there is. A rank that has not
 * loaded its state may be farther away. */
static tamis_status refuse_step(const tam_packets *s, uint32_t r) {
    int ahead = tam_packet_header_of(s, r)->step_flags % TAM_HEADER_STEPS -
                (int)(s->step % TAM_HEADER_STEPS);
    ahead += ahead < -TAM_HEADER_STEPS / 2  ? TAM_HEADER_STEPS
             : ahead > TAM_HEADER_STEPS / 2 ? -TAM_HEADER_STEPS
                                            : 0;
    long long own = (long long)s->step, other = own + ahead;
    other += other < 0 ? TAM_HEADER_STEPS : 0;
    return tam_fail(TAMIS_E_PROTOCOL,
                    "rank %u is at step %lld, or a multiple of %d away from it, this rank at step "
                    "%lld; after loading, tamis_reducer_resync resyncs ranks that are one step "
                    "apart",
                    tam_packet_rank(s, r), other, TAM_HEADER_STEPS, own);
}

/* Without this check, one damaged value would let the replicas drift apart unnoticed. */
static tamis_status refuse_result(const tam_packets *s, uint32_t r) {
    return tam_fail(TAMIS_E_PROTOCOL,
                    "the results of step %llu differ between rank %u and rank %u: values were "
                    "damaged in transit; load an older state",
                    (unsigned long long)(s->step - 1), tam_packet_rank(s, s->rank),
                    tam_packet_rank(s, r));
}

/* What must hold before the payload is read. */
static tamis_status packet_check_header(const tam_packets *s, uint32_t r) {
    const tam_header *h = tam_packet_header_of(s, r);
    const tam_header_due due = due_of(s, r);
    tam_refusal why = tam_header_check(h, &due);
    if (why == TAM_REFUSED_STEP)
        return refuse_step(s, r);
    if (why == TAM_REFUSED_RESULT)
        return refuse_result(s, r);
    if (why != TAM_REFUSED_NOTHING)
        return packet_refuse(s, r, why);
    if (!has_payload(s, r) && (h->count > 0 || h->index_bytes > 0))
        return packet_refuse(s, r, TAM_REFUSED_LEADER);
    uint64_t most = tam_index_codec_of(s->index_codec)->bytes(s->span, h->count);
    if (h->index_bytes > most || (in_place(s) && h->index_bytes != 4 * (uint64_t)h->count))
        return packet_refuse(s, r, TAM_REFUSED_BYTES);
    return TAMIS_OK;
}

static tamis_status check_payload(const tam_packets *s, uint32_t r) {
    const tam_header *h = tam_packet_header_of(s, r);
    if (h->check != packet_check_of(s, r, h, payload_of(s, r), tam_packet_values_of(s, r)))
        return packet_refuse(s, r, TAM_REFUSED_CHECKSUM);
    return TAMIS_OK;
}

static tamis_status decode(tam_packets *s, uint32_t r) {
    const tam_header *h = tam_packet_header_of(s, r);
    uint32_t *list = packet_list_of(s, r);
    const tam_index_codec *codec = tam_index_codec_of(s->index_codec);
    if (r == s->rank) { /* its checksum has just been found right */
        memcpy(list, s->own, h->count * sizeof list[0]);
        return TAMIS_OK;
    }
    if (!codec->decode(payload_of(s, r), h->index_bytes, s->span, h->count, list))
        return packet_refuse(s, r, TAM_REFUSED_CODE);
    if (h->count > 0 && list[h->count - 1] >= s->ranges[r].length)
        return packet_refuse(s, r, TAM_REFUSED_OWNER);
    tam_strided_locate(&s->ranges[r], list, h->count, list);
    return TAMIS_OK;
}

/* -- exchange --------------------------------------------------------------------------------- */

static tamis_status packet_gather(tam_link *link, const void *send, size_t bytes, void *recv) {
    return link->transport->allgather(link->self, send, bytes, recv, &link->call);
}

static tamis_status exchange_fixed(tam_packets *s, tam_link *link) {
    TAM_TRY(packet_gather(link, s->send, s->header_step, s->headers));
    for (uint32_t r = 0; r < s->nranks; r++)
        TAM_TRY(packet_check_header(s, r));
    return TAMIS_OK;
}

static tamis_status exchange_led(tam_packets *s, tam_link *link) {
    size_t piece = s->header_step - s->header_bytes;
    for (uint32_t r = 0; r <= s->nranks; r++) {
        s->send_at[r] = s->rank == s->leader ? r * piece : 0;
        s->recv_at[r] = r > s->leader ? piece : 0;
    }
    TAM_TRY(link->transport->alltoall(link->self, own_payload(s), s->send_at,
                                      s->relay + s->header_bytes, s->recv_at, &link->call));
    memcpy(s->relay, s->send, s->header_bytes);
    TAM_TRY(packet_gather(link, s->relay, s->header_step, s->headers));
    for (uint32_t r = 0; r < s->nranks; r++)
        memcpy(s->payloads + r * piece, s->headers + r * s->header_step + s->header_bytes, piece);
    for (uint32_t r = 0; r < s->nranks; r++)
        TAM_TRY(packet_check_header(s, r));
    return TAMIS_OK;
}

static tamis_status exchange_growing(tam_packets *s, tam_link *link) {
    size_t most = 0, bytes = 0;
    TAM_TRY(packet_gather(link, s->send, s->header_bytes, s->headers));
    for (uint32_t r = 0; r < s->nranks; r++)
        TAM_TRY(packet_check_header(s, r));
    if (s->headers_only)
        return TAMIS_OK;
    for (uint32_t r = 0; r < s->nranks; r++) {
        const tam_header *h = tam_packet_header_of(s, r);
        most = h->count > most ? h->count : most;
        bytes = h->index_bytes > bytes ? h->index_bytes : bytes;
    }
    s->index_step = tam_header_round(bytes);
    s->value_step = value_capacity(s, most);
    s->payload_step = s->index_step + s->value_step;
    if (s->with_values) /* close the gap between indices and values */
        memmove(own_payload(s) + s->index_step, tam_packet_own_values(s),
                tam_value_bytes(s->value_codec, tam_packet_own_header(s)->count));
    if (s->payload_step == 0)
        return TAMIS_OK;
    return packet_gather(link, own_payload(s), s->payload_step, s->payloads);
}

tamis_status tam_packets_exchange(tam_packets *s, tam_link *link) {
    packet_seal(s);
    TAM_TRY(s->led       ? exchange_led(s, link)
            : s->growing ? exchange_growing(s, link)
                         : exchange_fixed(s, link));
    for (uint32_t r = 0; r < s->nranks; r++) {
        TAM_TRY(check_payload(s, r));
        if (!in_place(s) && has_payload(s, r))
            TAM_TRY(decode(s, r));
    }
    return TAMIS_OK;
}
