/* SPDX-License-Identifier: MIT
 *
 * From a window to a decision. No libm but isnan: hosts must agree to the bit.
 */
#include "lib/energy/govern/governor.h"
#include "lib/base/numbers.h"

#include <math.h>

enum { HALVINGS = 60, EIGHTHS = 8 };

/* The part of what the ramp permits that is aimed at, at most. */
static const double ramp_part = 0.8;

/* Time that was not lost is remembered for a day. */
static const double credit_day_s = 86400.0;

/* A residual that was too large is small enough again below this part of residual_max. */
static const double guard_part = 0.8;

static double watts_at(const tamis_governor *g, tam_knobs k) {
    return tam_response_watts(&g->response, k);
}

static double step_s_at(const tamis_governor *g, tam_knobs k) {
    return tam_response_step_s(&g->response, k);
}

/* -- effort ----------------------------------------------------------------------------------- */

tam_knobs tam_governor_free_knobs(const tamis_governor_config *c) {
    return (tam_knobs){c->density_max, 0.0, 0.0};
}

static double slowdown_at(const tamis_governor *g, tam_knobs k) {
    return step_s_at(g, k) / step_s_at(g, tam_governor_free_knobs(&g->config)) - 1.0;
}

static bool may_cap(const tamis_governor *g) {
    return g->config.allow_cap && g->response.binding_w > g->config.cap_min_w;
}

static tam_knobs knobs_at(const tamis_governor *g, double density, double effort) {
    const tamis_governor_config *c = &g->config;
    bool caps = may_cap(g), pauses = c->pace_max_s > 0.0;
    double by_cap = !caps ? 0.0 : pauses ? tam_clip_double(2.0 * effort, 0.0, 1.0) : effort;
    double by_pause = !pauses ? 0.0 : caps ? tam_clip_double(2.0 * effort - 1.0, 0.0, 1.0) : effort;
    double binding_w = g->response.binding_w;
    tam_knobs k = {density, by_pause * c->pace_max_s, 0.0};
    if (by_cap > 0.0)
        k.cap_w = tam_clip_double(binding_w - by_cap * (binding_w - c->cap_min_w), c->cap_min_w,
                                  binding_w);
    return k;
}

/* One knob after another: what two do at once that are not known yet is not told apart. A pause
 * that is in force stays. */
static double most_effort(const tamis_governor *g) {
    bool both = may_cap(g) && g->config.pace_max_s > 0.0;
    bool known = g->now.cap_w > 0.0 || tam_response_knows_cap(&g->response);
    return both && !known ? 0.5 : 1.0;
}

/* The least effort that meets watts, the most that a slowdown permits. */
static double find_effort(const tamis_governor *g, double density, tam_target target) {
    double low = 0.0, high = most_effort(g);
    bool watts = target.kind == TAM_TARGET_WATTS;
    if (target.kind == TAM_TARGET_FREE)
        return 0.0;
    for (int i = 0; i < HALVINGS; i++) {
        double middle = 0.5 * low + 0.5 * high;
        tam_knobs k = knobs_at(g, density, middle);
        if (watts ? watts_at(g, k) <= target.value : slowdown_at(g, k) > target.value)
            high = middle;
        else
            low = middle;
    }
    return watts ? high : low;
}

/* -- density ---------------------------------------------------------------------------------- */

/* In eighths, and not to and fro between two of them: numbers depend on it. */
static double round_share(double share, double before) {
    double wanted = EIGHTHS * tam_clip_double(share, 0.0, 1.0), held = EIGHTHS * before;
    if (wanted > held - 1.0 && wanted < held + 1.0 && wanted > 0.0 && wanted < EIGHTHS)
        return before;
    return (double)(int)(wanted + 0.5) / EIGHTHS;
}

static void watch_residual(tamis_governor *g) {
    double norm = g->window.residual_norm, most = g->config.residual_max;
    if (most > 0.0 && norm > most)
        g->guarded = true;
    else if (!(most > 0.0) || norm < guard_part * most)
        g->guarded = false; /* an unknown norm leaves it as it was */
}

