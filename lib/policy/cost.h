/* SPDX-License-Identifier: MIT
 *
 * The expected time of an exchange, from numbers that all ranks share, so that all choose the same.
 *
 *     union   sum(K) + lists + pass(n) + 50 K pass(n) / n + tiles + 5 us + 10 us
 *     dense   sum(n) + 0.5 pass(n)                                         + 10 us
 *
 * n elements and K entries of a bucket; lists: an all-gather of encoded indices, and the
 * time to encode and decode it. Sum and gather depend on the network and on the stages in which
 * messages go, the rest is one rank's own work. They are measured (calibrate_costs.h), or follow
 * from a link of latency alpha and beta seconds per byte and the plan of the stages (plan.h):
 *
 *     sum(m)      tam_plan_sum_s(4 m)      m floats
 *     gather(m)   tam_plan_gather_s(m)     m bytes of each rank
 *
 * Where all send to all, a gather of little takes about alpha + P times a message, so it grows with
 * P; in stages of radix r, log_r P times as long as among r ranks. A sum takes two gathers.
 *
 * Own work is counted in passes: pass(n) is the time in which a rank adds n floats to n others and
 * clears them, while all other ranks do the same. An entry, somewhere in n elements, costs as much
 * as 50 elements of a pass: both grow with the memory's latency. Tiles: the blocks that a division
 * has at least (grid.h), at 0.1 us each. Constants are medians on one machine (docs/exchange.md).
 */
#ifndef TAM_POLICY_COST_H
#define TAM_POLICY_COST_H

#include "lib/base/base.h"
#include "lib/policy/plan.h"

enum { TAM_COST_POINTS = 8 };

/** Seconds by size: linear between two points. Beyond the last point, the slope is the larger of
 * that between the last two and that from the first to the last: a disturbed measurement may have
 * made the last two equal. */
typedef struct tam_curve {
    uint32_t count;
    double size[TAM_COST_POINTS], seconds[TAM_COST_POINTS]; /* sizes ascend, seconds do not fall */
} tam_curve;

typedef struct tam_costs {
    tam_curve sum;    /* all-reduce, by floats */
    tam_curve gather; /* all-gather, by bytes that each rank gives */
    tam_curve pass;   /* own work, by elements */
} tam_costs;

typedef struct tam_cost_case {
    uint64_t n, k;
    uint32_t nranks;
    double lists_s; /* until every rank has decoded all lists */
    double sums;    /* floats that take as many bytes as k values and their sums take encoded */
} tam_cost_case;

typedef struct tam_link_model {
    double latency_s; /* of an empty message */
    double seconds_per_byte;
} tam_link_model;

/** What is assumed of a link where nothing is known: 5 us and 10 GB/s in memory that ranks share,
 * else 50 us and 1 Gbit/s. */
tam_link_model tam_link_usual(bool memory);

/** The network of a link. Between nodes it is the link; inside them messages take 5 us and 10 GB/s,
 * or the link's where that is better. Where all ranks share a node, the link is between them. */
tam_net tam_net_of_link(const tam_link_model *link, uint32_t nranks, uint32_t ranks_per_node);

/** Curves of sums and gathers: at their points the times of the plan, between them within a tenth
 * on networks up to 100 Gbit/s whose nodes are of 2^a ranks. */
void tam_costs_of_net(const tam_net *net, const tam_plan *plan, tam_costs *out);

bool tam_curve_grows(const tam_curve *curve);

/** Replace curves that do not grow, since the machine was busy with other work, by usual ones. */
void tam_costs_complete(tam_costs *costs, const tam_costs *usual);

/** What was measured of one kind of exchange: a small size and a larger one. */
typedef struct tam_timing {
    bool sums;       /* else it gathers */
    double bytes[2]; /* of floats, else what each rank gives */
    double seconds[2];
} tam_timing;

/** The link over which exchanges take that long: the small size gives its latency, what the larger
 * one takes more its rate.
 * @return  false: that is not even a tenth, and the rate is 0 seconds per byte */
bool tam_link_fit(const tam_timing *timing, const tam_plan *plan, uint32_t ranks_per_node,
                  tam_link_model *out);

/** Add a measured point; sizes must ascend. Smaller sizes that took longer are lowered to the same
 * time: a disturbance can only lengthen a measurement. */
void tam_curve_add(tam_curve *curve, double size, double seconds);
double tam_curve_at(const tam_curve *curve, double size);

double tam_cost_union(const tam_costs *costs, const tam_cost_case *c);
double tam_cost_dense(const tam_costs *costs, const tam_cost_case *c);

/** Whether a bucket should be dense. Union must promise to save a tenth: no model is exact, and a
 * residual must be worth it. */
bool tam_cost_prefers_dense(const tam_costs *costs, const tam_cost_case *c);

#endif
