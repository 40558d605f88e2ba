/* SPDX-License-Identifier: MIT
 *
 * The schedule of a pipeline: layers per stage, and the order of a stage's passes in a step by 1F1B
 * (PipeDream-Flush: Narayanan et al., arXiv 2104.04473). Every stage first runs as many forward
 * passes as the last stage needs to begin, then alternates forward and backward passes, and at the
 * end runs the remaining backward passes. S = 3, M = 4, forward in small letters:
 *
 *     stage 0   a b c . . A d B . C . D        index     0 1 2 3 4 5 6 7
 *     stage 1   . a b . A c B d C . D          stage 1   a b A c B d C D
 *     stage 2   . . a A b B c C d D
 *
 * Forward passes and backward passes each follow the order of the micro-batches, so messages
 * between neighbours need no labels: they arrive in the order in which they are awaited. Stage s
 * holds the activations of at most min(M, S - s) micro-batches.
 */
#ifndef TAMIS_TRAIN_SCHEDULE_H
#define TAMIS_TRAIN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct schedule_pass {
    bool backward;
    uint32_t micro; /* micro-batch, 0 to M - 1 */
} schedule_pass;

/** The index-th of the 2 M passes of a stage. */
schedule_pass schedule_1f1b(uint32_t stage, uint32_t nstages, uint32_t micro_batches,
                            uint32_t index);

/** The most micro-batches whose activations a stage holds at once. */
uint32_t schedule_in_flight(uint32_t stage, uint32_t nstages, uint32_t micro_batches);

enum { SCHEDULE_LAYERS = 65 }; /* the most that can be divided */

/**
 * Divide `nlayers` consecutive layers among `nstages` stages, at least one each. The division
 * minimises the sum of squares of the stages' lengths, so it is the most even one.
 *
 * @param  first  [out]  uint32_t[nstages + 1]: stage s has the layers first[s] to first[s + 1] - 1
 */
void schedule_layers(const uint64_t *lengths, uint32_t nlayers, uint32_t nstages, uint32_t *first);

#endif
