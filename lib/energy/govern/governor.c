/* SPDX-License-Identifier: MIT
 *
 * The handle: what is checked, kept, saved and written. Deciding is in decide.c.
 */
#include "lib/energy/govern/governor.h"
#include "lib/base/fenv.h"

#include <math.h>
#include <stdio.h>
#include <xxhash.h>

struct tamis_governor {
    tamis_governor_config config;
    const tam_governor_policy *policy;
    tam_governor_state state;
};

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

static tamis_status check_config(const tamis_governor_config *c) {
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
                        "governor: with allow_cap, cap_min_w and cap_max_w say what a device's "
                        "limit may be; cap_min_w is %g",
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
    TAM_TRY(check_config(&ours));
    if (policy->check)
        TAM_TRY(policy->check(&ours));

    tamis_governor *g = tam_alloc(sizeof *g);
    if (!g)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a governor");
    ours.policy = policy->name; /* the caller's may go */
    g->config = ours;
    g->policy = policy;
    g->state = tam_governor_begin(&g->config);
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
    g->state.budget_w = watts;
    g->state.g_per_h = g_per_h;
    g->state.until_step = until_step;
    g->state.budgeted = 1;
    return TAMIS_OK;
}

/* -- deciding --------------------------------------------------------------------------------- */

static bool between(double value, double low, double high) {
    return isnan(value) || (value >= low && value <= high);
}

static tamis_status check_window(const tam_governor_state *s, const tamis_governor_window *w) {
    const char *wrong = NULL;
    if (!(w->seconds >= 1e-6 && w->seconds <= 1e9))
        wrong = "seconds";
    else if (w->steps > w->step || w->step > UINT64_MAX / 2)
        wrong = "steps";
    else if (!between(w->density, 1e-12, 1.0))
        wrong = "density";
    else if (!between(w->pace_s, 0.0, w->seconds))
        wrong = "pace_s";
    else if (!between(w->cap_w, 0.0, most_w))
        wrong = "cap_w";
    else if (!between(w->residual_norm, 0.0, INFINITY))
        wrong = "residual_norm";
    else if (!between(w->intensity_g_per_kwh, 0.0, 10000.0) ||
             !between(w->outlook_g_per_kwh, 0.0, 10000.0) ||
             !between(w->outlook_low_g_per_kwh, 0.0, 10000.0))
        wrong = "an intensity";
    if (wrong)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "governor: %s of the window that ends before step %llu "
                        "is out of range",
                        wrong, (unsigned long long)w->step);
    if (w->step - w->steps < s->seen_step)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "governor: a window begins with step %llu, but step %llu was in the one "
                        "before",
                        (unsigned long long)(w->step - w->steps),
                        (unsigned long long)(s->seen_step - 1));
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
    TAM_TRY(check_window(&g->state, &ours));
    tam_governor_state next = g->state;
    tam_governor_step(&g->config, g->policy, &next, &ours, &decision);
    TAM_TRY(tam_struct_give("tamis_governor_decision", &decision, sizeof decision, out));
    g->state = next;
    return TAMIS_OK;
}

/* -- a line of a log -------------------------------------------------------------------------- */

/* 17 digits give the same double back; a point is a point in every language. */
static void print_number(const char *name, double value, char *text, size_t bytes) {
    size_t at = strlen(text);
    if (!isfinite(value)) {
        snprintf(text + at, bytes - at, ",\"%s\":null", name);
        return;
    }
    snprintf(text + at, bytes - at, ",\"%s\":%.17g", name, value);
    char *comma = strrchr(text + at + 1, ',');
    if (comma)
        *comma = '.';
}

