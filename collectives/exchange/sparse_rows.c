/* SPDX-License-Identifier: MIT
 *
 * Exchange rows, for a segment in which few rows are touched: only those are sent, exactly. The
 * residual holds the gradients since the last step and is zero after each: all touched rows leave,
 * except where config.rows_capacity bounds the lists. In three steps: lists of touched rows, their
 * union, the sums. Three ranks, rows of 2 elements:
 *
 *                row 0   row 1   row 2   row 3   row 4        list     union    sums
 *     rank 0     .  .    1  2    .  .    .  .    .  .         1        1 3      11  2 | 5 7
 *     rank 1     .  .    .  .    .  .    5  7    .  .         3
 *     rank 2     .  .   10  .    .  .    .  .    .  .         1
 *
 * The lists are packets of row numbers. Sums are made in one of two ways. The ranks choose the one
 * that takes fewer bytes by the packets, which all of them have: c rows in the longest list, U in
 * the union, L elements each,
 *
 *     reduce     every rank sends all rows of the union     8 U L (P - 1) / P     same rows touched
 *     gather     every rank sends its own rows to all       4 c L (P - 1)         others touched
 *
 * Both add in the order of lib/base/tree.h. Gather skips ranks that have not touched a row, and
 * both give the same bits: such a rank would add +0, and the residual, 0 + x, holds no -0. Gather
 * is chosen if c P < 2 U and all that it needs fits the memory of the sums:
 *
 *     values     | sums: U L | own rows: c L | rows of all ranks: P c L |    at most rows * L
 *
 * A rank says "all" instead of sending a list if it touched so many rows that the list would cost
 * more than all other rows, at 8 bytes an element. Then the union is all rows.
 *
 * With rows_capacity it never does. It lists that many of its rows, the first ones from a row on
 * that is the same on all ranks and moves in every step (lib/policy/rules.h), and defers the
 * others: these stay in its residual unless another rank lists them. Then a rank may have touched a
 * row that it does not list, so only reduce is right: gather is not chosen where any rank has
 * deferred rows, which the counters tell all ranks.
 */
#include "collectives/exchange/sparse.h"
#include "collectives/exchange/table.h"

#include "lib/base/tree.h"
#include "lib/policy/rules.h"

typedef struct rows {
    tam_sparse sparse;      /* first */
    uint32_t length, count; /* elements of a row; rows */
    uint32_t most;          /* rows that a rank lists; */
    bool defers;            /* what it does with more: defers them, or says "all" */
    uint32_t nunion;
    unsigned char *marks; /* [count] touched */
    uint32_t *union_rows; /* [count] rows that any rank touched, ascending */
} rows;

/* -- memory ----------------------------------------------------------------------------------- */

/* A batch is expected to touch one row in so many; used to choose and price the index codec. */
enum { EXPECTED_ONE_IN = 64 };

static tamis_index_codec usual_codec(const rows *w) {
    return tam_index_codec_choose(w->count, w->count / EXPECTED_ONE_IN + 1, false);
}

/* (P - 1) bytes(c) + 8 c L (P - 1) / P <= 8 rows L (P - 1) / P, times P / (P - 1). By the usual
 * codec, even if another is configured: which rows are summed is part of the result. */
static bool list_pays(const rows *w, uint64_t count) {
    uint64_t bytes = tam_index_codec_of(usual_codec(w))->bytes(w->count, count);
    return (bytes + 7) / 8 * 8 * w->sparse.view->nranks <= 8 * (w->count - count) * w->length;
}

