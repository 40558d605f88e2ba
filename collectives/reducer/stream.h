/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself: stream_plan.c opens those of the buckets, stream_arm.c has
 * their collectives and sizes, stream.c drives them.
 */
#ifndef TAM_REDUCER_STREAM_H
#define TAM_REDUCER_STREAM_H

#include "collectives/reducer/inflight.h"

/** If not, the gradient itself is summed. */
static inline bool tam_stream_selects(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_SELECTS;
}

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

/* stream_plan.c */

/** Open the step of a bucket, with memory for k_max. Its state is loaded next. */
tamis_status tam_stream_open_step(tam_bucket *b);

/** Messages that have room for k entries of all buckets together. */
tamis_status tam_stream_resize(const tam_bucket *b, uint64_t k);

/** Bytes that this rank sends in a step. */
uint64_t tam_stream_wire_bytes(const tam_bucket *b);

/* stream_arm.c */

/** The collectives of a bucket's step, and the phases between them. */
tam_cuda_enqueue tam_stream_enqueue_of(const tam_bucket *b);

/** Sizes for the present k, warmed up and captured. Collective. */
tamis_status tam_stream_arm(tamis_reducer *r);

/** Adapt the sizes before a step, if k has outgrown the sizes there are, or is well below them. On
 * ranks that call it while others do not, it fails, as does the step of those. */
tamis_status tam_stream_rearm(tamis_reducer *r, void *caller);

#endif
