/* SPDX-License-Identifier: MIT
 *
 * Times are compared on every rank, and ranks with different plans would wait for each other for
 * ever. So: +, -, *, / and comparisons in binary64, no libm, in this order, compiled without
 * contraction to fused multiply-adds (lib/base/numbers.h; cmake/flags.cmake).
 */
#include "lib/policy/plan.h"
#include "lib/base/numbers.h"

#define INCAST_FREE 8.0 /* senders that a rank can hear at once */
#define ENDLESS_S 1e300

/* -- messages --------------------------------------------------------------------------------- */

/* Ranks to which the rank of a virtual rank sends in a stage. Both virtual ranks of a rank are in
 * one group of the first stage, and ranks ascend with virtual ranks. Later a rank with two virtual
 * ranks has a second peer wherever the virtual ranks of its peers belong to two ranks: those below
 * own_of. */
static uint32_t count_peers(const tam_plan *plan, uint32_t stride, uint32_t radix, uint32_t vrank) {
    uint32_t own = tam_plan_own(plan), first = vrank - vrank / stride % radix * stride;
    if (stride == 1)
        return tam_plan_rank(plan, first + radix - 1) - tam_plan_rank(plan, first);
    uint32_t pairs = vrank >= own && first < own ? (own - first + stride - 1) / stride : 0;
    return radix - 1 + pairs;
}

/* The most of any rank. In the first stage that is a rank of the first group; later one with two
 * virtual ranks, as many of its peers' virtual ranks below own_of as there can be. */
static uint32_t count_most_peers(const tam_plan *plan, uint32_t stride, uint32_t radix) {
    uint32_t below = tam_plan_own(plan) % (stride * radix);
    if (stride == 1)
        return tam_plan_rank(plan, radix - 1);
    return radix - 1 + tam_min_u32((below + stride - 1) / stride, radix - 1);
}

/* 65536 ranks of 16 stages take milliseconds, and the most of each stage need not be one rank's. */
uint32_t tam_plan_messages(const tam_plan *plan) {
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < plan->nranks; rank++) {
        uint32_t sent = 0, stride = 1;
        for (uint32_t i = 0; i < plan->nstages; i++) {
            sent += count_peers(plan, stride, plan->radix[i], tam_plan_vrank(plan, rank));
            stride *= plan->radix[i];
        }
        most = sent > most ? sent : most;
    }
    return most;
}

/* -- time ------------------------------------------------------------------------------------- */

static uint32_t stride_of(const tam_plan *plan, uint32_t stage) {
    uint32_t stride = 1;
    for (uint32_t i = 0; i < stage; i++)
        stride *= plan->radix[i];
    return stride;
}

/* Aligned runs of so many virtual ranks lie in one node, also where nodes are no power of two: the
 * largest that divides both numbers. */
static uint32_t node_vranks(const tam_net *net, const tam_plan *plan) {
    uint32_t both = net->ranks_per_node | plan->nranks;
    if (net->ranks_per_node >= plan->nranks)
        return plan->nvranks;
    return net->ranks_per_node > 0 ? both & (~both + 1) : 1;
}

/* Messages longer than this are sent in pieces. */
static double plan_time_pieces_of(double bytes) {
    bool many = bytes > TAM_PLAN_PIECE && bytes < ENDLESS_S;
    double whole = many ? bytes / TAM_PLAN_PIECE : 1.0;
    return whole < 1e15 && whole > (double)(uint64_t)whole ? (double)((uint64_t)whole + 1) : whole;
}

/* One message after the other passes its sender's processor, wires and its receiver's processor, as
 * in a pipeline. half_s, what a processor does for all that it sends (as much as for all that it
 * receives), and wire_s of all, piece_s and hop_s are for one piece. */
static double pipeline_s(double latency_s, double half_s, double piece_s, double wire_s,
                         double hop_s) {
    double first_s = piece_s + hop_s + latency_s;
    double last_s = latency_s + piece_s + tam_max_double(wire_s, half_s - piece_s + hop_s);
    return tam_max_double(last_s + piece_s, tam_max_double(first_s, half_s) + half_s);
}

/* How many of the radix - 1 messages of a virtual rank leave their node, on average: exact where
 * nodes are whole subtrees. Else of ranks that are d apart the part d / ranks_per_node sits in two
 * nodes. */
static double leaving(const tam_net *net, const tam_plan *plan, uint32_t stride, uint32_t radix,
                      uint32_t across) {
    uint32_t node = net->ranks_per_node;
    double sum = 0.0, apart = (double)stride * plan->nranks / plan->nvranks;
    if (node <= 1 || node >= plan->nranks || node == node_vranks(net, plan))
        return across;
    for (uint32_t d = 1; d < radix; d++)
        sum += d * apart < node ? d * apart / node : 1.0;
    return sum < across ? sum : across;
}

double tam_plan_stage_s(const tam_net *net, const tam_plan *plan, uint32_t stage, double bytes) {
    uint32_t stride = stride_of(plan, stage), radix = plan->radix[stage];
    uint32_t node = node_vranks(net, plan), messages = count_most_peers(plan, stride, radix);
    uint32_t inside = stride < node ? tam_min_u32(radix, node / stride) - 1 : 0;
    uint32_t across = radix - 1 - inside, far = across > 0 ? messages - inside : 0;
    double left = leaving(net, plan, stride, radix, across) * bytes, near = (radix - 1) * bytes;
    double pieces = plan_time_pieces_of(bytes);
    near -= left;
    double half_s = messages * pieces * net->message_s;
    half_s += (radix - 1) * bytes * net->copy_s_per_byte;
    half_s *= 0.5;
    double wire_s = tam_max_double(near * net->near_s_per_byte, left * net->far_s_per_byte);
    wire_s = tam_max_double(wire_s, net->ranks_per_node * left * net->cable_s_per_byte);
    double hop_s = bytes / pieces * (across > 0 ? net->far_s_per_byte : net->near_s_per_byte);
    double seconds = pipeline_s(across > 0 ? net->far_s : net->near_s, half_s,
                                half_s / (messages * pieces), wire_s, hop_s);
    if (far > INCAST_FREE)
        seconds += (far - INCAST_FREE) * net->incast_s;
    return seconds;
}