static uint32_t find_most(const rows *w) {
    uint64_t low = 0, high = w->count; /* pays; high + 1 does not */
    while (low < high) {
        uint64_t middle = (low + high + 1) / 2;
        if (list_pays(w, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return (uint32_t)low;
}

static uint32_t choose_most(const rows *w) {
    uint32_t capacity = w->sparse.view->config->rows_capacity;
    if (capacity > 0)
        return capacity < w->count ? capacity : w->count;
    return w->sparse.view->nranks > 1 ? find_most(w) : w->count;
}

static void close_rows(void *self, bool in_flight) {
    rows *w = self;
    if (!w)
        return;
    tam_sparse_close(&w->sparse, in_flight);
    tam_free(w->marks);
    tam_free(w->union_rows);
    tam_free(w);
}

static tam_packets sparse_rows_choose_packets(const rows *w) {
    const tam_bucket_view *v = w->sparse.view;
    return (tam_packets){
        .rank = v->rank,
        .nranks = v->nranks,
        .capacity = w->most,
        .growing = true,
        .index_codec = v->index_codec != TAMIS_INDEX_AUTO ? v->index_codec : usual_codec(w),
        .span = w->count,
        .config = v->config_hash,
    };
}

static tamis_status sparse_rows_open_memory(rows *w) {
    tam_sparse *s = &w->sparse;
    tam_bucket_view *v = s->view;
    TAM_TRY(tam_sparse_open_counters(s));
    TAM_TRY(tam_packets_open(&s->packets));
    s->most = (size_t)v->layout->length;
    s->indices = tam_alloc_array(s->most, sizeof s->indices[0]);
    s->values = tam_alloc_array(s->most, sizeof s->values[0]);
    s->ranges = tam_alloc_array(v->nranks, sizeof s->ranges[0]);
    s->cursors = tam_alloc_array(v->nranks, sizeof s->cursors[0]);
    w->marks = tam_alloc_array(w->count, sizeof w->marks[0]);
    w->union_rows = tam_alloc_array(w->count, sizeof w->union_rows[0]);
    if (!s->indices || !s->values || !s->ranges || !s->cursors || !w->marks || !w->union_rows)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u rows of %u elements", w->count, w->length);
    for (uint32_t i = 0; i < v->nranks; i++)
        s->ranges[i] = (tam_strided){0, w->count, w->count, w->count};
    s->packets.ranges = s->ranges;
    v->index_codec = s->packets.index_codec;
    v->result_max = s->most;
    return TAMIS_OK;
}

static tamis_status open_rows(tam_bucket_view *view, void **out) {
    rows *w = tam_alloc(sizeof *w);
    if (!w)
        return tam_fail(TAMIS_E_NOMEM, "no memory for rows");
    w->sparse.view = view;
    w->length = view->layout->rows[0];
    w->count = (uint32_t)view->layout->length / w->length;
    w->most = choose_most(w);
    w->defers = view->config->rows_capacity > 0;
    w->sparse.packets = sparse_rows_choose_packets(w);
    tamis_status status = sparse_rows_open_memory(w);
    if (status != TAMIS_OK) {
        close_rows(w, false);
        return status;
    }
    *out = w;
    return TAMIS_OK;
}

/* -- who touched what ------------------------------------------------------------------------- */

static tamis_status sparse_rows_plan(void *self, tam_link *link) {
    (void)link;
    rows *w = self;
    w->sparse.packets.config = tam_view_config(w->sparse.view, 0);
    return TAMIS_OK;
}

/* Unmark the touched rows behind the first `most`, in a circle. @return how many */
static uint32_t unmark_others(rows *w) {
    uint32_t first = tam_rule_first_row(w->sparse.view->step, w->most, w->count), touched = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t row = i < w->count - first ? first + i : i - (w->count - first);
        touched += w->marks[row];
        w->marks[row] = w->marks[row] && touched <= w->most;
    }
    return touched > w->most ? touched - w->most : 0;
}

/* The marked rows, ascending, as many as there is room for. @return how many there are */
static uint32_t list_marked(const rows *w, uint32_t *list) {
    uint32_t found = 0;
    for (uint32_t row = 0; row < w->count; row++) {
        if (w->marks[row] && found++ < w->most)
            list[found - 1] = row;
    }
    return found;
}

static tamis_status sparse_rows_select_entries(void *self) {
    rows *w = self;
    tam_packets *packets = &w->sparse.packets;
    const tam_bucket_view *v = w->sparse.view;
    tam_select_result result = {0};
    TAM_TRY(v->device->mark(v->kernels, v->acc, w->length, w->count, w->marks));
    if (w->defers)
        result.deferred = (size_t)unmark_others(w) * w->length;
    uint32_t found = list_marked(w, tam_packet_own_indices(packets));
    bool all = found > w->most;
    result.count = all ? 0 : found;
    tam_sparse_fill_header(&w->sparse, &result);
    tam_header_flag(tam_packet_own_header(packets), all ? TAM_HEADER_ALL_ROWS : 0);
    return TAMIS_OK;
}

/* -- the union -------------------------------------------------------------------------------- */

static tamis_status mark_list(rows *w, uint32_t rank) {
    const tam_header *h = tam_packet_header_of(&w->sparse.packets, rank);
    const uint32_t *list = tam_packet_indices_of(&w->sparse.packets, rank);
    for (uint32_t i = 0; i < h->count; i++) {
        if (list[i] >= w->count || (i > 0 && list[i] <= list[i - 1]))
            return tam_fail(
                TAMIS_E_PROTOCOL,
                "the packet of rank %u was refused: row %u of %u is out of range or out of order",
                rank, list[i], w->count);
        w->marks[list[i]] = 1;
    }
    if (tam_header_flags(h) & TAM_HEADER_ALL_ROWS)
        memset(w->marks, 1, w->count);
    return TAMIS_OK;
}

static tamis_status sparse_rows_build_union(rows *w) {
    memset(w->marks, 0, w->count);
    for (uint32_t i = 0; i < w->sparse.view->nranks; i++)
        TAM_TRY(mark_list(w, i));
    w->nunion = 0;
    for (uint32_t row = 0; row < w->count; row++) {
        w->union_rows[w->nunion] = row;
        w->nunion += w->marks[row];
    }
    return TAMIS_OK;
}

/* The elements of listed rows, into sparse.indices. @return how many */
static size_t sparse_rows_expand(rows *w, const uint32_t *list, size_t count) {
    uint32_t length = w->length, *indices = w->sparse.indices;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < length; j++)
            indices[i * length + j] = list[i] * length + j;
    }
    return count * length;
}

