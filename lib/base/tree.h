/* SPDX-License-Identifier: MIT
 *
 * The order in which values of ranks are added, everywhere: a perfect binary tree over F virtual
 * ranks, F = P rounded up to a power of two. The first 2 P - F ranks have the virtual rank of their
 * own number, the others every second one behind them. A virtual rank without a real one is
 * skipped, and so is a rank without a value. Six ranks, F = 8:
 *
 *     vrank    0   1   2   3   4   5   6   7
 *     rank     0   1   2   3   4   .   5   .
 *               \ /     \ /    |       |
 *                +       +     |       |           ((0 + 1) + (2 + 3)) + (4 + 5)
 *                 \     /       \     /
 *                  +---+         +---+
 *                    \            /
 *                     +----------+
 *
 * So up to three ranks are added one after another. Whoever has partial sums of whole subtrees can
 * go on with them, and nodes of 2^a ranks, of which there are any number, are whole subtrees: the
 * sum of their sums has the bits of the sum of all ranks. No rank stands for more than two virtual
 * ranks.
 *
 * Values that come in the order of ranks need no tree in memory, only a stack of partial sums of
 * subtrees, at most one for every level. Two neighbours on it are added as soon as a value comes
 * that lies outside of the least subtree with both. How far apart two virtual ranks are is the
 * exclusive or of their numbers: its highest bit is the level at which their paths join. No two
 * neighbouring distances have the same highest bit, so numbers compare as levels do.
 */
#ifndef TAM_BASE_TREE_H
#define TAM_BASE_TREE_H

#include "lib/base/numbers.h"

#include <stddef.h>

enum {
    TAM_TREE_PARTS = 33, /* most partial sums: one per bit of a virtual rank, and the last value */
    TAM_TREE_BLOCK = 256 /* values added at a time: more than 512 take longer from memory */
};

/** Ranks below this one have the virtual rank of their own number. Even, unless there is one
 * rank. */
TAM_SHARED uint32_t tam_tree_own(uint32_t nranks) {
    uint32_t vranks = 1;
    while (vranks < nranks)
        vranks *= 2;
    return 2 * nranks - vranks;
}

TAM_SHARED uint32_t tam_tree_vrank(uint32_t rank, uint32_t own) {
    return rank < own ? rank : 2 * rank - own;
}

/** A sum to which values are added by ascending virtual rank. Starts as zeros. */
typedef struct tam_tree_sum {
    uint32_t count, vrank; /* of parts; of the last value */
    struct {
        uint32_t distance; /* from the part before */
        float sum;
    } parts[TAM_TREE_PARTS];
} tam_tree_sum;

TAM_SHARED void tam_tree_add(tam_tree_sum *s, uint32_t vrank, float value) {
    uint32_t distance = s->vrank ^ vrank;
    for (; s->count > 1 && s->parts[s->count - 1].distance < distance; s->count--)
        s->parts[s->count - 2].sum += s->parts[s->count - 1].sum;
    s->parts[s->count].distance = distance;
    s->parts[s->count++].sum = value;
    s->vrank = vrank;
}

/** @return the sum; 0 without values. The next one can begin. */
TAM_SHARED float tam_tree_end(tam_tree_sum *s) {
    float sum = 0.0f;
    if (s->count > 0)
        sum = s->parts[s->count - 1].sum;
    for (; s->count > 1; s->count--)
        sum = s->parts[s->count - 2].sum + sum;
    s->count = 0;
    return sum;
}

/** A tree sum of blocks of values. Starts as zeros, which need not reach its storage. tree.c */
typedef struct tam_tree_block {
    uint32_t count, vrank;
    uint32_t distances[TAM_TREE_PARTS];
    const float *parts[TAM_TREE_PARTS]; /* the caller's memory, or storage */
    float storage[TAM_TREE_PARTS][TAM_TREE_BLOCK];
} tam_tree_block;

static inline void tam_tree_begin(tam_tree_block *b) {
    b->count = b->vrank = 0;
}

/** @param values  [length], which stay as they are until the end
 * @param length  at most TAM_TREE_BLOCK, the same for all */
void tam_tree_add_block(tam_tree_block *block, uint32_t vrank, const float *values, size_t length);

/** @param sums  [length]  may be some rank's values; zeros without values */
void tam_tree_end_block(tam_tree_block *block, size_t length, float *sums);

/** sums[i] = sum over ranks r of values[r * stride + i], i < count.
 * @param sums  may be some rank's values */
void tam_tree_add_up(const float *values, size_t stride, uint32_t nranks, size_t count,
                     float *sums);

#endif
