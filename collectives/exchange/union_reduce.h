/* SPDX-License-Identifier: MIT
 *
 * Reduction at the union: exchanges that sum the values of all ranks at the same entries. A sparse
 * row, and a sum of encoded values.
 */
#ifndef TAM_EXCHANGE_UNION_REDUCE_H
#define TAM_EXCHANGE_UNION_REDUCE_H

#include "collectives/exchange/sparse.h"
#include "collectives/exchange/value_sum.h"

typedef struct tam_union_reduce {
    tam_sparse sparse; /* first */
    tam_value_sum sum;
} tam_union_reduce;

/** @param  most  entries of a result */
tamis_status tam_union_reduce_open(tam_bucket_view *view, const tam_packets *packets, size_t most,
                                   tam_union_reduce **out);
void tam_union_reduce_close(void *self, bool in_flight);

/** Read what this rank holds at the entries sparse.indices, sum it over ranks into sparse.values,
 * and tell the outcome. */
tamis_status tam_union_reduce_run(tam_union_reduce *reduce, tam_link *link, size_t count);

#endif
