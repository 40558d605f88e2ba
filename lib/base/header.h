/* SPDX-License-Identifier: MIT
 *
 * The header of a packet: what a rank reports about its selection. The host
 * (collectives/exchange/packet.c) and a device (kernels/cuda/packets.cu) write and check it by the
 * rules of this file, which both compile.
 *
 *     +---- 28 bytes ----+-- 4 bytes each --+- to a multiple of 4 -+- to a multiple of 4 -+
 *     | tam_header       | counters, words  | indices              | values               |
 *     +------------------+------------------+----------------------+----------------------+
 *
 * With P ranks each gets P - 1 of them, so a header holds only what all must know of each rank.
 * What is added up over the ranks are its counters: behind the header, or where values are summed
 * with these, so that a rank sends them once (collectives/exchange/sparse.h).
 */
#ifndef TAM_BASE_HEADER_H
#define TAM_BASE_HEADER_H

#include "lib/base/numbers.h"

#include <stdbool.h>
#include <stddef.h>

/* Changes with the format, and with the order of sums. */
#define TAM_HEADER_MAGIC UINT64_C(0x71c5d2a94be8036f)

enum {
    TAM_HEADER_HAS_KEY = 1,
    TAM_HEADER_ALL_ROWS = 2,  /* a segment with rows: no list, it would be too long */
    TAM_HEADER_NONFINITE = 4, /* the gradient has entries that are NaN or Inf */
    TAM_HEADER_SEALED = 8,    /* always: what did not arrive is 0 */
    TAM_HEADER_STEPS = 4096   /* steps that a header tells apart */
};

typedef struct tam_header {
    uint32_t check;         /* of the rest of the packet, and of all that ranks must agree on */
    uint8_t config, result; /* a byte of their hashes: they only tell what differs, */
    uint16_t step_flags;    /* as does the step, modulo TAM_HEADER_STEPS; flags above */
    uint32_t count;         /* indices that follow */
    uint32_t index_bytes;   /* and their size */
    float key;              /* smallest key selected */

    /* Times since an exchange, which ends at about the same time on all ranks; 0: unknown. So the
     * ranks need no common clock. */
    uint32_t
        busy_us; /* last bucket: from the end of the step before until its gradient was ready */
    uint32_t began_us; /* from the previous exchange until this one began */
} tam_header;

/** Bytes of a part of a packet, rounded up to 4; of a header with so many counters and other
 * words. */
TAM_SHARED size_t tam_header_round(size_t bytes) {
    return (bytes + 3) / 4 * 4;
}

TAM_SHARED size_t tam_header_bytes(size_t nwords) {
    return sizeof(tam_header) + nwords * sizeof(uint32_t);
}

TAM_SHARED uint32_t tam_header_flags(const tam_header *h) {
    return h->step_flags / TAM_HEADER_STEPS;
}

TAM_SHARED void tam_header_flag(tam_header *h, uint32_t flags) {
    h->step_flags = (uint16_t)(h->step_flags | flags * TAM_HEADER_STEPS);
}

/** Headers that arrived, one from each rank, each followed by its counters and words. */
typedef struct tam_headers {
    const unsigned char *memory;
    size_t step; /* bytes from one to the next */
    uint32_t own, nranks, ncounters;
} tam_headers;

static inline const tam_header *tam_header_at(const tam_headers *headers, uint32_t rank) {
    return (const tam_header *)(const void *)(headers->memory + rank * headers->step);
}

static inline const uint32_t *tam_header_words(const tam_headers *headers, uint32_t rank) {
    return (const uint32_t *)(const void *)(tam_header_at(headers, rank) + 1) + headers->ncounters;
}

/* -- counters --------------------------------------------------------------------------------- */

/** What is only added up over the ranks, in the order of lib/base/tree.h. Floats, for values are. A
 * count is four digits of 8 bits, whose sums over 65,536 ranks are exact. */
enum {
    TAM_COUNTER_DEFERRED = 0,   /* a count: entries that did not fit */
    TAM_COUNTER_CANDIDATES = 4, /* a count: entries over the threshold; 0 where unknown */
    TAM_COUNTER_NONFINITE = 8,  /* a count */
    TAM_COUNTER_UNKNOWN = 12,   /* ranks that do not know their candidates */
    TAM_COUNTER_RESCANS = 13,   /* ranks that searched their part again */
    TAM_COUNTERS = 14           /* shares of means of the groups' sums of squares follow */
};

/** A rank's share of a mean over ranks: the sum of shares does not overflow. */
TAM_SHARED float tam_counter_share(double value, uint32_t nranks) {
    return (float)((value < 3e38 ? value : 3e38) / nranks);
}

TAM_SHARED void tam_counter_set(float *counters, uint32_t which, uint32_t count) {
    for (uint32_t i = 0; i < 4; i++)
        counters[which + i] = (float)(count >> 8 * i & 0xff);
}

/** A counter of ranks, or one digit of a count. Sums over ranks carry no checksum here: one that
 * was damaged, or is NaN, is 0 or the most that there can be. */
TAM_SHARED uint64_t tam_counter_whole(float counter) {
    const float most = 16777216.0f; /* 2^24 */
    return counter >= most ? (uint64_t)most : counter > 0.0f ? (uint64_t)counter : 0;
}

