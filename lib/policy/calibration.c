/* SPDX-License-Identifier: MIT */
#include "lib/policy/calibration.h"

#include <string.h>

#define TRIALS_S 0.08  /* in about this time, and */
#define STEP_S 0.006   /* one step of a trial, if it can be */
#define PROMISING 0.95 /* of the usual plan's time, by the model */
#define CLEARLY 0.9    /* of the usual plan's time */
#define LEAST_TIMES 0.95

/* No processor sends and receives a message in less (0.4 us in shared memory, bench/scale/nets.c),
 * but an exchange of many may take less than one that was disturbed. */
#define MESSAGE_S 1e-7
#define BYTE_S 1e-12

/* -- medians ---------------------------------------------------------------------------------- */

static uint32_t count_upto(const uint64_t *table, uint32_t nranks, uint32_t width, uint64_t most) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < nranks; r++)
        count += table[(size_t)r * width] > 0 && table[(size_t)r * width] <= most;
    return count;
}

/* By bisection: without memory, and in any order of ranks the same. */
uint64_t tam_calibration_median(const uint64_t *table, uint32_t nranks, uint32_t width,
                                uint32_t column) {
    uint64_t low = 1, high = UINT64_MAX;
    uint32_t all = count_upto(table + column, nranks, width, high);
    if (all == 0)
        return 0;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (count_upto(table + column, nranks, width, middle) >= all - all / 2)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* -- network ---------------------------------------------------------------------------------- */

static double at_least(double x, double least) {
    return x > least ? x : least;
}

static double calibration_seconds(uint64_t ns) {
    return 1e-9 * (double)ns;
}

static double byte_s(uint64_t short_ns, uint64_t long_ns) {
    return at_least((calibration_seconds(long_ns) - calibration_seconds(short_ns)) /
                        (TAM_CALIBRATION_LONG - TAM_CALIBRATION_SHORT),
                    BYTE_S);
}

/* One message takes latency_s + message_s, many take latency_s + peers * message_s. */
static double message_s(double one_s, double fan_s, uint32_t nranks) {
    uint32_t peers = nranks - 1 < TAM_CALIBRATION_PEERS ? nranks - 1 : TAM_CALIBRATION_PEERS;
    return at_least(peers > 1 ? (fan_s - one_s) / (peers - 1.0) : 0.0, MESSAGE_S);
}

tam_net tam_calibration_net(const uint64_t ns[TAM_CALIBRATION_EXCHANGES], uint32_t nranks,
                            uint32_t ranks_per_node) {
    bool near = ns[TAM_CALIBRATION_NEAR] > 0, far = ns[TAM_CALIBRATION_FAR] > 0;
    double near_s = calibration_seconds(ns[near ? TAM_CALIBRATION_NEAR : TAM_CALIBRATION_FAR]);
    double far_s = calibration_seconds(ns[far ? TAM_CALIBRATION_FAR : TAM_CALIBRATION_NEAR]);
    tam_net net = {.ranks_per_node = ranks_per_node};
    net.near_s_per_byte = byte_s(ns[TAM_CALIBRATION_NEAR], ns[TAM_CALIBRATION_NEAR_LONG]);
    net.far_s_per_byte = byte_s(ns[TAM_CALIBRATION_FAR], ns[TAM_CALIBRATION_FAR_LONG]);
    net.near_s_per_byte = near ? net.near_s_per_byte : net.far_s_per_byte;
    net.far_s_per_byte = far ? net.far_s_per_byte : net.near_s_per_byte;
    net.message_s = message_s(far_s, calibration_seconds(ns[TAM_CALIBRATION_FAN]), nranks);
    net.near_s = at_least(near_s - net.message_s, 0.0);
    net.far_s = at_least(far_s - net.message_s, 0.0);
    return net;
}

/* -- proposal --------------------------------------------------------------------------------- */

static double calibration_step_s(const tam_net *net, const tam_plan *plan, double floats) {
    const tam_plan_case c = {plan->nranks,
                             TAM_CALIBRATION_PACKET + 4.0 * floats / plan->nranks,
                             4.0 * floats,
                             {0, 0, 0}};
    return tam_plan_step_s(net, plan, &c);
}

/* Both steps, each as part of what the usual plan takes. */
static double calibration_weigh(const tam_net *net, const tam_plan *plan, const tam_plan *usual) {
    return 0.5 * (calibration_step_s(net, plan, TAM_CALIBRATION_FLOATS) /
                      calibration_step_s(net, usual, TAM_CALIBRATION_FLOATS) +
                  calibration_step_s(net, plan, TAM_CALIBRATION_FEW) /
                      calibration_step_s(net, usual, TAM_CALIBRATION_FEW));
}

/* Behind those that take as long; the last falls out. */
static uint32_t calibration_insert(tam_plan *plans, double *parts, uint32_t count, tam_plan plan,
                                   double part) {
    uint32_t at = count;
    while (at > 0 && part < parts[at - 1])
        at--;
    for (uint32_t i = count; i > at; i--) {
        if (i < TAM_CALIBRATION_OTHERS) {
            plans[i] = plans[i - 1];
            parts[i] = parts[i - 1];
        }
    }
    if (at < TAM_CALIBRATION_OTHERS) {
        plans[at] = plan;
        parts[at] = part;
    }
    return count < TAM_CALIBRATION_OTHERS ? count + 1 : count;
}

static bool holds(const tam_plan *plans, uint32_t count, const tam_plan *plan) {
    for (uint32_t i = 0; i < count; i++) {
        if (memcmp(&plans[i], plan, sizeof *plan) == 0)
            return true;
    }
    return false;
}

uint32_t tam_calibration_propose(const tam_net *net, uint32_t nranks,
                                 tam_plan out[TAM_CALIBRATION_OTHERS]) {
    tam_plan usual = tam_plan_usual(nranks, net->ranks_per_node);
    tam_plan candidates[TAM_PLAN_CANDIDATES];
    usual.fused_bytes = tam_plan_fused(net, &usual);
    double parts[TAM_CALIBRATION_OTHERS];
    uint32_t count = 0;
    tam_plan_candidates(nranks, net->ranks_per_node, candidates);
    for (uint32_t i = 0; i < TAM_PLAN_CANDIDATES; i++) {
        tam_plan *plan = &candidates[i];
        plan->fused_bytes = tam_plan_fused(net, plan);
        double part = calibration_weigh(net, plan, &usual);
        if (part < PROMISING && tam_plan_messages(plan) <= TAM_CALIBRATION_MESSAGES &&
            !holds(candidates, i, plan))
            count = calibration_insert(out, parts, count, *plan, part);
    }
    return count;
}

/* -- trial ------------------------------------------------------------------------------------ */

uint32_t tam_calibration_floats(const tam_net *net, uint32_t nranks) {
    tam_plan usual = tam_plan_usual(nranks, net->ranks_per_node);
    uint32_t floats = TAM_CALIBRATION_FLOATS;
    while (floats > 2 * TAM_CALIBRATION_FEW && !(calibration_step_s(net, &usual, floats) <= STEP_S))
        floats /= 2;
    return floats;
}

/* One round, as if all plans took as long as the usual one. */
static double round_s(const tam_net *net, uint32_t nranks, uint32_t floats, uint32_t nplans) {
    tam_plan usual = tam_plan_usual(nranks, net->ranks_per_node);
    return nplans * (calibration_step_s(net, &usual, floats) +
                     calibration_step_s(net, &usual, TAM_CALIBRATION_FEW));
}

uint32_t tam_calibration_rounds(const tam_net *net, uint32_t nranks, uint32_t floats,
                                uint32_t nplans) {
    double all_s = round_s(net, nranks, floats, nplans);
    uint32_t rounds = 1;
    while (rounds < TAM_CALIBRATION_ROUNDS && (rounds + 1) * all_s <= TRIALS_S)
        rounds++;
    return rounds;
}

double tam_calibration_trial_s(const tam_net *net, uint32_t nranks, uint32_t floats,
                               uint32_t nplans) {
    return (1 + tam_calibration_rounds(net, nranks, floats, nplans)) *
           round_s(net, nranks, floats, nplans);
}

static bool is_better(const uint64_t *usual, const uint64_t *other, double *gain) {
    double part[TAM_CALIBRATION_STEPS];
    *gain = 0.0;
    for (uint32_t i = 0; i < TAM_CALIBRATION_STEPS; i++) {
        if (usual[i] == 0 || other[i] == 0)
            return false;
        part[i] = (double)other[i] / (double)usual[i];
    }
    double medians = 0.5 * (part[TAM_CALIBRATION_STEP_FEW] + part[TAM_CALIBRATION_STEP_MANY]);
    double least = 0.5 * (part[TAM_CALIBRATION_LEAST_FEW] + part[TAM_CALIBRATION_LEAST_MANY]);
    *gain = 1.0 - medians;
    return medians < CLEARLY && least < LEAST_TIMES && part[TAM_CALIBRATION_STEP_FEW] <= 1.0 &&
           part[TAM_CALIBRATION_STEP_MANY] <= 1.0;
}

uint32_t tam_calibration_choose(const uint64_t *ns, uint32_t nplans, double *gain) {
    uint32_t best = 0;
    gain[0] = 0.0;
    for (uint32_t i = 1; i < nplans; i++) {
        if (is_better(ns, ns + (size_t)i * TAM_CALIBRATION_STEPS, &gain[i]) && gain[i] > gain[best])
            best = i;
    }
    return best;
}
