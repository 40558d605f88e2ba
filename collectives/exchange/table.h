/* SPDX-License-Identifier: MIT
 *
 * The ways in which buckets are exchanged: a file here and a line of TAM_EXCHANGES for each.
 */
#ifndef TAM_EXCHANGE_TABLE_H
#define TAM_EXCHANGE_TABLE_H

#include "lib/base/exchange.h"
#include "lib/policy/scheme.h"

#define TAM_EXCHANGE_ROW(NAME, name, word) extern const tam_exchange tam_exchange_##name;
TAM_EXCHANGES(TAM_EXCHANGE_ROW)
#undef TAM_EXCHANGE_ROW

extern const tam_exchange tam_exchange_hierarchical; /* around one of them */

/** The row of a bucket's scheme, among ranks that all take part alike. @param  kind  not auto */
const tam_exchange *tam_exchange_flat(tam_exchange_kind kind);

#endif
