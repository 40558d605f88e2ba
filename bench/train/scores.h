/* SPDX-License-Identifier: MIT
 *
 * Softmax and cross-entropy of one row of scores, a score for each class.
 */
#ifndef TAMIS_TRAIN_SCORES_H
#define TAMIS_TRAIN_SCORES_H

#include <stddef.h>

/** Replace the scores by the gradient of the row's loss, divided by `rows`, with respect to them.
 * @return the loss, in nats. */
double scores_gradient(float *scores, size_t classes, size_t label, size_t rows);

/** The loss alone. */
double scores_loss(const float *scores, size_t classes, size_t label);

/** The class with the highest score, the first of equal ones. */
size_t scores_best(const float *scores, size_t classes);

#endif
