/* SPDX-License-Identifier: MIT
 *
 * Updates parameters p by a reduced gradient g, with the rate r of the step:
 *
 *     sgd        p -= r g
 *     momentum   s = mu s + g;  p -= r s
 *                (Sutskever et al. 2013, in the form of PyTorch: the rate is outside of s)
 *     adamw      m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g g,
 *                p -= r lambda p,  p -= r (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
 *                (Loshchilov and Hutter, arXiv 1711.05101), t from 1, lambda for matrices only
 *
 * All ranks hold the same state, for they see the same g. With --reduce update the library holds
 * the moments, of each rank's own gradient, and g is already a step:
 *
 *     p -= r lambda p (adamw);  p -= r g
 */
#ifndef TAMIS_TRAIN_OPTIMIZER_H
#define TAMIS_TRAIN_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

#include "bench/train/settings.h"
#include "bench/train/workload.h"

enum { OPTIMIZER_STATES = 2 };

#define OPTIMIZER_EPS 1e-8

typedef struct optimizer {
    const train_settings *settings;
    size_t length;
    size_t nstates;                  /* 0: sgd, or updates of all segments */
    float *states[OPTIMIZER_STATES]; /* [length]: momentum: s; adamw: m, v */
} optimizer;

void optimizer_open(const train_settings *settings, size_t length, optimizer *out);
void optimizer_close(optimizer *o);

/** The update that --reduce update gives to the library. */
tamis_update optimizer_as_update(const train_settings *settings);

/** Learning rate of a step, counted from 0, of so many: a linear warm-up that reaches --lr in its
 * last step, then constant, or half a cosine down to --lr-floor. */
double optimizer_rate(const train_settings *settings, uint64_t step, uint64_t steps);

typedef struct optimizer_pace {
    uint64_t step; /* counted from 0 */
    float rate;
} optimizer_pace;

/** One step of all parameters. `work` says which segments decay. */
void optimizer_update(optimizer *o, const workload *work, const optimizer_pace *pace,
                      const float *grad, float *params);

/** sgd for a sparse g, given by its nonzero entries. */
void optimizer_update_sparse(float rate, const uint32_t *indices, const float *values, size_t count,
                             float *params);

#endif
