/* SPDX-License-Identifier: MIT
 *
 * Where the layouts of two ranks differ: all ranks run the same binary search over the records, by
 * hashes of the segments before a given one. It runs only when layouts are known to differ.
 */
#include "collectives/reducer/reducer.h"
#include "lib/base/hash.h"

#include <stdio.h>
#include <xxhash.h>

/* What a rank shows of the segment that the search is at. */
typedef struct record {
    tam_handshake_header header;
    uint64_t nsegments;
    uint64_t before; /* hash of the segments before it */
    uint64_t length, row_length;
    char name[160]; /* cut off if it is longer; "" past the end of the layout */
} record;

_Static_assert(sizeof(record) <= TAM_RECORD_BYTES, "one rank's record fits");

static tamis_status disagree_accept(const unsigned char *records, uint32_t nranks) {
    return tam_handshake_failure(records, nranks, "compare its layout");
}

static uint64_t hash_before(const tamis_layout *layout, uint64_t segment) {
    uint64_t count = segment < layout->nsegments ? segment : layout->nsegments;
    uint64_t hash = tam_hash(layout->rows, count * sizeof layout->rows[0]);
    return XXH3_64bits_withSeed(layout->begins, (count + 1) * sizeof layout->begins[0], hash);
}

static tamis_status disagree_show(tamis_comm *comm, const tamis_layout *layout, uint64_t segment,
                                  uint64_t deadline_ns) {
    record mine = {.header.call = "tamis_reducer_create", .nsegments = layout->nsegments};
    mine.before = hash_before(layout, segment);
    if (segment < layout->nsegments) {
        mine.length = tam_segment_length(layout, (uint32_t)segment);
        mine.row_length = layout->rows[segment];
        snprintf(mine.name, sizeof mine.name, "%s", layout->names[segment]);
    }
    return tam_handshake_run(comm, &mine, sizeof mine, disagree_accept, deadline_ns);
}

static void disagree_describe(const record *c, char *text, size_t size) {
    char rows[48] = "";
    if (c->row_length > 0)
        snprintf(rows, sizeof rows, " in rows of %llu", (unsigned long long)c->row_length);
    if (c->name[0] || c->length > 0)
        snprintf(text, size, "\"%.100s\" of length %llu%s", c->name, (unsigned long long)c->length,
                 rows);
    else
        snprintf(text, size, "only %llu segments", (unsigned long long)c->nsegments);
}

tamis_status tam_layouts_disagree(tamis_comm *comm, const tamis_layout *layout, uint32_t odd,
                                  uint64_t deadline_ns) {
    const record *first = tam_handshake_record(comm->records, 0),
                 *other = tam_handshake_record(comm->records, odd);
    char here[192], there[192];
    TAM_TRY(disagree_show(comm, layout, 0, deadline_ns));
    /* The segments before `low` are equal; those before `high` are not. */
    uint64_t low = 0;
    uint64_t high = first->nsegments > other->nsegments ? first->nsegments : other->nsegments;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        TAM_TRY(disagree_show(comm, layout, middle, deadline_ns));
        if (first->before == other->before)
            low = middle;
        else
            high = middle;
    }
    TAM_TRY(disagree_show(comm, layout, low, deadline_ns));
    disagree_describe(first, here, sizeof here);
    disagree_describe(other, there, sizeof there);
    return tam_fail(TAMIS_E_MISMATCH,
                    "layouts differ, first at segment %llu: rank 0 has %s, rank %u has %s",
                    (unsigned long long)low, here, odd, there);
}
