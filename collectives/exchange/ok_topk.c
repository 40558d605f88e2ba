/* SPDX-License-Identifier: MIT
 *
 * Ok-Topk: borders of regions, and entries sent to the owners of their regions.
 */
#include "collectives/exchange/ok_topk.h"

#include "collectives/exchange/merge.h"
#include "lib/policy/rules.h"

#include <xxhash.h>

/* -- memory ----------------------------------------------------------------------------------- */

static uint32_t end_of(const tam_ok_topk *g, uint32_t region) {
    return (uint32_t)g->state[TAM_OK_TOPK_ENDS + region];
}

static uint32_t ok_topk_begin_of(const tam_ok_topk *g, uint32_t region) {
    return region > 0 ? end_of(g, region - 1) : 0;
}

/* Selected sums of all ranks in shards of equal length, the longest that is not evened out. */
static uint64_t capacity_for_all(uint32_t nranks, uint64_t most) {
    uint64_t even = (most + nranks - 1) / nranks;
    return nranks * (even + tam_ok_topk_slack((size_t)even));
}

/* All entries of all ranks may lie in one region: borders follow the entries of the step before. */
static uint64_t capacity_for_received(uint32_t nranks, size_t capacity) {
    return nranks * ((uint64_t)capacity + 1);
}

uint64_t tam_ok_topk_bytes(uint32_t nranks, uint64_t n, size_t capacity) {
    uint64_t all = capacity_for_all(nranks, tam_ok_topk_most(nranks, n, capacity));
    unsigned __int128 bytes = (unsigned __int128)nranks * (capacity + (uint64_t)1) + all;
    bytes *= sizeof(tam_ok_topk_pair);
    bytes += (uint64_t)nranks * (TAM_OK_TOPK_COUNTS_BYTES + TAM_OK_TOPK_HEADER_BYTES);
    return bytes < UINT64_MAX ? (uint64_t)bytes : UINT64_MAX;
}

tamis_status tam_ok_topk_open(uint32_t rank, uint32_t nranks, uint64_t n, size_t capacity,
                              tam_ok_topk *out) {
    tam_ok_topk g = {.rank = rank, .nranks = nranks, .n = n, .capacity = capacity};
    size_t received = capacity_for_received(nranks, capacity);
    g.most = tam_ok_topk_most(nranks, n, capacity);
    g.state = tam_alloc_array(tam_ok_topk_words(nranks), sizeof g.state[0]);
    g.send = tam_alloc_array(capacity + nranks, sizeof g.send[0]);
    g.recv = tam_alloc_array(received, sizeof g.recv[0]);
    g.all = tam_alloc_array(capacity_for_all(nranks, g.most), sizeof g.all[0]);
    g.send_at = tam_alloc_array(2 * ((size_t)nranks + 1), sizeof g.send_at[0]);
    g.recv_at = g.send_at + nranks + 1;
    g.marks = tam_alloc_array(n / 64 + 1, sizeof g.marks[0]);
    g.cursors = tam_alloc_array(nranks, sizeof g.cursors[0]);
    g.counts = tam_alloc(TAM_OK_TOPK_COUNTS_BYTES);
    g.all_counts = tam_alloc_array(nranks, TAM_OK_TOPK_COUNTS_BYTES);
    g.header = tam_alloc(TAM_OK_TOPK_HEADER_BYTES);
    g.headers = tam_alloc_array(nranks, TAM_OK_TOPK_HEADER_BYTES);
    if (!g.state || !g.send || !g.recv || !g.all || !g.send_at || !g.marks || !g.cursors ||
        !g.counts || !g.all_counts || !g.header || !g.headers) {
        tam_ok_topk_close(&g);
        return tam_fail(TAMIS_E_NOMEM, "no memory for regions of %zu pairs", received);
    }
    for (uint32_t r = 0; r < nranks; r++)
        g.state[TAM_OK_TOPK_ENDS + r] = n * (r + 1) / nranks;
    *out = g;
    return TAMIS_OK;
}

void tam_ok_topk_close(tam_ok_topk *g) {
    tam_free(g->state);
    tam_free(g->send);
    tam_free(g->recv);
    tam_free(g->all);
    tam_free(g->send_at);
    tam_free(g->marks);
    tam_free(g->cursors);
    tam_free(g->counts);
    tam_free(g->all_counts);
    tam_free(g->header);
    tam_free(g->headers);
    *g = (tam_ok_topk){0};
}

bool tam_ok_topk_valid(const uint64_t *state, uint32_t nranks, uint64_t n) {
    uint64_t least = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        if (state[TAM_OK_TOPK_ENDS + r] < least)
            return false;
        least = state[TAM_OK_TOPK_ENDS + r];
    }
    uint64_t threshold = state[TAM_OK_TOPK_THRESHOLD], steps = state[TAM_OK_TOPK_THRESHOLD_STEPS];
    return least == n && threshold < tam_bits64(1e39) && (threshold > 0 || steps == 0) &&
           steps < TAM_REUSE_STEPS;
}

