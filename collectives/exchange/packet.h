/* SPDX-License-Identifier: MIT
 *
 * Packets: the message in which every rank sends what it selected.
 *
 *     +------ 28 bytes ------+- ncounters floats -+---- index_step -----+---- value_step ----+
 *     | tam_header           | counters, words    | indices (encoded)   | values (pairs)     |
 *     +----------------------+--------------------+---------------------+--------------------+
 *      <---------------- header ------------------> <--------------- payload ----------------->
 *
 * Fixed packets: room for any indices up to the limit of the step; header and payload are sent in
 * one all-gather. Growing packets (schemes whose counts are unknown beforehand): headers are
 * gathered first, then payloads with room for the longest encoding and the longest list.
 *
 * Led packets (fixed; only one rank selects): the leader splits its payload into P pieces and sends
 * one to each rank. Then one all-gather of headers and pieces gives every rank the payload. Three
 * ranks, led by rank 1:
 *
 *     rank 0  gets a from 1   sends | h0 | a |
 *     rank 1  keeps b         sends | h1 | b |      payload of rank 1 on every rank: a b c
 *     rank 2  gets c from 1   sends | h2 | c |
 *
 * Three ranks, k = 6, fixed packets of 2; the union is the merge of three disjoint lists:
 *
 *     rank 0 sends   | h | 3 17 |        every rank receives  | h | 3 17 | h | 5 8 | h | 12 20 |
 *     rank 1 sends   | h | 5  8 |        union                3 5 8 12 17 20
 *     rank 2 sends   | h | 12 20 |
 *
 * Nothing received is trusted: counts are bounded by the limit, indices must ascend and lie where
 * their sender may select, and a check covers header and payload, the configuration, the step and
 * the last result: ranks that a damaged sum drove apart refuse each other's packets in the next
 * step.
 */
#ifndef TAM_EXCHANGE_PACKET_H
#define TAM_EXCHANGE_PACKET_H

#include "lib/contracts/index_codec.h"
#include "lib/contracts/value_codec.h"
#include "lib/base/header.h"
#include "lib/contracts/transport.h"
#include "lib/policy/strided.h"

typedef struct tam_packets {
    uint32_t rank, nranks, ncounters;
    uint32_t first, stride; /* rank r is `first + r * stride` of the comm; 0, 0: r */
    uint32_t nwords;        /* further words of a header */
    bool headers_only;      /* `growing`, without payload: lists are sent otherwise (ok_topk.h) */
    uint64_t beside;        /* bytes that grow with the ranks, beside the packets: for the limit */
    size_t capacity;        /* most indices a rank may ever send */
    size_t limit;           /* in this step, known to all ranks; at most the capacity */
    bool growing, with_values;
    bool led;                           /* only one rank selects in a step, */
    uint32_t leader;                    /* this one, set before each exchange */
    const tam_value_codec *value_codec; /* of the values */
    tamis_index_codec index_codec;      /* not AUTO */
    uint64_t span;                      /* most elements that one rank may select from */
    const tam_strided *ranges; /* [nranks] where each may select in this step; unused for u32 */
    uint64_t config, step, last_result; /* what all ranks must have (header.h) */

    size_t header_bytes;           /* with counters and words, a multiple of 4 */
    size_t index_step, value_step; /* room in a payload of this step, multiples of 4 */
    unsigned char *send;
    unsigned char *headers, *payloads; /* of all ranks, as received */
    size_t header_step, payload_step;  /* bytes from one rank's to the next */
    unsigned char *relay;              /* led: this rank's header and its piece of the payload */
    size_t *send_at, *recv_at;         /* led: [nranks + 1] */
    unsigned char *memory;
    uint32_t *own;   /* [capacity] what this rank selected; NULL for u32: in the message itself */
    uint32_t *lists; /* [nranks * capacity] received, decoded; led: [capacity]; NULL for u32: in the
                        messages */
} tam_packets;

/**
 * Takes all memory that exchanges will ever need, for the choices set in `packets`.
 *
 * Errors:  UNSUPPORTED if that and `beside` are more than the setting TAMIS_MESSAGE_GIB, NOMEM
 */
tamis_status tam_packets_open(tam_packets *packets);
void tam_packets_close(tam_packets *packets);

/** The communicator's rank of rank r of the packets. */
static inline uint32_t tam_packet_rank(const tam_packets *packets, uint32_t r) {
    return packets->stride ? packets->first + r * packets->stride : r;
}

/** Where this rank writes, before tam_packets_exchange. begin: an empty header. */
tam_header *tam_packet_begin(tam_packets *packets);
tam_header *tam_packet_own_header(tam_packets *packets);
float *tam_packet_own_counters(tam_packets *packets);
uint32_t *tam_packet_own_words(tam_packets *packets);
uint32_t *tam_packet_own_indices(tam_packets *packets); /* room for limit */
void *tam_packet_own_values(tam_packets *packets);      /* pairs: room for limit values, encoded */

/** Set the limit of the next step, before anything is written for it. */
void tam_packets_limit(tam_packets *packets, size_t limit);

/**
 * Seal this rank's packet (count, key, flags, times, counters and words are set, and in `packets`
 * step and last_result), all-gather, and check what arrives: TAMIS_E_PROTOCOL names the rank and
 * what is wrong.
 *
 * Bytes:  fixed    (P - 1) * (header + most that limit indices of the span take)    sent per rank
 *         led      (P - 1) * header + (P - 1) / P * payload, the leader twice that
 *         growing  (P - 1) * (header + longest encoding)
 *         pairs    and (P - 1) * the bytes of as many values as the limit, or the longest list, has
 */
tamis_status tam_packets_exchange(tam_packets *packets, tam_link *link);

/** What rank `r` sent, after tam_packets_exchange. */
const tam_header *tam_packet_header_of(const tam_packets *packets, uint32_t r);
/** The counters of all ranks, added up. @param  totals  [ncounters] */
void tam_packets_total(const tam_packets *packets, float *totals);
tam_headers tam_packet_headers(const tam_packets *packets);
const uint32_t *tam_packet_words_of(const tam_packets *packets, uint32_t r);
const uint32_t *tam_packet_indices_of(const tam_packets *packets, uint32_t r);
const void *tam_packet_values_of(const tam_packets *packets, uint32_t r);

#endif
