/* SPDX-License-Identifier: MIT
 *
 * What a hierarchical step does inside a node: before the step of the column, and after it. Two
 * nodes of two ranks, slices of one run, k = 4; x.y = slice y of rank x:
 *
 *     sum     rank 0   gives 0.1 to 1   gets 1.0   sums 0.0 + 1.0       ranks 2, 3 likewise
 *             rank 1   gives 0.0 to 0   gets 0.1   sums 0.1 + 1.1
 *     step    ranks 0 and 2 on slice 0: two entries; ranks 1 and 3 on slice 1: two entries
 *     share   rank 0   gives its two to 1, gets two; all ranks hold the same four
 */
#include "collectives/reducer/slice.h"

#include "collectives/exchange/union.h"
#include "lib/base/half.h"

#include <math.h>
#include <xxhash.h>

/* -- sum: a chunk ----------------------------------------------------------------------------- */

/* Of every segment what lies in the chunk. */
static void pack_segments(const tam_bucket *b, uint64_t at, size_t count, float *out) {
    const tamis_layout *l = b->layout;
    const tam_accumulate *t = &b->target;
    for (uint32_t s = 0; s < l->nsegments && l->begins[s] < at + count; s++) {
        uint64_t from = l->begins[s] > at ? l->begins[s] : at;
        uint64_t to = l->begins[s + 1] < at + count ? l->begins[s + 1] : at + count;
        const unsigned char *grad = t->grads[s];
        if (from < to)
            tam_widen(t->type, grad + (from - l->begins[s]) * tam_type_bytes(t->type),
                      (size_t)(to - from), out + (from - at));
    }
}

/* A chunk of the gradient as it travels: floats, scaled. Where that is what the caller has given it
 * travels from there. */
static const float *chunk_of(const tam_bucket *b, uint64_t at, size_t count) {
    const tam_accumulate *t = &b->target;
    float *out = b->slice->packed;
    if (t->grad && t->type == TAMIS_TYPE_FLOAT32 && t->scale == 1.0f)
        return (const float *)t->grad + at;
    if (t->grad)
        tam_widen(t->type, (const unsigned char *)t->grad + at * tam_type_bytes(t->type), count,
                  out);
    else
        pack_segments(b, at, count, out);
    for (size_t i = 0; t->scale != 1.0f && i < count; i++)
        out[i] *= t->scale;
    return out;
}

/* Runs of a chunk; the last chunk has shorter ones, or none, at its end. @return of the own slice */
static size_t divide_chunk(tam_slice *s, size_t count) {
    size_t run = s->division.block, end = 0, own = 0;
    for (uint32_t g = 0; g < s->nlocal; g++) {
        size_t begin = end;
        end = begin + run < count ? begin + run : count;
        own = g == s->local ? end - begin : own;
        s->send_at[g + 1] = end * sizeof(float);
    }
    for (uint32_t g = 0; g < s->nlocal; g++)
        s->recv_at[g + 1] = (g + 1) * own * sizeof(float);
    return own;
}

static uint64_t hash_run(const float *values, const size_t *at, uint32_t g, uint64_t before) {
    return XXH3_64bits_withSeed((const char *)values + at[g], at[g + 1] - at[g], before);
}

/* In rank order. */
static void add_up(const float *parts, uint32_t nparts, size_t count, float *sums) {
    memcpy(sums, parts, count * sizeof sums[0]);
    for (uint32_t g = 1; g < nparts; g++) {
        const float *theirs = parts + g * count;
        for (size_t i = 0; i < count; i++)
            sums[i] += theirs[i];
    }
}

static tamis_status sum_chunk(tam_bucket *b, tam_link *node, uint64_t at, size_t count,
                              float **sums) {
    tam_slice *s = b->slice;
    size_t own = divide_chunk(s, count);
    const float *chunk = chunk_of(b, at, count);
    for (uint32_t g = 0; g < s->nlocal; g++)
        s->sent[g].checksum = hash_run(chunk, s->send_at, g, s->sent[g].checksum);
    TAM_TRY(node->transport->alltoall(node->self, chunk, s->send_at, s->parts, s->recv_at,
                                      &node->call));
    for (uint32_t g = 0; g < s->nlocal; g++)
        s->heard[g] = hash_run(s->parts, s->recv_at, g, s->heard[g]);
    add_up(s->parts, s->nlocal, own, *sums);
    *sums += own;
    return TAMIS_OK;
}

/* -- sum: the whole --------------------------------------------------------------------------- */

static tamis_status refuse_gradient(const tam_slice *s, uint32_t g, const char *what) {
    return tam_fail(TAMIS_E_PROTOCOL, "the gradient of rank %u, as rank %u got it, was refused: %s",
                    s->node.first + g, s->node.first + s->local, what);
}

static tamis_status check_tail(const tam_bucket *b, uint32_t g) {
    const tam_slice *s = b->slice;
    const tam_tail *t = &s->came[g];
    if (t->config != s->sent[s->local].config || t->rank != g)
        return refuse_gradient(s, g, "it comes from another configuration or density");
    if (t->step != b->reducer->step)
        return refuse_gradient(s, g, "it is of another step");
    if (t->checksum != s->heard[g])
        return refuse_gradient(s, g, "its checksum is wrong");
    return TAMIS_OK;
}

static tamis_status compare_tails(tam_bucket *b, tam_link *node) {
    tam_slice *s = b->slice;
    for (uint32_t g = 0; g < s->nlocal; g++) {
        s->sent[g].config = b->config_hash + b->whole_k;
        s->sent[g].step = b->reducer->step;
        s->sent[g].rank = s->local;
        s->send_at[g + 1] = s->recv_at[g + 1] = (g + 1) * sizeof s->sent[0];
    }
    TAM_TRY(node->transport->alltoall(node->self, s->sent, s->send_at, s->came, s->recv_at,
                                      &node->call));
    for (uint32_t g = 0; g < s->nlocal; g++)
        TAM_TRY(check_tail(b, g));
    return TAMIS_OK;
}

