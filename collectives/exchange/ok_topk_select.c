/* SPDX-License-Identifier: MIT
 *
 * Ok-Topk: selects the sums of all regions that reach the threshold, and sends them to all ranks.
 *
 * The threshold is the k-th largest magnitude, whose 32 bits are found 8 at a time. In each of four
 * rounds the ranks gather how many of their sums have each value of the next byte. For example, in
 * decimal digits, k = 2 of 6, 4, 5, 2: one sum has the largest digit 6, one has 5, so the threshold
 * is 5. A rank that finds another rank's counts damaged continues, for the others wait for it, and
 * names that rank in its header, so all ranks refuse.
 *
 * Even shards: selected sums are numbered rank after rank. If one rank holds much more than an
 * even shard, they move so that rank r holds numbers r m to (r + 1) m - 1, m = ceil(S / P):
 *
 *     rank 0  a b c d e      sends d to 1                              a b c
 *     rank 1                 gets d from 0                 gather      d e f
 *     rank 2  f g            sends f to 1 ...                          g
 */
#include "collectives/exchange/ok_topk.h"

#include "lib/base/hash.h"
#include "lib/policy/rules.h"

#include <xxhash.h>

struct tam_ok_topk_header {
    uint64_t config;   /* of packets and step */
    uint64_t checksum; /* of this rank's selected pairs */
    uint64_t count;
    uint32_t refused;   /* 1 + the rank whose list or counts were refused; 0: none */
    uint32_t threshold; /* as found by this rank */
    uint64_t seal;      /* checksum of the above */
};

struct tam_ok_topk_counts {
    uint64_t seal;      /* checksum of what follows, seeded with packets, step and byte */
    uint32_t sums[256]; /* how many have this value of the byte */
};

_Static_assert(sizeof(tam_ok_topk_header) == TAM_OK_TOPK_HEADER_BYTES, "the header is wire format");
_Static_assert(sizeof(tam_ok_topk_counts) == TAM_OK_TOPK_COUNTS_BYTES, "counts are wire format");

/* -- threshold -------------------------------------------------------------------------------- */

/* Count the sums by their byte at `shift`, among those that agree with `prefix` above it. */
static void count_bytes(const float *sums, size_t count, uint32_t prefix, int shift,
                        uint32_t *counts) {
    memset(counts, 0, 256 * sizeof counts[0]);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = tam_magnitude(sums[i]);
        if (shift == 24 || bits >> (shift + 8) == prefix)
            counts[bits >> shift & 255]++;
    }
}

static uint64_t seal_counts(const tam_ok_topk_counts *c, uint64_t seed) {
    return XXH3_64bits_withSeed(c->sums, sizeof c->sums, seed);
}

/* Gather the counts of all ranks. @param refused  [in,out]  1 + a rank whose counts are damaged */
static tamis_status gather_counts(tam_ok_topk *g, uint64_t seed, tam_link *link,
                                  uint32_t *refused) {
    g->counts->seal = seal_counts(g->counts, seed);
    TAM_TRY(link->transport->allgather(link->self, g->counts, sizeof *g->counts, g->all_counts,
                                       &link->call));
    for (uint32_t r = 0; r < g->nranks; r++) {
        if (g->all_counts[r].seal != seal_counts(&g->all_counts[r], seed))
            *refused = r + 1;
    }
    return TAMIS_OK;
}

static uint64_t total_of(const tam_ok_topk *g, uint32_t byte) {
    uint64_t total = 0;
    for (uint32_t r = 0; r < g->nranks; r++)
        total += g->all_counts[r].sums[byte];
    return total;
}

/* Bits of the k-th largest magnitude of all ranks; 0 if there are fewer than k. Always runs four
 * rounds, even after damage, to stay in step with the other ranks. */
static tamis_status ok_topk_select_find_threshold(tam_ok_topk *g, const float *sums, size_t count,
                                                  uint64_t config, uint64_t k, tam_link *link,
                                                  uint32_t *refused) {
    uint32_t prefix = 0;
    uint64_t left = k; /* of those that agree with the prefix */
    for (int shift = 24; shift >= 0; shift -= 8) {
        count_bytes(sums, count, prefix, shift, g->counts->sums);
        TAM_TRY(gather_counts(g, config + (uint64_t)shift, link, refused));
        uint32_t byte = 255;
        for (uint64_t here; byte > 0 && (here = total_of(g, byte)) < left; byte--)
            left -= here;
        prefix = prefix << 8 | byte;
    }
    g->threshold = prefix;
    return TAMIS_OK;
}