/* -- headers ---------------------------------------------------------------------------------- */

void tam_ok_topk_divide(const tam_ok_topk *g, const uint32_t *indices, size_t count,
                        uint32_t *words) {
    size_t at = 0;
    for (uint32_t r = 0; r < g->nranks; r++) {
        size_t first = at;
        while (at < count && indices[at] < end_of(g, r))
            at++;
        words[r] = (uint32_t)(at - first);
    }
    for (uint32_t r = 1; r < g->nranks; r++)
        words[g->nranks + r - 1] =
            count > 0 ? indices[count * r / g->nranks] : (uint32_t)(g->n * r / g->nranks);
    words[2 * g->nranks - 1] = (uint32_t)g->n;
}

static tamis_status check_words(const tam_ok_topk *g, const tam_packets *packets, uint32_t r) {
    const uint32_t *words = tam_packet_words_of(packets, r);
    uint64_t total = 0;
    uint32_t least = 0;
    bool ascend = true;
    for (uint32_t i = 0; i < g->nranks; i++) {
        total += words[i];
        ascend = ascend && words[g->nranks + i] >= least;
        least = words[g->nranks + i];
    }
    if (total != tam_packet_header_of(packets, r)->count || !ascend || least != g->n)
        return tam_fail(
            TAMIS_E_PROTOCOL,
            "the packet of rank %u was refused: its counts per region or its borders are "
            "inconsistent",
            r);
    return TAMIS_OK;
}

/* -- pairs to their owners -------------------------------------------------------------------- */

static uint64_t ok_topk_checksum(const tam_ok_topk_pair *pairs, size_t count, uint64_t seed) {
    return XXH3_64bits_withSeed(pairs, count * sizeof pairs[0], seed);
}

/* In pairs; the checksum has the size of one. */
static size_t message_length(uint32_t count) {
    return count > 0 ? (size_t)count + 1 : 0;
}

static void write_messages(tam_ok_topk *g, tam_packets *packets, uint64_t seed) {
    const uint32_t *indices = tam_packet_own_indices(packets);
    const uint32_t *counts = tam_packet_words_of(packets, g->rank);
    const float *values = tam_packet_own_values(packets);
    tam_ok_topk_pair *at = g->send;
    for (uint32_t r = 0; r < g->nranks; r++) {
        uint32_t count = counts[r];
        g->send_at[r] = (size_t)(at - g->send) * sizeof *at;
        for (uint32_t i = 0; i < count; i++)
            at[1 + i] = (tam_ok_topk_pair){indices[i], values[i]};
        uint64_t sum = ok_topk_checksum(at + 1, count, seed);
        if (count > 0)
            memcpy(at, &sum, sizeof sum);
        at += message_length(count);
        indices += count;
        values += count;
    }
    g->send_at[g->nranks] = (size_t)(at - g->send) * sizeof *at;
}

static void expect_messages(tam_ok_topk *g, const tam_packets *packets) {
    g->recv_at[0] = 0;
    for (uint32_t r = 0; r < g->nranks; r++)
        g->recv_at[r + 1] =
            g->recv_at[r] +
            message_length(tam_packet_words_of(packets, r)[g->rank]) * sizeof(tam_ok_topk_pair);
}

/* Marks what was selected. @return whether the checksum is right and indices ascend within this
 * rank's region */
static bool read_message(tam_ok_topk *g, const tam_ok_topk_pair *pairs, uint32_t count,
                         uint64_t seed) {
    uint64_t sum, begin = ok_topk_begin_of(g, g->rank), least = begin;
    if (count == 0)
        return true;
    memcpy(&sum, pairs - 1, sizeof sum);
    if (sum != ok_topk_checksum(pairs, count, seed))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (pairs[i].index < least || pairs[i].index >= end_of(g, g->rank))
            return false;
        least = (uint64_t)pairs[i].index + 1;
        uint64_t at = pairs[i].index - begin;
        g->marks[at / 64] |= UINT64_C(1) << at % 64;
    }
    return true;
}

static const tam_ok_topk_pair *message_of(const tam_ok_topk *g, uint32_t r) {
    return g->recv + g->recv_at[r] / sizeof g->recv[0] + 1;
}

/* @return  1 + the rank whose list is wrong, or 0 */
static uint32_t read_messages(tam_ok_topk *g, const tam_packets *packets, uint64_t seed) {
    uint32_t refused = 0;
    for (uint32_t r = 0; r < g->nranks; r++) {
        uint32_t count = tam_packet_words_of(packets, r)[g->rank];
        if (!read_message(g, message_of(g, r), count, seed + r))
            refused = r + 1;
    }
    return refused;
}

