/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/slot.h"

#include <xxhash.h>

#define MAGIC UINT64_C(0x33746f6c73d1a734) /* changes with the format */

_Static_assert(sizeof(tam_slot_header) == 80, "the header is part of the wire format");

static size_t words_per_index(const tam_slots *s) {
    return s->with_values ? 2 : 1;
}

static size_t payload_bytes(const tam_slots *s, size_t stride) {
    return (stride * words_per_index(s) * 4 + 7) / 8 * 8;
}

tamis_status tam_slots_open(tam_slots *s) {
    s->head_bytes = sizeof(tam_slot_header) + ((size_t)s->nstats * 4 + 7) / 8 * 8;
    size_t payload = payload_bytes(s, s->capacity), slot = s->head_bytes + payload;
    size_t bytes;
    if (__builtin_mul_overflow(slot, (size_t)s->nranks + 1, &bytes))
        return tam_fail(TAMIS_E_NOMEM, "slots of %zu indices on %u ranks exceed the address space",
                        s->capacity, s->nranks);
    s->memory = tam_alloc(bytes);
    if (!s->memory)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %zu bytes of slots", bytes);
    s->send = s->memory;
    s->heads = s->memory + slot;
    tam_slots_limit(s, s->capacity);
    return TAMIS_OK;
}

void tam_slots_limit(tam_slots *s, size_t limit) {
    s->limit = limit;
    if (s->growing) {
        s->head_step = s->head_bytes;
        s->payloads = s->heads + s->nranks * s->head_bytes;
    } else {
        s->stride = limit;
        s->head_step = s->payload_step = s->head_bytes + payload_bytes(s, limit);
        s->payloads = s->heads + s->head_bytes;
    }
}

void tam_slots_close(tam_slots *s) {
    tam_free(s->memory);
    s->memory = NULL;
}

tam_slot_header *tam_slot_own_header(tam_slots *s) {
    return (tam_slot_header *)(void *)s->send;
}

float *tam_slot_own_stats(tam_slots *s) {
    return (float *)(void *)(s->send + sizeof(tam_slot_header));
}

uint32_t *tam_slot_own_indices(tam_slots *s) {
    return (uint32_t *)(void *)(s->send + s->head_bytes);
}

float *tam_slot_own_values(tam_slots *s) {
    return (float *)(void *)(tam_slot_own_indices(s) + s->limit);
}

const tam_slot_header *tam_slot_header_of(const tam_slots *s, uint32_t r) {
    return (const tam_slot_header *)(const void *)(s->heads + r * s->head_step);
}

const float *tam_slot_stats_of(const tam_slots *s, uint32_t r) {
    return (const float *)(const void *)(tam_slot_header_of(s, r) + 1);
}

const uint32_t *tam_slot_indices_of(const tam_slots *s, uint32_t r) {
    return (const uint32_t *)(const void *)(s->payloads + r * s->payload_step);
}

const float *tam_slot_values_of(const tam_slots *s, uint32_t r) {
    return (const float *)(const void *)(tam_slot_indices_of(s, r) + s->stride);
}

/* Over the head with a zero checksum, then indices, then values. */
static uint64_t checksum(const tam_slots *s, const void *head, const uint32_t *indices,
                         const float *values) {
    tam_slot_header header;
    memcpy(&header, head, sizeof header);
    header.checksum = 0;
    uint64_t hash = XXH3_64bits(&header, sizeof header);
    hash = XXH3_64bits_withSeed((const char *)head + sizeof header, s->head_bytes - sizeof header,
                                hash);
    hash = XXH3_64bits_withSeed(indices, (size_t)header.count * 4, hash);
    if (s->with_values)
        hash = XXH3_64bits_withSeed(values, (size_t)header.count * 4, hash);
    return hash;
}

static void seal(tam_slots *s) {
    tam_slot_header *h = tam_slot_own_header(s);
    h->magic = MAGIC;
    h->config = s->config;
    h->rank = s->rank;
    h->checksum = checksum(s, h, tam_slot_own_indices(s), tam_slot_own_values(s));
}

static tamis_status refuse(uint32_t r, const char *what) {
    return tam_fail(TAMIS_E_PROTOCOL, "the slot of rank %u was refused: %s", r, what);
}

/* What must hold before the payload is looked at. */
static tamis_status check_head(const tam_slots *s, uint32_t r) {
    const tam_slot_header *h = tam_slot_header_of(s, r);
    uint64_t step = ((const tam_slot_header *)(const void *)s->send)->step;
    if (h->magic != MAGIC)
        return refuse(r, "it is none (magic number)");
    if (h->rank != r)
        return refuse(r, "it names another rank");
    if (h->config != s->config)
        return refuse(r, "it comes from another configuration, density or packing");
    if (h->step != step)
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u is at step %llu, this rank at step %llu", r,
                        (unsigned long long)h->step, (unsigned long long)step);
    if (h->count > s->limit)
        return refuse(r, "its count exceeds the slot");
    return TAMIS_OK;
}

static tamis_status check_payload(const tam_slots *s, uint32_t r) {
    const tam_slot_header *h = tam_slot_header_of(s, r);
    if (h->checksum != checksum(s, h, tam_slot_indices_of(s, r), tam_slot_values_of(s, r)))
        return refuse(r, "its checksum is wrong");
    return TAMIS_OK;
}

static tamis_status gather(tam_link *link, const void *send, size_t bytes, void *recv) {
    return link->transport->allgather(link->self, send, bytes, recv, &link->call);
}

static tamis_status exchange_fixed(tam_slots *s, tam_link *link) {
    TAM_TRY(gather(link, s->send, s->head_step, s->heads));
    for (uint32_t r = 0; r < s->nranks; r++)
        TAM_TRY(check_head(s, r));
    return TAMIS_OK;
}

static tamis_status exchange_growing(tam_slots *s, tam_link *link) {
    TAM_TRY(gather(link, s->send, s->head_bytes, s->heads));
    s->stride = 0;
    for (uint32_t r = 0; r < s->nranks; r++) {
        TAM_TRY(check_head(s, r));
        size_t count = tam_slot_header_of(s, r)->count;
        s->stride = count > s->stride ? count : s->stride;
    }
    s->payload_step = payload_bytes(s, s->stride);
    if (s->with_values) /* close the gap between indices and values */
        memmove(tam_slot_own_indices(s) + s->stride, tam_slot_own_values(s),
                tam_slot_own_header(s)->count * sizeof(float));
    if (s->stride == 0)
        return TAMIS_OK;
    return gather(link, s->send + s->head_bytes, s->payload_step, s->payloads);
}

tamis_status tam_slots_exchange(tam_slots *s, tam_link *link) {
    seal(s);
    TAM_TRY(s->growing ? exchange_growing(s, link) : exchange_fixed(s, link));
    for (uint32_t r = 0; r < s->nranks; r++)
        TAM_TRY(check_payload(s, r));
    return TAMIS_OK;
}
