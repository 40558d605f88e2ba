/* SPDX-License-Identifier: MIT
 *
 * Rows that leave in a step if ranks list only so many (config.rows_capacity).
 */
#include "tests/fuzz/property/look.h"

#include <string.h>
#include <tamis/overlap.h>

static bool is_touched(const look *l, uint32_t v, uint64_t begin, uint32_t length) {
    for (uint64_t i = begin; i < begin + length; i++) {
        if (l->m.acc[v][i] != 0.0f)
            return true;
    }
    return false;
}

/* A rank lists the first rows that it has touched, in a circle. */
static void list_rows(const look *l, uint32_t v, const tamis_bucket *b, bool *leaves) {
    uint32_t most = l->c->config.rows_capacity, length = l->c->rows[b->first_segment];
    uint64_t count = b->length / length, listed = 0;
    uint64_t first = l->step * (uint64_t)(most < count ? most : count) % count;
    for (uint64_t i = 0; i < count && listed < most; i++) {
        uint64_t begin = b->begin + (first + i) % count * length;
        if (!is_touched(l, v, begin, length))
            continue;
        listed++;
        memset(leaves + begin, true, length);
    }
}

void look_rows(look *l, bool *leaves) {
    memset(leaves, 0, (size_t)l->n);
    for (uint32_t i = 0; i < l->all->nbuckets && l->c->config.rows_capacity > 0; i++) {
        for (uint32_t v = 0; v < l->m.nranks && look_is_kind(&l->all->buckets[i], "sparse-rows");
             v++)
            list_rows(l, v, &l->all->buckets[i], leaves);
    }
}
