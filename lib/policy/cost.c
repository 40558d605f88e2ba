/* SPDX-License-Identifier: MIT */
#include "lib/policy/cost.h"

#include "lib/base/numbers.h"
#include "lib/policy/grid.h"

#define PASS_S 0.25e-9 /* per element, if the link is given and nothing is measured */
#define START_S 10e-6  /* to begin a step of either kind and wait for it */
#define STEP_S 5e-6    /* control, headers: a fixed cost */
#define TILE_S 0.1e-6  /* passes go tile by tile */
#define DIVIDE 0.5     /* passes: reads and writes one of two */
#define ENTRY 50.0     /* elements of a pass: select, gather, apply and clear, at random places */
#define WORTH 0.9

#define VISIBLE 1.1 /* a measured time that is not longer may be noise */
#define LEAST_LATENCY_S 1e-9
#define LEAST_S_PER_BYTE 1e-15

/* -- networks --------------------------------------------------------------------------------- */

/* A message pair takes a processor 0.4 us where latency is 3 us, and 5 us where TCP has 39 us
 * (bench/scale/nets.c, docs/measured/speed.md): an eighth. A longer way takes them no more. */
#define MESSAGE_PART 0.125
#define MESSAGE_MOST_S 5e-6
#define NEAR_S 5e-6
#define NEAR_S_PER_BYTE 0.1e-9 /* 10 GB/s */

tam_link_model tam_link_usual(bool memory) {
    return memory ? (tam_link_model){NEAR_S, NEAR_S_PER_BYTE} : (tam_link_model){50e-6, 8e-9};
}

tam_net tam_net_of_link(const tam_link_model *link, uint32_t nranks, uint32_t ranks_per_node) {
    bool nodes = ranks_per_node > 1 && ranks_per_node < nranks;
    double latency_s = link->latency_s, per_byte_s = link->seconds_per_byte;
    return (tam_net){.ranks_per_node = nodes ? ranks_per_node : 1,
                     .near_s = tam_min_double(latency_s, NEAR_S),
                     .near_s_per_byte = tam_min_double(per_byte_s, NEAR_S_PER_BYTE),
                     .far_s = latency_s,
                     .far_s_per_byte = per_byte_s,
                     .message_s = tam_min_double(MESSAGE_PART * latency_s, MESSAGE_MOST_S)};
}

/* -- curves of a network ---------------------------------------------------------------------- */

/* Times are convex, nearly: the least of a message grows into its transfer at a size that depends
 * on network and stage. So a curve has points at 0 and at the last size here, and then always one
 * more where the curve so far is farthest from the truth. */
enum { SIZES = 74 }; /* 0, 1, 1.5, 2, 3, 4, 6 to 1.5 * 2^36 */

typedef struct truth {
    double size[SIZES], seconds[SIZES];
    bool point[SIZES];
} truth;

static double exchange_s(const tam_net *net, const tam_plan *plan, bool sums, double bytes) {
    return sums ? tam_plan_sum_s(net, plan, bytes) : tam_plan_gather_s(net, plan, bytes);
}

static void tabulate(const tam_net *net, const tam_plan *plan, bool sums, truth *t) {
    double power = 1.0;
    for (uint32_t i = 1; i < SIZES; i++) {
        t->size[i] = i % 2 ? power : 1.5 * power;
        power *= i % 2 ? 1.0 : 2.0;
    }
    for (uint32_t i = 0; i < SIZES; i++)
        t->seconds[i] = exchange_s(net, plan, sums, (sums ? 4.0 : 1.0) * t->size[i]);
    t->point[0] = t->point[SIZES - 1] = true;
}

/* How far off the straight line from one point to the next is at a size between. */
static double error_at(const truth *t, uint32_t from, uint32_t to, uint32_t at) {
    double rise = (t->seconds[to] - t->seconds[from]) / (t->size[to] - t->size[from]);
    double off = t->seconds[from] + rise * (t->size[at] - t->size[from]) - t->seconds[at];
    return (off < 0.0 ? -off : off) / t->seconds[at];
}

static void add_point(truth *t) {
    uint32_t best = 0, from = 0;
    double most = 0.0;
    for (uint32_t to = 1; to < SIZES; to++) {
        if (!t->point[to])
            continue;
        for (uint32_t at = from + 1; at < to; at++) {
            double error = error_at(t, from, to, at);
            best = error > most ? at : best;
            most = error > most ? error : most;
        }
        from = to;
    }
    t->point[best] = true; /* 0 if there is none */
}

static tam_curve curve_of(const tam_net *net, const tam_plan *plan, bool sums) {
    truth t = {0};
    tam_curve curve = {0};
    tabulate(net, plan, sums, &t);
    for (uint32_t i = 2; i < TAM_COST_POINTS; i++)
        add_point(&t);
    for (uint32_t i = 0; i < SIZES; i++)
        if (t.point[i])
            tam_curve_add(&curve, t.size[i], t.seconds[i]);
    return curve;
}

