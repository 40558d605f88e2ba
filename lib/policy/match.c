/* SPDX-License-Identifier: MIT */
#include "lib/policy/match.h"

#include <math.h>

#define WEIGHT 0.05 /* of the last step; measured (docs/fidelity.md) */
#define LEAST 1e-6

static double blend(double mean, double last) {
    return (1.0 - WEIGHT) * mean + WEIGHT * last;
}

tam_match tam_match_learn(tam_match match, double own, double applied) {
    if (!(own < INFINITY && applied < INFINITY))
        return match;
    return (tam_match){blend(match.own, own), blend(match.applied, applied),
                       blend(match.weight, 1.0), applied};
}

double tam_match_scale(tam_match match, double ratio, double most) {
    double applied = fmax(match.applied, match.weight * match.last), scale = 1.0;
    if (match.own > 0.0 && applied > 0.0)
        scale = fmax(ratio * sqrt(match.own / applied), LEAST);
    return fmin(scale, most);
}

static bool is_square(double x) {
    return x >= 0.0 && x < INFINITY;
}

bool tam_match_valid(tam_match match) {
    return is_square(match.own) && is_square(match.applied) && is_square(match.last) &&
           match.weight >= 0.0 && match.weight <= 1.0;
}
