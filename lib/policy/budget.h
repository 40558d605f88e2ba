/* SPDX-License-Identifier: MIT
 *
 * How many entries a group may get, and which rank selects in it (DEFT).
 */
#ifndef TAM_POLICY_BUDGET_H
#define TAM_POLICY_BUDGET_H

#include "lib/base/base.h"
#include "lib/contracts/device.h"

/**
 * Divide k among the groups in proportion to their L2 norms, at least 1, at most all of a group.
 *
 * Groups are visited by descending norm. Each takes floor(K * norm / N), where K entries and a sum
 * N of norms are left, so that the surplus of a small group with a large norm flows to the next.
 * The sum is near k, not equal: with many groups, at least 1 each can exceed it.
 *
 * @param  order    [scratch]  tam_pair[ngroups]
 * @param  budgets  [out]      uint32[ngroups]
 *
 * Source: DEFT (arXiv 2307.03500), layer-wise assignment of k; ties of norms by lowest index.
 */
void tam_budget_norm(uint64_t k, const double *norms, const tam_grid *grid, tam_pair *order,
                     uint32_t *budgets);

/**
 * Pack the groups into `nbins` bins of even cost: repeatedly the costliest into the lightest.
 *
 * Selecting k of n costs n log2 k if k > 1, else n. A group that is taken whole goes to all ranks,
 * not to a bin: TAM_PART_COMMON.
 *
 * @param  order  [scratch]  tam_pair[ngroups]
 * @param  loads  [scratch]  double[nbins]
 * @param  parts  [out]      uint32[ngroups]
 *
 * Source: DEFT (arXiv 2307.03500), bin-packing-based layer allocation.
 */
void tam_bins_pack(const uint32_t *budgets, const tam_grid *grid, uint32_t nbins, tam_pair *order,
                   double *loads, uint32_t *parts);

#endif
