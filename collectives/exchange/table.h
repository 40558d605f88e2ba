/* SPDX-License-Identifier: MIT
 *
 * The ways in which buckets are exchanged: a file and a line here for each.
 */
#ifndef TAM_EXCHANGE_TABLE_H
#define TAM_EXCHANGE_TABLE_H

#include "lib/base/exchange.h"
#include "lib/policy/scheme.h"

extern const tam_exchange tam_exchange_union;        /* union.c */
extern const tam_exchange tam_exchange_pairs;        /* pairs.c */
extern const tam_exchange tam_exchange_regions;      /* balanced_pairs.c */
extern const tam_exchange tam_exchange_dense;        /* dense.c */
extern const tam_exchange tam_exchange_rows;         /* rows.c */
extern const tam_exchange tam_exchange_hierarchical; /* hierarchical.c */

/** The row of a bucket's scheme, among ranks that all take part alike. @param  kind  not auto */
const tam_exchange *tam_exchange_flat(tam_exchange_kind kind);

/** The row of a bucket's scheme. @param  nlocal  ranks of a node that share a bucket; 1: all alike */
const tam_exchange *tam_exchange_find(tam_exchange_kind kind, uint32_t nlocal);

#endif
