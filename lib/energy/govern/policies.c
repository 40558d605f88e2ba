/* SPDX-License-Identifier: MIT
 *
 * The table of policies. Another one is a row and a function here.
 */
#include "lib/energy/govern/governor.h"

#include <math.h>

/* -- off -------------------------------------------------------------------------------------- */

static tam_wish wish_nothing(const tam_governor_view *v) {
    (void)v;
    return (tam_wish){TAM_WISH_FREE, 0.0, 0.0, TAMIS_GOVERNOR_FREE};
}

/* -- budget ----------------------------------------------------------------------------------- */

/* Density is the least where a fifth of the watts is lacking. */
static const double all_density = 5.0;

static tam_wish wish_budget(const tam_governor_view *v) {
    if (isnan(v->budget_w))
        return (tam_wish){TAM_WISH_KEEP, 0.0, 0.0, TAMIS_GOVERNOR_UNKNOWN_INTENSITY};
    if (!(v->budget_w > 0.0) || v->free_w <= v->budget_w)
        return (tam_wish){TAM_WISH_FREE, 0.0, 0.0, TAMIS_GOVERNOR_FREE};
    double lacking = (v->free_w - v->budget_w) / v->free_w;
    return (tam_wish){TAM_WISH_WATTS, v->budget_w, all_density * lacking, TAMIS_GOVERNOR_BUDGET};
}

/* -- carbon ----------------------------------------------------------------------------------- */

/* Saved time is spent over an hour, lost time won back: whatever the forecast was worth, the run
 * is not slower than it may be by more than a moment. */
static const double credit_hour_s = 3600.0;

static tam_wish wish_slowdown(const tam_governor_view *v, double slowdown) {
    const tamis_governor_config *c = v->config;
    double allowed = c->slowdown + v->credit_s / credit_hour_s;
    slowdown = slowdown < c->slowdown_most ? slowdown : c->slowdown_most;
    slowdown = slowdown < allowed ? slowdown : allowed;
    if (!(slowdown > 0.0))
        return (tam_wish){TAM_WISH_FREE, 0.0, 0.0, TAMIS_GOVERNOR_FREE};
    return (tam_wish){TAM_WISH_SLOWDOWN, slowdown, slowdown / c->slowdown_most,
                      TAMIS_GOVERNOR_CARBON};
}

static const tam_wish unknown = {TAM_WISH_KEEP, 0.0, 0.0, TAMIS_GOVERNOR_UNKNOWN_INTENSITY};

static tam_wish wish_threshold(const tam_governor_view *v) {
    double now = v->window->intensity_g_per_kwh, limit = v->config->threshold_g_per_kwh;
    if (limit == 0.0)
        limit = v->window->outlook_g_per_kwh;
    if (isnan(now) || isnan(limit))
        return unknown;
    return now > limit ? wish_slowdown(v, v->config->slowdown_most) : wish_nothing(v);
}

/* In proportion to what intensity is above its least: the mean over the outlook is `slowdown`. */
static tam_wish wish_proportional(const tam_governor_view *v) {
    const tamis_governor_window *w = v->window;
    double range = w->outlook_g_per_kwh - w->outlook_low_g_per_kwh;
    double above = w->intensity_g_per_kwh - w->outlook_low_g_per_kwh;
    if (isnan(range) || isnan(above))
        return unknown;
    if (!(range > 0.0)) /* all hours are alike */
        return wish_slowdown(v, v->config->slowdown);
    return above > 0.0 ? wish_slowdown(v, v->config->slowdown * (above / range)) : wish_nothing(v);
}

static tamis_status check_budget(const tamis_governor_config *c) {
    if (c->budget_w == 0.0 && c->budget_g_per_h == 0.0)
        return tam_fail(TAMIS_E_ARGUMENT, "policy \"budget\" needs budget_w or budget_g_per_h");
    return TAMIS_OK;
}

static tamis_status check_carbon(const tamis_governor_config *c) {
    if (!(c->slowdown > 0.0))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "policy \"%s\" needs a slowdown above 0: what it may cost in time",
                        c->policy);
    return TAMIS_OK;
}

/* -- the table -------------------------------------------------------------------------------- */

/* governor.h says what each of them aims at. */
static const tam_governor_policy rows[] = {
    {"off", false, NULL, wish_nothing},
    {"budget", true, check_budget, wish_budget},
    {"carbon-threshold", false, check_carbon, wish_threshold},
    {"carbon-proportional", false, check_carbon, wish_proportional},
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
    return tam_fail(TAMIS_E_ARGUMENT, "policy \"%s\" is unknown; there are: %s",
                    name ? name : "(NULL)", known);
}
