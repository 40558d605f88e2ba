/* SPDX-License-Identifier: MIT
 *
 * The workload mlp: 784 inputs, `depth` hidden layers with ReLU, 10 classes, softmax cross-entropy.
 * Layer l of 0 .. depth maps mlp_inputs(l) numbers to mlp_outputs(l). Parameters are one flat
 * vector with two segments per layer, and so is the gradient:
 *
 *     W1 [hidden][784]  b1 [hidden]  W2 [hidden][hidden]  b2 [hidden]  ...  W [10][hidden]  b [10]
 *
 * A model holds all layers, or those of one pipeline stage. A slot is one batch on its way through
 * them. Its arrays hold the values after forward, and the gradient after backward:
 *
 *     forward     x0 --layer--> x1 --layer--> x2 --layer--> x3        x0: mlp_input
 *     backward    g0 <--layer-- g1 <--layer-- g2 <--layer-- g3        x3, g3: mlp_output
 *
 * g is the gradient with respect to the sums from which ReLU made x. On the last stage mlp_loss
 * turns scores into g; on the first stage g0 is not computed. So a stage sends back what the stage
 * before it expects: mlp_output of a stage and mlp_input of the next hold the same numbers, x and
 * later g. A non-blocking send from these arrays must end before the slot is written again.
 */
#ifndef TAMIS_TRAIN_MLP_H
#define TAMIS_TRAIN_MLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

#include "bench/train/idx.h"

enum { MLP_MAX_DEPTH = 64, MLP_MAX_SEGMENTS = 2 * (MLP_MAX_DEPTH + 1) };

typedef struct mlp_shape {
    size_t hidden; /* width of the hidden layers */
    size_t depth;  /* number of them, 1 to MLP_MAX_DEPTH; there are depth + 1 layers */
} mlp_shape;

size_t mlp_inputs(mlp_shape shape, size_t layer);
size_t mlp_outputs(mlp_shape shape, size_t layer);

/** End the process with a message if the model is too large for one reducer. Call it before memory
 * is allocated. */
void mlp_check_shape(mlp_shape shape);

/** Number of parameters of layers first .. first + count - 1. */
size_t mlp_length(mlp_shape shape, size_t first, size_t count);

/** Layers first .. first + count - 1, and what one rank needs to work on them. */
typedef struct mlp {
    mlp_shape shape;
    size_t first, count;
    size_t batch, slots;
    size_t length;     /* of the flat vector of these layers */
    float **values;    /* [slots][count + 1], each [batch][width] */
    float *back;       /* [batch][hidden] */
    uint8_t *labels;   /* [slots][batch] */
    char (*names)[24]; /* [2 * count], of the segments */
} mlp;

/** Allocates all memory. The whole model is layers 0 .. depth: first 0, count depth + 1. */
void mlp_open(mlp_shape shape, size_t first, size_t count, size_t batch, size_t slots, mlp *out);
void mlp_close(mlp *model);

/** The 2 * count segments of these layers: W and b of the i-th are 2 * i and 2 * i + 1. Their names
 * live as long as the model. */
void mlp_segments(const mlp *model, tamis_segment *out);

/** He et al. 2015: normal with variance 2 / inputs; biases zero. The same on all ranks, and for a
 * layer the same on every stage. */
void mlp_init(const mlp *model, uint64_t seed, float *params);

/** Put `rows` samples into a slot: order[0 .. rows), or first .. first + rows - 1 if it is NULL.
 * The first stage takes images, the last one labels, others nothing. */
void mlp_take(mlp *model, size_t slot, const idx_set *set, const uint32_t *order, size_t first,
              size_t rows);

/** [batch][mlp_inputs(first)]; written by mlp_take on the first stage, else by the caller. After
 * backward it holds the gradient, except on the first stage, which computes none. */
float *mlp_input(const mlp *model, size_t slot);

/** [batch][mlp_outputs(last)]: values after ReLU, or scores of the classes. Every stage but the
 * last expects their gradient here before mlp_backward. */
float *mlp_output(const mlp *model, size_t slot);

void mlp_forward(mlp *model, const float *params, size_t slot);

/** Last stage, after forward: how many of the first `rows` samples are classified correctly, and
 * the sum of their losses. */
size_t mlp_correct(const mlp *model, size_t slot, size_t rows, double *loss);

/** Last stage, after forward: replace the scores by the gradient of the mean loss. @return the mean
 * loss. */
double mlp_loss(mlp *model, size_t slot);

/** Called when the gradient of the i-th held layer is complete. */
typedef void (*mlp_hook)(void *context, size_t i);

/**
 * Write the gradient of every layer, the last one first.
 *
 * @param add   add to `grad` instead of overwriting it
 * @param hook  called as soon as W and b of a layer are written, before the gradient propagates to
 *              the layer below; or NULL
 */
void mlp_backward(mlp *model, const float *params, size_t slot, bool add, float *grad,
                  mlp_hook hook, void *context);

#endif
