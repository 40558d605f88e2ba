/* SPDX-License-Identifier: MIT
 *
 * Slots: the message in which every rank sends what it picked.
 *
 *     +------ 28 bytes ------+-- ntallies floats -+---- index_step -----+---- value_step ----+
 *     | tam_head             | tallies, words     | indices (codec.h)   | values (pairs)     |
 *     +----------------------+--------------------+---------------------+--------------------+
 *      <----------------- head -------------------> <--------------- payload ----------------->
 *
 * Fixed slots: room for any indices up to the limit of the step; head and payload are sent in one
 * all-gather. Growing slots (schemes whose counts are unknown beforehand): heads are gathered
 * first, then payloads with room for the longest encoding and the longest list.
 *
 * Led slots (fixed; only one rank picks): the leader cuts its payload into P pieces and sends one
 * to each rank. Then one all-gather of heads and pieces gives every rank the payload. Three ranks,
 * led by rank 1:
 *
 *     rank 0  gets a from 1   sends | h0 | a |
 *     rank 1  keeps b         sends | h1 | b |      payload of rank 1 on every rank: a b c
 *     rank 2  gets c from 1   sends | h2 | c |
 *
 * Three ranks, k = 6, fixed slots of 2; the union is the merge of three disjoint lists:
 *
 *     rank 0 sends   | h | 3 17 |        every rank receives  | h | 3 17 | h | 5 8 | h | 12 20 |
 *     rank 1 sends   | h | 5  8 |        union                3 5 8 12 17 20
 *     rank 2 sends   | h | 12 20 |
 *
 * Nothing received is trusted: counts are bounded by the limit, indices must ascend and lie where
 * their sender may select, and a check covers head and payload, the configuration, the step and the
 * last result: ranks that a damaged sum drove apart refuse each other's slots in the next step.
 */
#ifndef TAM_EXCHANGE_SLOT_H
#define TAM_EXCHANGE_SLOT_H

#include "collectives/exchange/codec.h"
#include "collectives/exchange/wire.h"
#include "lib/base/head.h"
#include "lib/base/transport.h"
#include "lib/policy/strided.h"

typedef struct tam_slots {
    uint32_t rank, nranks, ntallies;
    uint32_t first, stride; /* rank r is `first + r * stride` of the comm; 0, 0: r */
    uint32_t nwords;        /* further words of a head */
    bool heads_only; /* `growing` slots without a payload: lists are sent otherwise (regions.h) */
    uint64_t beside; /* bytes that grow with the ranks, beside the slots: for the limit */
    size_t capacity; /* most indices a rank may ever send */
    size_t limit;    /* in this step, known to all ranks; at most the capacity */
    bool growing, with_values;
    bool led;                  /* only one rank picks in a step, */
    uint32_t leader;           /* this one, set before each exchange */
    const tam_wire_type *wire; /* of the values */
    tamis_index_format format; /* not AUTO */
    uint64_t span;             /* most elements that one rank may select from */
    const tam_strided *ranges; /* [nranks] where each may select in this step; unused for u32 */
    uint64_t config, step, last_result; /* what all ranks must have (head.h) */

    size_t head_bytes;             /* with tallies and words, a multiple of 4 */
    size_t index_step, value_step; /* room in a payload of this step, multiples of 4 */
    unsigned char *send;
    unsigned char *heads, *payloads; /* of all ranks, as received */
    size_t head_step, payload_step;  /* bytes from one rank's to the next */
    unsigned char *relay;            /* led: this rank's head and its piece of the payload */
    size_t *send_at, *recv_at;       /* led: [nranks + 1] */
    unsigned char *memory;
    uint32_t *own;   /* [capacity] this rank's picks; NULL for u32: in the message itself */
    uint32_t *lists; /* [nranks * capacity] received, decoded; led: [capacity]; NULL for u32: in the
                        messages */
} tam_slots;

/**
 * Takes all memory that exchanges will ever need, for the choices set in `slots`.
 *
 * Errors:  UNSUPPORTED if that and `beside` are more than the setting TAMIS_MESSAGE_GIB, NOMEM
 */
tamis_status tam_slots_open(tam_slots *slots);
void tam_slots_close(tam_slots *slots);

/** The communicator's rank of rank r of the slots. */
static inline uint32_t tam_slot_rank(const tam_slots *slots, uint32_t r) {
    return slots->stride ? slots->first + r * slots->stride : r;
}

/** Where this rank writes, before tam_slots_exchange. begin: an empty head. */
tam_head *tam_slot_begin(tam_slots *slots);
tam_head *tam_slot_own_head(tam_slots *slots);
float *tam_slot_own_tallies(tam_slots *slots);
uint32_t *tam_slot_own_words(tam_slots *slots);
uint32_t *tam_slot_own_indices(tam_slots *slots); /* room for limit */
void *tam_slot_own_values(tam_slots *slots);      /* pairs: room for limit values, encoded */

/** Set the limit of the next step, before anything is written for it. */
void tam_slots_limit(tam_slots *slots, size_t limit);

/**
 * Seal this rank's slot (count, key, flags, times, tallies and words are set, and in `slots` step
 * and last_result), all-gather, and check what arrives: TAMIS_E_PROTOCOL names the rank and what is
 * wrong.
 *
 * Bytes:  fixed    (P - 1) * (head + most that limit indices of the span take)    sent per rank
 *         led      (P - 1) * head + (P - 1) / P * payload, the leader twice that
 *         growing  (P - 1) * (head + longest encoding)
 *         pairs    and (P - 1) * the bytes of as many values as the limit, or the longest list, has
 */
tamis_status tam_slots_exchange(tam_slots *slots, tam_link *link);

/** What rank `r` sent, after tam_slots_exchange. */
const tam_head *tam_slot_head_of(const tam_slots *slots, uint32_t r);
/** The tallies of all ranks, added up. @param  totals  [ntallies] */
void tam_slots_total(const tam_slots *slots, float *totals);
tam_heads tam_slot_heads(const tam_slots *slots);
const uint32_t *tam_slot_words_of(const tam_slots *slots, uint32_t r);
const uint32_t *tam_slot_indices_of(const tam_slots *slots, uint32_t r);
const void *tam_slot_values_of(const tam_slots *slots, uint32_t r);

#endif