/* Lists what is marked, ascending, and clears the marks. */
static size_t list_marks(tam_ok_topk *g, uint32_t *indices) {
    uint32_t begin = ok_topk_begin_of(g, g->rank);
    size_t count = 0, words = (end_of(g, g->rank) - begin + (size_t)63) / 64;
    for (size_t w = 0; w < words; w++) {
        for (uint64_t left = g->marks[w]; left; left &= left - 1)
            indices[count++] = begin + (uint32_t)(64 * w) + (uint32_t)__builtin_ctzll(left);
        g->marks[w] = 0;
    }
    return count;
}

typedef struct messages {
    tam_ok_topk *ok_topk;
    const tam_packets *packets;
} messages;

/* What one rank sent for some of the indices, which begin where its cursor is. */
static bool add_message(void *self, uint32_t r, const uint32_t *indices, size_t length,
                        tam_tree_sum *sums) {
    const messages *m = self;
    tam_ok_topk *g = m->ok_topk;
    const tam_ok_topk_pair *pairs = message_of(g, r);
    uint32_t count = tam_packet_words_of(m->packets, r)[g->rank];
    uint32_t vrank = tam_tree_vrank(r, tam_tree_own(g->nranks));
    size_t j = g->cursors[r];
    for (size_t i = 0; j < count && pairs[j].index <= indices[length - 1]; i++, j++) {
        while (indices[i] != pairs[j].index)
            i++;
        tam_tree_add(&sums[i], vrank, pairs[j].value);
    }
    g->cursors[r] = j;
    return true;
}

tamis_status tam_ok_topk_exchange(tam_ok_topk *g, tam_packets *packets, uint64_t k, tam_link *link,
                                  uint32_t *indices, float *values, size_t *count) {
    uint64_t seed = packets->config + packets->step * g->nranks;
    for (uint32_t r = 0; r < g->nranks; r++)
        TAM_TRY(check_words(g, packets, r));
    write_messages(g, packets, seed + g->rank);
    expect_messages(g, packets);
    TAM_TRY(link->transport->alltoall(link->self, g->send, g->send_at, g->recv, g->recv_at,
                                      &link->call));
    uint32_t refused = read_messages(g, packets, seed);
    *count = list_marks(g, indices);
    *count = refused ? 0 : *count;
    memset(g->cursors, 0, g->nranks * sizeof g->cursors[0]);
    tam_merge_add_up(add_message, &(messages){g, packets}, g->nranks, indices, *count, values);
    return tam_ok_topk_select(g, seed, k, refused, link, indices, values, count);
}

/* -- after the exchange ----------------------------------------------------------------------- */

size_t tam_ok_topk_sent(const uint32_t *selected, size_t nselected, uint32_t *indices,
                        float *values, size_t count) {
    size_t kept = 0;
    for (size_t i = 0, j = 0; i < count; i++) {
        while (j < nselected && selected[j] < indices[i])
            j++;
        if (j == nselected || selected[j] != indices[i])
            continue;
        indices[kept] = indices[i];
        values[kept++] = values[i];
    }
    return kept;
}

static void learn_threshold(tam_ok_topk *g, uint64_t step, uint64_t k, uint64_t selected) {
    uint64_t *s = g->state;
    if (tam_ok_topk_threshold_holds(g, k)) {
        double threshold = tam_double(s[TAM_OK_TOPK_THRESHOLD]);
        s[TAM_OK_TOPK_THRESHOLD] = tam_bits64(tam_rule_adapt_sums(threshold, selected, k));
        s[TAM_OK_TOPK_THRESHOLD_STEPS]--;
        return;
    }
    /* With fewer than k sums, or sums that are not finite, the next step searches again. */
    bool found = g->threshold > 0 && g->threshold < TAM_INFINITE_BITS;
    s[TAM_OK_TOPK_THRESHOLD] = tam_bits64(found ? (double)tam_float(g->threshold) : 0.0);
    s[TAM_OK_TOPK_THRESHOLD_STEPS] = found ? tam_rule_hold(step) : 0;
    s[TAM_OK_TOPK_THRESHOLD_K] = k;
}

/* The mean of the proposed borders, rounded down. */
static void learn_borders(tam_ok_topk *g, const tam_packets *packets) {
    for (uint32_t i = 0; i < g->nranks; i++) {
        uint64_t sum = 0;
        for (uint32_t r = 0; r < g->nranks; r++)
            sum += tam_packet_words_of(packets, r)[g->nranks + i];
        g->state[TAM_OK_TOPK_ENDS + i] = sum / g->nranks;
    }
}

void tam_ok_topk_learn(tam_ok_topk *g, const tam_packets *packets, uint64_t k, uint64_t selected) {
    learn_threshold(g, packets->step, k, selected);
    learn_borders(g, packets);
}
