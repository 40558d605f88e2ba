/* SPDX-License-Identifier: MIT
 *
 * The layers of the models. Matrices are row-major, one row for each sample or place; `params` and
 * `grad` are the flat vectors of the model, and a layer knows its offsets in them. Backward passes
 * add to `grad`.
 */
#ifndef TAMIS_TRAIN_LAYERS_H
#define TAMIS_TRAIN_LAYERS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* -- linear: y = x W' + b --------------------------------------------------------------------- */

typedef struct linear {
    size_t inputs, outputs;
    size_t weight, bias; /* where W [outputs][inputs] and b [outputs] begin */
} linear;

void linear_forward(const linear *l, size_t rows, const float *params, const float *x, float *y);

/** @param dx  [out]  gradient with respect to x, or NULL */
void linear_backward(const linear *l, size_t rows, const float *params, const float *x,
                     const float *dy, float *dx, float *grad);

/** dx alone. */
void linear_propagate(const linear *l, size_t rows, const float *params, const float *dy,
                      float *dx);

/* -- norm: y = (x - mean) / sqrt(variance + 1e-5) * w + b, of each row (Ba et al. 2016) ------- */

typedef struct norm {
    size_t width;
    size_t weight, bias;
} norm;

/** What backward needs: [rows][width] and [rows]. */
typedef struct norm_kept {
    float *hat;   /* (x - mean) / sqrt(variance + 1e-5) */
    float *scale; /* 1 / sqrt(variance + 1e-5) */
} norm_kept;

void norm_forward(const norm *l, size_t rows, const float *params, const float *x,
                  const norm_kept *kept, float *y);

/** Adds to `dx`. */
void norm_backward(const norm *l, size_t rows, const float *params, const norm_kept *kept,
                   const float *dy, float *dx, float *grad);

/* -- GELU in the form with tanh (Hendrycks and Gimpel, arXiv 1606.08415), as in GPT-2 --------- */

void gelu_forward(size_t n, const float *x, float *y);

/** Gradient with respect to y -> with respect to x, in place. */
void gelu_backward(size_t n, const float *x, float *dy);

/* -- softmax and cross-entropy of a row of scores, one for each class ------------------------- */

/** Replace the scores by the gradient of the row's loss, divided by `rows`, with respect to them.
 * @return the loss, in nats. */
double scores_gradient(float *scores, size_t classes, size_t label, size_t rows);

/** The loss alone. */
double scores_loss(const float *scores, size_t classes, size_t label);

/** The class with the highest score, the first of equal ones. */
size_t scores_best(const float *scores, size_t classes);

/* -- exponential ------------------------------------------------------------------------------ */

/**
 * e^x with a relative error below 2e-7, in plain arithmetic that compilers can vectorise; all
 * machines give the same bits. Outside -87 .. 88 it is the value at the nearer end.
 *
 * x = k ln 2 + r with whole k and |r| <= ln(2) / 2; e^r by its series up to r^7. Adding 1.5 * 2^23,
 * where floats are 1 apart, rounds to a whole number and leaves k in the lowest bits. This needs no
 * conversion to an integer, which is undefined for NaN.
 */
static inline __attribute__((always_inline)) float layers_exp(float x) {
    const float shift = 12582912.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    uint32_t bits, one;
    float power;
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + shift, k = shifted - shift;
    float r = (x - k * ln2_high) - k * ln2_low;
    float s = 1.0f / 720.0f + r * (1.0f / 5040.0f);
    s = 1.0f / 24.0f + r * (1.0f / 120.0f + r * s);
    s = 1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6.0f + r * s)));
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&one, &shift, sizeof one);
    bits = (bits - one + 127u) << 23;
    memcpy(&power, &bits, sizeof power);
    return s * power;
}

#endif
