/* SPDX-License-Identifier: MIT */
#include "lib/base/tree.h"

#include <stdbool.h>

enum { FOLD = 4 }; /* parts added in one pass */

/* One pass over 2 to 4 parts, the last two first. With `onto`, the first one is in `out`. The
 * compiler makes a loop of every constant that it is called with. */
static inline void tree_add(uint32_t nparts, bool onto, const float *const *parts, size_t length,
                            float *restrict out) {
    const float *restrict a = parts[0], *restrict b = parts[1];
    const float *restrict c = nparts > 2 ? parts[2] : NULL;
    const float *restrict d = nparts > 3 ? parts[3] : NULL;
    for (size_t i = 0; i < length; i++) {
        float rest = nparts > 3 ? c[i] + d[i] : nparts > 2 ? c[i] : 0.0f;
        out[i] = (onto ? out[i] : a[i]) + (nparts > 2 ? b[i] + rest : b[i]);
    }
}

static void add_parts(uint32_t nparts, const float *const *parts, size_t length, float *out) {
    bool onto = parts[0] == out;
    if (nparts == 2)
        onto ? tree_add(2, true, parts, length, out) : tree_add(2, false, parts, length, out);
    else if (nparts == 3)
        onto ? tree_add(3, true, parts, length, out) : tree_add(3, false, parts, length, out);
    else
        onto ? tree_add(4, true, parts, length, out) : tree_add(4, false, parts, length, out);
}

/* The last parts become one, in the memory of the first of them. */
static void tree_fold(tam_tree_block *b, uint32_t first, size_t length) {
    while (b->count > first + 1) {
        uint32_t at = b->count > first + FOLD ? b->count - FOLD : first;
        add_parts(b->count - at, b->parts + at, length, b->storage[at]);
        b->parts[at] = b->storage[at];
        b->count = at + 1;
    }
}

void tam_tree_add_block(tam_tree_block *b, uint32_t vrank, const float *values, size_t length) {
    uint32_t distance = b->vrank ^ vrank, first = b->count;
    while (first > 1 && b->distances[first - 1] < distance)
        first--;
    if (first > 0)
        tree_fold(b, first - 1, length);
    b->distances[b->count] = distance;
    b->parts[b->count++] = values;
    b->vrank = vrank;
}

void tam_tree_end_block(tam_tree_block *b, size_t length, float *sums) {
    tree_fold(b, 0, length);
    if (b->count > 0)
        memmove(sums, b->parts[0], length * sizeof sums[0]);
    else
        memset(sums, 0, length * sizeof sums[0]);
    tam_tree_begin(b);
}

void tam_tree_add_up(const float *values, size_t stride, uint32_t nranks, size_t count,
                     float *sums) {
    uint32_t own = tam_tree_own(nranks);
    tam_tree_block block;
    tam_tree_begin(&block);
    for (size_t at = 0; at < count; at += TAM_TREE_BLOCK) {
        size_t length = count - at < TAM_TREE_BLOCK ? count - at : TAM_TREE_BLOCK;
        for (uint32_t r = 0; r < nranks; r++)
            tam_tree_add_block(&block, tam_tree_vrank(r, own), values + r * stride + at, length);
        tam_tree_end_block(&block, length, sums + at);
    }
}
