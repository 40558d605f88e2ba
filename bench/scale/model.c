/* SPDX-License-Identifier: MIT
 *
 * Times by formula.
 */
#include "bench/scale/scale.h"

#include "lib/base/header.h"

#include <math.h>

void scale_fill_case(scale_case *c, uint64_t entries, double index_bytes, uint64_t groups) {
    double each = ceil((double)entries / c->nranks);
    bool quantizes = tam_value_quantizes(c->up) || tam_value_quantizes(c->down);
    c->entries = entries;
    c->encoded = quantizes ? entries : 0;
    c->summed = entries - c->encoded + TAM_COUNTERS + groups;
    c->packet_bytes = tam_header_bytes(0) + tam_header_round((size_t)ceil(each * index_bytes));
}

static tam_plan_case exchanged(const scale_case *c) {
    return (tam_plan_case){c->nranks,
                           (double)c->packet_bytes,
                           4.0 * (double)c->summed,
                           {(double)tam_value_bytes(c->up, c->encoded), 4.0 * (double)c->encoded,
                            (double)tam_value_bytes(c->down, c->encoded)}};
}

double scale_formula_s(const scale_case *c, const tam_plan *plan) {
    tam_plan_case e = exchanged(c);
    return tam_plan_step_s(&c->net, plan, &e);
}

tam_plan scale_choose(const scale_case *c) {
    tam_plan_case e = exchanged(c);
    return tam_plan_choose(&c->net, &e);
}

static double lesser(double a, double b) {
    return a < b ? a : b;
}

static double greater(double a, double b) {
    return a > b ? a : b;
}

/* Pipelined over the cards of all ranks of a node. The tree fills its pipeline of 32 pieces. */
static double of_nodes(const tam_net *net, double nodes, double inside, double bytes) {
    double hop_s = net->far_s + net->message_s, rounds = ceil(log2(nodes));
    double inside_s = 2.0 * bytes * (inside - 1.0) / inside * net->near_s_per_byte;
    double share_s =
        2.0 * greater(bytes / inside * net->far_s_per_byte, bytes * net->cable_s_per_byte);
    double ring = 2.0 * inside * net->near_s + 2.0 * (nodes - 1.0) * hop_s +
                  greater(inside_s, share_s * (nodes - 1.0) / nodes);
    double tree = 2.0 * rounds * hop_s + greater(inside_s, share_s) * (1.0 + rounds / 32.0);
    return lesser(ring, tree);
}

double scale_dense_s(const tam_net *net, uint32_t nranks, uint64_t elements) {
    double bytes = 4.0 * (double)elements, p = nranks;
    double inside = lesser(greater(net->ranks_per_node, 1.0), p), nodes = floor(p / inside);
    bool far = nodes > 1.0;
    double hop_s = (far ? net->far_s : net->near_s) + net->message_s;
    double byte_s =
        far ? greater(net->far_s_per_byte, net->cable_s_per_byte) : net->near_s_per_byte;
    double best_s = 2.0 * (p - 1.0) * hop_s + 2.0 * bytes * (p - 1.0) / p * byte_s;
    if (far)
        best_s = lesser(best_s, of_nodes(net, nodes, inside, bytes));
    tam_plan plans[TAM_PLAN_CANDIDATES];
    tam_plan_candidates(nranks, net->ranks_per_node, plans);
    for (uint32_t i = 0; i < TAM_PLAN_CANDIDATES; i++)
        best_s = lesser(best_s, tam_plan_sum_s(net, &plans[i], bytes));
    return best_s;
}

static bool pays(const scale_case *c, double density, double dense_s, double index_bytes,
                 uint64_t groups) {
    scale_case at = *c;
    uint64_t entries = (uint64_t)greater(1.0, density * (double)c->elements);
    scale_fill_case(&at, entries, index_bytes, groups);
    tam_plan plan = scale_choose(&at);
    return scale_formula_s(&at, &plan) < dense_s;
}

double scale_break_even(const scale_case *c, double index_bytes, uint64_t groups) {
    double low = 1e-7, high = 1.0;
    double dense_s = scale_dense_s(&c->net, c->nranks, c->elements);
    for (int i = 0; i < 40; i++) {
        double mid = sqrt(low * high);
        if (pays(c, mid, dense_s, index_bytes, groups))
            low = mid;
        else
            high = mid;
    }
    return low < 2e-7 ? 0.0 : low;
}
