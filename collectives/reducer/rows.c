/* SPDX-License-Identifier: MIT
 *
 * Rows, in three moves: who touched what, the union, the sums. Of 3 ranks, rows of 2 elements:
 *
 *                row 0   row 1   row 2   row 3   row 4        list     union    sums
 *     rank 0     .  .    1  2    .  .    .  .    .  .         1        1 3      11  2 | 5 7
 *     rank 1     .  .    .  .    .  .    5  7    .  .         3
 *     rank 2     .  .   10  .    .  .    .  .    .  .         1
 *
 * The lists are slots of row numbers. The sums are made in one of two ways, whichever takes fewer
 * bytes by what the slots tell all ranks: c rows of the longest list, U of the union, L elements each,
 *
 *     reduce     every rank gives all rows of the union     8 U L (P - 1) / P     same rows touched
 *     gather     every rank sends its own rows to all       4 c L (P - 1)         others touched
 *
 * and gather adds them up in rank order, so the bits are the same: a rank that has not touched a row
 * would add +0, and the residual, 0 + x, holds no -0. It is chosen where c P < 2 U, and where all
 * that it needs fits the memory of the sums:
 *
 *     values     | sums: U L | own rows: c L | rows of all ranks: P c L |    at most rows * L
 *
 * A rank that touched so many rows that its list would cost more than all other rows, 8 bytes for
 * each of their elements, says "all" in place of it. Then all rows are the union.
 */
#include "collectives/reducer/rows.h"

/* -- memory ----------------------------------------------------------------------------------- */

/* Of a random batch; to choose how lists travel, and what they cost. */
enum { EXPECTED_SHARE = 64 };

static tamis_index_format usual_format(const tam_rows *rows) {
    return tam_codec_choose(rows->count, rows->count / EXPECTED_SHARE + 1);
}

/* (P - 1) bytes(c) + 8 c L (P - 1) / P <= 8 rows L (P - 1) / P, times P / (P - 1). In the format that
 * is chosen by itself, whichever was asked for: which rows are summed is part of the result. */
static bool list_pays(const tam_bucket *b, uint64_t count) {
    const tam_rows *rows = b->rows;
    uint64_t bytes = tam_codec_of(usual_format(rows))->bytes(rows->count, count);
    return (bytes + 7) / 8 * 8 * b->slots.nranks <= 8 * (rows->count - count) * rows->length;
}

static uint32_t find_most(const tam_bucket *b) {
    uint64_t low = 0, high = b->rows->count; /* pays; high + 1 does not */
    while (low < high) {
        uint64_t middle = (low + high + 1) / 2;
        if (list_pays(b, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return (uint32_t)low;
}

tamis_status tam_rows_plan(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_rows *rows = b->rows = tam_alloc(sizeof *rows);
    if (!rows)
        return tam_fail(TAMIS_E_NOMEM, "no memory for rows");
    rows->length = b->layout->rows[0];
    rows->count = (uint32_t)b->layout->length / rows->length;
    b->slots.rank = r->comm->rank;
    b->slots.nranks = r->comm->nranks;
    b->slots.growing = true;
    b->slots.span = rows->count;
    b->slots.format =
        r->config.index_format != TAMIS_INDEX_AUTO ? r->config.index_format : usual_format(rows);
    rows->most = r->comm->nranks > 1 ? find_most(b) : rows->count;
    b->slots.capacity = rows->most;
    return TAMIS_OK;
}

tamis_status tam_rows_open(tam_bucket *b) {
    tam_rows *rows = b->rows;
    TAM_TRY(tam_slots_open(&b->slots));
    b->union_max = (size_t)b->layout->length;
    b->indices = tam_alloc_array(b->union_max, sizeof b->indices[0]);
    b->values = tam_alloc_array(b->union_max, sizeof b->values[0]);
    b->reaches = tam_alloc_array(b->slots.nranks, sizeof b->reaches[0]);
    rows->marks = tam_alloc_array(rows->count, sizeof rows->marks[0]);
    rows->united = tam_alloc_array(rows->count, sizeof rows->united[0]);
    if (!b->indices || !b->values || !b->reaches || !rows->marks || !rows->united)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u rows of %u elements", rows->count,
                        rows->length);
    for (uint32_t i = 0; i < b->slots.nranks; i++)
        b->reaches[i] = (tam_reach){0, rows->count, rows->count, rows->count};
    b->slots.reaches = b->reaches;
    return TAMIS_OK;
}

void tam_rows_close(tam_bucket *b) {
    if (!b->rows)
        return;
    tam_free(b->rows->marks);
    tam_free(b->rows->united);
    tam_free(b->rows);
}

/* -- who touched what ------------------------------------------------------------------------- */

tamis_status tam_rows_pick(tam_bucket *b, size_t *count) {
    tam_rows *rows = b->rows;
    uint32_t *own = tam_slot_own_indices(&b->slots);
    size_t found = 0;
    TAM_TRY(b->reducer->device->mark(b->kernels, b->acc, rows->length, rows->count, rows->marks));
    for (uint32_t row = 0; row < rows->count; row++) {
        if (rows->marks[row] && found++ < rows->most)
            own[found - 1] = row;
    }
    rows->all = found > rows->most;
    *count = rows->all ? 0 : found;
    return TAMIS_OK;
}

/* -- the union -------------------------------------------------------------------------------- */

static tamis_status mark_list(tam_bucket *b, uint32_t rank) {
    tam_rows *rows = b->rows;
    const tam_head *h = tam_slot_head_of(&b->slots, rank);
    const uint32_t *list = tam_slot_indices_of(&b->slots, rank);
    for (uint32_t i = 0; i < h->count; i++) {
        if (list[i] >= rows->count || (i > 0 && list[i] <= list[i - 1]))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "the slot of rank %u was refused: row %u of %u is none or out of order",
                            rank, list[i], rows->count);
        rows->marks[list[i]] = 1;
    }
    if (h->flags & TAM_HEAD_ALL_ROWS)
        memset(rows->marks, 1, rows->count);
    return TAMIS_OK;
}

static tamis_status unite(tam_bucket *b) {
    tam_rows *rows = b->rows;
    memset(rows->marks, 0, rows->count);
    for (uint32_t i = 0; i < b->slots.nranks; i++)
        TAM_TRY(mark_list(b, i));
    rows->nunited = 0;
    for (uint32_t row = 0; row < rows->count; row++) {
        rows->united[rows->nunited] = row;
        rows->nunited += rows->marks[row];
    }
    return TAMIS_OK;
}

/* The elements of rows. */
static size_t expand(tam_bucket *b, const uint32_t *list, size_t count) {
    uint32_t length = b->rows->length;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < length; j++)
            b->indices[i * length + j] = list[i] * length + j;
    }
    return count * length;
}