void tam_costs_of_net(const tam_net *net, const tam_plan *plan, tam_costs *out) {
    *out = (tam_costs){.sum = curve_of(net, plan, true), .gather = curve_of(net, plan, false)};
    for (int i = 0; i < 2; i++)
        tam_curve_add(&out->pass, i * 1e6, i * 1e6 * PASS_S);
}

bool tam_curve_grows(const tam_curve *curve) {
    return curve->count > 1 && curve->seconds[curve->count - 1] > curve->seconds[0];
}

static void cost_complete(tam_curve *curve, const tam_curve *usual) {
    if (!tam_curve_grows(curve))
        *curve = *usual;
}

void tam_costs_complete(tam_costs *costs, const tam_costs *usual) {
    cost_complete(&costs->sum, &usual->sum);
    cost_complete(&costs->gather, &usual->gather);
    cost_complete(&costs->pass, &usual->pass);
}

/* -- links from measurements ------------------------------------------------------------------ */

typedef struct fit {
    const tam_timing *timing;
    const tam_plan *plan;
    uint32_t ranks_per_node;
    tam_link_model link;
} fit;

/* Whether the exchange of that size takes less than measured. */
static bool falls_short(const fit *f, int which) {
    const tam_timing *timing = f->timing;
    tam_net net = tam_net_of_link(&f->link, f->plan->nranks, f->ranks_per_node);
    return exchange_s(&net, f->plan, timing->sums, timing->bytes[which]) < timing->seconds[which];
}

/* The least value of a number of the link, above `least`, with which it does not. Where messages to
 * many keep the processor busy a latency may hide behind them: then the least that it can be. */
static void cost_find(fit *f, double *number, double least, int which) {
    enum { DOUBLINGS = 64, HALVINGS = 30 };
    double low = 0.0, high = least;
    for (int i = 0; i < DOUBLINGS; i++, high *= 2.0) {
        *number = high;
        if (!falls_short(f, which))
            break;
        low = high;
    }
    for (int i = 0; low > 0.0 && i < HALVINGS; i++) {
        double middle = *number = 0.5 * (low + high);
        bool more = falls_short(f, which);
        low = more ? middle : low;
        high = more ? high : middle;
    }
    *number = low;
}

/* With many ranks even the small size has bytes that count, so each number is found anew with the
 * other: the error falls in each round by the ratio of the sizes. */
bool tam_link_fit(const tam_timing *timing, const tam_plan *plan, uint32_t ranks_per_node,
                  tam_link_model *out) {
    fit f = {timing, plan, ranks_per_node, {0.0, 0.0}};
    enum { ROUNDS = 8 };
    bool grows = timing->seconds[1] > VISIBLE * timing->seconds[0];
    for (int i = 0; plan->nranks > 1 && i < (grows ? ROUNDS : 1); i++) {
        cost_find(&f, &f.link.latency_s, LEAST_LATENCY_S, 0);
        if (grows)
            cost_find(&f, &f.link.seconds_per_byte, LEAST_S_PER_BYTE, 1);
    }
    *out = f.link;
    return f.link.seconds_per_byte > 0.0;
}

/* -- curves ----------------------------------------------------------------------------------- */

void tam_curve_add(tam_curve *curve, double size, double seconds) {
    uint32_t at = curve->count;
    if (at == TAM_COST_POINTS)
        return;
    for (uint32_t i = 0; i < at; i++)
        curve->seconds[i] = curve->seconds[i] < seconds ? curve->seconds[i] : seconds;
    curve->size[at] = size;
    curve->seconds[at] = seconds;
    curve->count++;
}

static double slope(const tam_curve *curve, uint32_t from, uint32_t to) {
    return (curve->seconds[to] - curve->seconds[from]) / (curve->size[to] - curve->size[from]);
}

double tam_curve_at(const tam_curve *curve, double size) {
    uint32_t i = 1, last = curve->count - 1;
    if (curve->count == 0)
        return 0.0;
    if (curve->count == 1 || size <= curve->size[0])
        return curve->seconds[0];
    while (i < last && size > curve->size[i])
        i++;
    double rise = slope(curve, i - 1, i), whole = slope(curve, 0, last);
    if (size > curve->size[last] && whole > rise)
        rise = whole;
    return curve->seconds[i] + rise * (size - curve->size[i]);
}

/* -- buckets ---------------------------------------------------------------------------------- */

double tam_cost_union(const tam_costs *costs, const tam_cost_case *c) {
    double n = (double)c->n, k = (double)c->k, pass_s = tam_curve_at(&costs->pass, n);
    double blocks = (double)tam_blocks_wished(c->n, c->nranks);
    return START_S + STEP_S + TILE_S * blocks + pass_s * (1.0 + ENTRY * k / n) + c->lists_s +
           tam_curve_at(&costs->sum, c->sums);
}

double tam_cost_dense(const tam_costs *costs, const tam_cost_case *c) {
    double n = (double)c->n;
    return START_S + tam_curve_at(&costs->sum, n) + DIVIDE * tam_curve_at(&costs->pass, n);
}

bool tam_cost_prefers_dense(const tam_costs *costs, const tam_cost_case *c) {
    return !(tam_cost_union(costs, c) < WORTH * tam_cost_dense(costs, c));
}
