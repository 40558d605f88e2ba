/* SPDX-License-Identifier: MIT
 *
 * What a stream holds: of an all-gather, what the ranks gave whose primary virtual rank equals its
 * own modulo those that the step tells apart, in the order of virtual ranks; of a sum, a run of the
 * vector; of an all-to-all, a run for one rank.
 */
#include "collectives/coll/coll.h"

#include "lib/policy/shards.h"

/* Primary virtual ranks equal to this one. Among odd ones only the lowest are primary. */
static uint32_t count_primary(const tam_coll *coll, uint32_t vrank) {
    uint32_t modulus = coll->stride * coll->radix, own = tam_plan_own(&coll->plan);
    uint32_t first = vrank % modulus;
    if (first % 2 == 0)
        return coll->plan.nvranks / modulus;
    return own > first ? (own - first + modulus - 1) / modulus : 0;
}

static size_t streams_begin_of(const tam_coll *coll, uint32_t shard) {
    size_t block = coll->type ? TAM_VALUE_BLOCK : 1;
    size_t units = coll->bytes / block + (coll->bytes % block > 0);
    size_t begin = block * tam_shards_begin(units, coll->plan.nranks, shard);
    return begin < coll->bytes ? begin : coll->bytes;
}

size_t tam_coll_shards(const tam_coll *coll, uint32_t vrank, size_t *length) {
    uint32_t modulus = coll->fused ? coll->stride : coll->stride * coll->radix;
    uint32_t each = coll->plan.nvranks / modulus;
    uint32_t first = tam_shards_reverse(vrank % modulus, modulus) * each;
    size_t begin = streams_begin_of(coll, first);
    *length = streams_begin_of(coll, first + each) - begin;
    return begin;
}

size_t tam_coll_elements(const tam_coll *coll, uint32_t vrank, uint32_t chunk, size_t *count) {
    size_t length, begin = tam_coll_shards(coll, vrank, &length);
    size_t each = coll->packed
                      ? coll->part / tam_value_bytes(coll->type, TAM_VALUE_BLOCK) * TAM_VALUE_BLOCK
                      : coll->part / sizeof(float);
    size_t at = chunk * each < length ? chunk * each : length;
    *count = length - at < each ? length - at : each;
    return begin + at;
}

static uint64_t run_bytes(const tam_coll *coll, uint32_t rank, bool sends) {
    const size_t *at = sends ? coll->send_at : coll->recv_at;
    return at[rank + 1] - at[rank];
}

static uint64_t streams_bytes_of(const tam_coll *coll, uint32_t vrank, bool sends) {
    size_t length;
    if (coll->phase == TAM_PHASE_RUNS)
        return run_bytes(coll, vrank, sends);
    if (coll->phase == TAM_PHASE_GATHER)
        return (uint64_t)count_primary(coll, vrank) * coll->bytes;
    tam_coll_shards(coll, vrank, &length);
    return coll->packed ? tam_value_bytes(coll->type, length) : length * sizeof(float);
}

tam_stream tam_coll_stream(const tam_coll *coll, uint32_t vrank, bool sends) {
    uint64_t bytes = streams_bytes_of(coll, vrank, sends);
    bool one_run = coll->phase != TAM_PHASE_GATHER || bytes == coll->bytes;
    return (tam_stream){vrank, one_run && bytes > coll->part && !coll->empty, bytes};
}

/* Where byte `at` of what was gathered lies, and how many follow there. */
static unsigned char *streams_find(const tam_coll *coll, const tam_stream *s, uint64_t at,
                                   size_t *run) {
    uint32_t modulus = coll->stride * coll->radix;
    uint64_t item = at / coll->bytes, behind = at % coll->bytes;
    uint32_t vrank = s->vrank % modulus + (uint32_t)item * modulus;
    *run = coll->bytes - (size_t)behind;
    return coll->recv + (size_t)tam_plan_rank(&coll->plan, vrank) * coll->bytes + behind;
}

static void copy_gathered(const tam_coll *coll, const tam_stream *s, uint64_t at, size_t bytes,
                          unsigned char *to, const unsigned char *from) {
    for (size_t done = 0, run; done < bytes; done += run) {
        unsigned char *memory = streams_find(coll, s, at + done, &run);
        run = run < bytes - done ? run : bytes - done;
        memcpy(to ? to + done : memory, from ? from + done : memory, run);
    }
}

/* The copies of this rank's parts, one for each of its virtual ranks. */
static unsigned char *copy_of(const tam_coll *coll, uint32_t which) {
    return coll->memory + TAM_COLL_BUFFERS * coll->buffer_bytes + which * coll->chunk;
}

void tam_coll_copy_own(tam_coll *coll) {
    for (uint32_t i = 0; i < coll->nvranks && !coll->empty; i++) {
        size_t length, begin = tam_coll_shards(coll, coll->vrank[i], &length);
        if (length > 0) /* the vector of none may be NULL */
            memcpy(copy_of(coll, i), coll->recv + begin * sizeof(float), length * sizeof(float));
    }
}

unsigned char *tam_coll_address(const tam_coll *coll, const tam_stream *s, uint64_t at,
                                bool sends) {
    size_t length;
    if (coll->phase == TAM_PHASE_GATHER)
        return streams_find(coll, s, at, &length);
    if (coll->packed)
        return coll->coded + tam_value_bytes(coll->type, tam_coll_shards(coll, s->vrank, &length)) +
               at;
    if (coll->fused && sends)
        return copy_of(coll, s->vrank % coll->stride != coll->vrank[0] % coll->stride) + at;
    if (coll->phase != TAM_PHASE_RUNS)
        return coll->recv + tam_coll_shards(coll, s->vrank, &length) * sizeof(float) + at;
    if (sends) /* never written through this */
        return (unsigned char *)(uintptr_t)coll->send + coll->send_at[s->vrank] + at;
    return coll->recv + coll->recv_at[s->vrank] + at;
}

void tam_coll_pack(const tam_coll *coll, const tam_stream *s, uint64_t at, size_t bytes,
                   unsigned char *to) {
    if (coll->phase == TAM_PHASE_GATHER)
        copy_gathered(coll, s, at, bytes, to, NULL);
    else
        memcpy(to, tam_coll_address(coll, s, at, true), bytes);
}

void tam_coll_unpack(const tam_coll *coll, const tam_stream *s, uint64_t at, size_t bytes,
                     const unsigned char *from) {
    if (coll->phase == TAM_PHASE_GATHER)
        copy_gathered(coll, s, at, bytes, NULL, from);
    else
        memcpy(tam_coll_address(coll, s, at, false), from, bytes);
}
