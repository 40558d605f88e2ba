/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself: stream_plan.c opens those of the buckets, stream.c drives
 * them.
 */
#ifndef TAM_REDUCER_STREAM_H
#define TAM_REDUCER_STREAM_H

#include "collectives/reducer/inflight.h"

/** If not, the gradient itself is summed. */
static inline bool tam_stream_picks(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_PICKS;
}

static inline bool tam_stream_is_rowed(const tam_bucket *b) {
    return b->layout->nrowed > 0;
}

static inline bool tam_stream_is_first(const tam_bucket *b) {
    return b->view.index == 0;
}

/** The first bucket's step stands for all. */
static inline tam_cuda_step *tam_stream_leader(const tamis_reducer *r) {
    return r->inflight->steps[0];
}

static inline bool tam_stream_in_nodes(const tam_bucket *b) {
    return b->slice.nlocal > 1;
}

/** Open the step of a bucket, and add what it sends to inflight->wire_bytes. Its state is loaded
 * next. */
tamis_status tam_stream_open_step(tam_bucket *b);

#endif
