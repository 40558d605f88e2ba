/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself: stream_rows.c has the ways to do so, stream_plan.c what is
 * opened for them, stream_arm.c warms up and sizes, stream.c drives.
 */
#ifndef TAM_REDUCER_STREAM_H
#define TAM_REDUCER_STREAM_H

#include "collectives/reducer/inflight.h"

static inline bool tam_stream_is_sparse_rows(const tam_bucket *b) {
    return b->layout->nrow_segments > 0;
}

static inline bool tam_stream_is_first(const tam_bucket *b) {
    return b->view.index == 0;
}

/** The first bucket's step stands for all. */
static inline tam_cuda_step *tam_stream_leader(const tamis_reducer *r) {
    return r->inflight->steps[0];
}

static inline bool tam_stream_in_nodes(const tam_bucket *b) {
    return b->node_shard.nlocal > 1;
}

/** Buckets may have the same configuration and packets of the same size for another density, so k
 * is part of what their headers tell. */
static inline uint64_t tam_stream_config(const tam_bucket *b) {
    return b->view.config_hash + b->reducer->k;
}

/** A way in which the device runs the steps of a bucket: tam_exchange.on_device says which. */
typedef struct tam_stream_row {
    /** Open the step, with memory for k_max. Its state is loaded next. */
    tamis_status (*open)(tam_bucket *b);

    /** Messages that have room for k entries of all buckets together. NULL: they do not depend on
     * k. */
    tamis_status (*resize)(const tam_bucket *b, uint64_t k);

    /** Bytes that this rank sends in a step. */
    uint64_t (*wire_bytes)(const tam_bucket *b);

    tam_cuda_enqueue enqueue; /* the collectives of a step, and the phases between them */
    tam_cuda_enqueue warm_up; /* the collectives alone */
} tam_stream_row;

const tam_stream_row *tam_stream_row_of(const tam_bucket *b);

/* stream_plan.c */

tamis_status tam_stream_open_dense(tam_bucket *b);
tamis_status tam_stream_open_sparse(tam_bucket *b);
tamis_status tam_stream_resize(const tam_bucket *b, uint64_t k);

/* stream_arm.c */

/** Sizes for the present k, warmed up and captured. Collective. */
tamis_status tam_stream_arm(tamis_reducer *r);

/** Adapt the sizes before a step, if k has outgrown the sizes there are, or is well below them. On
 * ranks that call it while others do not, it fails, as does the step of those. */
tamis_status tam_stream_rearm(tamis_reducer *r, void *caller);

#endif
