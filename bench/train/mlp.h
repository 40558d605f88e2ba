/* SPDX-License-Identifier: MIT
 *
 * The workload mlp: 784 inputs, one hidden layer with ReLU, 10 classes, softmax cross-entropy.
 * Parameters are one flat vector of four segments, and so is the gradient:
 *
 *     W1 [hidden][784]   b1 [hidden]   W2 [10][hidden]   b2 [10]
 */
#ifndef TAMIS_TRAIN_MLP_H
#define TAMIS_TRAIN_MLP_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

#include "bench/train/idx.h"

enum { MLP_SEGMENTS = 4 };

/** Scratch of one rank for batches of up to `batch` samples. */
typedef struct mlp {
    size_t hidden, batch, length; /* length: of the flat vector */
    float *inputs;                /* [batch][784] */
    float *active;                /* [batch][hidden], after ReLU */
    float *scores;                /* [batch][10]; then probabilities, then their gradient */
    float *back;                  /* [batch][hidden] */
    uint8_t *labels;              /* [batch] */
} mlp;

void mlp_open(size_t hidden, size_t batch, mlp *out);
void mlp_close(mlp *model);

void mlp_segments(const mlp *model, tamis_segment out[MLP_SEGMENTS]);

/** He et al. 2015: normal with variance 2 / inputs; biases zero. The same on all ranks. */
void mlp_init(const mlp *model, uint64_t seed, float *params);

/** Gradient of the mean loss over the samples `set[order[0..batch)]`. @return that loss. */
double mlp_gradient(mlp *model, const float *params, const idx_set *set, const uint32_t *order,
                    float *grad);

/** How many of the samples first .. first + count - 1 are classified rightly. */
size_t mlp_correct(mlp *model, const float *params, const idx_set *set, size_t first, size_t count);

#endif
