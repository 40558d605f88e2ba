/* SPDX-License-Identifier: MIT
 *
 * Causal multi-head self-attention (Vaswani et al., arXiv 1706.03762). Each place of a window
 * attends to itself and the places before it:
 *
 *     S = Q K' / sqrt(d), masked above the diagonal;  A = softmax of the rows of S;  O = A V
 *
 * for each window and head separately, with T = context and d = width / heads. A row of `qkv` holds
 * q, k and v of one place, each with the heads one after the other:
 *
 *     | q head 0 | q head 1 | ... | k head 0 | k head 1 | ... | v head 0 | v head 1 | ... |
 */
#ifndef TAMIS_TRAIN_ATTENTION_H
#define TAMIS_TRAIN_ATTENTION_H

#include <stddef.h>

typedef struct attention {
    size_t windows, context, heads, width;
    float *spare; /* [context][context] */
} attention;

/**
 * @param qkv  [windows][context][3 * width]
 * @param a    [out]  [windows][heads][context][context], kept for backward
 * @param o    [out]  [windows][context][width]
 */
void attention_forward(const attention *l, const float *qkv, float *a, float *o);

/** @param dqkv  [out]  gradient with respect to qkv, from the one with respect to o */
void attention_backward(const attention *l, const float *qkv, const float *a, const float *d_o,
                        float *dqkv);

#endif
