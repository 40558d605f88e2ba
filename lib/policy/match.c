/* SPDX-License-Identifier: MIT */
#include "lib/policy/match.h"

#include <math.h>

#define WEIGHT 0.05 /* of the last step; measured (docs/fidelity.md) */
#define LEAST 1e-6

tam_match tam_match_learn(tam_match match, double own, double applied) {
    if (!(own < INFINITY && applied < INFINITY))
        return match;
    return (tam_match){(1.0 - WEIGHT) * match.own + WEIGHT * own,
                       (1.0 - WEIGHT) * match.applied + WEIGHT * applied, applied};
}

double tam_match_scale(tam_match match, double ratio, double most) {
    double scale = 1.0;
    if (match.own > 0.0 && match.applied > 0.0)
        scale = fmax(ratio * sqrt(match.own / fmax(match.applied, match.last)), LEAST);
    return fmin(scale, most);
}