bool tam_ok_topk_threshold_holds(const tam_ok_topk *g, uint64_t k) {
    return g->state[TAM_OK_TOPK_THRESHOLD_STEPS] > 0 && g->state[TAM_OK_TOPK_THRESHOLD_K] == k;
}

/* -- headers ---------------------------------------------------------------------------------- */

static size_t keep_above_threshold(tam_ok_topk *g, const uint32_t *indices, const float *sums,
                                   size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (tam_magnitude(sums[i]) >= g->threshold)
            g->recv[kept++] = (tam_ok_topk_pair){indices[i], sums[i]};
    }
    return kept;
}

static uint64_t seal_of(const tam_ok_topk_header *h) {
    return tam_hash(h, offsetof(tam_ok_topk_header, seal));
}

static uint64_t ok_topk_select_checksum(const tam_ok_topk_pair *pairs, uint64_t count) {
    return tam_hash(pairs, (size_t)count * sizeof pairs[0]);
}

static uint64_t length_of(const tam_ok_topk *g, uint32_t r) {
    const uint64_t *ends = g->state + TAM_OK_TOPK_ENDS;
    return ends[r] - (r > 0 ? ends[r - 1] : 0);
}

static tamis_status ok_topk_select_check_header(const tam_ok_topk *g, uint32_t r) {
    const tam_ok_topk_header *h = &g->headers[r];
    if (h->seal != seal_of(h) || h->config != g->header->config || h->count > length_of(g, r) ||
        h->refused > g->nranks)
        return tam_fail(TAMIS_E_PROTOCOL,
                        "the selected sums in the region of rank %u were refused: their header is "
                        "damaged or belongs to another step",
                        r);
    if (h->refused)
        return tam_fail(TAMIS_E_PROTOCOL,
                        "the list of rank %u, or its counts of sums, was refused by rank %u: a "
                        "checksum is wrong, or indices are not ascending within the region",
                        h->refused - 1, r);
    return TAMIS_OK;
}

static tamis_status check_threshold(const tam_ok_topk *g, uint32_t r) {
    if (g->headers[r].threshold != g->header->threshold)
        return tam_fail(TAMIS_E_PROTOCOL,
                        "rank %u has the threshold %#x, this rank %#x: their states differ", r,
                        g->headers[r].threshold, g->header->threshold);
    return TAMIS_OK;
}

/* All ranks learn of refused lists before any of them compares thresholds. */
static tamis_status exchange_headers(tam_ok_topk *g, uint64_t config, size_t kept, uint32_t refused,
                                     tam_link *link) {
    *g->header = (tam_ok_topk_header){.config = config,
                                      .checksum = ok_topk_select_checksum(g->recv, kept),
                                      .count = kept,
                                      .refused = refused,
                                      .threshold = g->threshold};
    g->header->seal = seal_of(g->header);
    TAM_TRY(link->transport->allgather(link->self, g->header, sizeof *g->header, g->headers,
                                       &link->call));
    for (uint32_t r = 0; r < g->nranks; r++)
        TAM_TRY(ok_topk_select_check_header(g, r));
    for (uint32_t r = 0; r < g->nranks; r++)
        TAM_TRY(check_threshold(g, r));
    return TAMIS_OK;
}

/* -- shards ----------------------------------------------------------------------------------- */

static uint64_t ok_topk_select_clip(uint64_t x, uint64_t low, uint64_t high) {
    return x < low ? 0 : (x < high ? x : high) - low;
}