static double choose_density(tamis_governor *g, double share) {
    const tamis_governor_config *c = &g->config;
    g->share = g->guarded ? 0.0 : round_share(share, g->share);
    return tam_clip_double(c->density_max - g->share * (c->density_max - c->density_min),
                           c->density_min, c->density_max); /* rounding */
}

/* -- what a window says ----------------------------------------------------------------------- */

/* Knobs that were in force, as the mean over the steps of the window. */
static tam_knobs knobs_of(const tamis_governor *g) {
    const tamis_governor_window *w = &g->window;
    uint64_t first = w->step - w->steps;
    double old = g->from_step <= first ? 0.0 : (double)(g->from_step - first) / (double)w->steps;
    double top_w = g->response.cap_max_w, cap = g->now.cap_w;
    tam_knobs k = {old * g->before.density + (1.0 - old) * g->now.density,
                   old * g->before.pace_s + (1.0 - old) * g->now.pace_s, cap};
    if (g->before.cap_w != cap && old > 0.0) { /* without a cap: as if with one that just binds */
        top_w = g->response.binding_w > 0.0 ? g->response.binding_w : top_w;
        k.cap_w = old * (g->before.cap_w > 0.0 ? g->before.cap_w : top_w) +
                  (1.0 - old) * (cap > 0.0 ? cap : top_w);
    }
    if (w->density > 0.0)
        k.density = w->density;
    if (w->pace_s >= 0.0)
        k.pace_s = w->pace_s;
    if (w->cap_w >= 0.0)
        k.cap_w = w->cap_w;
    return k;
}

static void decide_learn(tamis_governor *g) {
    const tamis_governor_window *w = &g->window;
    double steps = (double)w->steps, moved = 0.0; /* by what the last decision was to change */
    if (g->response.windows > 0 && g->from_step >= w->step - w->steps)
        moved = watts_at(g, g->before) / watts_at(g, g->now) - 1.0;
    tam_response_learn(&g->response, knobs_of(g), w->seconds / steps, (double)w->uj / steps / 1e6,
                       moved);
}

/* What the knobs cost, as learnt: a checkpoint or a slow disk is not on this account. */
static void update_credit(tamis_governor *g) {
    double steps = (double)g->window.steps, slowdown = g->config.slowdown;
    double free_s = step_s_at(g, tam_governor_free_knobs(&g->config));
    double lost_s = step_s_at(g, knobs_of(g)) - free_s;
    g->credit_s = tam_clip_double(g->credit_s + steps * (slowdown * free_s - lost_s), -credit_day_s,
                                  slowdown * credit_day_s);
}

static double smaller(double a, double b) {
    return a > 0.0 && (b == 0.0 || a < b) ? a : b; /* 0: none; b may be NAN */
}

static double budget_in_force(tamis_governor *g) {
    if (g->until_step && g->window.step > g->until_step)
        g->budgeted = false;
    double watts = g->budgeted ? g->budget_w : g->config.budget_w;
    double g_per_h = g->budgeted ? g->g_per_h : g->config.budget_g_per_h;
    if (g_per_h == 0.0)
        return watts;
    double g_per_wh = g->window.intensity_g_per_kwh * g->config.pue / 1000.0;
    if (isnan(g_per_wh))
        return NAN;
    return g_per_wh > 0.0 ? smaller(g_per_h / g_per_wh, watts) : watts;
}

/* -- deciding --------------------------------------------------------------------------------- */

/* Watts move no farther than the ramp permits until the next window has passed, also if what was
 * learnt is wrong by two standard deviations. */
static bool ramp_permits(const tamis_governor *g, tam_knobs k) {
    double moved = watts_at(g, k) - watts_at(g, g->now);
    double allowed = g->config.ramp_w_per_s * g->window.seconds;
    double left = allowed - (moved > 0.0 ? moved : -moved);
    double doubt = tam_response_doubt(&g->response, g->now, k);
    return allowed == 0.0 || (left >= (1.0 - ramp_part) * allowed && left * left >= 4.0 * doubt);
}

