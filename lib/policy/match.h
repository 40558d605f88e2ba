/* SPDX-License-Identifier: MIT
 *
 * A scale of update mode that follows norms (tamis_update.match): what ranks apply should be as
 * large, times a constant, as what each of them would have applied alone. So over the last steps;
 * and no single step may be larger, for when gradients grow suddenly the picks of all ranks agree,
 * their mean grows more than what each rank has, and a mean over steps sees it too late.
 */
#ifndef TAM_POLICY_MATCH_H
#define TAM_POLICY_MATCH_H

#include "lib/base/base.h"

#define TAM_MATCH_MOST 1e6 /* of a scale; its default limit */

/** Squared norms over the last steps, weighed alike: of what a rank picked from, as a mean over
 * ranks, and of what was applied, before any scale. Means from 0 on: their weights sum to
 * `weight`. */
typedef struct tam_match {
    double own, applied, weight;
    double last; /* of the last step alone: what was applied */
} tam_match;

/** What one step makes of them. A step whose sums are not finite changes nothing: it is skipped, or
 * those entries are dropped. */
tam_match tam_match_learn(tam_match match, double own, double applied);

/** @param  ratio  tamis_update.match
 * @return from 1e-6 to `most`; 1 while nothing is known */
double tam_match_scale(tam_match match, double ratio, double most);

/** Whether it is one that tam_match_learn can make, for states that come from files. */
bool tam_match_valid(tam_match match);

#endif
