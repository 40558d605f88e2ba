/* SPDX-License-Identifier: MIT */
#include "lib/transport/tag.h"
#include "lib/base/hash.h"

static uint64_t tag_hash_of(const tam_tag *tag) {
    tam_tag own = *tag;
    own.check = 0;
    return tam_hash(&own, sizeof own);
}

void tam_tag_seal(tam_tag *tag) {
    tag->check = tag_hash_of(tag);
}

static tamis_status refuse_range(const tam_tag *a, const tam_tag *b) {
    return tam_fail(TAMIS_E_PROTOCOL,
                    "rank %llu sums %llu elements from element %llu on, rank %llu sums %llu from "
                    "element %llu on: their layouts differ",
                    (unsigned long long)a->rank, (unsigned long long)a->count,
                    (unsigned long long)a->begin, (unsigned long long)b->rank,
                    (unsigned long long)b->count, (unsigned long long)b->begin);
}

tamis_status tam_tag_compare(const tam_tag *mine, uint32_t from, const tam_tag *theirs) {
    unsigned long long own = mine->rank, other = from;
    if (theirs->check != tag_hash_of(theirs) || theirs->rank != from)
        return tam_fail(
            TAMIS_E_PROTOCOL,
            "the tag of rank %llu, as received by rank %llu, was refused: its checksum is wrong",
            other, own);
    if (theirs->reducer != mine->reducer)
        return tam_fail(TAMIS_E_PROTOCOL,
                        "rank %llu sums for reducer %llu of the communicator, rank %llu for "
                        "reducer %llu: all ranks must use its reducers in the same order",
                        own, (unsigned long long)mine->reducer, other,
                        (unsigned long long)theirs->reducer);
    if (theirs->step != mine->step)
        return tam_fail(
            TAMIS_E_PROTOCOL,
            "rank %llu is at step %llu, rank %llu at step %llu: all ranks must run the same steps",
            own, (unsigned long long)mine->step, other, (unsigned long long)theirs->step);
    if (theirs->begin != mine->begin || theirs->count != mine->count)
        return refuse_range(mine, theirs);
    return TAMIS_OK;
}

tamis_status tam_tag_check(tam_call *call, uint32_t from, const tam_tag *theirs) {
    TAM_TRY(tam_tag_compare(call->tag, from, theirs));
    call->counters += theirs->counter;
    return TAMIS_OK;
}
