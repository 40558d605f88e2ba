/* SPDX-License-Identifier: MIT
 *
 * tamis/overlap.h - buckets, readiness, micro-batches: exchange while backward still computes.
 *
 *     for (int i = 1; i < micro_batches; i++) {
 *         backward(grads);
 *         tamis_reducer_accumulate(red, &step);               adds up, exchanges nothing
 *     }
 *     for (uint32_t s = nsegments; s-- > 0;) {
 *         backward_of(s, grads);
 *         tamis_reducer_ready(red, s, &step);                 in place of tamis_reducer_start
 *     }
 *     tamis_reducer_wait(red);
 *
 * Threads      One thread at a time per reducer, but one may call tamis_reducer_ready while another
 *              is inside tamis_reducer_wait.
 */
#ifndef TAMIS_OVERLAP_H
#define TAMIS_OVERLAP_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A reducer may divide its segments into buckets, each exchanged separately while the backward pass
 * still computes others. Buckets are runs of whole segments. All ranks exchange them from the last
 * segment to the first, the order in which backward produces gradients. A bucket that is ready out
 * of turn waits for those before it, so no order of readiness can lead to a deadlock.
 *
 *     segments     W1 b1 | W2 b2 | W3 b3 | W4 b4        buckets  3 2 1 0
 *     backward     ......................... W4 b4 W3 b3 W2 b2 W1 b1
 *     ready                                        0     1     2     3   then wait
 *     exchange                                     [ 0 ] [ 1 ] [ 2 ] [ 3 ]
 *
 * A step may begin with ready instead of start; a start that follows means "the rest". The result
 * of all buckets is there after wait: nothing is written to a gradient before every bucket has been
 * exchanged. A step that fails has applied nothing; a gradient whose bucket never began is
 * unchanged. (Scheme "dense" sums in place, see wait.) The bits depend on the buckets, not on the
 * order in which segments were marked.
 *
 * Over transports without a thread of their own (see start) the exchange overlaps with backward if
 * another thread is inside wait meanwhile: it exchanges the buckets as they become ready.
 *
 * Several reducers may share a communicator only if their buckets begin in the same order on all
 * ranks; otherwise give each reducer its own.
 */

/**
 * The gradient of one segment is complete; it belongs to the library until wait.
 *
 * The first call begins a step. All calls of a step, and start, give the same `grad` or `grads`,
 * `scale`, `stream`, `before`, `rates` and `agreed`; of lists only this segment's entry is read.
 * When this completes the bucket whose turn it is, that bucket is accumulated (worker `caller`:
 * here) and its exchange begins; so are any later buckets that waited for it.
 *
 * Collective: no: any order, which may differ between ranks, within one reducer
 * Cost:       less than a microsecond if no bucket begins; no allocation
 * Errors:     ARGUMENT; STATE: marked twice, or the last step has not been waited for: no effect;
 *             else as tamis_reducer_start
 */
TAMIS_CHECKED tamis_status tamis_reducer_ready(tamis_reducer *reducer, uint32_t segment,
                                               const tamis_step *step);

/**
 * Add a gradient to the residual and exchange nothing: one micro-batch of several. Give the last
 * micro-batch to start or ready. No second buffer is needed; dense output clears the gradient as
 * start does.
 *
 * Collective: no               Order:  when it returns the gradient has been read; CUDA: in the
 *                                      order of step.stream where the device runs steps by itself
 * Cost:       one pass, as start      Errors:  ARGUMENT, STATE (a step is under way), UNSUPPORTED
 *                                              (scheme dense, which has no residual; more than
 *                                              one rank per node; update mode): no effect;
 *                                              DEVICE: the comm
 */
TAMIS_CHECKED tamis_status tamis_reducer_accumulate(tamis_reducer *reducer, const tamis_step *step);

/**
 * Whether wait would return at once. Over transports without a thread of their own (local,
 * callback, MPI without THREAD_MULTIPLE) this call runs the exchange and may take as long as wait.
 *
 * @param  done  [out]  1 or 0; still 0 while segments are not ready
 * Errors:     ARGUMENT, STATE (no step is under way)
 */
TAMIS_CHECKED tamis_status tamis_reducer_test(tamis_reducer *reducer, int *done);

/** One bucket of a reducer. */
typedef struct tamis_bucket {
    size_t size;
    uint32_t first_segment, nsegments;
    uint64_t begin, length;  /* elements */
    uint64_t target;         /* entries it will send in the next step, all ranks together; 0 for a
                                 segment that has rows: unknown */
    const char *index_codec; /* how its indices travel, of TAMIS_INDEX_CODECS; "none" where
                                 everything travels */
    const char *exchange;    /* "union", "pairs", "dense", "sparse-rows", ... */
    double predicted_us;     /* of a step of this bucket by itself, by the model of exchange auto
                                 (docs/exchange.md); else 0 */

    /* The part of the bucket in this rank's residual: `residual_length` elements, from
     * residual_begin on; the i-th is element begin + shard_first + i / shard_run * shard_stride + i
     * % shard_run. With ranks_per_node a shard, otherwise the whole bucket; nothing with scheme
     * "dense". */
    uint64_t residual_length, residual_begin, shard_first, shard_run, shard_stride;
} tamis_bucket;

#define TAMIS_BUCKET_INIT TAMIS_INIT(tamis_bucket, )

/** Number of buckets; 0 for NULL. */
TAMIS_API uint32_t tamis_reducer_nbuckets(const tamis_reducer *reducer);

/** The index-th bucket in the order of the exchange: 0 holds the last segment. */
TAMIS_CHECKED tamis_status tamis_reducer_bucket_at(const tamis_reducer *reducer, uint32_t index,
                                                   tamis_bucket *out);

#ifdef __cplusplus
}
#endif

#endif
