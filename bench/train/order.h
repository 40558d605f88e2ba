/* SPDX-License-Identifier: MIT
 *
 * Which samples a step takes. Their order depends on seed and epoch alone; a step takes the next
 * `together` of them, ranks * batch, rank after rank. What is left of an epoch and too little for a
 * step is left out. So all schemes see the same samples in the same order, and so do all numbers of
 * ranks with the same product.
 */
#ifndef TAMIS_TRAIN_ORDER_H
#define TAMIS_TRAIN_ORDER_H

#include <stdint.h>

typedef struct order {
    uint64_t count, seed, together;
    uint32_t *samples; /* [count]: permutation in epoch `epoch` - 1 */
    uint64_t epoch;
} order;

/** @param count  of samples, at least `together` */
void order_open(uint64_t count, uint64_t seed, uint64_t together, order *out);
void order_close(order *o);

/** The samples of a step, all ranks together. */
const uint32_t *order_of(order *o, uint64_t step);

uint64_t order_epoch_steps(const order *o);

#endif
