/* SPDX-License-Identifier: MIT
 *
 * The density of a step: straight lines over the steps, of its logarithm.
 *
 *     start   .
 *               .        the warm-up of Deep Gradient Compression (Lin et al., arXiv 1712.01887,
 *     density     .      section 3.3), which falls by as much in each epoch
 *                   `  .
 *     end                  `  .
 *             0   warm-up    steps
 *
 * Without --density-end it stays where the warm-up has left it.
 */
#ifndef TAMIS_TRAIN_DENSITY_H
#define TAMIS_TRAIN_DENSITY_H

#include "bench/train/settings.h"

/** Whether it is not the same in all steps. */
bool density_moves(const train_settings *settings);

/** Of a step, counted from 0, of so many. */
double density_at(const train_settings *settings, uint64_t step, uint64_t steps);

/** The largest of all steps. */
double density_most(const train_settings *settings);

#endif