tamis_status tam_slice_sum(tam_bucket *b, tam_link *link) {
    tam_slice *s = b->slice;
    tam_link node = tam_team_link(&s->node, link);
    uint64_t n = b->layout->length, longest = (uint64_t)s->division.block * s->nlocal;
    float *sums = s->sum;
    for (uint32_t g = 0; g < s->nlocal; g++)
        s->sent[g].checksum = s->heard[g] = 0;
    for (uint64_t at = 0; at < n; at += longest)
        TAM_TRY(sum_chunk(b, &node, at, (size_t)(n - at < longest ? n - at : longest), &sums));
    TAM_TRY(compare_tails(b, &node));
    link->call.wire_bytes = node.call.wire_bytes;
    return TAMIS_OK;
}

tam_accumulate tam_slice_pass(const tam_bucket *b) {
    tam_accumulate pass = b->target;
    pass.grad = b->slice->sum;
    pass.grads = NULL;
    pass.seg_begin = b->slice->layout->begins;
    pass.type = TAMIS_TYPE_FLOAT32;
    pass.scale = 1.0f;
    pass.clear = false;
    return pass;
}

/* -- share ------------------------------------------------------------------------------------ */

/* Behind the picks of the column's ranks: */
enum { RESCANS, BAD_NODE };

static uint32_t word_of(const tam_slice *s, uint32_t g, int word) {
    return tam_slot_words_of(&s->slots, g)[s->column.count + (uint32_t)word];
}

static double own_norm(const tam_bucket *b) {
    double norm = 0.0;
    for (uint32_t g = 0; g < b->slots.nstats; g++) {
        double sum = 0.0;
        for (uint32_t a = 0; a < b->slots.nranks; a++)
            sum += tam_slot_stats_of(&b->slots, a)[g];
        norm += sqrt(sum / b->slots.nranks);
    }
    return norm;
}

/* What the column knows of itself. */
static void fill_head(tam_bucket *b) {
    tam_slice *s = b->slice;
    tam_head *h = tam_slot_own_head(&s->slots);
    uint32_t *words = tam_slot_own_words(&s->slots), *more = words + s->column.count;
    h->step = b->reducer->step;
    h->last_result = b->last_result;
    h->count = (uint32_t)b->count;
    h->deferred = (uint32_t)b->now.deferred;
    h->candidates = (uint32_t)b->now.candidates;
    h->nonfinite = b->now.nonfinite < UINT32_MAX ? (uint32_t)b->now.nonfinite : UINT32_MAX;
    tam_slot_own_stats(&s->slots)[0] = (float)own_norm(b);
    more[RESCANS] = (uint32_t)b->now.rescans;
    more[BAD_NODE] = b->slots.nranks;
    for (uint32_t a = b->slots.nranks; a-- > 0;) {
        const tam_head *of = tam_slot_head_of(&b->slots, a);
        words[a] = of->count;
        more[BAD_NODE] = of->nonfinite > 0 ? a : more[BAD_NODE];
    }
}

static void add_up_columns(tam_bucket *b) {
    tam_slice *s = b->slice;
    s->all = (tamis_stats){.size = sizeof s->all};
    for (uint32_t g = 0; g < s->nlocal; g++) {
        const tam_head *h = tam_slot_head_of(&s->slots, g);
        s->all.deferred += h->deferred;
        s->all.candidates += h->candidates;
        s->all.nonfinite += h->nonfinite;
        s->all.rescans += word_of(s, g, RESCANS);
    }
    if (s->all.nonfinite > 0 && b->reducer->config.nonfinite != TAMIS_NONFINITE_DROP)
        b->reducer->now.skipped = 1;
}

tamis_status tam_slice_gather(tam_bucket *b, tam_link *link) {
    tam_slice *s = b->slice;
    tam_link node = tam_team_link(&s->node, link);
    s->slots.config = b->config_hash + b->whole_k;
    fill_head(b);
    tam_reach_locate(&s->reaches[s->local], b->indices, b->count, tam_slot_own_indices(&s->slots));
    memcpy(tam_slot_own_values(&s->slots), b->values, b->count * sizeof b->values[0]);
    TAM_TRY(tam_slots_exchange(&s->slots, &node));
    TAM_TRY(tam_union_exclusive(&s->slots, &s->division.grid, s->owners, s->cursors, s->indices,
                                &s->count));
    tam_union_sum_pairs(&s->slots, s->indices, s->count, s->values);
    add_up_columns(b);
    link->call.wire_bytes = node.call.wire_bytes;
    return TAMIS_OK;
}

uint32_t tam_slice_picked(const tam_bucket *b, uint32_t rank) {
    const tam_slice *s = b->slice;
    return tam_slot_words_of(&s->slots, rank % s->nlocal)[rank / s->nlocal];
}

double tam_slice_norm(const tam_bucket *b) {
    double norm = 0.0;
    for (uint32_t g = 0; g < b->slice->nlocal; g++)
        norm += tam_slot_stats_of(&b->slice->slots, g)[0];
    return norm;
}

uint32_t tam_slice_bad_node(const tam_bucket *b) {
    const tam_slice *s = b->slice;
    uint32_t first = s->column.count;
    for (uint32_t g = 0; g < s->nlocal; g++) {
        uint32_t bad = word_of(s, g, BAD_NODE);
        first = bad < first ? bad : first;
    }
    return first;
}
