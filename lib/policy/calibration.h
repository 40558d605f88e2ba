/* SPDX-License-Identifier: MIT
 *
 * Which plan suits a network, by the times that its ranks measured and gathered
 * (collectives/coll/calibrate.h). Pure functions of numbers that all ranks hold, by +, -, *, / and
 * comparisons alone, so that all choose the same.
 *
 * A model finds the plan and a trial confirms it. To time all candidates would take P - 1 messages,
 * and as many connections, for the linear one, and seconds where many ranks share processors; and
 * the best of seven noisy times is often the luckiest. The model's numbers are a few exchanges of a
 * few messages whatever P is; what it leaves out (cables, switches, noise) the trial of three sees.
 */
#ifndef TAM_POLICY_CALIBRATION_H
#define TAM_POLICY_CALIBRATION_H

#include "lib/policy/plan.h"

enum {
    TAM_CALIBRATION_PEERS = 7,      /* whom a rank sends to at once, at most */
    TAM_CALIBRATION_SHORT = 64,     /* bytes of a message: a header more or less */
    TAM_CALIBRATION_LONG = 1 << 17, /* one piece, also where a rank has two virtual ranks */
    TAM_CALIBRATION_PACKET = 28,    /* bytes of a packet without indices (docs/exchange.md) */
    TAM_CALIBRATION_MESSAGES = 128, /* of a gather; plans with more are never tried */
    TAM_CALIBRATION_OTHERS = 2,     /* plans that are tried beside the usual one */
    TAM_CALIBRATION_PLANS = 1 + TAM_CALIBRATION_OTHERS,
    TAM_CALIBRATION_FLOATS = 250000, /* 1 % of 25M elements */
    TAM_CALIBRATION_FEW = 10000,     /* of a bucket of 1M elements */
    TAM_CALIBRATION_ROUNDS = 8       /* at most, of exchanges and of trials */
};

/** Exchanges that are timed: each rank sends to one rank that is half a ring away, and receives
 * from another. All ranks do at once, so what they share, as the cable of a node, is part of it. */
typedef enum tam_calibration_exchange {
    TAM_CALIBRATION_NEAR,      /* a short message, inside nodes */
    TAM_CALIBRATION_NEAR_LONG, /* a long one */
    TAM_CALIBRATION_FAR,       /* between nodes */
    TAM_CALIBRATION_FAR_LONG,
    TAM_CALIBRATION_FAN, /* short ones to the next TAM_CALIBRATION_PEERS ranks */
    TAM_CALIBRATION_EXCHANGES
} tam_calibration_exchange;

/** Steps that are timed: a gather and a sum, of few values and of many, each by its median and by
 * the least. */
typedef enum tam_calibration_step {
    TAM_CALIBRATION_STEP_FEW,
    TAM_CALIBRATION_STEP_MANY,
    TAM_CALIBRATION_LEAST_FEW,
    TAM_CALIBRATION_LEAST_MANY,
    TAM_CALIBRATION_STEPS
} tam_calibration_step;

/** The median over ranks of a column, the lower of two; a rank with 0 did not measure. A few ranks
 * that were late, or wrong, do not move it far.
 * @param  table  [in]  [nranks * width]
 * @return 0: nobody measured */
uint64_t tam_calibration_median(const uint64_t *table, uint32_t nranks, uint32_t width,
                                uint32_t column);

/** The network, by medians. Where all is near, or all far, the other's numbers are the same.
 * Cables, copies and incast are 0: the times of long messages have them. */
tam_net tam_calibration_net(const uint64_t ns[TAM_CALIBRATION_EXCHANGES], uint32_t nranks,
                            uint32_t ranks_per_node);

/** The candidates that by the model take the least times, less than 0.95 of what tam_plan_usual
 * takes: in steps of 25M and of 1M elements at 1 %, of equal weight, since a communicator is made
 * before its reducers. By the model, in steps of 1M to 350M elements at 1 and 0.1 % on seven
 * networks, the first takes at most 55 % and on average 2.3 % longer than what tam_plan_choose has
 * for the step; the usual plan 131 and 11 % (tests/unit/test_calibration.c).
 * @return how many; 0: nothing promises more than the usual plan */
uint32_t tam_calibration_propose(const tam_net *net, uint32_t nranks,
                                 tam_plan out[TAM_CALIBRATION_OTHERS]);

/** Values of the larger trial, up to TAM_CALIBRATION_FLOATS: fewer where trials would take long. */
uint32_t tam_calibration_floats(const tam_net *net, uint32_t nranks);

/** Rounds of nplans plans, after a first one that makes connections, in about 80 ms; at least 1. */
uint32_t tam_calibration_rounds(const tam_net *net, uint32_t nranks, uint32_t floats,
                                uint32_t nplans);

/** Seconds of all rounds, by the model. */
double tam_calibration_trial_s(const tam_net *net, uint32_t nranks, uint32_t floats,
                               uint32_t nplans);

/** Which plan to take: of those that are clearly better than the first, the usual one, that with
 * the least medians; else 0. Clearly better: medians less than 0.9 of the usual ones in the
 * mean of both steps, least times less than 0.95, and neither median larger. Other programs disturb
 * the medians of one plan, or the least times of another, but rarely both.
 * @param  ns    [in]   [nplans * TAM_CALIBRATION_STEPS]
 * @param  gain  [out]  [nplans] part of the time that each saves, by medians; below 0: it takes
 *                      longer */
uint32_t tam_calibration_choose(const uint64_t *ns, uint32_t nplans, double *gain);

#endif
