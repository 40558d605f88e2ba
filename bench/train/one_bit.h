/* SPDX-License-Identifier: MIT
 *
 * Momenta of one bit, to compare with: 1-bit Adam (Tang et al., ICML 2021, arXiv 2102.02888) as in
 * DeepSpeed's OnebitAdam. After steps of dense Adam the second moment stays what it is; each rank
 * adds its gradient to the momentum that all have, and of every segment travel
 *
 *     a rank to the owner of a chunk   sign(m_r + E_r) and |m_r + E_r| / sqrt(n)
 *     the owner to all                 sign(M + F) and |M + F| / sqrt(chunk), M the mean
 *
 * with E, F what signs leave out. That is the momentum of the next step, and p -= lr m / (sqrt(v) +
 * eps). Here whole momenta travel, and every rank does what owners would do: bytes are computed,
 * not measured.
 */
#ifndef TAMIS_TRAIN_ONE_BIT_H
#define TAMIS_TRAIN_ONE_BIT_H

#include "bench/common/group.h"
#include "bench/train/optimizer.h"
#include "bench/train/workload.h"

typedef struct one_bit {
    bench_group *group;
    const workload *work;
    float *left, *left_by_owners; /* E of this rank, F of all owners; NULL: not used */
    float *all;                   /* momenta of all ranks */
    uint64_t wire_bytes;          /* of a step */
} one_bit;

/** Refuses what does not go together; ends the process. */
void one_bit_check(const train_settings *settings);

void one_bit_open(bench_group *group, const train_settings *settings, const workload *work,
                  one_bit *out);
void one_bit_close(one_bit *o);

/** Whether this step sends momenta, not gradients. */
bool one_bit_begins(const one_bit *o, const train_settings *settings, uint64_t step);

/** A step of the optimizer from this rank's own gradient. Collective. */
void one_bit_step(one_bit *o, optimizer *of, const optimizer_pace *pace, const float *grad,
                  float *params);

#endif
