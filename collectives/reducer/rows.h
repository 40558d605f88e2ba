/* SPDX-License-Identifier: MIT
 *
 * Segments of which few rows are touched: only those travel, exactly.
 *
 * What is special about such a bucket is what it picks and how the picks are summed (rows.c); its
 * accumulate pass, its slots, the end of the step are those of the others. Its part of the residual
 * holds what came since the last step, and is zero after each: all that was touched leaves.
 */
#ifndef TAM_REDUCER_ROWS_H
#define TAM_REDUCER_ROWS_H

#include "collectives/reducer/reducer.h"

struct tam_rows {
    uint32_t length, count; /* elements of a row; rows */
    uint32_t most;          /* rows that a rank lists; if it touched more it says "all" */
    bool all;               /* so in this step */
    uint32_t nunited;
    unsigned char *marks; /* [count] touched */
    uint32_t *united;     /* [count] rows that any rank touched, ascending */
};

/** Before anything else of the bucket is opened, but for its layout: sizes. */
tamis_status tam_rows_plan(tam_bucket *b);
/** Memory of the exchange. */
tamis_status tam_rows_open(tam_bucket *b);
void tam_rows_close(tam_bucket *b);

/** The rows that this rank touched, into its slot. */
tamis_status tam_rows_pick(tam_bucket *b, size_t *count);

/** Slots are here: the union of all, its elements and their sums. */
tamis_status tam_rows_reduce(tam_bucket *b, tam_link *link);

/** Scheme dense, of a step that is skipped: nothing is kept of it. */
tamis_status tam_rows_forget(tam_bucket *b);

#endif
