/* SPDX-License-Identifier: MIT
 *
 * A scale of update mode that follows norms (tamis_update.match): what ranks apply should be as
 * large, times a constant, as what each of them would have applied alone. So over the last steps;
 * and no single step may be larger, for when gradients grow suddenly the entries of all ranks
 * agree, their mean grows more than what each rank has, and a mean over steps sees it too late.
 *
 * Host and accelerator both compile it.
 */
#ifndef TAM_POLICY_MATCH_H
#define TAM_POLICY_MATCH_H

#include "lib/base/numbers.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define TAM_MATCH_WEIGHT 0.05 /* of the last step; measured (docs/fidelity.md) */
#define TAM_MATCH_LEAST 1e-6  /* of a scale */
#define TAM_MATCH_MOST 1e6    /* its default limit */

/** Squared norms over the last steps, weighed alike: of what a rank selected from, as a mean over
 * ranks, and of what was applied, before any scale. Means from 0 on: their weights sum to
 * `weight`. */
typedef struct tam_match {
    double own, applied, weight;
    double last; /* of the last step alone: what was applied */
} tam_match;

TAM_SHARED double tam_match_blend(double mean, double last) {
    return (1.0 - TAM_MATCH_WEIGHT) * mean + TAM_MATCH_WEIGHT * last;
}

/** What one step makes of them. A step whose sums are not finite changes nothing: it is skipped, or
 * those entries are dropped. */
TAM_SHARED tam_match tam_match_learn(tam_match match, double own, double applied) {
    if (!(own <= DBL_MAX && applied <= DBL_MAX))
        return match;
    match.own = tam_match_blend(match.own, own);
    match.applied = tam_match_blend(match.applied, applied);
    match.weight = tam_match_blend(match.weight, 1.0);
    match.last = applied;
    return match;
}

/** @param  ratio  tamis_update.match
 * @return from 1e-6 to `most`; 1 while nothing is known */
TAM_SHARED double tam_match_scale(tam_match match, double ratio, double most) {
    double last = match.weight * match.last, scale = 1.0;
    double applied = match.applied > last ? match.applied : last;
    if (match.own > 0.0 && applied > 0.0)
        scale = ratio * sqrt(match.own / applied);
    if (scale < TAM_MATCH_LEAST)
        scale = TAM_MATCH_LEAST;
    return scale < most ? scale : most;
}

/** Whether it is one that tam_match_learn can make, for states that come from files. */
bool tam_match_valid(tam_match match);

#endif
