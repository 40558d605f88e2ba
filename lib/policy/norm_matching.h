/* SPDX-License-Identifier: MIT
 *
 * A scale of update mode that follows norms (tamis_update.norm_matching): what ranks apply should
 * be as large, times a constant, as what each of them would have applied alone. So over the last
 * steps; and no single step may be larger, for when gradients grow suddenly the entries of all
 * ranks agree, their mean grows more than what each rank has, and a mean over steps sees it too
 * late.
 *
 * Host and accelerator both compile it.
 */
#ifndef TAM_POLICY_NORM_MATCHING_H
#define TAM_POLICY_NORM_MATCHING_H

#include "lib/base/numbers.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define TAM_NORM_MATCHING_WEIGHT 0.05 /* of the last step; measured (docs/fidelity.md) */
#define TAM_NORM_MATCHING_LEAST 1e-6  /* of a scale */
#define TAM_NORM_MATCHING_MOST 1e6    /* its default limit */

/** Squared norms over the last steps, equally weighted: of what a rank selected from, as a mean
 * over ranks, and of what was applied, before any scale. Means from 0 on: their weights sum to
 * `weight`. */
typedef struct tam_norm_matching {
    double own, applied, weight;
    double last; /* of the last step alone: what was applied */
} tam_norm_matching;

TAM_SHARED double tam_norm_matching_blend(double mean, double last) {
    return (1.0 - TAM_NORM_MATCHING_WEIGHT) * mean + TAM_NORM_MATCHING_WEIGHT * last;
}

/** What one step makes of them. A step whose sums are not finite changes nothing: it is skipped, or
 * those entries are dropped. */
TAM_SHARED tam_norm_matching tam_norm_matching_learn(tam_norm_matching norm_matching, double own,
                                                     double applied) {
    if (!(own <= DBL_MAX && applied <= DBL_MAX))
        return norm_matching;
    norm_matching.own = tam_norm_matching_blend(norm_matching.own, own);
    norm_matching.applied = tam_norm_matching_blend(norm_matching.applied, applied);
    norm_matching.weight = tam_norm_matching_blend(norm_matching.weight, 1.0);
    norm_matching.last = applied;
    return norm_matching;
}

/** @param  ratio  tamis_update.norm_matching
 * @return from 1e-6 to `most`; 1 while nothing is known */
TAM_SHARED double tam_norm_matching_scale(tam_norm_matching norm_matching, double ratio,
                                          double most) {
    double last = norm_matching.weight * norm_matching.last, scale = 1.0;
    double applied = norm_matching.applied > last ? norm_matching.applied : last;
    if (norm_matching.own > 0.0 && applied > 0.0)
        scale = ratio * sqrt(norm_matching.own / applied);
    if (scale < TAM_NORM_MATCHING_LEAST)
        scale = TAM_NORM_MATCHING_LEAST;
    return scale < most ? scale : most;
}

/** Whether it is one that tam_norm_matching_learn can make, for states that come from files. */
bool tam_norm_matching_valid(tam_norm_matching norm_matching);

#endif
