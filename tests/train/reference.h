/* SPDX-License-Identifier: MIT
 *
 * The losses of the models in double precision, each sum written out: what the fast ones must come
 * to, and what their gradients must be the differences of.
 */
#ifndef TAMIS_TESTS_TRAIN_REFERENCE_H
#define TAMIS_TESTS_TRAIN_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "bench/train/settings.h"

/** Mean over `rows` images, uint8_t[rows][28 * 28]. */
double reference_mlp(const train_settings *s, const double *p, const uint8_t *images,
                     const uint8_t *labels, size_t rows);
double reference_cnn(const train_settings *s, const double *p, const uint8_t *images,
                     const uint8_t *labels, size_t rows);

/** Mean over the characters of `rows` windows, uint8_t[rows][context + 1], of tokens. */
double reference_lm(const train_settings *s, const double *p, size_t vocabulary,
                    const uint8_t *windows, size_t rows);

#endif
