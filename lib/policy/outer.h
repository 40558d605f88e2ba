/* SPDX-License-Identifier: MIT
 *
 * The outer optimizer of local steps, over whole vectors: SGD with Nesterov momentum, as
 * torch.optim.SGD(nesterov=True) computes it (DiLoCo, arXiv 2311.08105, section 2). All ranks
 * compute it from the same bits, so they get the same bits.
 */
#ifndef TAM_POLICY_OUTER_H
#define TAM_POLICY_OUTER_H

#include "lib/base/base.h"

typedef struct tam_outer {
    float lr, momentum;
} tam_outer;

/** What a pass saw. */
typedef struct tam_outer_seen {
    double square; /* of the L2 norm of what it computed */
    uint64_t bad;  /* elements that would not be finite; they stay as they were */
} tam_outer_seen;

/** d = base - params. */
tam_outer_seen tam_outer_difference(const float *base, const float *params, uint64_t n, float *d);

/** m = mu m + mean; base -= lr (mean + mu m). @param m  NULL if mu is 0 */
tam_outer_seen tam_outer_step(tam_outer how, const float *mean, uint64_t n, float *m, float *base);

/** params = base + (params - since); the base where that is not finite.
 * @param since  NULL: params = base */
void tam_outer_follow(const float *base, const float *since, uint64_t n, float *params);

/** After an exchange that failed: params = base - left + (params - since), where `left` is what the
 * residual has not taken of d. The base where that is not finite. @param since  NULL: they have not
 * moved since */
void tam_outer_return(const float *base, const float *left, const float *since, uint64_t n,
                      float *params);

/** What the last round taught about the number of local steps. */
typedef struct tam_outer_pace {
    double ratio; /* running mean of exchange time / time of a local step; 0: unknown */
} tam_outer_pace;

/**
 * How many local steps make an exchange take `share` of the time, if the exchange takes exchange_s
 * and the slowest rank step_s. A change under a fifth is not worth it: `steps` stays.
 *
 * @return from `least` to `most`
 */
uint32_t tam_outer_steps(tam_outer_pace *pace, double exchange_s, double step_s, double share,
                         uint32_t steps, uint32_t least, uint32_t most);

#endif
