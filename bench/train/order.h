/* SPDX-License-Identifier: MIT
 *
 * Which samples a step takes. Their order depends on seed and epoch alone; a step takes the next
 * `together` of them, ranks * batch, rank after rank. What is left of an epoch and too little for a
 * step is left out. So all schemes see the same samples in the same order, and so do all numbers of
 * ranks with the same product. If that changes in the middle of an epoch, steps of the new size
 * follow where the last one ended:
 *
 *     | step 0    | step 1    | step 2  | step 3  | left out |      together 12, from step 2 on 10
 */
#ifndef TAMIS_TRAIN_ORDER_H
#define TAMIS_TRAIN_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Where steps of the present size began. */
typedef struct order_origin {
    uint64_t step, epoch, sample; /* sample: place in the epoch */
    uint64_t together;
} order_origin;

typedef struct order {
    uint64_t count, seed;
    order_origin origin;
    uint32_t *samples; /* [count]: permutation in epoch `epoch` - 1 */
    uint64_t epoch;
} order;

/** @param count  of samples, at least `together` */
void order_open(uint64_t count, uint64_t seed, uint64_t together, order *out);
void order_close(order *o);

/** The samples of a step that is not before the origin, all ranks together. */
const uint32_t *order_of(order *o, uint64_t step);

/** From this step on other numbers are taken together. */
void order_regroup(order *o, uint64_t step, uint64_t together);

/** Steps of the present size in an epoch. */
uint64_t order_epoch_steps(const order *o);

/** How many epochs are over before a step. */
double order_epochs(const order *o, uint64_t step);

#endif
