/* SPDX-License-Identifier: MIT
 *
 * From a window to a decision. No libm but isnan: hosts must agree to the bit.
 */
#include "lib/energy/govern/governor.h"

#include <math.h>

enum { HALVINGS = 60, EIGHTHS = 8 };

/* Of what the ramp permits, the most that is aimed at. */
static const double ramp_part = 0.8;

/* Time that was not lost is remembered for a day. */
static const double credit_day_s = 86400.0;

/* A residual that was too large is small enough again below this part of residual_max. */
static const double guard_part = 0.8;

/** A decision in the making. */
typedef struct making {
    const tamis_governor_config *config;
    const tam_governor_policy *policy;
    tam_governor_state *state;
    const tamis_governor_window *window;
    tam_response_frame frame;
} making;

static double watts_at(const making *m, const tam_knobs *k) {
    return tam_response_watts(&m->state->response, &m->frame, k);
}

static double step_s_at(const making *m, const tam_knobs *k) {
    return tam_response_step_s(&m->state->response, &m->frame, k);
}

static double clip(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

/* -- effort ----------------------------------------------------------------------------------- */

static bool may_cap(const making *m) {
    return m->config->allow_cap && m->state->response.binding_w > m->config->cap_min_w;
}

static tam_knobs knobs_at(const making *m, double density, double effort) {
    const tamis_governor_config *c = m->config;
    bool caps = may_cap(m), pauses = c->pace_max_s > 0.0;
    double by_cap = !caps ? 0.0 : pauses ? clip(2.0 * effort, 0.0, 1.0) : effort;
    double by_pause = !pauses ? 0.0 : caps ? clip(2.0 * effort - 1.0, 0.0, 1.0) : effort;
    double binding_w = m->state->response.binding_w;
    tam_knobs k = {density, by_pause * c->pace_max_s, 0.0};
    if (by_cap > 0.0)
        k.cap_w = clip(binding_w - by_cap * (binding_w - c->cap_min_w), c->cap_min_w, binding_w);
    return k;
}

static tam_knobs free_knobs(const making *m) {
    return knobs_at(m, m->config->density_max, 0.0);
}

static double slowdown_at(const making *m, const tam_knobs *k) {
    tam_knobs nothing = free_knobs(m);
    return step_s_at(m, k) / step_s_at(m, &nothing) - 1.0;
}

static bool too_much(const making *m, const tam_knobs *k, const tam_wish *wish) {
    return wish->kind == TAM_WISH_WATTS ? watts_at(m, k) <= wish->value
                                        : slowdown_at(m, k) > wish->value;
}

/* One knob after another: what two do at once that are not known yet is not told apart. A pause
 * that is in force stays. */
static double most_effort(const making *m) {
    bool both = may_cap(m) && m->config->pace_max_s > 0.0;
    bool known = m->state->now.cap_w > 0.0 || tam_response_knows_cap(&m->state->response);
    return both && !known ? 0.5 : 1.0;
}

/* The least effort that meets watts, the most that a slowdown permits. */
static double find_effort(const making *m, double density, const tam_wish *wish) {
    double low = 0.0, high = most_effort(m);
    if (wish->kind == TAM_WISH_FREE)
        return 0.0;
    for (int i = 0; i < HALVINGS; i++) {
        double middle = 0.5 * low + 0.5 * high;
        tam_knobs k = knobs_at(m, density, middle);
        if (too_much(m, &k, wish))
            high = middle;
        else
            low = middle;
    }
    return wish->kind == TAM_WISH_WATTS ? high : low;
}

/* -- density ---------------------------------------------------------------------------------- */

/* In eighths, and not to and fro between two of them: numbers depend on it. */
static double round_share(double share, double before) {
    double wanted = EIGHTHS * clip(share, 0.0, 1.0), held = EIGHTHS * before;
    if (wanted > held - 1.0 && wanted < held + 1.0 && wanted > 0.0 && wanted < EIGHTHS)
        return before;
    return (double)(int)(wanted + 0.5) / EIGHTHS;
}

static void watch_residual(making *m) {
    double norm = m->window->residual_norm, most = m->config->residual_max;
    if (most > 0.0 && norm > most)
        m->state->guarded = true;
    else if (!(most > 0.0) || norm < guard_part * most)
        m->state->guarded = false; /* an unknown norm leaves it as it was */
}

static double choose_density(making *m, const tam_wish *wish) {
    const tamis_governor_config *c = m->config;
    m->state->share = m->state->guarded ? 0.0 : round_share(wish->share, m->state->share);
    return clip(c->density_max - m->state->share * (c->density_max - c->density_min),
                c->density_min, c->density_max); /* rounding */
}

/* -- what a window says ----------------------------------------------------------------------- */

/* Knobs that were in force, as the mean over the steps of the window. */
static tam_knobs knobs_of(const making *m) {
    const tam_governor_state *s = m->state;
    const tamis_governor_window *w = m->window;
    uint64_t first = w->step - w->steps;
    double old = s->from_step <= first ? 0.0 : (double)(s->from_step - first) / (double)w->steps;
    double top_w = m->frame.cap_max_w, cap = s->now.cap_w;
    tam_knobs k = {old * s->before.density + (1.0 - old) * s->now.density,
                   old * s->before.pace_s + (1.0 - old) * s->now.pace_s, cap};
    if (s->before.cap_w != cap && old > 0.0) { /* without a cap: as if with one that just binds */
        top_w = s->response.binding_w > 0.0 ? s->response.binding_w : top_w;
        k.cap_w = old * (s->before.cap_w > 0.0 ? s->before.cap_w : top_w) +
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

/* What the last decision was to change in this window, relative. */
static double moved_in(const making *m) {
    const tam_governor_state *s = m->state;
    if (s->response.windows == 0 || s->from_step < m->window->step - m->window->steps)
        return 0.0;
    return watts_at(m, &s->before) / watts_at(m, &s->now) - 1.0;
}

static void learn(making *m) {
    const tamis_governor_window *w = m->window;
    double steps = (double)w->steps;
    tam_knobs used = knobs_of(m);
    tam_response_learn(&m->state->response, &m->frame, &used, w->seconds / steps,
                       (double)w->uj / steps / 1e6, moved_in(m));
}

/* What the knobs cost, as learnt: a checkpoint or a slow disk is not on this account. */
static void keep_account(making *m) {
    tam_knobs nothing = free_knobs(m), used = knobs_of(m);
    double steps = (double)m->window->steps, free_s = step_s_at(m, &nothing);
    double lost_s = step_s_at(m, &used) - free_s;
    double credit = m->state->credit_s + steps * (m->config->slowdown * free_s - lost_s);
    m->state->credit_s = clip(credit, -credit_day_s, m->config->slowdown * credit_day_s);
}

static double smaller(double a, double b) {
    return a > 0.0 && (b == 0.0 || a < b) ? a : b; /* 0: none; b may be NAN */
}

static double budget_in_force(making *m) {
    tam_governor_state *s = m->state;
    if (s->budgeted && s->until_step && m->window->step > s->until_step)
        s->budgeted = false;
    double watts = s->budgeted ? s->budget_w : m->config->budget_w;
    double g_per_h = s->budgeted ? s->g_per_h : m->config->budget_g_per_h;
    if (g_per_h == 0.0)
        return watts;
    double g_per_wh = m->window->intensity_g_per_kwh * m->config->pue / 1000.0;
    if (isnan(g_per_wh))
        return NAN;
    return g_per_wh > 0.0 ? smaller(g_per_h / g_per_wh, watts) : watts;
}

/* -- deciding --------------------------------------------------------------------------------- */

/* Watts move no farther than the ramp permits until the next window has passed, also if what was
 * learnt is wrong by two standard deviations. */
static bool ramp_permits(const making *m, const tam_knobs *k) {
    const tam_knobs *now = &m->state->now;
    double moved = watts_at(m, k) - watts_at(m, now);
    double room = m->config->ramp_w_per_s * m->window->seconds;
    double left = room - (moved > 0.0 ? moved : -moved);
    double doubt = tam_response_doubt(&m->state->response, &m->frame, now, k);
    return room == 0.0 || (left >= (1.0 - ramp_part) * room && left * left >= 4.0 * doubt);
}

/* As far as the ramp permits from the effort of now, whose watts are those of now. */
static bool hold_ramp(const making *m, double effort, tam_knobs *k) {
    if (ramp_permits(m, k))
        return false;
    tam_wish stay = {TAM_WISH_WATTS, watts_at(m, &m->state->now), 0.0, TAMIS_GOVERNOR_RAMP};
    double near = find_effort(m, k->density, &stay), far = effort;
    for (int i = 0; i < HALVINGS; i++) {
        double middle = 0.5 * near + 0.5 * far;
        *k = knobs_at(m, k->density, middle);
        if (ramp_permits(m, k))
            near = middle;
        else
            far = middle;
    }
    *k = knobs_at(m, k->density, near);
    return true;
}

static bool within(double a, double b, double band) {
    return a - b < band * b && b - a < band * b;
}

/* A slowdown is small itself, so its band is narrower. */
static bool near_enough(const making *m, const tam_knobs *k, const tam_wish *wish) {
    const tam_knobs *now = &m->state->now;
    double band = m->config->dead_band;
    return k->density == now->density && within(watts_at(m, k), watts_at(m, now), band) &&
           (wish->kind == TAM_WISH_WATTS ||
            within(step_s_at(m, k), step_s_at(m, now), 0.25 * band));
}

static bool same(const tam_knobs *a, const tam_knobs *b) {
    return a->density == b->density && a->pace_s == b->pace_s && a->cap_w == b->cap_w;
}

static tamis_governor_reason choose(making *m, const tam_wish *wish, tam_knobs *out) {
    double density = choose_density(m, wish);
    double effort = find_effort(m, density, wish);
    tam_knobs k = knobs_at(m, density, effort), end = knobs_at(m, density, most_effort(m));
    tamis_governor_reason reason = m->state->guarded ? TAMIS_GOVERNOR_GUARD : wish->reason;
    if (wish->kind == TAM_WISH_WATTS && watts_at(m, &end) > wish->value) {
        k = end;
        effort = most_effort(m);
        reason = TAMIS_GOVERNOR_OUT_OF_REACH;
    }
    if (wish->kind != TAM_WISH_FREE && near_enough(m, &k, wish)) {
        *out = m->state->now;
        return reason == wish->reason ? TAMIS_GOVERNOR_HOLD : reason;
    }
    *out = k;
    return hold_ramp(m, effort, out) ? TAMIS_GOVERNOR_RAMP : reason;
}

static void explain(const making *m, tamis_governor_decision *out) {
    const tamis_governor_config *c = m->config;
    const tam_governor_state *s = m->state;
    if (s->response.windows == 0)
        return;
    tam_knobs nothing = free_knobs(m), all = knobs_at(m, c->density_min, 1.0);
    out->expected_w = watts_at(m, &s->now);
    out->slowdown = slowdown_at(m, &s->now);
    out->low_w = watts_at(m, &all);
    out->high_w = watts_at(m, &nothing);
}

static tamis_governor_reason decide(making *m, tamis_governor_decision *out) {
    const tamis_governor_window *w = m->window;
    tam_governor_state *s = m->state;
    watch_residual(m);
    out->budget_w = m->policy->budgets ? budget_in_force(m) : 0.0;
    if (w->steps == 0)
        return TAMIS_GOVERNOR_NO_STEPS;
    if (s->from_step >= w->step)
        return TAMIS_GOVERNOR_PENDING;
    if (!w->known || w->uj <= 0)
        return TAMIS_GOVERNOR_UNKNOWN_ENERGY;
    out->watts = (double)w->uj / 1e6 / w->seconds;
    learn(m);
    keep_account(m);

    tam_knobs nothing = free_knobs(m), next;
    tam_governor_view view = {m->config, w, out->budget_w, watts_at(m, &nothing), s->credit_s};
    tam_wish wish = m->policy->wish(&view);
    if (wish.kind == TAM_WISH_KEEP)
        return wish.reason;
    tamis_governor_reason reason = choose(m, &wish, &next);
    out->changed = !same(&next, &s->now);
    if (out->changed) {
        s->before = s->now;
        s->now = next;
        s->from_step = w->step + m->config->lead_steps;
    }
    return reason;
}

static tam_response_frame frame_of(const tamis_governor_config *c) {
    double most = c->cap_max_w > 0.0 ? c->cap_max_w : 1e12;
    return (tam_response_frame){c->density_max, most, (double)c->devices};
}

tam_governor_state tam_governor_begin(const tamis_governor_config *c) {
    tam_governor_state s;
    memset(&s, 0, sizeof s);
    s.before = s.now = (tam_knobs){c->density_max, 0.0, 0.0};
    return s;
}

void tam_governor_step(const tamis_governor_config *config, const tam_governor_policy *policy,
                       tam_governor_state *state, const tamis_governor_window *window,
                       tamis_governor_decision *out) {
    making m = {config, policy, state, window, frame_of(config)};
    *out = (tamis_governor_decision)TAMIS_GOVERNOR_DECISION_INIT;
    out->reason = decide(&m, out);
    out->step = out->changed ? state->from_step : window->step + config->lead_steps;
    out->density = state->now.density;
    out->pace_s = state->now.pace_s;
    out->cap_w = state->now.cap_w;
    explain(&m, out);
    state->seen_step = window->step;
}