/* -- the sums --------------------------------------------------------------------------------- */

/* Number of rows of the rank that touched most. */
static uint32_t longest_list(const rows *w) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < w->sparse.view->nranks; i++) {
        const tam_header *h = tam_packet_header_of(&w->sparse.packets, i);
        uint32_t count = tam_header_flags(h) & TAM_HEADER_ALL_ROWS ? w->count : h->count;
        most = count > most ? count : most;
    }
    return most;
}

static bool gather_pays(const rows *w, uint64_t longest) {
    uint64_t nranks = w->sparse.view->nranks, nunion = w->nunion;
    if (w->sparse.view->out.deferred > 0) /* some rank has touched rows that it does not list */
        return false;
    return longest * nranks < 2 * nunion && nunion + (nranks + 1) * longest <= w->count;
}

/* Whether the next row of a rank's list is this one. */
static bool lists_row(const rows *w, uint32_t rank, uint32_t row) {
    size_t next = w->sparse.cursors[rank];
    return next < tam_packet_header_of(&w->sparse.packets, rank)->count &&
           tam_packet_indices_of(&w->sparse.packets, rank)[next] == row;
}

/* Sum one row over the ranks that list it. @param received  rows of all ranks, `stride` values
 * apart */
static void sparse_rows_add_row(rows *w, uint32_t row, const float *received, size_t stride,
                                float *sums) {
    uint32_t nranks = w->sparse.view->nranks, own = tam_tree_own(nranks);
    tam_tree_block block;
    tam_tree_begin(&block);
    for (size_t at = 0; at < w->length; at += TAM_TREE_BLOCK) {
        size_t length = w->length - at < TAM_TREE_BLOCK ? w->length - at : TAM_TREE_BLOCK;
        for (uint32_t r = 0; r < nranks; r++) {
            const float *theirs = received + r * stride + w->sparse.cursors[r] * w->length + at;
            if (lists_row(w, r, row))
                tam_tree_add_block(&block, tam_tree_vrank(r, own), theirs, length);
        }
        tam_tree_end_block(&block, length, sums + at);
    }
    for (uint32_t r = 0; r < nranks; r++)
        w->sparse.cursors[r] += lists_row(w, r, row);
}

