/* SPDX-License-Identifier: MIT
 *
 * Checks the choice of entries for schemes that promise the k largest.
 */
#include "tests/fuzz/property/look.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float *sorted_by;

static int by_magnitude(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    float x = fabsf(sorted_by[i]), y = fabsf(sorted_by[j]);
    return x != y ? (x < y ? 1 : -1) : i < j ? -1 : i > j;
}

/* The k largest elements of segments without rows; among equal ones the first. */
static void add_largest(const look *l, const float *acc, uint64_t k, bool *chosen) {
    static uint32_t order[MOST_LENGTH];
    uint32_t count = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!look_is_kind(fuzz_bucket(l->r, l->step, i), "sparse-rows"))
            order[count++] = i;
    }
    sorted_by = acc;
    qsort(order, count, sizeof order[0], by_magnitude);
    for (uint64_t i = 0; i < k && i < count; i++)
        chosen[order[i]] = true;
}

/* Whether the scheme promises the k largest and no bucket has a budget of its own. */
static bool has_rule(const look *l) {
    uint32_t ordinary = 0;
    for (uint32_t i = 0; i < l->all->nbuckets; i++)
        ordinary += !look_is_kind(&l->all->buckets[i], "sparse-rows");
    bool exact = fuzz_is(l->c, 2, "exact") || fuzz_is(l->c, 2, "predict");
    bool everywhere = fuzz_is(l->c, 0, "all") || fuzz_is(l->c, 0, "leader");
    bool all_go = fuzz_is(l->c, 3, "union") || fuzz_is(l->c, 3, "pairs");
    return ordinary == 1 && exact && everywhere && all_go && fuzz_is(l->c, 1, "global") &&
           l->all->listed && l->c->config.ranks_per_node <= 1 && l->n <= 1024;
}

bool look_choice(look *l, uint64_t k) {
    static bool chosen[MOST_LENGTH];
    if (l->skipped || !has_rule(l))
        return true;
    memset(chosen, 0, (size_t)l->n);
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        if (fuzz_is(l->c, 0, "all") || v == l->step % l->m.nranks)
            add_largest(l, l->m.acc[v], k, chosen);
    }
    for (uint64_t i = 0; i < l->n; i++) {
        if (chosen[i] != l->member[i] &&
            !look_is_kind(fuzz_bucket(l->r, l->step, i), "sparse-rows"))
            return look_fail(l, "entry %llu is %samong the %llu largest, and %sin the result",
                             (unsigned long long)i, chosen[i] ? "" : "not ", (unsigned long long)k,
                             l->member[i] ? "" : "not ");
    }
    return true;
}