tamis_status tamis_governor_line(const tamis_governor_window *w, const tamis_governor_decision *d,
                                 char *text, size_t bytes) {
    TAM_FENV_HELD();
    char line[TAMIS_GOVERNOR_LINE_BYTES];
    const size_t room = sizeof line;
    if (!w || !d || !text)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_line: an argument is NULL");
    snprintf(line, room,
             "{\"type\":\"decision\",\"in\":{\"step\":%llu,\"steps\":%llu,\"uj\":%lld,"
             "\"known\":%d",
             (unsigned long long)w->step, (unsigned long long)w->steps, (long long)w->uj,
             w->known != 0);
    print_number("seconds", w->seconds, line, room);
    print_number("density", w->density, line, room);
    print_number("pace_s", w->pace_s, line, room);
    print_number("cap_w", w->cap_w, line, room);
    print_number("residual_norm", w->residual_norm, line, room);
    print_number("intensity_g_per_kwh", w->intensity_g_per_kwh, line, room);
    print_number("outlook_g_per_kwh", w->outlook_g_per_kwh, line, room);
    print_number("outlook_low_g_per_kwh", w->outlook_low_g_per_kwh, line, room);
    size_t at = strlen(line);
    snprintf(line + at, room - at, "},\"step\":%llu,\"reason\":\"%s\",\"changed\":%u",
             (unsigned long long)d->step, tamis_governor_reason_name(d->reason), d->changed);
    print_number("density", d->density, line, room);
    print_number("pace_s", d->pace_s, line, room);
    print_number("cap_w", d->cap_w, line, room);
    print_number("watts", d->watts, line, room);
    print_number("budget_w", d->budget_w, line, room);
    print_number("expected_w", d->expected_w, line, room);
    print_number("slowdown", d->slowdown, line, room);
    print_number("low_w", d->low_w, line, room);
    print_number("high_w", d->high_w, line, room);
    at = strlen(line);
    if (at + 2 > bytes)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_line: %zu bytes are not enough for %zu",
                        bytes, at + 2);
    memcpy(text, line, at);
    memcpy(text + at, "}", 2);
    return TAMIS_OK;
}

/* -- state ------------------------------------------------------------------------------------ */

typedef struct saved {
    uint64_t magic, config, sum; /* sum: of the state */
    tam_governor_state state;
} saved;

static const uint64_t magic = 0x3130766f67535447u; /* "GTSgov01": layout of tam_governor_state */

_Static_assert(sizeof(saved) <= TAMIS_GOVERNOR_STATE_BYTES, "the state has its promised size");

/* Of what the configuration means, for pointers differ. */
static uint64_t hash_config(const tamis_governor *g) {
    tamis_governor_config plain = g->config;
    plain.policy = NULL;
    return XXH3_64bits_withSeed(&plain, sizeof plain,
                                XXH3_64bits(g->policy->name, strlen(g->policy->name)));
}

tamis_status tamis_governor_save(const tamis_governor *g, void *state, size_t bytes) {
    TAM_FENV_HELD();
    if (!g || !state || bytes < TAMIS_GOVERNOR_STATE_BYTES)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_save: give a governor and %d bytes",
                        TAMIS_GOVERNOR_STATE_BYTES);
    saved s = {magic, hash_config(g), XXH3_64bits(&g->state, sizeof g->state), g->state};
    memset(state, 0, bytes);
    memcpy(state, &s, sizeof s);
    return TAMIS_OK;
}

tamis_status tamis_governor_load(tamis_governor *g, const void *state, size_t bytes) {
    TAM_FENV_HELD();
    saved s;
    if (!g || !state || bytes < TAMIS_GOVERNOR_STATE_BYTES)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_governor_load: give a governor and %d bytes",
                        TAMIS_GOVERNOR_STATE_BYTES);
    memcpy(&s, state, sizeof s);
    if (s.magic != magic || s.sum != XXH3_64bits(&s.state, sizeof s.state))
        return tam_fail(TAMIS_E_FORMAT, "the state of the governor is damaged, or not of this "
                                        "version; begin without it");
    if (s.config != hash_config(g))
        return tam_fail(TAMIS_E_FORMAT, "the state of the governor is of another configuration; "
                                        "create it alike, or begin without the state");
    g->state = s.state;
    return TAMIS_OK;
}
