/* SPDX-License-Identifier: MIT
 *
 * Steps in flight: the device runs them by itself, the host watches.
 */
#ifndef TAM_REDUCER_INFLIGHT_H
#define TAM_REDUCER_INFLIGHT_H

#include "collectives/reducer/reducer.h"
#include "kernels/cuda/cuda.h"

typedef struct tam_inflight {
    tam_job job; /* first: the watch */
    tamis_reducer *reducer;
    uint64_t serial;
    _Atomic uint64_t complete_ns;       /* when its last bucket was launched; 0: not yet */
    uint64_t begin_ns[TAM_BUCKETS_MAX]; /* of each bucket's launch; valid once complete_ns is set */
    tam_cuda_report report;
} tam_inflight;

struct tam_inflight_ring {
    tam_cuda_step *steps[TAM_BUCKETS_MAX]; /* of the buckets; NULLs: not open */
    tam_inflight ring[TAM_CUDA_STEPS];
    uint64_t serial;   /* of the last step started */
    uint64_t retired;  /* of the last one whose outcome is known to the host */
    uint64_t replay;   /* serial of the last report of a caller's graph */
    uint64_t shown;    /* number of the step in the statistics, plus 1 */
    bool captured;     /* the step between start and join is part of a caller's graph */
    uint64_t capacity; /* entries, of all buckets together, that messages have room for */
    uint64_t wire_bytes;
};

/** Begin the record of a step; its job watches the step once it is submitted. */
tam_inflight *tam_inflight_begin(tamis_reducer *r, uint64_t serial, uint64_t begin_ns);
tam_inflight *tam_inflight_of(tam_inflight_ring *inflight, uint64_t serial);

/** Wait for the oldest step in flight and take its report. The reducer is then at the next step. */
tamis_status tam_inflight_retire(tamis_reducer *r);

/** Retire a joined step: if only the step is lost, that was logged and OK is returned. */
tamis_status tam_inflight_retire_joined(tamis_reducer *r);

/** All steps up to this one. @return the first failure */
tamis_status tam_inflight_retire_until(tamis_reducer *r, uint64_t serial);

/** What became of a step that has retired without a loss of the communicator. */
tamis_status tam_inflight_outcome(const tam_inflight *f, int *applied);

/** Take new reports from the caller's captured graphs. */
void tam_inflight_poll_replays(tamis_reducer *r);

#endif
