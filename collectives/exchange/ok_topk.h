/* SPDX-License-Identifier: MIT
 *
 * balanced-pairs: the exchange of Ok-Topk (Li and Hoefler, PPoPP 2022). The vector is divided into
 * P regions, one per rank, with borders that divide the entries of all ranks evenly.
 *
 *     headers    counts of entries by region, and the borders that each rank proposes
 *     pairs      (index, value) to the owner of the region, which adds them up (lib/base/tree.h)
 *     select     owners keep the sums that reach a common threshold, that of the k largest
 *     gather     the selected sums to all ranks, in shards of equal length
 *
 * Three ranks, k = 2, regions 0-3, 4-7, 8-11:
 *
 *     rank 0   sends 1:5  9:2     gets 1:5, 1:1        sums 1:6        keeps 1:6
 *     rank 1   sends 5:4  9:3     gets 5:4             sums 5:4        keeps nothing
 *     rank 2   sends 1:1 10:-2    gets 9:2, 9:3, 10:-2 sums 9:5 10:-2  keeps 9:5
 *
 * The second largest of 6, 4, 5, 2 is 5: all ranks apply 1:6 and 9:5. A rank clears its residual
 * where it selected an entry and its sum was selected: rank 0 at 1 and 9, rank 1 at 9, rank 2 at 1.
 * So exactly what is applied leaves the residuals.
 *
 * A message to an owner:    | checksum, 8 bytes | index 0, value 0 | index 1, value 1 | ...
 *                           empty if there are no pairs
 *
 * Every 32nd step finds the threshold, digit by digit from counts, and sums that reach it are
 * selected. In between, sums over it are selected, and it is adapted to their number. If fewer than
 * k sums are not zero, all are selected, zeros too, and the next step searches again. The borders
 * are those proposed by the headers of the previous step. Nothing received is trusted: a rank that
 * refuses a list, or counts, says so in the header of its selected sums, and then all ranks refuse.
 *
 * Bytes sent by a rank, p entries, S selected sums:
 *     (P - 1) (28 + 56 + 8 P) + (P - 1) / P * 8 p + 8 (P - 1) + (P - 1) 40 + (P - 1) / P * 8 S
 *     and (P - 1) 4128 where the threshold is found, 8 for each sum that moves to even shards
 */
#ifndef TAM_EXCHANGE_OK_TOPK_H
#define TAM_EXCHANGE_OK_TOPK_H

#include "collectives/exchange/packet.h"

/** Words of a state, the same on all ranks. */
enum {
    TAM_OK_TOPK_THRESHOLD,       /* bits of a double: the magnitude over which sums are selected */
    TAM_OK_TOPK_THRESHOLD_STEPS, /* how many more steps it holds, */
    TAM_OK_TOPK_THRESHOLD_K,     /* for this k */
    TAM_OK_TOPK_ENDS             /* [nranks] of the regions; the last is n */
};

typedef struct tam_ok_topk_pair {
    uint32_t index;
    float value;
} tam_ok_topk_pair;

/* ok_topk_select.c */
enum { TAM_OK_TOPK_HEADER_BYTES = 40, TAM_OK_TOPK_COUNTS_BYTES = 1032 };
typedef struct tam_ok_topk_header tam_ok_topk_header;
typedef struct tam_ok_topk_counts tam_ok_topk_counts;

typedef struct tam_ok_topk {
    uint32_t rank, nranks;
    uint64_t n;
    size_t capacity;    /* most entries of a rank */
    size_t most;        /* most sums, also of those selected */
    uint64_t *state;    /* [tam_ok_topk_words(nranks)] as at the begin of the step */
    uint32_t threshold; /* of the step under way: magnitude bits that sums must reach */

    tam_ok_topk_pair *send; /* [capacity + nranks] own entries; then its shard of selected sums */
    tam_ok_topk_pair *recv; /* [nranks * (capacity + 1)] received; then what is selected of it */
    tam_ok_topk_pair *all;  /* selected sums of all ranks */
    size_t *send_at, *recv_at;               /* [nranks + 1] */
    uint64_t *marks;                         /* [n / 64 + 1] a bit for each element of the region */
    size_t *cursors;                         /* [nranks] */
    tam_ok_topk_counts *counts, *all_counts; /* [1], [nranks] */
    tam_ok_topk_header *header, *headers;    /* [1], [nranks] */
} tam_ok_topk;

/** Words of a packet's header: counts by region, and ends of the regions that this rank
 * proposes. */
static inline uint32_t tam_ok_topk_header_words(uint32_t nranks) {
    return 2 * nranks;
}

/** Pairs by which a shard may exceed the even one before sums move. Up to there shards are
 * padded to the longest, which costs less than another round. */
static inline size_t tam_ok_topk_slack(size_t even) {
    return even / 32 + 8;
}

static inline uint32_t tam_ok_topk_words(uint32_t nranks) {
    return TAM_OK_TOPK_ENDS + nranks;
}

/** Most entries of which there can be a sum. */
static inline size_t tam_ok_topk_most(uint32_t nranks, uint64_t n, size_t capacity) {
    uint64_t sent = (uint64_t)nranks * capacity;
    return (size_t)(sent < n ? sent : n);
}

/** Bytes that regions take and that grow with the number of ranks; UINT64_MAX: or more. */
uint64_t tam_ok_topk_bytes(uint32_t nranks, uint64_t n, size_t capacity);

/** Takes all memory; regions of equal length, no threshold. */
tamis_status tam_ok_topk_open(uint32_t rank, uint32_t nranks, uint64_t n, size_t capacity,
                              tam_ok_topk *out);
void tam_ok_topk_close(tam_ok_topk *ok_topk);

/** Whether words of a state make sense for a vector of n entries. */
bool tam_ok_topk_valid(const uint64_t *state, uint32_t nranks, uint64_t n);

/** Fill the words of this rank's header, before headers are exchanged. */
void tam_ok_topk_divide(const tam_ok_topk *ok_topk, const uint32_t *indices, size_t count,
                        uint32_t *words);

/**
 * After the headers: own entries (from the packets) to their owners, sums, selected sums to all.
 *
 * @param  indices, values  [out]  [tam_ok_topk_most] the selected sums, ascending
 *
 * Errors:  PROTOCOL, on all ranks, names the rank whose list or counts were refused
 */
tamis_status tam_ok_topk_exchange(tam_ok_topk *ok_topk, tam_packets *packets, uint64_t k,
                                  tam_link *link, uint32_t *indices, float *values, size_t *count);

/** Its second half, once this region's sums are made. ok_topk_select.c
 * @param  sums, count  [in,out]  by ascending index; then the selected sums of all ranks
 * @param  refused      [in]      1 + the rank whose list this one refuses; 0: none */
tamis_status tam_ok_topk_select(tam_ok_topk *ok_topk, uint64_t config, uint64_t k, uint32_t refused,
                                tam_link *link, uint32_t *indices, float *sums, size_t *count);

/** Whether this step still uses the threshold of the step before. */
bool tam_ok_topk_threshold_holds(const tam_ok_topk *ok_topk, uint64_t k);

/** Keep those of this rank's entries whose sums were selected, with values, in place. @return
 * how many */
size_t tam_ok_topk_sent(const uint32_t *selected, size_t nselected, uint32_t *indices,
                        float *values, size_t count);

/** The step has been applied, with `selected` entries: set threshold and borders of the next. */
void tam_ok_topk_learn(tam_ok_topk *ok_topk, const tam_packets *packets, uint64_t k,
                       uint64_t selected);

#endif
