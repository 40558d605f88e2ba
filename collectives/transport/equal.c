/* SPDX-License-Identifier: MIT
 *
 * Whether all ranks hold the same bytes: each shows their number and a hash.
 */
#include "collectives/transport/handshake.h"

#include "lib/base/hash.h"

#include <stdio.h>
#include <tamis/elastic.h>
#include <xxhash.h>

enum { LISTED = 8 }; /* ranks that are named; the others are counted */

typedef struct record {
    tam_handshake_header header;
    uint64_t bytes;
    XXH128_hash_t hash;
} record;

_Static_assert(sizeof(record) <= TAM_RECORD_BYTES, "one rank's record fits");

static const record *equal_record_of(const unsigned char *records, uint32_t rank) {
    return tam_handshake_record(records, rank);
}

static bool equal_same(const record *a, const record *b) {
    return a->bytes == b->bytes && XXH128_isEqual(a->hash, b->hash);
}

static uint32_t count_like(const unsigned char *records, uint32_t nranks, const record *like) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < nranks; r++)
        count += equal_same(equal_record_of(records, r), like);
    return count;
}

/* A rank with which more than half of all agree, if there is one (Boyer and Moore, 1981). */
static uint32_t find_majority(const unsigned char *records, uint32_t nranks) {
    uint32_t candidate = 0, lead = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        if (lead == 0)
            candidate = r;
        bool like = equal_same(equal_record_of(records, r), equal_record_of(records, candidate));
        lead = like ? lead + 1 : lead - 1;
    }
    return candidate;
}

/* " 2 5 7 and 12 more". @return the first of them */
static uint32_t list_odd(const unsigned char *records, uint32_t nranks, const record *like,
                         char *text, size_t size) {
    uint32_t first = nranks, count = 0;
    size_t used = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        if (equal_same(equal_record_of(records, r), like))
            continue;
        first = first < nranks ? first : r;
        if (count++ < LISTED)
            used += (size_t)snprintf(text + used, size - used, " %u", r);
    }
    if (count > LISTED)
        snprintf(text + used, size - used, " and %u more", count - LISTED);
    return first;
}

static tamis_status equal_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "check that all are equal"));
    uint32_t most = find_majority(records, nranks);
    uint32_t count = count_like(records, nranks, equal_record_of(records, most));
    if (count == nranks)
        return TAMIS_OK;
    bool majority = 2 * (uint64_t)count > nranks;
    const record *like = equal_record_of(records, majority ? most : 0);
    char odd[128], others[64] = "rank 0 (no value has a majority)", lengths[96] = "";
    uint32_t first = list_odd(records, nranks, like, odd, sizeof odd);
    if (majority)
        snprintf(others, sizeof others, "the other %u", count);
    if (equal_record_of(records, first)->bytes != like->bytes)
        snprintf(lengths, sizeof lengths, "; rank %u gave %llu bytes, they gave %llu", first,
                 (unsigned long long)equal_record_of(records, first)->bytes,
                 (unsigned long long)like->bytes);
    return tam_fail(TAMIS_E_MISMATCH, "tamis_comm_check_equal: rank(s)%s differ from %s%s", odd,
                    others, lengths);
}

tamis_status tamis_comm_check_equal(tamis_comm *comm, const void *data, size_t bytes) {
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_check_equal: comm is NULL");
    TAM_TRY(tam_comm_check(comm));
    record mine = {.header.call = "tamis_comm_check_equal", .bytes = bytes};
    if (!data && bytes > 0)
        mine.header.status = (uint64_t)tam_fail(
            TAMIS_E_ARGUMENT, "tamis_comm_check_equal: rank %u gives NULL and %zu bytes",
            comm->rank, bytes);
    else
        mine.hash = XXH3_128bits(data ? data : "", bytes);
    return tam_handshake_run(comm, &mine, sizeof mine, equal_judge, 0);
}

uint64_t tamis_hash(const void *data, size_t bytes) {
    return tam_hash(data ? data : "", data ? bytes : 0);
}
