/* SPDX-License-Identifier: MIT
 *
 * Selection: which entries of its residual a rank selects, by the scheme's ownership, budget and
 * threshold, in three steps:
 *
 *     plan   bins only: one rank packs, and all learn where to select
 *     find   sage, reuse only: this rank's threshold, from its own accumulated gradient
 *     run    candidates -> indices, ascending
 */
#ifndef TAM_EXCHANGE_SELECTION_H
#define TAM_EXCHANGE_SELECTION_H

#include "lib/contracts/exchange.h"
#include "lib/policy/control.h"
#include "lib/policy/node_shard.h"

/** DEFT's plan of the step, made by one rank and sent to all. */
typedef struct tam_packing {
    uint32_t *budgets; /* [ngroups] of this rank, from its own norms */
    uint32_t *parts;   /* [ngroups] as this rank would pack */
    uint32_t *all;     /* [nranks * ngroups] as every rank would; the delegate's is used */
    double *loads;     /* [nranks] scratch */
} tam_packing;

/** The policies by which the bucket selects. */
static inline tam_scheme tam_selection_scheme(const tam_bucket_view *view) {
    return view->division->scheme;
}

/** Most indices that one rank sends when the bucket may take k. */
size_t tam_selection_most(const tam_bucket_view *view, uint64_t k);

/** Whether packets have room for that many and never grow; else headers say how long lists are. */
bool tam_selection_bounded(const tam_bucket_view *view);

/** Candidates that kernels should have room for. */
size_t tam_selection_candidates(const tam_bucket_view *view);

/** Sums in a header: one for each group if thresholds or budgets of buckets follow from norms,
 * else 0. */
uint32_t tam_selection_sums(const tam_bucket_view *view);

/** Memory for the plan, in schemes that have one. Close it in any case. */
tamis_status tam_packing_open(const tam_bucket_view *view, tam_packing *out);
void tam_packing_close(tam_packing *packing, bool in_flight);

/** After accumulate. @param  config  [in,out]  hash that headers must carry; the packing is hashed
 * in, so headers show whether all ranks received the same one */
tamis_status tam_selection_plan(const tam_bucket_view *view, tam_packing *packing, tam_link *link,
                                uint64_t *config);

/** @param  limit  most indices; `indices` has room for as many */
tamis_status tam_selection_run(const tam_bucket_view *view, const tam_packing *packing,
                               size_t limit, uint32_t *indices, tam_select_result *out);

#endif
