/* SPDX-License-Identifier: MIT
 *
 * Exchanges that sum the values of all ranks at the same entries: a sparse row, and a sum of
 * encoded values.
 */
#ifndef TAM_EXCHANGE_UNITED_H
#define TAM_EXCHANGE_UNITED_H

#include "collectives/exchange/sparse.h"
#include "collectives/exchange/value_sum.h"

typedef struct tam_united {
    tam_sparse sparse; /* first */
    tam_value_sum sum;
} tam_united;

/** @param  most  entries of a result */
tamis_status tam_united_open(tam_bucket_view *view, const tam_packets *packets, size_t most,
                             tam_united **out);
void tam_united_close(void *self, bool in_flight);

/** Read what this rank holds at the entries sparse.indices, sum it over ranks into sparse.values,
 * and tell the outcome. */
tamis_status tam_united_sum(tam_united *united, tam_link *link, size_t count);

#endif
