/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/table.h"

static const tam_exchange *const rows[] = {
    [TAM_EXCHANGE_UNION] = &tam_exchange_union,     [TAM_EXCHANGE_PAIRS] = &tam_exchange_pairs,
    [TAM_EXCHANGE_REGIONS] = &tam_exchange_regions, [TAM_EXCHANGE_DENSE] = &tam_exchange_dense,
    [TAM_EXCHANGE_ROWS] = &tam_exchange_rows,
};

const tam_exchange *tam_exchange_flat(tam_exchange_kind kind) {
    return rows[kind];
}

const tam_exchange *tam_exchange_find(tam_exchange_kind kind, uint32_t nlocal) {
    return nlocal > 1 ? &tam_exchange_hierarchical : tam_exchange_flat(kind);
}