/* -- the sums --------------------------------------------------------------------------------- */

/* Rows of the rank that touched most. */
static uint32_t longest_list(const tam_bucket *b) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->slots.nranks; i++) {
        const tam_head *h = tam_slot_head_of(&b->slots, i);
        uint32_t count = h->flags & TAM_HEAD_ALL_ROWS ? b->rows->count : h->count;
        most = count > most ? count : most;
    }
    return most;
}

static bool gather_pays(const tam_bucket *b, uint64_t longest) {
    uint64_t nranks = b->slots.nranks, nunited = b->rows->nunited;
    return longest * nranks < 2 * nunited && nunited + (nranks + 1) * longest <= b->rows->count;
}

static void add_rows(const tam_bucket *b, uint32_t rank, const float *came, float *sums) {
    const tam_rows *rows = b->rows;
    const uint32_t *list = tam_slot_indices_of(&b->slots, rank);
    size_t length = rows->length, count = tam_slot_head_of(&b->slots, rank)->count;
    for (size_t i = 0, u = 0; i < count; i++, u++) {
        while (rows->united[u] != list[i])
            u++;
        for (size_t j = 0; j < length; j++)
            sums[u * length + j] += came[i * length + j];
    }
}

static tamis_status gather(tam_bucket *b, tam_link *link, size_t longest) {
    const tam_rows *rows = b->rows;
    const uint32_t *own = tam_slot_own_indices(&b->slots);
    size_t count = tam_slot_own_head(&b->slots)->count, room = longest * rows->length;
    float *sums = b->values, *sent = sums + (size_t)rows->nunited * rows->length;
    float *came = sent + room;
    count = expand(b, own, count);
    TAM_TRY(b->reducer->device->gather(b->kernels, b->acc, b->indices, count, sent));
    memset(sent + count, 0, (room - count) * sizeof sent[0]);
    TAM_TRY(link->transport->allgather(link->self, sent, room * sizeof sent[0], came, &link->call));
    memset(sums, 0, (size_t)(sent - sums) * sizeof sums[0]);
    for (uint32_t i = 0; i < b->slots.nranks; i++)
        add_rows(b, i, came + i * room, sums);
    b->count = expand(b, rows->united, rows->nunited);
    return TAMIS_OK;
}

tamis_status tam_rows_reduce(tam_bucket *b, tam_link *link) {
    TAM_TRY(unite(b));
    uint32_t longest = longest_list(b);
    if (gather_pays(b, longest))
        return gather(b, link, longest);
    b->count = expand(b, b->rows->united, b->rows->nunited);
    TAM_TRY(b->reducer->device->gather(b->kernels, b->acc, b->indices, b->count, b->values));
    return link->transport->allreduce_sum(link->self, b->values, b->count, &link->call);
}

tamis_status tam_rows_forget(tam_bucket *b) {
    const tam_rows *rows = b->rows;
    for (uint32_t row = 0; row < rows->count; row++)
        rows->united[row] = row;
    b->count = 0;
    return b->reducer->device->put(b->kernels, b->acc, b->indices,
                                   expand(b, rows->united, rows->count), NULL);
}
