/* SPDX-License-Identifier: MIT
 *
 * The threshold of a rank from its own accumulated gradient (SAGE). Each rank has its own delta and
 * does not share it. In step t, after the pass:
 *
 *     sample    m_t = mean of |acc| at s = floor(n / (1 + n / 400)) places
 *     scale     alpha = m_t / m_(t-1)
 *     count     d' = share of all entries with |acc| >= delta_(t-1) alpha
 *     correct   beta = 2 / (1 + exp(d - d')), gamma = 0.95, 1 or 1.05 as d' / d is far below, near
 *               or far above 1
 *     select    by delta_t = delta_(t-1) alpha beta gamma
 *
 * In binary32, each product rounded, as in the public code of SAGE, where m and all values derived
 * from it are tensors.
 *
 * The first step selects by the first delta and only computes the mean. A step that is not applied
 * leaves delta and m unchanged.
 *
 * Source: SAGE (Yoon, Jeong and Oh, Journal of Supercomputing, 2023).
 */
#ifndef TAM_POLICY_SAGE_H
#define TAM_POLICY_SAGE_H

#include "lib/base/base.h"

typedef struct tam_control_state tam_control_state;

typedef struct tam_sage {
    uint64_t n;
    uint32_t count;         /* entries of a sample */
    uint32_t *positions;    /* [count] */
    float *values;          /* [count] acc there */
    double mean, threshold; /* of the step under way */
} tam_sage;

tamis_status tam_sage_open(uint64_t n, tam_sage *out);
void tam_sage_close(tam_sage *sage);

/** Draw the places of a step: independent and uniform, from (rank, bucket, step) alone. */
void tam_sage_draw(tam_sage *sage, uint32_t rank, uint32_t bucket, uint64_t step);

/** Compute the mean of the values. @return magnitude over which to count; in the first step the
 * threshold itself */
double tam_sage_measure(tam_sage *sage, const tam_control_state *before);

/** Correct the threshold after `counted` entries were over it, so that it finds k. */
void tam_sage_correct(tam_sage *sage, uint64_t counted, uint64_t k);

/** Keep threshold and mean after the step has been applied. */
void tam_sage_keep(const tam_sage *sage, tam_control_state *state);

#endif
