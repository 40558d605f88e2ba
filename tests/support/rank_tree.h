/* SPDX-License-Identifier: MIT
 *
 * Sums over ranks as lib/base/tree.h defines them, by recursion over virtual ranks: slow, and with
 * none of the library's code.
 */
#ifndef TEST_RANK_TREE_H
#define TEST_RANK_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rank_tree {
    const float *values; /* of rank r at r * stride */
    size_t stride;
    const bool *there; /* NULL: all ranks have a value */
    uint32_t nranks, own;
} rank_tree;

/* @return whether there is a value among the virtual ranks */
static inline bool rank_tree_vranks(const rank_tree *t, uint64_t first, uint64_t vranks,
                                    float *sum) {
    float left = 0.0f, right = 0.0f;
    if (vranks == 1) {
        uint64_t rank = first < t->own ? first : (first + t->own) / 2;
        bool empty = first >= t->own && (first - t->own) % 2 == 1;
        if (empty || (t->there && !t->there[rank]))
            return false;
        *sum = t->values[rank * t->stride];
        return true;
    }
    bool some = rank_tree_vranks(t, first, vranks / 2, &left);
    bool more = rank_tree_vranks(t, first + vranks / 2, vranks / 2, &right);
    if (some || more)
        *sum = !more ? left : !some ? right : left + right;
    return some || more;
}

/** Sum of the values of the ranks that have one; 0 if none has. */
static inline float rank_tree_some(const float *values, size_t stride, const bool *there,
                                   uint32_t nranks) {
    uint32_t vranks = 1;
    float sum = 0.0f;
    while (vranks < nranks)
        vranks *= 2;
    rank_tree t = {values, stride, there, nranks, 2 * nranks - vranks};
    rank_tree_vranks(&t, 0, vranks, &sum);
    return sum;
}

/** The sum of values[0], values[stride], ... of all ranks. */
static inline float rank_tree_sum(const float *values, size_t stride, uint32_t nranks) {
    return rank_tree_some(values, stride, NULL, nranks);
}

#endif
