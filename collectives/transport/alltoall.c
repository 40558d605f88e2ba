/* SPDX-License-Identifier: MIT
 *
 * An all-to-all over a transport that only gathers. First the ranks gather their tables of begins,
 * which say where each run lies; then everything that every rank sends, a chunk at a time:
 *
 *     table of rank a     | 0 | begin of run 1 | ... | end |   rank b keeps begin and end of run b
 *     chunks of rank a    | run 0 | run 1 | ...            |      and copies its parts from chunks
 */
#include "collectives/transport/sum.h"
#include "lib/base/numbers.h"

typedef struct tables {
    size_t *begins; /* [nranks] of the run for this rank */
    size_t longest; /* bytes that any rank sends */
    uint32_t odd;   /* a rank whose run is not as long as expected; else nranks */
} tables;

/* Read entries `at` to at + count - 1 of the tables of all ranks. */
static void read_tables(const size_t *received, size_t at, size_t count, uint32_t rank,
                        uint32_t nranks, const size_t *recv_at, tables *t) {
    for (uint32_t a = 0; a < nranks; a++) {
        const size_t *theirs = received + a * count;
        if (rank >= at && rank - at < count)
            t->begins[a] = theirs[rank - at];
        if (rank + 1 >= at && rank + 1 - at < count &&
            theirs[rank + 1 - at] - t->begins[a] != recv_at[a + 1] - recv_at[a])
            t->odd = a;
        if (at + count > nranks && theirs[nranks - at] > t->longest)
            t->longest = theirs[nranks - at];
    }
}

/* Copy the part of a run that lies in bytes `at` to at + length - 1 of its sender. */
static void copy_part(const char *received, size_t at, size_t length, size_t begin, size_t bytes,
                      char *out) {
    size_t from = begin > at ? begin : at, end = tam_min(begin + bytes, at + length);
    if (from < end)
        memcpy(out + (from - begin), received + (from - at), end - from);
}

static tamis_status gather_tables(tam_gather_chunk gather, void *self, uint32_t rank,
                                  uint32_t nranks, size_t capacity, const size_t *send_at,
                                  const size_t *recv_at, tables *t, tam_call *call) {
    size_t entries = (size_t)nranks + 1, most = capacity / sizeof send_at[0];
    for (size_t at = 0; at < entries; at += most) {
        size_t count = tam_min(entries - at, most);
        const void *received;
        TAM_TRY(gather(self, send_at + at, count * sizeof send_at[0], &received, call));
        read_tables(received, at, count, rank, nranks, recv_at, t);
    }
    if (t->odd < nranks)
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u: rank %u sends more or less than it announced",
                        rank, t->odd);
    return TAMIS_OK;
}

/* What this rank gives in the chunk from byte `at` on, padded with zeros past its end. */
static const void *fill_chunk(const void *send, size_t total, size_t at, size_t length,
                              char *chunk) {
    if (at + length <= total)
        return (const char *)send + at;
    size_t left = total > at ? total - at : 0;
    if (left > 0)
        memcpy(chunk, (const char *)send + at, left);
    memset(chunk + left, 0, length - left);
    return chunk;
}

tamis_status tam_alltoall_by_gather(tam_gather_chunk gather, void *self, uint32_t rank,
                                    uint32_t nranks, const tam_alltoall_scratch *scratch,
                                    const void *send, const size_t *send_at, void *recv,
                                    const size_t *recv_at, tam_call *call) {
    tables t = {.begins = scratch->begins, .odd = nranks};
    size_t capacity = scratch->capacity;
    TAM_TRY(gather_tables(gather, self, rank, nranks, capacity, send_at, recv_at, &t, call));
    for (size_t at = 0; at < t.longest; at += capacity) {
        size_t length = tam_min(t.longest - at, capacity);
        const void *received, *own = fill_chunk(send, send_at[nranks], at, length, scratch->chunk);
        TAM_TRY(gather(self, own, length, &received, call));
        for (uint32_t a = 0; a < nranks; a++)
            copy_part((const char *)received + a * length, at, length, t.begins[a],
                      recv_at[a + 1] - recv_at[a], (char *)recv + recv_at[a]);
    }
    return TAMIS_OK;
}

/* -- scratch ---------------------------------------------------------------------------------- */

bool tam_alltoall_scratch_open(uint32_t nranks, size_t capacity, tam_alltoall_scratch *out) {
    *out = (tam_alltoall_scratch){.capacity = capacity};
    out->begins = tam_alloc_array(nranks, sizeof out->begins[0]);
    out->chunk = tam_alloc(capacity);
    return out->begins && out->chunk;
}

void tam_alltoall_scratch_close(tam_alltoall_scratch *scratch) {
    tam_free(scratch->begins);
    tam_free(scratch->chunk);
}
