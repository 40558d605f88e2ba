/* SPDX-License-Identifier: MIT */
#include "lib/policy/cost.h"

#include "lib/policy/grid.h"

#define PASS_S 0.25e-9 /* per element, if the link is given and nothing is measured */
#define START_S 10e-6  /* to begin a step of either kind and wait for it */
#define STEP_S 5e-6    /* control, headers: a fixed cost */
#define TILE_S 0.1e-6  /* passes go tile by tile */
#define DIVIDE 0.5     /* passes: reads and writes one of two */
#define ENTRY 50.0     /* elements of a pass: cut, gather, apply and clear, at random places */
#define WORTH 0.9

static double rounds_of(uint32_t nranks) {
    uint32_t rounds = 0;
    while (rounds < 31 && UINT32_C(1) << rounds < nranks)
        rounds++;
    return rounds;
}

void tam_costs_of_link(const tam_link_model *link, uint32_t nranks, tam_costs *out) {
    double rounds = rounds_of(nranks), others = nranks - 1.0, far = 1 << 20;
    *out = (tam_costs){0};
    for (int i = 0; i < 2; i++) {
        double size = i * far;
        tam_curve_add(&out->sum, size,
                      2.0 * rounds * link->latency_s +
                          8.0 * size * link->seconds_per_byte * others / nranks);
        tam_curve_add(&out->pass, size, size * PASS_S);
        tam_curve_add(&out->gather, size,
                      rounds * link->latency_s + size * link->seconds_per_byte * others);
    }
}

static void assume(tam_curve *curve, const tam_curve *usual) {
    if (curve->count < 2 || !(curve->seconds[curve->count - 1] > curve->seconds[0]))
        *curve = *usual;
}

void tam_costs_complete(tam_costs *costs, uint32_t nranks) {
    static const tam_link_model memory = {5e-6, 0.1e-9}; /* ranks on one machine */
    tam_costs usual;
    tam_costs_of_link(&memory, nranks, &usual);
    assume(&costs->sum, &usual.sum);
    assume(&costs->gather, &usual.gather);
    assume(&costs->pass, &usual.pass);
}

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
