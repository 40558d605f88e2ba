/* SPDX-License-Identifier: MIT
 *
 * tamis/state.h - states of reducers, in files and in memory.
 *
 *     tamis_reducer_save(red, path);                          between steps, also after a loss
 *     ...
 *     tamis_reducer_create(comm, layout, &cfg, &red);         the same options
 *     tamis_reducer_load(red, path);
 *     tamis_reducer_resync(red, &step);                       (tamis/elastic.h)
 *
 * A state is what one rank holds. None of these calls communicates: tamis_reducer_resync, on all
 * ranks, brings states to the same step.
 *
 * Threads      As every call on a reducer: one thread at a time.
 */
#ifndef TAMIS_STATE_H
#define TAMIS_STATE_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Write residual, thresholds and step number of this rank into a file. One file per rank.
 *
 * The file is written beside `path`, flushed and renamed, so `path` is either the old file or the
 * new one. Works on a reducer whose communicator is lost: this is how a failed job saves its work.
 * Waits for joined steps that have not ended; launches of captured graphs must have ended before.
 * The file does not depend on the device.
 *
 * Collective: no               Errors:  ARGUMENT, STATE (between start and wait), IO, NOMEM;
 *                                       DEVICE: its memory could not be read, `path` is unchanged
 */
TAMIS_CHECKED tamis_status tamis_reducer_save(tamis_reducer *reducer, const char *path);

/**
 * Restore the state from a file. The run then continues bit for bit as if it had not stopped.
 *
 * Everything is checked first (version, byte order, lengths, checksums, layout, scheme, density,
 * rank and number of ranks); on any error the reducer is unchanged.
 *
 * Collective: no, but all ranks must load the same step, or call tamis_reducer_resync; the next
 *             step notices if they did not
 * Errors:     ARGUMENT, STATE, IO, FORMAT, NOMEM; DEVICE: the reducer is unusable
 */
TAMIS_CHECKED tamis_status tamis_reducer_load(tamis_reducer *reducer, const char *path);

/*
 * States in memory, for callers that keep their own checkpoints, in two parts, three in update
 * mode:
 *
 *     control    a state file without the vectors: what it belongs to, step number, thresholds,
 *                and what the last step changed: a few KiB, and 12 bytes for each entry of a step
 *                (schemes that select by threshold: four times as many, and 48 KiB; a segment with
 *                rows: 3 bytes an element; momentum: 4 more)
 *     residual   float32[n] in the order of the layout, in host memory
 *     moments    one or two more of these, and the passes that made them
 *
 * None needs communication, and all work on a reducer whose communicator is lost. Order with
 * respect to steps as for tamis_reducer_save.
 */

/** Bytes of the control part, constant over the life of a reducer. Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_reducer_control_bytes(const tamis_reducer *reducer, size_t *out);

/**
 * Write the control part.
 *
 * @param  memory  [out]  any alignment
 * @param  bytes   [in]   from tamis_reducer_control_bytes
 *
 * Cost:       reads the residual once, for its checksum
 * Errors:     ARGUMENT, STATE (between start and wait), NOMEM; DEVICE
 */
TAMIS_CHECKED tamis_status tamis_reducer_save_control(tamis_reducer *reducer, void *memory,
                                                      size_t bytes);

/**
 * Copy the residual.
 *
 * @param  out  [out]  float32[n] (ranks_per_node: as tamis_reducer_residual), host memory, also for
 *                     a CUDA device
 *
 * Errors:     ARGUMENT, STATE (between start and wait), UNSUPPORTED (scheme dense has none), NOMEM;
 *             DEVICE: part of it may have been written
 */
TAMIS_CHECKED tamis_status tamis_reducer_save_residual(tamis_reducer *reducer, float *out);

/**
 * Restore one part or both.
 *
 * Both, saved together: the run continues bit for bit, as after tamis_reducer_load, with the same
 * checks. The control part alone: thresholds and step number, and no rollback
 * (tamis_reducer_resync). The residual alone, from any source: it replaces what the reducer holds,
 * and all else stays.
 *
 * So a run of Q ranks can continue with P, in two calls. First the control part alone, which may
 * come from any rank of another number of ranks; what is divided among ranks (ownership balanced,
 * exchange balanced-pairs) stays as it is here. Buckets must begin at the same segments, which
 * planned ones of another number of ranks may not. Then the residual: waiting
 * entries must give the same result, so the new residuals must sum to what the old ones did
 * (TAMIS_OP_SUM), or to P / Q times that (TAMIS_OP_MEAN), e.g.
 *
 *     4 ranks a b c d -> 2 ranks   (a + c) / 2   (b + d) / 2
 *     2 ranks a b     -> 4 ranks   a   b   a   b              or 2a  2b  0  0
 *     2 ranks a b     -> 3 ranks   3a/4   3b/2   3a/4
 *
 * @param  control   [in]  NULL: stays as it is
 * @param  residual  [in]  float32[n], finite, host memory; NULL: stays as it is
 *
 * Collective: no, but all ranks must restore the same step, or call tamis_reducer_resync; the next
 *             step notices if they did not
 * Errors:     ARGUMENT (both NULL, an element is not finite), STATE, UNSUPPORTED (a residual for
 *             scheme dense), FORMAT, NOMEM: the reducer is unchanged; DEVICE: it is unusable
 */
TAMIS_CHECKED tamis_status tamis_reducer_load_memory(tamis_reducer *reducer, const void *control,
                                                     size_t control_bytes, const float *residual);

/**
 * Copy the moments of update mode.
 *
 * @param  first   [out]  float32[n], host memory; NULL if the rule has none (beta1 = 0)
 * @param  second  [out]  float32[n]; NULL if the rule has none (momentum)
 * @param  passes  [out]  t of the last pass, for the bias correction
 *
 * Errors:     ARGUMENT (a pointer is missing, or given for a moment that does not exist), STATE
 *             (between start and wait), UNSUPPORTED (no update mode), NOMEM; DEVICE: part may have
 *             been written
 */
TAMIS_CHECKED tamis_status tamis_reducer_save_moments(tamis_reducer *reducer, float *first,
                                                      float *second, uint64_t *passes);

/**
 * Restore the moments, from any source; all else stays. Nothing checks that they were saved
 * together with control and residual: the caller must ensure that.
 *
 * For another number of ranks, give all new ranks the mean of the old moments.
 *
 * @param  first   [in]  float32[n], finite, host memory; NULL as above
 * @param  second  [in]  float32[n], finite, not negative; NULL as above
 * @param  passes  [in]  as saved
 *
 * Collective: no               Errors:  as for save; nothing has changed, except after DEVICE: the
 *                                       reducer is unusable
 */
TAMIS_CHECKED tamis_status tamis_reducer_load_moments(tamis_reducer *reducer, const float *first,
                                                      const float *second, uint64_t passes);

#ifdef __cplusplus
}
#endif

#endif
