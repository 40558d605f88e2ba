/* SPDX-License-Identifier: MIT */
#include "lib/policy/budget.h"
#include "lib/policy/rules.h"

static void sort_descending(const double *values, uint32_t count, tam_pair *order) {
    for (uint32_t i = 0; i < count; i++)
        order[i] = (tam_pair){tam_rule_descending(values[i]), i};
    tam_sort(order, count);
}

void tam_budget_norm(uint64_t k, const double *norms, const tam_grid *grid, tam_pair *order,
                     uint32_t *budgets) {
    tam_rest rest = {(double)k, 0.0};
    for (uint32_t g = 0; g < grid->ngroups; g++)
        rest.norms += norms[g];
    sort_descending(norms, grid->ngroups, order);
    for (uint32_t i = 0; i < grid->ngroups; i++) {
        uint32_t g = (uint32_t)order[i].value;
        budgets[g] = tam_rule_budget(&rest, norms[g], grid->groups[g].length);
    }
}

static double cost_of(uint32_t budget, uint32_t length) {
    return budget > 1 ? length * tam_log2(budget) : length;
}

void tam_bins_pack(const uint32_t *budgets, const tam_grid *grid, uint32_t nbins, tam_pair *order,
                   double *loads, uint32_t *parts) {
    for (uint32_t g = 0; g < grid->ngroups; g++)
        order[g] = (tam_pair){tam_rule_descending(cost_of(budgets[g], grid->groups[g].length)), g};
    tam_sort(order, grid->ngroups);
    memset(loads, 0, nbins * sizeof loads[0]);
    for (uint32_t i = 0; i < grid->ngroups; i++) {
        uint32_t g = (uint32_t)order[i].value, lightest = 0;
        if (budgets[g] >= grid->groups[g].length) {
            parts[g] = TAM_PART_COMMON;
            continue;
        }
        for (uint32_t b = 1; b < nbins; b++)
            lightest = loads[b] < loads[lightest] ? b : lightest;
        parts[g] = lightest;
        loads[lightest] += cost_of(budgets[g], grid->groups[g].length);
    }
}
