/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/table.h"

#define ROW(NAME, name, word) &tam_exchange_##name,
static const tam_exchange *const rows[TAM_EXCHANGE_KINDS] = {TAM_EXCHANGES(ROW)};

const tam_exchange *tam_exchange_flat(tam_exchange_kind kind) {
    return rows[kind];
}
