/* SPDX-License-Identifier: MIT
 *
 * The density of a step: its logarithm is piecewise linear in the step.
 *
 *     start   .
 *               .        the warm-up of Deep Gradient Compression (Lin et al., arXiv 1712.01887,
 *     density     .      section 3.3), which falls by as much in each epoch
 *                   `  .
 *     end                  `  .
 *             0   warm-up    steps
 *
 * Without --density-end it stays constant after the warm-up.
 */
#ifndef TAMIS_TRAIN_DENSITY_H
#define TAMIS_TRAIN_DENSITY_H

#include "bench/train/settings.h"

#define DENSITY_START 0.25 /* of a warm-up */

/** Whether the density changes during the run. */
bool density_moves(const train_settings *settings);

/** The density of step `step`, counted from 0, of `steps`. */
double density_at(const train_settings *settings, uint64_t step, uint64_t steps);

/** The largest density of all steps. */
double density_most(const train_settings *settings);

#endif
