/* SPDX-License-Identifier: MIT */
#include "bench/train/scores.h"

#include <math.h>

static float highest(const float *scores, size_t classes) {
    float top = scores[0];
    for (size_t c = 1; c < classes; c++)
        top = scores[c] > top ? scores[c] : top;
    return top;
}

double scores_gradient(float *scores, size_t classes, size_t label, size_t rows) {
    float top = highest(scores, classes), sum = 0.0f;
    double loss = (double)top - (double)scores[label];
    for (size_t c = 0; c < classes; c++)
        sum += scores[c] = expf(scores[c] - top);
    for (size_t c = 0; c < classes; c++)
        scores[c] = (scores[c] / sum - (c == label ? 1.0f : 0.0f)) / (float)rows;
    return loss + log((double)sum);
}

double scores_loss(const float *scores, size_t classes, size_t label) {
    float top = highest(scores, classes), sum = 0.0f;
    for (size_t c = 0; c < classes; c++)
        sum += expf(scores[c] - top);
    return (double)top - (double)scores[label] + log((double)sum);
}

size_t scores_best(const float *scores, size_t classes) {
    size_t best = 0;
    for (size_t c = 1; c < classes; c++)
        best = scores[c] > scores[best] ? c : best;
    return best;
}
