/* SPDX-License-Identifier: MIT
 *
 * One budget for all stages of a pipeline: stages that idle longer between two steps send more.
 */
#ifndef TAM_POLICY_BUBBLE_H
#define TAM_POLICY_BUBBLE_H

#include "lib/policy/bucket.h"

/**
 * Divide k among the stages such that the latest exchange ends as early as possible beyond its
 * window:
 *
 *     minimise  max_s (entry_s[s] * budgets[s] - windows_s[s]),  sum of budgets = k
 *
 *     stage 0            [=======|====]      [ backward has ended and the exchange begins
 *     stage 1      [=============|====]      | the window ends: the next input is there
 *     stage 2  [=================|====]      ] the exchange ends, on all stages equally late
 *
 * Each budget is between half of the budget by length and that and the mean budget (bucket.h), so a
 * stage may end earlier or later than the level. Bisection finds the level in a fixed number of
 * steps, then budgets are rounded: all ranks get the same bits.
 *
 * Subtract the fixed cost of an exchange from its window. Budgets are by length if a time is not
 * finite, an entry_s not above 0, no window above 0, or k less than nstages.
 *
 * @param  k          [in]       at most the sum of the lengths, which is below 2^47
 * @param  windows_s  [in]       double[nstages] free time of a step; may be negative
 * @param  entry_s    [in]       double[nstages] seconds that one entry takes
 * @param  even       [scratch]  uint64[nstages]: the budgets by length
 */
void tam_bubble_divide(uint64_t k, uint32_t nstages, const uint64_t *lengths,
                       const double *windows_s, const double *entry_s, uint64_t *even,
                       uint64_t *budgets);

#endif
