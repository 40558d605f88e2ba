/* SPDX-License-Identifier: MIT
 *
 * The handle: what is checked, kept and written. Deciding is in decide.c.
 */
#include "lib/energy/govern/governor.h"
#include "lib/base/fenv.h"
#include "lib/base/json.h"

#include <math.h>
#include <stdio.h>

static const char *const reasons[TAMIS_GOVERNOR_REASONS] = {
    "free",     "budget",         "carbon",
    "hold",     "ramp",           "out of reach",
    "guard",    "unknown energy", "unknown intensity",
    "no steps", "pending"};

const char *tamis_governor_reason_name(tamis_governor_reason reason) {
    return (unsigned)reason < TAMIS_GOVERNOR_REASONS ? reasons[reason] : "";
}

/* -- configuration ---------------------------------------------------------------------------- */

typedef struct bounds {
    const char *name;
    double value, low, high;
} bounds;

static const double most_w = 1e12, most_s = 86400.0;

static tamis_status check_bounds(const bounds *b, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!(b[i].value >= b[i].low && b[i].value <= b[i].high))
            return tam_fail(TAMIS_E_ARGUMENT, "governor: %s is %g, not between %g and %g",
                            b[i].name, b[i].value, b[i].low, b[i].high);
    }
    return TAMIS_OK;
}

static tamis_status governor_check_config(const tamis_governor_config *c) {
    const bounds all[] = {
        {"budget_w", c->budget_w, 0.0, most_w},
        {"budget_g_per_h", c->budget_g_per_h, 0.0, most_w},
        {"pue", c->pue, 1.0, 10.0},
        {"slowdown", c->slowdown, 0.0, 10.0},
        {"slowdown_most", c->slowdown_most, c->slowdown, 10.0},
        {"threshold_g_per_kwh", c->threshold_g_per_kwh, 0.0, 10000.0},
        {"density_max", c->density_max, 1e-9, 1.0},
        {"density_min", c->density_min, 1e-9, c->density_max},
        {"residual_max", c->residual_max, 0.0, 1e300},
        {"pace_max_s", c->pace_max_s, 0.0, most_s},
        {"cap_max_w", c->cap_max_w, 0.0, most_w},
        {"cap_min_w", c->cap_min_w, 0.0, c->cap_max_w},
        {"allow_cap", c->allow_cap, 0.0, 1.0},
        {"devices", c->devices, 1.0, 1e9},
        {"dead_band", c->dead_band, 0.0, 0.5},
        {"ramp_w_per_s", c->ramp_w_per_s, 0.0, most_w},
        {"lead_steps", (double)c->lead_steps, 1.0, 1e6},
    };
    TAM_TRY(check_bounds(all, sizeof all / sizeof all[0]));
    if (c->allow_cap && !(c->cap_min_w > 0.0))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "governor: allow_cap needs the range of a device's power limit in "
                        "cap_min_w and cap_max_w; cap_min_w is %g",
                        c->cap_min_w);
    return TAMIS_OK;
}

tamis_status tamis_governor_create(const tamis_governor_config *config, tamis_governor **out) {
    TAM_FENV_HELD();
    tamis_governor_config ours = TAMIS_GOVERNOR_CONFIG_INIT;
    const tam_governor_policy *policy;
    if (!config || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_create: %s is NULL",
                        config ? "out" : "config");
    TAM_TRY(tam_struct_copy("tamis_governor_config", &ours, sizeof ours, sizeof ours, config));
    TAM_TRY(tam_governor_policy_find(ours.policy, &policy));
    TAM_TRY(governor_check_config(&ours));
    if (policy->check)
        TAM_TRY(policy->check(&ours));

    tamis_governor *g = tam_alloc(sizeof *g);
    if (!g)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a governor");
    ours.policy = policy->name; /* the caller's may go */
    g->config = ours;
    g->policy = policy;
    g->before = g->now = tam_governor_free_knobs(&ours);
    g->response.density_max = ours.density_max;
    g->response.cap_max_w = ours.cap_max_w > 0.0 ? ours.cap_max_w : most_w;
    g->response.devices = (double)ours.devices;
    *out = g;
    return TAMIS_OK;
}

void tamis_governor_destroy(tamis_governor *governor) {
    tam_free(governor);
}

tamis_status tamis_governor_set_budget(tamis_governor *g, double watts, double g_per_h,
                                       uint64_t until_step) {
    TAM_FENV_HELD();
    if (!g)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_set_budget: governor is NULL");
    if (!g->policy->budgets)
        return tam_fail(TAMIS_E_UNSUPPORTED, "policy \"%s\" has no budget; use policy \"budget\"",
                        g->policy->name);
    const bounds both[] = {{"watts", watts, 0.0, most_w}, {"g_per_h", g_per_h, 0.0, most_w}};
    TAM_TRY(check_bounds(both, 2));
    g->budget_w = watts;
    g->g_per_h = g_per_h;
    g->until_step = until_step;
    g->budgeted = true;
    return TAMIS_OK;
}

/* -- deciding --------------------------------------------------------------------------------- */

/* NAN: unknown, which is within all bounds. */
static double known_or(double value, double low) {
    return isnan(value) ? low : value;
}

