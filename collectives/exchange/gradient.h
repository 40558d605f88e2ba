/* SPDX-License-Identifier: MIT
 *
 * The gradient of a bucket as its caller has it: flat or by segment, in host or device memory, of
 * whatever type. Seen in runs, which follow from the layout alone, so that all ranks have the same
 * ones whatever form their gradients have: whole segments, as many as fit a piece, or one that is
 * longer.
 *
 *     segments   | a | b | c | d ............................ | e | f |
 *     runs       |     0     |               1                |   2   |
 *
 * A run is made of stretches, which lie one after another in memory.
 */
#ifndef TAM_EXCHANGE_GRADIENT_H
#define TAM_EXCHANGE_GRADIENT_H

#include "lib/base/exchange.h"
#include "lib/policy/layout.h"

enum { TAM_GRADIENT_PIECE = 1 << 20 }; /* elements that are staged at a time */

typedef struct tam_gradient_part {
    size_t at, count; /* elements of the bucket */
    uint32_t first;   /* segment in which it begins */
} tam_gradient_part;

/** Whether runs pass through the staging area wherever they lie; the same on all ranks. */
bool tam_gradient_staged(const tam_bucket_view *view);

/** The run behind `last`, which is {0} at first. */
tam_gradient_part tam_gradient_run(const tam_bucket_view *view, tam_gradient_part last);

/** Where a run lies that is one stretch of floats in host memory; else NULL. */
float *tam_gradient_place(const tam_bucket_view *view, const tam_gradient_part *run);

/** A run between the gradient and staging memory, stretch by stretch. */
tamis_status tam_gradient_take(const tam_bucket_view *view, const tam_gradient_part *run,
                               void *staging);
tamis_status tam_gradient_give(const tam_bucket_view *view, const tam_gradient_part *run,
                               void *staging);

/** Zeros. */
tamis_status tam_gradient_clear(const tam_bucket_view *view);

#endif
