/* SPDX-License-Identifier: MIT
 *
 * The head of a slot in a message: what a rank reports about its picks. The host
 * (collectives/exchange/slot.c) and a device (kernels/cuda/slots.cu) write and check it by the
 * rules of this file, which both compile.
 *
 *     +---- 88 bytes ----+-- 4 bytes each --+- to a multiple of 8 -+- to a multiple of 8 -+
 *     | tam_head         | sums, words      | indices              | values               |
 *     +------------------+------------------+----------------------+----------------------+
 */
#ifndef TAM_BASE_HEAD_H
#define TAM_BASE_HEAD_H

#include "lib/base/numbers.h"

#include <stdbool.h>
#include <stddef.h>

/* Changes with the format, and with the order of sums. */
#define TAM_HEAD_MAGIC UINT64_C(0xe013be8a5b6da52c)

enum {
    TAM_HEAD_RESCANNED = 1,
    TAM_HEAD_HAS_KEY = 2,
    TAM_HEAD_ALL_ROWS = 4 /* a segment with rows: no list, it would be too long */
};

typedef struct tam_head {
    uint64_t magic;
    uint64_t step;
    uint64_t config; /* hash of what all ranks agreed on: descriptor, k and packing of the step */
    uint64_t checksum;
    uint64_t last_result; /* sum of the previous step's values: shows ranks that drifted apart */
    uint64_t index_bytes; /* size of the indices */
    uint32_t rank;
    uint32_t count;      /* indices that follow */
    uint32_t deferred;   /* picks that did not fit */
    uint32_t candidates; /* entries over the threshold; UINT32_MAX: unknown */
    uint32_t nonfinite;
    uint32_t flags;
    float key; /* smallest key picked */

    /* Times since an exchange, which ends at about the same time on all ranks; 0: unknown. So the
     * ranks need no common clock. */
    uint32_t
        busy_us; /* last bucket: from the end of the step before until its gradient was ready */
    uint32_t began_us; /* from the previous exchange until this one began */
    uint32_t zero;
} tam_head;

/** Bytes of a part of a slot, rounded up to 8; of a head with so many sums and other words. */
TAM_SHARED size_t tam_head_round(size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

TAM_SHARED size_t tam_head_bytes(size_t nwords) {
    return sizeof(tam_head) + tam_head_round(nwords * sizeof(uint32_t));
}

/** Heads that arrived, one from each rank, each followed by its sums. */
typedef struct tam_heads {
    const unsigned char *memory;
    size_t step; /* bytes from one to the next */
    uint32_t own, nranks, nsums;
} tam_heads;

static inline const tam_head *tam_head_at(const tam_heads *heads, uint32_t rank) {
    return (const tam_head *)(const void *)(heads->memory + rank * heads->step);
}

static inline const float *tam_head_sums(const tam_heads *heads, uint32_t rank) {
    return (const float *)(const void *)(tam_head_at(heads, rank) + 1);
}

/* -- checksums -------------------------------------------------------------------------------- */

/** The area that a word belongs to: each has its own keys. */
#define TAM_SUM_HEAD 0x243f6a88u
#define TAM_SUM_INDICES 0x85a308d3u
#define TAM_SUM_VALUES 0x13198a2eu
#define TAM_SUM_RESULT 0x03707344u

/**
 * A multilinear hash (Carter and Wegman, 1979): the sum of words times odd keys, modulo 2^64.
 * Threads may add in any order. One damaged word is always detected, since a non-zero difference
 * below 2^32 times an odd key below 2^32 is not 0 modulo 2^64. Several damaged words go undetected
 * only if their differences cancel. The keys are public: this does not protect against forgery.
 */
TAM_SHARED uint64_t tam_sum_word(uint32_t area, uint64_t position, uint32_t word) {
    return (uint64_t)word * (((uint32_t)position * 0x9e3779b1u + area) | 1);
}

/** The sum of memory; an incomplete last word is filled with zeros. head.c */
uint64_t tam_sum_bytes(uint32_t area, const void *memory, size_t bytes);

/** The sum of a head with its sums and words, as if its checksum were 0. head.c */
uint64_t tam_sum_head(const tam_head *head, size_t head_bytes);

/* -- refusals --------------------------------------------------------------------------------- */

/** Why a slot is refused, in the order of the checks. */
typedef enum tam_refusal {
    TAM_REFUSED_NOTHING,
    TAM_REFUSED_MAGIC,
    TAM_REFUSED_RANK,
    TAM_REFUSED_CONFIG,
    TAM_REFUSED_STEP,
    TAM_REFUSED_COUNT,
    TAM_REFUSED_LEADER,
    TAM_REFUSED_BYTES,
    TAM_REFUSED_CHECKSUM,
    TAM_REFUSED_CODE,
    TAM_REFUSED_RESULT,
    TAM_REFUSED_ORDER,
    TAM_REFUSED_OWNER,
    TAM_REFUSED_ABSENT, /* sums are missing: a rank refused, or a collective was abandoned */
    TAM_REFUSALS
} tam_refusal;

/** The words after "the slot of rank 3 was refused: ". head.c */
const char *tam_refusal_words(uint32_t refusal);

/** What a head must say. */
typedef struct tam_head_due {
    uint64_t config, step;
    uint32_t rank, limit; /* most indices */
} tam_head_due;

/** Check a head before anything behind it is read. */
TAM_SHARED tam_refusal tam_head_check(const tam_head *h, const tam_head_due *due) {
    if (h->magic != TAM_HEAD_MAGIC)
        return TAM_REFUSED_MAGIC;
    if (h->rank != due->rank)
        return TAM_REFUSED_RANK;
    if (h->config != due->config)
        return TAM_REFUSED_CONFIG;
    if (h->step != due->step)
        return TAM_REFUSED_STEP;
    return h->count > due->limit ? TAM_REFUSED_COUNT : TAM_REFUSED_NOTHING;
}

#endif
