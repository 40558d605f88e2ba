/* SPDX-License-Identifier: MIT
 *
 * The loops over groups; rules.h has the arithmetic for one group.
 */
#include "lib/policy/budget.h"
#include "lib/policy/rules.h"

tamis_status tam_control_open(tam_scheme scheme, const tam_grid *grid, uint64_t k, double over,
                              double threshold, tam_control *out) {
    tam_control c = {.scheme = scheme, .grid = grid, .k = k, .over = over};
    c.state.threshold = threshold > 0.0 ? threshold : 0.5 / sqrt((double)k);
    c.state.fit_xx = 0.01;
    c.state.fit_xy = 6.0 * c.state.fit_xx;
    c.state.spread = 0.002;
    c.state.margin = tam_rule_margin(&c.state, over);
    c.levels = tam_alloc_array(grid->ngroups, sizeof c.levels[0]);
    c.thresholds = tam_alloc_array(grid->ngroups, sizeof c.thresholds[0]);
    c.weights = tam_alloc_array(grid->ngroups, sizeof c.weights[0]);
    c.budgets = tam_alloc_array(grid->ngroups, sizeof c.budgets[0]);
    c.norms = tam_alloc_array(grid->ngroups, sizeof c.norms[0]);
    c.order = tam_alloc_array(grid->ngroups, sizeof c.order[0]);
    tamis_status status = TAMIS_OK;
    if (!c.levels || !c.thresholds || !c.weights || !c.budgets || !c.norms || !c.order)
        status = tam_fail(TAMIS_E_NOMEM, "no memory to control %u groups", grid->ngroups);
    else if (scheme.threshold == TAM_THRESHOLD_SAGE)
        status = tam_sage_open(grid->n, &c.sage);
    if (status != TAMIS_OK) {
        tam_control_close(&c);
        return status;
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
    tam_sage_close(&c->sage);
    *c = (tam_control){0};
}

double tam_control_slope(const tam_control *c) {
    return tam_rule_slope(&c->state);
}

void tam_control_prepare(tam_control *c) {
    for (uint32_t g = 0; g < c->grid->ngroups; g++) {
        c->thresholds[g] = tam_rule_threshold(c->scheme.threshold, &c->state, c->levels[g]);
        c->weights[g] = tam_rule_weight(&c->state, c->levels[g]);
    }
    c->floor_key = tam_rule_floor(c->scheme.budget, &c->state, c->levels[0]);
}

void tam_control_set_target(tam_control *c, uint64_t k) {
    if (k == c->k)
        return;
    double shift = tam_rule_target_shift(&c->state, c->k, k);
    c->k = k;
    if (c->scheme.threshold == TAM_THRESHOLD_REUSE) { /* its threshold was for another k */
        c->state.primed = 0;
        tam_control_prepare(c);
    }
    if (!tam_scheme_has_levels(c->scheme) || !c->state.primed)
        return;
    for (uint32_t g = 0; g < c->grid->ngroups; g++)
        c->levels[g] = tam_rule_clip_level(c->levels[g] + shift);
    tam_control_prepare(c);
}

/* Levels of the groups for budget norm, each from its own figures. */
static void update_shape(tam_control *c, const tam_observed *seen, tam_level_update *update) {
    double union_count = 0.0;
    for (uint32_t g = 0; g < c->grid->ngroups; g++) {
        c->norms[g] = sqrt(seen->group_sums[g]);
        union_count += seen->group_selected[g];
    }
    tam_budget_norm(c->k, c->norms, c->grid, c->order, c->budgets);
    update->share = tam_rule_union_share(c->k, union_count);
    for (uint32_t g = 0; g < c->grid->ngroups; g++)
        c->levels[g] =
            tam_rule_level(update, c->levels[g], seen->group_sums[g], seen->group_selected[g],
                           c->budgets[g], c->grid->groups[g].length);
}

static void update_levels(tam_control *c, const tam_observed *seen) {
    if (seen->nmin_keys == 0)
        return;
    tam_level_update update =
        tam_rule_learn(seen, c->scheme.budget, c->over, c->levels[0], &c->state);
    if (c->scheme.budget == TAM_BUDGET_NORM) {
        update_shape(c, seen, &update);
        return;
    }
    for (uint32_t g = 0; g < c->grid->ngroups; g++)
        c->levels[g] = tam_rule_clip_level(c->levels[g] + update.shift);
}

/* With fewer than k entries other than zero there is no threshold (reused is 0): the next step
 * searches again. */
static void update_reused(tam_control *c, const tam_observed *seen) {
    tam_control_state *s = &c->state;
    if (s->primed > 0)
        s->primed--;
    else
        s->primed = c->reused > 0.0 ? tam_rule_hold(seen->step) : 0;
    s->threshold = c->reused > 0.0 ? tam_rule_adapt(c->reused, seen->found, c->k) : 0.0;
}

void tam_control_update(tam_control *c, const tam_observed *seen) {
    if (c->scheme.threshold == TAM_THRESHOLD_STEP)
        c->state.threshold = tam_rule_step(c->state.threshold, seen->selected, c->k);
    else if (c->scheme.threshold == TAM_THRESHOLD_SAGE)
        tam_sage_keep(&c->sage, &c->state);
    else if (c->scheme.threshold == TAM_THRESHOLD_REUSE)
        update_reused(c, seen);
    else if (tam_scheme_has_levels(c->scheme))
        update_levels(c, seen);
    tam_control_prepare(c);
}
