/* SPDX-License-Identifier: MIT
 *
 * The expected time of an exchange, from numbers that all ranks share, so that all choose alike.
 *
 *     union   sum(K) + lists + pass(n) + 50 K pass(n) / n + tiles + 5 us + 10 us
 *     dense   sum(n) + 0.5 pass(n)                                         + 10 us
 *
 * n elements and K entries of a bucket; lists: an all-gather of indices in their format, and the
 * time to encode and decode it. Sum and gather depend on the link, the rest is one rank's own work.
 * The link is described by measured times of messages of some sizes, or by a latency alpha and
 * seconds per byte beta:
 *
 *     sum(m)      2 ceil(log2 P) alpha + 8 m beta (P - 1) / P     m floats
 *     gather(m)     ceil(log2 P) alpha + m beta (P - 1)           m bytes of each rank
 *
 * Own work is counted in passes: pass(n) is the time in which a rank adds n floats to n others and
 * clears them, while all other ranks do the same. An entry, somewhere in n elements, costs as much
 * as 50 elements of a pass: both grow with the memory's latency. Tiles: the blocks that a division
 * has at least (grid.h), at 0.1 us each. Constants are medians on one machine (docs/exchange.md).
 */
#ifndef TAM_POLICY_COST_H
#define TAM_POLICY_COST_H

#include "lib/base/base.h"
#include "lib/policy/bucket.h"

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
    double sums;    /* floats that take as many bytes as k values and their sums in wire types */
} tam_cost_case;

/** @param  nranks  of the link; each round costs one latency */
void tam_costs_of_link(const tam_link_model *link, uint32_t nranks, tam_costs *out);

/** Replace measured curves that do not grow, since the machine was busy with other work, by those
 * of ranks that share a memory: 5 us a message and 10 GB/s. */
void tam_costs_complete(tam_costs *costs, uint32_t nranks);

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
