/* SPDX-License-Identifier: MIT
 *
 * The gradient of a bucket as the caller holds it: flat or by segment, in host or device memory, of
 * any type. It is processed in runs: as many whole segments as fit a piece, or one longer segment.
 * Runs follow from the layout alone, so all ranks have the same runs, whatever the form of their
 * gradients.
 *
 *     segments   | a | b | c | d ............................ | e | f |
 *     runs       |     0     |               1                |   2   |
 *
 * A run consists of stretches, each contiguous in memory.
 */
#ifndef TAM_EXCHANGE_GRADIENT_H
#define TAM_EXCHANGE_GRADIENT_H

#include "lib/contracts/exchange.h"
#include "lib/policy/layout.h"

enum { TAM_GRADIENT_PIECE = 1 << 20 }; /* elements that are staged at a time */

typedef struct tam_gradient_part {
    size_t at, count; /* elements of the bucket */
    uint32_t first;   /* segment in which it begins */
} tam_gradient_part;

/** Whether all runs must pass through the staging area; the same on all ranks. */
bool tam_gradient_staged(const tam_bucket_view *view);

/** The run after `last`, which is {0} at first. */
tam_gradient_part tam_gradient_run(const tam_bucket_view *view, tam_gradient_part last);

/** Address of a run that is one stretch of floats in host memory; else NULL. */
float *tam_gradient_address(const tam_bucket_view *view, const tam_gradient_part *run);

/** Copy a run from the gradient to staging memory, or back, stretch by stretch. */
tamis_status tam_gradient_read(const tam_bucket_view *view, const tam_gradient_part *run,
                               void *staging);
tamis_status tam_gradient_write(const tam_bucket_view *view, const tam_gradient_part *run,
                                void *staging);

/** Fill the gradient with zeros. */
tamis_status tam_gradient_clear(const tam_bucket_view *view);

#endif
