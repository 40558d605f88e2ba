/* SPDX-License-Identifier: MIT
 *
 * The table of policies. Another one is a row and a function here.
 */
#include "lib/energy/govern/governor.h"

#include <math.h>

/* -- off -------------------------------------------------------------------------------------- */

static const tam_target nothing = {TAM_TARGET_FREE, 0.0, 0.0, TAMIS_GOVERNOR_FREE};
static const tam_target unknown = {TAM_TARGET_KEEP, 0.0, 0.0, TAMIS_GOVERNOR_UNKNOWN_INTENSITY};

static tam_target target_nothing(const tamis_governor *g, const tamis_governor_decision *now) {
    (void)g;
    (void)now;
    return nothing;
}

/* -- budget ----------------------------------------------------------------------------------- */

/* Density is the least where a fifth of the watts is lacking. */
static const double all_density = 5.0;

static tam_target target_budget(const tamis_governor *g, const tamis_governor_decision *now) {
    (void)g;
    if (isnan(now->budget_w))
        return unknown;
    if (!(now->budget_w > 0.0) || now->high_w <= now->budget_w)
        return nothing;
    double lacking = (now->high_w - now->budget_w) / now->high_w;
    return (tam_target){TAM_TARGET_WATTS, now->budget_w, all_density * lacking,
                        TAMIS_GOVERNOR_BUDGET};
}

/* -- carbon ----------------------------------------------------------------------------------- */

/* Saved time is spent over an hour, lost time won back: whatever the forecast was worth, the run
 * is not slower than it may be by more than a moment. */
static const double credit_hour_s = 3600.0;

static tam_target target_slowdown(const tamis_governor *g, double slowdown) {
    double allowed = g->config.slowdown + g->credit_s / credit_hour_s;
    double most = g->config.slowdown_most;
    slowdown = slowdown < most ? slowdown : most;
    slowdown = slowdown < allowed ? slowdown : allowed;
    if (!(slowdown > 0.0))
        return nothing;
    return (tam_target){TAM_TARGET_SLOWDOWN, slowdown, slowdown / most, TAMIS_GOVERNOR_CARBON};
}

static tam_target target_threshold(const tamis_governor *g, const tamis_governor_decision *now) {
    (void)now;
    double intensity = g->window.intensity_g_per_kwh, limit = g->config.threshold_g_per_kwh;
    if (limit == 0.0)
        limit = g->window.outlook_g_per_kwh;
    if (isnan(intensity) || isnan(limit))
        return unknown;
    return intensity > limit ? target_slowdown(g, g->config.slowdown_most) : nothing;
}

/* In proportion to what intensity is above its least: the mean over the outlook is `slowdown`. */
static tam_target target_proportional(const tamis_governor *g, const tamis_governor_decision *now) {
    (void)now;
    const tamis_governor_window *w = &g->window;
    double range = w->outlook_g_per_kwh - w->outlook_low_g_per_kwh;
    double above = w->intensity_g_per_kwh - w->outlook_low_g_per_kwh;
    if (isnan(range) || isnan(above))
        return unknown;
    if (!(range > 0.0)) /* all hours are the same */
        return target_slowdown(g, g->config.slowdown);
    return above > 0.0 ? target_slowdown(g, g->config.slowdown * (above / range)) : nothing;
}

static tamis_status check_budget(const tamis_governor_config *c) {
    if (c->budget_w == 0.0 && c->budget_g_per_h == 0.0)
        return tam_fail(TAMIS_E_ARGUMENT, "policy \"budget\" needs budget_w or budget_g_per_h");
    return TAMIS_OK;
}

static tamis_status check_carbon(const tamis_governor_config *c) {
    if (!(c->slowdown > 0.0))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "policy \"%s\" needs a slowdown above 0: the time it may cost", c->policy);
    return TAMIS_OK;
}

/* -- the table -------------------------------------------------------------------------------- */

/* governor.h says what each of them aims at. */
static const tam_governor_policy rows[] = {
    {"off", false, NULL, target_nothing},
    {"budget", true, check_budget, target_budget},
    {"carbon-threshold", false, check_carbon, target_threshold},
    {"carbon-proportional", false, check_carbon, target_proportional},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

tamis_status tam_governor_policy_find(const char *name, const tam_governor_policy **out) {
    char known[256] = "";
    for (size_t i = 0; i < ROWS; i++) {
        if (name && strcmp(rows[i].name, name) == 0) {
            *out = &rows[i];
            return TAMIS_OK;
        }
        strcat(strcat(known, i ? ", " : ""), rows[i].name);
    }
    return tam_fail(TAMIS_E_ARGUMENT, "policy \"%s\" is unknown; known are: %s",
                    name ? name : "(NULL)", known);
}
