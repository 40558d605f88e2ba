/* SPDX-License-Identifier: MIT
 *
 * A governor with every knob, and a plain window. For test_governor*.c.
 */
#ifndef TEST_GOVERNOR_CASE_H
#define TEST_GOVERNOR_CASE_H

#include "lib/base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/governor.h>

#include <cmocka.h>

static const char *const all_policies[] = {"off", "budget", "carbon-threshold",
                                           "carbon-proportional"};

static inline tamis_governor_config open_config(const char *policy) {
    tamis_governor_config c = TAMIS_GOVERNOR_CONFIG_INIT;
    c.policy = policy;
    c.budget_w = 20000.0;
    c.budget_g_per_h = 9000.0;
    c.pue = 1.2;
    c.density_min = 0.001;
    c.density_max = 0.01;
    c.residual_max = 95.0;
    c.pace_max_s = 0.5;
    c.allow_cap = 1;
    c.cap_min_w = 150.0;
    c.cap_max_w = 400.0;
    c.devices = 64;
    c.ramp_w_per_s = 500.0;
    c.lead_steps = 2;
    return c;
}

static inline tamis_governor *make(const tamis_governor_config *config) {
    tamis_governor *g = NULL;
    assert_int_equal(tamis_governor_create(config, &g), TAMIS_OK);
    return g;
}

static inline tamis_governor_window window_of(uint64_t step) {
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    w.step = step;
    w.steps = 10;
    w.seconds = 5.0;
    w.uj = 140000000000; /* 28 kW */
    w.known = 1;
    return w;
}

static inline tamis_governor_decision decide(tamis_governor *g, const tamis_governor_window *w) {
    tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT;
    assert_int_equal(tamis_governor_decide(g, w, &d), TAMIS_OK);
    return d;
}

#endif
