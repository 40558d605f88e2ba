/* SPDX-License-Identifier: MIT
 *
 * How many entries a group may have, and which rank selects in it (DEFT).
 */
#ifndef TAM_POLICY_BUDGET_H
#define TAM_POLICY_BUDGET_H

#include "lib/base/base.h"
#include "lib/base/device.h"

/**
 * Share k among the groups in proportion to their L2 norms, at least 1, at most all of a group.
 *
 * Groups are visited by descending norm and take floor(K * norm / N) of what is left, so that the
 * surplus of a small group with a large norm flows to the next. The sum is near k, not equal: at
 * least 1 each can exceed it when there are many groups.
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
 * Cost of selecting k of n: n log2 k if k > 1, else n. A group that is taken whole goes to no bin
 * but to all ranks: TAM_PART_COMMON.
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
