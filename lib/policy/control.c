/* SPDX-License-Identifier: MIT */
#include "lib/policy/budget.h"
#include "lib/policy/control.h"

#include <math.h>

enum { LEVEL_LIMIT = 120 }; /* |log2 tau|: 1 / tau stays a normal number */

#define SUM_LIMIT 2.9e38 /* sums travel as floats, larger ones cut off */

static double clip(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

double tam_control_slope(const tam_control *c) {
    return clip(c->state.fit_xy / c->state.fit_xx, 1.0, 60.0);
}

static double choose_margin(const tam_control *c) {
    double for_count = tam_log2(c->over) / tam_control_slope(c);
    double for_miss = 3.0 * sqrt(c->state.spread);
    return -(for_count > for_miss ? for_count : for_miss);
}

tamis_status tam_control_open(tam_scheme scheme, const tam_grid *grid, uint64_t k, double over,
                              double threshold, tam_control *out) {
    tam_control c = {.scheme = scheme, .grid = grid, .k = k, .over = over};
    c.state.threshold = threshold > 0.0 ? threshold : 0.5 / sqrt((double)k);
    c.state.fit_xx = 0.01;
    c.state.fit_xy = 6.0 * c.state.fit_xx;
    c.state.spread = 0.002;
    c.state.margin = choose_margin(&c);
    c.levels = tam_alloc_array(grid->ngroups, sizeof c.levels[0]);
    c.thresholds = tam_alloc_array(grid->ngroups, sizeof c.thresholds[0]);
    c.weights = tam_alloc_array(grid->ngroups, sizeof c.weights[0]);
    c.budgets = tam_alloc_array(grid->ngroups, sizeof c.budgets[0]);
    c.norms = tam_alloc_array(grid->ngroups, sizeof c.norms[0]);
    c.order = tam_alloc_array(grid->ngroups, sizeof c.order[0]);
    if (!c.levels || !c.thresholds || !c.weights || !c.budgets || !c.norms || !c.order) {
        tam_control_close(&c);
        return tam_fail(TAMIS_E_NOMEM, "no memory to steer %u groups", grid->ngroups);
    }
    tam_control_prepare(&c);
    *out = c;
    return TAMIS_OK;
}

void tam_control_close(tam_control *c) {
    tam_free(c->levels);
    tam_free(c->thresholds);
    tam_free(c->weights);
    tam_free(c->budgets);
    tam_free(c->norms);
    tam_free(c->order);
    *c = (tam_control){0};
}

/* Bits of a positive magnitude; never 0, for zeros are not candidates. */
static uint32_t threshold_bits(double magnitude) {
    if (magnitude >= 3e38)
        return TAM_INFINITE_BITS - 1;
    uint32_t bits = tam_bits((float)magnitude);
    return bits ? bits : 1;
}

static void prepare_predict(tam_control *c) {
    /* Weights round, thresholds round: a key this close to the margin may have been missed. */
    c->floor_key = (float)(tam_exp2(c->state.margin) * (1.0 + 1e-5));
    for (uint32_t g = 0; g < c->grid->ngroups; g++) {
        c->thresholds[g] = threshold_bits(tam_exp2(c->levels[g] + c->state.margin));
        c->weights[g] = (float)tam_exp2(-c->levels[g]);
    }
    if (c->scheme.budget == TAM_BUDGET_GLOBAL) /* the cut compares magnitudes as they are */
        c->floor_key = tam_float(c->thresholds[0] - 1);
}

void tam_control_prepare(tam_control *c) {
    bool predict = c->scheme.threshold == TAM_THRESHOLD_PREDICT;
    if (c->state.primed)
        prepare_predict(c);
    for (uint32_t g = 0; g < c->grid->ngroups; g++) {
        if (!c->state.primed)
            c->weights[g] = 1.0f;
        if (c->scheme.threshold == TAM_THRESHOLD_STEP)
            c->thresholds[g] = threshold_bits(c->state.threshold);
        else if (!predict || !c->state.primed)
            c->thresholds[g] = TAM_INFINITE_BITS;
    }
}

/* MiCRO, threshold scaling. In its public code the third branch cannot be reached, because it asks
 * for q > 0 where q > 1 is meant; here it can (docs/algorithm.md). */
static void update_step(tam_control *c, uint64_t picked) {
    double q = (double)picked / (double)c->k;
    if (q > 1.1)
        c->state.threshold *= 1.005;
    else if (q > 1.0)
        c->state.threshold *= 1.00125;
    else if (q > 1.0 / 1.1)
        c->state.threshold *= 0.9987;
    else
        c->state.threshold *= 0.995;
    c->state.threshold = clip(c->state.threshold, 1e-38, 1e38);
}

/* log2 of the magnitude over which `budget` entries lie, if |acc| were Laplacian: a first guess,
 * and the middle of the range in which the measured level may move. */
static double guess_level(double sum, uint32_t length, uint32_t budget) {
    double ratio = (double)length / budget;
    double spread = 0.7071 * 0.69315 * tam_log2(ratio > 2.0 ? ratio : 2.0);
    return 0.5 * tam_log2(sum / length) + tam_log2(spread);
}

/* Levels of the groups for budget norm, each from its own figures. */
static void update_shape(tam_control *c, const tam_observed *seen, double shift) {
    for (uint32_t g = 0; g < c->grid->ngroups; g++)
        c->norms[g] = sqrt(seen->group_sums[g]);
    tam_budget_norm(c->k, c->norms, c->grid, c->order, c->budgets);
    double slope = tam_control_slope(c), united = 0.0;
    for (uint32_t g = 0; g < c->grid->ngroups; g++)
        united += seen->group_picked[g];
    double share = united > 0.0 ? (double)c->k / united : 1.0; /* not 1 for ownership `all` */
    for (uint32_t g = 0; g < c->grid->ngroups; g++) {
        double sum = seen->group_sums[g], level = c->levels[g] + shift;
        bool measured = sum > 0.0 && sum < SUM_LIMIT; /* squares of extreme entries are not */
        if (!measured && seen->group_picked[g] == 0)  /* silent: nothing to learn */
            continue;
        double miss = tam_log2((share * seen->group_picked[g] + 2.0) / (c->budgets[g] + 2.0));
        level += c->state.primed ? 0.5 * clip(miss, -2.0, 2.0) / slope : 0.0;
        if (measured) {
            double guess = guess_level(sum, c->grid->groups[g].length, c->budgets[g]);
            level = clip(c->state.primed ? level : guess, guess - 3.0, guess + 3.0);
        }
        c->levels[g] = clip(level, -LEVEL_LIMIT, LEVEL_LIMIT);
    }
}

/* `cut` and the margin are relative to the levels that were used. */
static void update_slope(tam_control *c, const tam_observed *seen, double cut) {
    double count = tam_log2(((double)seen->candidates + 0.5) / ((double)seen->picked + 0.5));
    double distance = cut - c->state.margin;
    if (seen->candidates == 0 || fabs(distance) > 1.0)
        return;
    c->state.fit_xx = 0.8 * c->state.fit_xx + 0.2 * clip(distance * distance, 1e-6, 1.0);
    c->state.fit_xy = 0.8 * c->state.fit_xy + 0.2 * distance * count;
}

/* Move the levels by what the cut showed: part of a small miss, the whole of a jump. */
static double level_shift(tam_control *c, double cut) {
    if (fabs(cut) > 0.6) {
        c->state.drift = 0.0;
        return cut;
    }
    c->state.drift = 0.8 * c->state.drift + 0.15 * cut;
    return 0.7 * cut + c->state.drift;
}

static void update_predict(tam_control *c, const tam_observed *seen) {
    /* Keys of budget norm are relative to the levels already, magnitudes are not. */
    double used = c->state.primed && c->scheme.budget == TAM_BUDGET_GLOBAL ? c->levels[0] : 0.0;
    double cut = 0.0, short_of = 0.0;
    if (seen->ncuts == 0)
        return;
    for (uint32_t i = 0; i < seen->ncuts; i++) {
        double one = seen->cuts[i] - used;
        cut += one / seen->ncuts;
        short_of += one < 0.0 ? one * one / seen->ncuts : 0.0;
    }
    double shift = cut;
    if (c->state.primed) {
        c->state.spread = 0.9 * c->state.spread + 0.1 * clip(short_of, 1e-6, 0.1);
        update_slope(c, seen, cut);
        shift = level_shift(c, cut);
    }
    if (c->scheme.budget == TAM_BUDGET_NORM) {
        update_shape(c, seen, shift);
    } else {
        for (uint32_t g = 0; g < c->grid->ngroups; g++)
            c->levels[g] = clip(c->levels[g] + shift, -LEVEL_LIMIT, LEVEL_LIMIT);
    }
    c->state.margin = choose_margin(c);
    c->state.primed = 1;
}

void tam_control_update(tam_control *c, const tam_observed *seen) {
    if (c->scheme.threshold == TAM_THRESHOLD_STEP)
        update_step(c, seen->picked);
    else if (c->scheme.threshold == TAM_THRESHOLD_PREDICT || tam_scheme_weighted(c->scheme))
        update_predict(c, seen);
    tam_control_prepare(c);
}
