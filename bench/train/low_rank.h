/* SPDX-License-Identifier: MIT
 *
 * Gradients of low rank, to compare with: PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019,
 * arXiv 1905.13727, algorithm 1). For a matrix with n rows, m columns and r vectors:
 *
 *     A = gradient + E                   n m   E: what earlier steps left out, of this rank
 *     P = mean over ranks of A Q         n r   travels; Q of the step before, of the first normal
 *     P = orthonormal columns of P
 *     Q = mean over ranks of A^T P       m r   travels
 *     gradient = P Q^T,  E = A - gradient
 *
 * As in PyTorch's powerSGD_hook a matrix that would not shrink to less than half travels whole, and
 * so do vectors.
 */
#ifndef TAMIS_TRAIN_LOW_RANK_H
#define TAMIS_TRAIN_LOW_RANK_H

#include "bench/common/group.h"
#include "bench/train/workload.h"

#include <tamis/stats.h>

typedef struct low_rank {
    bench_group *group;
    const workload *work;
    size_t rank;             /* r; 0: not used */
    tamis_reducer *sides[2]; /* of P and what travels whole, of Q */
    float *values[2];        /* what they reduce */
    float *kept;             /* E, [work->length] */
} low_rank;

/** Refuses what does not go together; ends the process. */
void low_rank_check(const train_settings *settings);

/** Ends all ranks if no matrix would shrink. `rank` 0: nothing is made. */
void low_rank_open(bench_group *group, const workload *work, uint64_t rank, uint64_t seed,
                   low_rank *out);
void low_rank_close(low_rank *l);

/** A gradient of this rank becomes the same one of all ranks. Collective. */
void low_rank_reduce(low_rank *l, float *grad);

/** Adds what both exchanges of the last step sent and cost. */
void low_rank_stats(const low_rank *l, tamis_stats *out);

#endif