/** A count of one rank, or of many from their sums. */
TAM_SHARED uint64_t tam_counter_get(const float *counters, uint32_t which) {
    uint64_t count = 0;
    for (uint32_t i = 4; i-- > 0;)
        count = (count << 8) + tam_counter_whole(counters[which + i]);
    return count;
}

/* -- checksums -------------------------------------------------------------------------------- */

/** The area that a word belongs to: each has its own keys. */
#define TAM_SUM_HEADER 0x243f6a88u
#define TAM_SUM_INDICES 0x85a308d3u
#define TAM_SUM_VALUES 0x13198a2eu
#define TAM_SUM_RESULT 0x03707344u
#define TAM_SUM_AGREED 0xa4093822u
#define TAM_SUM_COUNTERS 0x299f31d0u

/**
 * A multilinear hash (Carter and Wegman, 1979): the sum of words times odd keys, modulo 2^64.
 * Threads may add in any order. One damaged word is always detected, since a non-zero difference
 * below 2^32 times an odd key below 2^32 is not 0 modulo 2^64. Several damaged words go undetected
 * only if their differences cancel. The keys are public: this does not protect against forgery.
 */
TAM_SHARED uint64_t tam_sum_word(uint32_t area, uint64_t position, uint32_t word) {
    return (uint64_t)word * (((uint32_t)position * 0x9e3779b1u + area) | 1);
}

/** The sum of memory; an incomplete last word is filled with zeros. header.c */
uint64_t tam_sum_bytes(uint32_t area, const void *memory, size_t bytes);

/** The sum of a header with its counters and words, without its check. header.c */
uint64_t tam_sum_header(const tam_header *header, size_t header_bytes);

/** What a header must say. */
typedef struct tam_header_due {
    uint64_t config; /* hash of what all ranks agreed on: descriptor, k, packing of the step */
    uint64_t step;
    uint64_t last_result; /* sum of what the previous step summed: shows ranks that drifted apart */
    uint32_t rank, limit; /* limit: most indices */
} tam_header_due;

TAM_SHARED uint64_t tam_sum_word64(uint64_t position, uint64_t word) {
    return tam_sum_word(TAM_SUM_AGREED, 2 * position, (uint32_t)word) +
           tam_sum_word(TAM_SUM_AGREED, 2 * position + 1, (uint32_t)(word >> 32));
}

/** The check of a packet: 32 bits of a mix, so one of 2^32 damaged packets passes.
 * @param  sums  of its header, indices and values */
TAM_SHARED uint32_t tam_header_check_of(const tam_header_due *due, uint64_t sums) {
    sums += tam_sum_word64(0, TAM_HEADER_MAGIC ^ due->rank) + tam_sum_word64(1, due->config);
    sums += tam_sum_word64(2, due->step) + tam_sum_word64(3, due->last_result);
    return (uint32_t)((sums ^ sums >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 32);
}

/** A byte of a hash, never that of a similar one. */
TAM_SHARED uint8_t tam_header_byte(uint64_t hash) {
    return (uint8_t)((hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 56);
}

/** Write what tells headers apart; flags stay. The check follows when the packet is complete. */
TAM_SHARED void tam_header_address(tam_header *h, const tam_header_due *due) {
    h->config = tam_header_byte(due->config);
    h->result = tam_header_byte(due->last_result);
    h->step_flags = (uint16_t)(h->step_flags / TAM_HEADER_STEPS * TAM_HEADER_STEPS +
                               due->step % TAM_HEADER_STEPS);
    tam_header_flag(h, TAM_HEADER_SEALED);
}

/* -- refusals --------------------------------------------------------------------------------- */

/** Why a packet is refused, in the order of the checks. */
typedef enum tam_refusal {
    TAM_REFUSED_NOTHING,
    TAM_REFUSED_MISSING,
    TAM_REFUSED_CONFIG,
    TAM_REFUSED_STEP,
    TAM_REFUSED_RESULT,
    TAM_REFUSED_COUNT,
    TAM_REFUSED_LEADER,
    TAM_REFUSED_BYTES,
    TAM_REFUSED_CHECKSUM,
    TAM_REFUSED_CODE,
    TAM_REFUSED_ORDER,
    TAM_REFUSED_OWNER,
    TAM_REFUSED_ABSENT,   /* sums are missing: a rank refused, or a collective was abandoned */
    TAM_REFUSED_GRADIENT, /* not a packet: the gradient that a rank gave to its node */
    TAM_REFUSALS
} tam_refusal;

/** The words after "the packet of rank 3 was refused: ". header.c */
const char *tam_refusal_words(uint32_t refusal);

/** Check a header before anything behind it is read. What bytes of hashes do not tell, its check
 * does. */
TAM_SHARED tam_refusal tam_header_check(const tam_header *h, const tam_header_due *due) {
    if (!(tam_header_flags(h) & TAM_HEADER_SEALED))
        return TAM_REFUSED_MISSING;
    if (h->config != tam_header_byte(due->config))
        return TAM_REFUSED_CONFIG;
    if (h->step_flags % TAM_HEADER_STEPS != due->step % TAM_HEADER_STEPS)
        return TAM_REFUSED_STEP;
    if (h->result != tam_header_byte(due->last_result))
        return TAM_REFUSED_RESULT;
    return h->count > due->limit ? TAM_REFUSED_COUNT : TAM_REFUSED_NOTHING;
}

#endif