/* Ranks whose bytes are in one message of a gather, on average. A rank has nvranks / nranks
 * virtual ranks, and all that later stages bring it is for them; the first stage brings the rest.
 * */
static double ranks_in_message(const tam_plan *plan, uint32_t stage) {
    uint32_t radix = plan->radix[stage], behind = plan->nvranks / (stride_of(plan, stage) * radix);
    return stage > 0 ? behind : (double)(plan->nranks - behind) / (radix - 1);
}

double tam_plan_gather_s(const tam_net *net, const tam_plan *plan, double bytes_each) {
    double seconds = 0.0;
    for (uint32_t i = 0; i < plan->nstages; i++)
        seconds += tam_plan_stage_s(net, plan, i, bytes_each * ranks_in_message(plan, i));
    return seconds;
}

static uint32_t last_stride(const tam_plan *plan) {
    return plan->nvranks / plan->radix[plan->nstages - 1];
}

/* The part that a virtual rank has in the last stage. One stage alone has no parts yet: two would
 * then have the same virtual rank. */
bool tam_plan_fuses(const tam_plan *plan, uint64_t bytes) {
    return plan->nstages > 1 && plan->fused_bytes > 0 &&
           bytes / last_stride(plan) <= plan->fused_bytes;
}

/* Shards to their owners are the messages of a gather backwards, with a shard for each rank. */
double tam_plan_sum_s(const tam_net *net, const tam_plan *plan, double bytes) {
    double each = bytes / plan->nranks, seconds = 2.0 * tam_plan_gather_s(net, plan, each);
    if (!(bytes >= 0.0 && bytes < 1e18) || !tam_plan_fuses(plan, (uint64_t)bytes))
        return seconds;
    uint32_t last = plan->nstages - 1;
    each *= ranks_in_message(plan, last);
    return seconds - 2.0 * tam_plan_stage_s(net, plan, last, each) +
           tam_plan_stage_s(net, plan, last, each * plan->radix[last]);
}

double tam_plan_encoded_s(const tam_net *net, const tam_plan *plan, const tam_plan_encoded *l) {
    double seconds = tam_plan_gather_s(net, plan, l->sums / plan->nranks);
    for (uint32_t i = 0; i < plan->nstages; i++) {
        double each = (i == 0 ? l->values : l->floats) / plan->nranks;
        seconds += tam_plan_stage_s(net, plan, i, each * ranks_in_message(plan, i));
    }
    return seconds;
}

/* In the first stage a rank sends all but one part of as many as its radix, in the later ones
 * together what is left but its shard. */
double tam_plan_encoded_partial(const tam_plan *plan) {
    double first = plan->nstages > 0 ? 1.0 / plan->radix[0] : 1.0, shard = 1.0 / plan->nvranks;
    return plan->nstages > 1 ? (first - shard) / (1.0 - shard) : 0.0;
}

double tam_plan_step_s(const tam_net *net, const tam_plan *plan, const tam_plan_case *c) {
    double seconds = 0.0;
    if (c->gathered > 0.0)
        seconds += tam_plan_gather_s(net, plan, c->gathered);
    if (c->summed > 0.0)
        seconds += tam_plan_sum_s(net, plan, c->summed);
    if (c->encoded.floats > 0.0)
        seconds += tam_plan_encoded_s(net, plan, &c->encoded);
    return seconds;
}

/* -- choice ----------------------------------------------------------------------------------- */

typedef struct choice {
    const tam_net *net;
    const tam_plan_case *c;
    tam_plan plan;
    double seconds;
} choice;

uint32_t tam_plan_fused(const tam_net *net, const tam_plan *plan) {
    uint32_t last = plan->nstages - 1, bytes = TAM_PLAN_FUSED_MOST;
    if (plan->nstages < 2)
        return 0;
    while (bytes > 0 &&
           !(tam_plan_stage_s(net, plan, last, bytes) <
             2.0 * tam_plan_stage_s(net, plan, last, (double)bytes / plan->radix[last])))
        bytes /= 2;
    return bytes;
}

/* Among equal plans with as many stages the first stays; no comparison holds for a NaN. */
static void consider(choice *best, tam_plan plan) {
    plan.fused_bytes = tam_plan_fused(best->net, &plan);
    double seconds = tam_plan_step_s(best->net, &plan, best->c);
    if (seconds < best->seconds ||
        (seconds == best->seconds && plan.nstages < best->plan.nstages)) {
        best->plan = plan;
        best->seconds = seconds;
    }
}

tam_plan tam_plan_choose(const tam_net *net, const tam_plan_case *c) {
    uint32_t nranks = c->nranks, node = net->ranks_per_node;
    tam_plan usual = tam_plan_usual(nranks, node);
    choice best = {net, c, usual, ENDLESS_S};
    tam_plan candidates[TAM_PLAN_CANDIDATES];
    tam_plan_candidates(nranks, node, candidates);
    for (uint32_t i = 0; i < TAM_PLAN_CANDIDATES; i++)
        consider(&best, candidates[i]);
    return best.seconds > 0.0 ? best.plan : usual;
}
