/* SPDX-License-Identifier: MIT
 *
 * The toy model of the C examples: a perceptron with one hidden layer that learns
 * y = sin(2 x0) + x1 x2 from sixteen inputs. A sample is made from its number, so the same number
 * gives the same sample on every machine.
 */
#ifndef EXAMPLES_MODEL_H
#define EXAMPLES_MODEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    INPUTS = 16,
    HIDDEN = 256,
    W1 = 0, /* offsets in the parameters and in the gradient */
    B1 = W1 + HIDDEN * INPUTS,
    W2 = B1 + HIDDEN,
    B2 = W2 + HIDDEN,
    PARAMETERS = B2 + 1
};

/* A uniform number in [-1, 1) for every pair of numbers. */
static float noise(uint64_t a, uint64_t b) {
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9) + 1;
    x = (x ^ (x >> 31)) * UINT64_C(0x94d049bb133111eb);
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)(x >> 40) * 0x1p-23f - 1.0f;
}

static void model_init(float *params) {
    for (int i = 0; i < PARAMETERS; i++)
        params[i] =
            i < W2 ? noise(UINT64_MAX, (uint64_t)i) / 2.0f : noise(UINT64_MAX, (uint64_t)i) / 16.0f;
}

/* What the backward pass of a sample needs from its forward pass. */
typedef struct model_pass {
    float input[INPUTS], hidden[HIDDEN], error;
} model_pass;

/* @return the squared error of a sample. */
static double model_forward(const float *params, uint64_t sample, model_pass *pass) {
    float output = params[B2];
    for (int j = 0; j < INPUTS; j++)
        pass->input[j] = noise(sample, (uint64_t)j);
    for (int h = 0; h < HIDDEN; h++) {
        float sum = params[B1 + h];
        for (int j = 0; j < INPUTS; j++)
            sum += params[W1 + h * INPUTS + j] * pass->input[j];
        pass->hidden[h] = tanhf(sum);
        output += params[W2 + h] * pass->hidden[h];
    }
    pass->error = output - sinf(2.0f * pass->input[0]) - pass->input[1] * pass->input[2];
    return (double)pass->error * (double)pass->error;
}

/* Add `share` times the gradient of a sample: first for the output layer, then for the hidden. */
static void model_backward_output(const model_pass *pass, float share, float *grads) {
    for (int h = 0; h < HIDDEN; h++)
        grads[W2 + h] += share * 2.0f * pass->error * pass->hidden[h];
    grads[B2] += share * 2.0f * pass->error;
}

static void model_backward_hidden(const float *params, const model_pass *pass, float share,
                                  float *grads) {
    for (int h = 0; h < HIDDEN; h++) {
        float slope = 1.0f - pass->hidden[h] * pass->hidden[h];
        float back = share * 2.0f * pass->error * params[W2 + h] * slope;
        for (int j = 0; j < INPUTS; j++)
            grads[W1 + h * INPUTS + j] += back * pass->input[j];
        grads[B1 + h] += back;
    }
}

#endif