/* As far as the ramp permits from the effort of now, whose watts are those of now. */
static tam_knobs limit_ramp(const tamis_governor *g, double density, double effort) {
    tam_target stay = {TAM_TARGET_WATTS, watts_at(g, g->now), 0.0, TAMIS_GOVERNOR_RAMP};
    double near = find_effort(g, density, stay), far = effort;
    for (int i = 0; i < HALVINGS; i++) {
        double middle = 0.5 * near + 0.5 * far;
        if (ramp_permits(g, knobs_at(g, density, middle)))
            near = middle;
        else
            far = middle;
    }
    return knobs_at(g, density, near);
}

static bool within(double a, double b, double band) {
    return a - b < band * b && b - a < band * b;
}

/* A slowdown is small itself, so its band is narrower. */
static bool near_enough(const tamis_governor *g, tam_knobs k, tam_target target) {
    double band = g->config.dead_band;
    return k.density == g->now.density && within(watts_at(g, k), watts_at(g, g->now), band) &&
           (target.kind == TAM_TARGET_WATTS ||
            within(step_s_at(g, k), step_s_at(g, g->now), 0.25 * band));
}

static bool decide_same(tam_knobs a, tam_knobs b) {
    return a.density == b.density && a.pace_s == b.pace_s && a.cap_w == b.cap_w;
}

static tamis_governor_reason decide_choose(tamis_governor *g, tam_target target, tam_knobs *out) {
    double density = choose_density(g, target.share);
    double effort = find_effort(g, density, target);
    tam_knobs k = knobs_at(g, density, effort), end = knobs_at(g, density, most_effort(g));
    tamis_governor_reason reason = g->guarded ? TAMIS_GOVERNOR_GUARD : target.reason;
    if (target.kind == TAM_TARGET_WATTS && watts_at(g, end) > target.value) {
        k = end;
        effort = most_effort(g);
        reason = TAMIS_GOVERNOR_OUT_OF_REACH;
    }
    if (target.kind != TAM_TARGET_FREE && near_enough(g, k, target)) {
        *out = g->now;
        return reason == target.reason ? TAMIS_GOVERNOR_HOLD : reason;
    }
    bool free = ramp_permits(g, k);
    *out = free ? k : limit_ramp(g, density, effort);
    return free ? reason : TAMIS_GOVERNOR_RAMP;
}

static tamis_governor_reason decide(tamis_governor *g, tamis_governor_decision *out) {
    const tamis_governor_window *w = &g->window;
    watch_residual(g);
    out->budget_w = g->policy->budgets ? budget_in_force(g) : 0.0;
    if (w->steps == 0)
        return TAMIS_GOVERNOR_NO_STEPS;
    if (g->from_step >= w->step)
        return TAMIS_GOVERNOR_PENDING;
    if (!w->known || w->uj <= 0)
        return TAMIS_GOVERNOR_UNKNOWN_ENERGY;
    out->watts = (double)w->uj / 1e6 / w->seconds;
    decide_learn(g);
    update_credit(g);

    tam_knobs next;
    out->high_w = watts_at(g, tam_governor_free_knobs(&g->config));
    tam_target target = g->policy->target(g, out);
    if (target.kind == TAM_TARGET_KEEP)
        return target.reason;
    tamis_governor_reason reason = decide_choose(g, target, &next);
    out->changed = !decide_same(next, g->now);
    if (out->changed) {
        g->before = g->now;
        g->now = next;
        g->from_step = w->step + g->config.lead_steps;
    }
    return reason;
}

void tam_governor_step(tamis_governor *g, tamis_governor_decision *out) {
    *out = (tamis_governor_decision)TAMIS_GOVERNOR_DECISION_INIT;
    out->reason = decide(g, out);
    out->step = out->changed ? g->from_step : g->window.step + g->config.lead_steps;
    out->density = g->now.density;
    out->pace_s = g->now.pace_s;
    out->cap_w = g->now.cap_w;
    if (g->response.windows == 0)
        return;
    out->expected_w = watts_at(g, g->now);
    out->slowdown = slowdown_at(g, g->now);
    out->low_w = watts_at(g, knobs_at(g, g->config.density_min, 1.0));
    out->high_w = watts_at(g, tam_governor_free_knobs(&g->config));
}