static tamis_status check_window(uint64_t seen_step, const tamis_governor_window *w) {
    const bounds all[] = {
        {"seconds", w->seconds, 1e-6, 1e9},
        {"density", known_or(w->density, 1.0), 1e-12, 1.0},
        {"pace_s", known_or(w->pace_s, 0.0), 0.0, w->seconds},
        {"cap_w", known_or(w->cap_w, 0.0), 0.0, most_w},
        {"residual_norm", known_or(w->residual_norm, 0.0), 0.0, INFINITY},
        {"intensity_g_per_kwh", known_or(w->intensity_g_per_kwh, 0.0), 0.0, 10000.0},
        {"outlook_g_per_kwh", known_or(w->outlook_g_per_kwh, 0.0), 0.0, 10000.0},
        {"outlook_low_g_per_kwh", known_or(w->outlook_low_g_per_kwh, 0.0), 0.0, 10000.0},
    };
    TAM_TRY(check_bounds(all, sizeof all / sizeof all[0]));
    if (w->steps > w->step || w->step > UINT64_MAX / 2)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "governor: a window of %llu steps cannot end at step %llu",
                        (unsigned long long)w->steps, (unsigned long long)w->step);
    if (w->step - w->steps < seen_step)
        return tam_fail(
            TAMIS_E_ARGUMENT,
            "governor: a window begins with step %llu, but step %llu was in the previous one",
            (unsigned long long)(w->step - w->steps), (unsigned long long)(seen_step - 1));
    return TAMIS_OK;
}

tamis_status tamis_governor_decide(tamis_governor *g, const tamis_governor_window *window,
                                   tamis_governor_decision *out) {
    TAM_FENV_HELD();
    tamis_governor_window ours = TAMIS_GOVERNOR_WINDOW_INIT;
    tamis_governor_decision decision;
    if (!g || !window || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_decide: an argument is NULL");
    TAM_TRY(tam_struct_copy("tamis_governor_window", &ours, sizeof ours, sizeof ours, window));
    TAM_TRY(check_window(g->window.step, &ours));
    tamis_governor next = *g;
    next.window = ours;
    tam_governor_step(&next, &decision);
    TAM_TRY(tam_struct_return("tamis_governor_decision", &decision, sizeof decision, out));
    *g = next;
    return TAMIS_OK;
}

/* -- a line of a log -------------------------------------------------------------------------- */

typedef struct number {
    const char *name;
    double value;
} number;

/* 17 digits give the same double back. */
static void print_numbers(const number *numbers, size_t count, char *text, size_t bytes) {
    for (size_t i = 0; i < count; i++) {
        size_t at = strlen(text);
        char digits[64] = "null";
        if (isfinite(numbers[i].value)) {
            snprintf(digits, sizeof digits, "%.17g", numbers[i].value);
            tam_json_plain(digits);
        }
        snprintf(text + at, bytes - at, ",\"%s\":%s", numbers[i].name, digits);
    }
}

static void print_window(const tamis_governor_window *w, char *text, size_t bytes) {
    const number numbers[] = {
        {"seconds", w->seconds},
        {"density", w->density},
        {"pace_s", w->pace_s},
        {"cap_w", w->cap_w},
        {"residual_norm", w->residual_norm},
        {"intensity_g_per_kwh", w->intensity_g_per_kwh},
        {"outlook_g_per_kwh", w->outlook_g_per_kwh},
        {"outlook_low_g_per_kwh", w->outlook_low_g_per_kwh},
    };
    snprintf(text, bytes, "{\"step\":%llu,\"steps\":%llu,\"uj\":%lld,\"known\":%d",
             (unsigned long long)w->step, (unsigned long long)w->steps, (long long)w->uj,
             w->known != 0);
    print_numbers(numbers, sizeof numbers / sizeof numbers[0], text, bytes);
}

tamis_status tamis_governor_line(const tamis_governor_window *w, const tamis_governor_decision *d,
                                 char *text, size_t bytes) {
    TAM_FENV_HELD();
    char window[TAMIS_GOVERNOR_LINE_BYTES / 2], line[TAMIS_GOVERNOR_LINE_BYTES];
    if (!w || !d || !text)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_line: an argument is NULL");
    const number numbers[] = {
        {"density", d->density},   {"pace_s", d->pace_s},     {"cap_w", d->cap_w},
        {"watts", d->watts},       {"budget_w", d->budget_w}, {"expected_w", d->expected_w},
        {"slowdown", d->slowdown}, {"low_w", d->low_w},       {"high_w", d->high_w},
    };
    print_window(w, window, sizeof window);
    snprintf(line, sizeof line,
             "{\"type\":\"decision\",\"in\":%s},\"step\":%llu,\"reason\":\"%s\",\"changed\":%u",
             window, (unsigned long long)d->step, tamis_governor_reason_name(d->reason),
             d->changed);
    print_numbers(numbers, sizeof numbers / sizeof numbers[0], line, sizeof line);
    size_t length = strlen(line);
    if (length + 2 > bytes)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_line: %zu bytes are not enough for %zu",
                        bytes, length + 2);
    memcpy(text, line, length);
    memcpy(text + length, "}", 2);
    return TAMIS_OK;
}