/* Writes the elements of the union's rows to `indices`, their sums to `values`. */
static tamis_status sparse_rows_gather(rows *w, tam_link *link, size_t longest) {
    tam_packets *packets = &w->sparse.packets;
    const tam_bucket_view *v = w->sparse.view;
    size_t count = tam_packet_own_header(packets)->count, stride = longest * w->length;
    float *sums = w->sparse.values, *sent = sums + (size_t)w->nunion * w->length;
    float *received = sent + stride;
    count = sparse_rows_expand(w, tam_packet_own_indices(packets), count);
    TAM_TRY(v->device->gather(v->kernels, v->acc, w->sparse.indices, count, sent));
    memset(sent + count, 0, (stride - count) * sizeof sent[0]);
    TAM_TRY(link->transport->allgather(link->self, sent, stride * sizeof sent[0], received,
                                       &link->call));
    memset(w->sparse.cursors, 0, v->nranks * sizeof w->sparse.cursors[0]);
    for (size_t u = 0; u < w->nunion; u++)
        sparse_rows_add_row(w, w->union_rows[u], received, stride, sums + u * w->length);
    sparse_rows_expand(w, w->union_rows, w->nunion);
    return TAMIS_OK;
}

static tamis_status sparse_rows_reduce(rows *w, tam_link *link) {
    const tam_bucket_view *v = w->sparse.view;
    float *values = w->sparse.values;
    size_t count = sparse_rows_expand(w, w->union_rows, w->nunion);
    TAM_TRY(v->device->gather(v->kernels, v->acc, w->sparse.indices, count, values));
    return link->transport->allreduce_sum(link->self, values, count, &link->call);
}

static tamis_status run_rows(void *self, tam_link *link) {
    rows *w = self;
    bool stops;
    TAM_TRY(tam_sparse_gather(&w->sparse, link, &stops));
    if (stops)
        return TAMIS_OK;
    TAM_TRY(sparse_rows_build_union(w));
    uint32_t longest = longest_list(w);
    TAM_TRY(gather_pays(w, longest) ? sparse_rows_gather(w, link, longest)
                                    : sparse_rows_reduce(w, link));
    size_t count = (size_t)w->nunion * w->length;
    tam_sparse_report(&w->sparse, count, (tam_entries){w->sparse.indices, NULL, count});
    return TAMIS_OK;
}

/* Without a shared residual (scheme dense), nothing of a skipped step is kept. */
static tamis_status sparse_rows_skip(void *self) {
    rows *w = self;
    const tam_bucket_view *v = w->sparse.view;
    if (v->has_residual)
        return TAMIS_OK;
    for (uint32_t row = 0; row < w->count; row++)
        w->union_rows[row] = row;
    size_t count = sparse_rows_expand(w, w->union_rows, w->count);
    return v->device->put(v->kernels, v->acc, w->sparse.indices, count, NULL);
}

const tam_exchange tam_exchange_sparse_rows = {
    .traits = TAM_TRAIT_SELECTS | TAM_TRAIT_TIMED,
    .on_device = TAM_ON_DEVICE_ROWS,
    .open = open_rows,
    .close = close_rows,
    .accumulate = tam_sparse_accumulate,
    .plan = sparse_rows_plan,
    .select = sparse_rows_select_entries,
    .run = run_rows,
    .drop = tam_sparse_drop,
    .apply = tam_sparse_apply,
    .skip = sparse_rows_skip,
};