/* Runs to send and receive so that each rank holds `even` of the selected sums of all regions. */
static void plan_shards(tam_ok_topk *g, uint64_t total, uint64_t even) {
    uint64_t low = even * g->rank < total ? even * g->rank : total;
    uint64_t high = low + even < total ? low + even : total, at = 0, own = 0;
    for (uint32_t r = 0; r < g->nranks; r++) {
        g->recv_at[r] = ok_topk_select_clip(at, low, high) * sizeof(tam_ok_topk_pair);
        own = r == g->rank ? at : own;
        at += g->headers[r].count;
    }
    g->recv_at[g->nranks] = (high - low) * sizeof(tam_ok_topk_pair);
    for (uint32_t r = 0; r <= g->nranks; r++)
        g->send_at[r] = ok_topk_select_clip(even * r, own, own + g->headers[g->rank].count) *
                        sizeof(tam_ok_topk_pair);
}

/* Number of pairs of rank r in the gathered shards. */
static uint64_t shard_of(const tam_ok_topk *g, uint32_t r, bool evened, uint64_t total,
                         uint64_t even) {
    return evened ? ok_topk_select_clip(total, even * r, even * (r + 1)) : g->headers[r].count;
}

/* All selected sums, one after another, into g->all. */
static tamis_status ok_topk_select_gather(tam_ok_topk *g, uint64_t total, tam_link *link) {
    const tam_transport *t = link->transport;
    uint64_t even = (total + g->nranks - 1) / g->nranks, longest = 0, at = 0;
    for (uint32_t r = 0; r < g->nranks; r++)
        longest = g->headers[r].count > longest ? g->headers[r].count : longest;
    bool evened = longest > even + tam_ok_topk_slack((size_t)even);
    size_t step = (size_t)(evened ? even : longest);
    if (evened) {
        plan_shards(g, total, even);
        TAM_TRY(t->alltoall(link->self, g->recv, g->send_at, g->send, g->recv_at, &link->call));
    }
    if (step > 0)
        TAM_TRY(t->allgather(link->self, evened ? g->send : g->recv, step * sizeof g->all[0],
                             g->all, &link->call));
    for (uint32_t r = 0; r < g->nranks; r++) {
        size_t length = (size_t)shard_of(g, r, evened, total, even);
        memmove(g->all + at, g->all + r * step, length * sizeof g->all[0]);
        at += length;
    }
    return TAMIS_OK;
}

/* Check that what arrived is what the owners kept, ascending, and take it. */
static tamis_status ok_topk_select_unpack(const tam_ok_topk *g, uint32_t *indices, float *values) {
    const tam_ok_topk_pair *at = g->all;
    uint64_t least = 0;
    size_t place = 0;
    for (uint32_t r = 0; r < g->nranks; r++) {
        bool right = ok_topk_select_checksum(at, g->headers[r].count) == g->headers[r].checksum;
        for (uint64_t i = 0; right && i < g->headers[r].count; i++, at++) {
            right = at->index >= least && at->index < g->state[TAM_OK_TOPK_ENDS + r];
            least = (uint64_t)at->index + 1;
            indices[place] = at->index;
            values[place++] = at->value;
        }
        if (!right)
            return tam_fail(
                TAMIS_E_PROTOCOL,
                "the selected sums in the region of rank %u were refused: their checksum "
                "is wrong, or their indices are not ascending within the region",
                r);
    }
    return TAMIS_OK;
}

tamis_status tam_ok_topk_select(tam_ok_topk *g, uint64_t config, uint64_t k, uint32_t refused,
                                tam_link *link, uint32_t *indices, float *sums, size_t *count) {
    uint64_t total = 0;
    g->threshold = tam_rule_over(tam_double(g->state[TAM_OK_TOPK_THRESHOLD]));
    if (!tam_ok_topk_threshold_holds(g, k))
        TAM_TRY(ok_topk_select_find_threshold(g, sums, *count, config, k, link, &refused));
    TAM_TRY(
        exchange_headers(g, config, keep_above_threshold(g, indices, sums, *count), refused, link));
    for (uint32_t r = 0; r < g->nranks; r++)
        total += g->headers[r].count;
    if (total > g->most)
        return tam_fail(
            TAMIS_E_PROTOCOL,
            "%llu selected sums were announced, more than the %zu that %u ranks can have",
            (unsigned long long)total, g->most, g->nranks);
    TAM_TRY(ok_topk_select_gather(g, total, link));
    *count = (size_t)total;
    return ok_topk_select_unpack(g, indices, sums);
}
