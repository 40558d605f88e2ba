/* SPDX-License-Identifier: MIT
 *
 * The exchanges that buckets can use: each has a file here and a line of TAM_EXCHANGES.
 */
#ifndef TAM_EXCHANGE_TABLE_H
#define TAM_EXCHANGE_TABLE_H

#include "lib/contracts/exchange.h"
#include "lib/policy/scheme.h"

#define TAM_EXCHANGE_ROW(NAME, name, word) extern const tam_exchange tam_exchange_##name;
TAM_EXCHANGES(TAM_EXCHANGE_ROW)
#undef TAM_EXCHANGE_ROW

extern const tam_exchange tam_exchange_hierarchical; /* around one of them */

/** The row of a scheme's exchange, in which all ranks have the same role. @param  kind  not auto */
const tam_exchange *tam_exchange_flat(tam_exchange_kind kind);

#endif
