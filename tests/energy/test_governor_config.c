/* SPDX-License-Identifier: MIT
 *
 * Wrong configurations, lines of a log.
 */
#include "tests/energy/governor_case.h"

/* -- wrong configurations --------------------------------------------------------------------- */

typedef struct wrong_case {
    size_t offset;
    double value;
    const char *word;
} wrong_case;

#define FIELD(name) offsetof(tamis_governor_config, name)

static const wrong_case wrong_cases[] = {
    {FIELD(budget_w), -1.0, "budget_w"},
    {FIELD(budget_w), NAN, "budget_w"},
    {FIELD(budget_w), INFINITY, "budget_w"},
    {FIELD(budget_g_per_h), -1.0, "budget_g_per_h"},
    {FIELD(budget_g_per_h), NAN, "budget_g_per_h"},
    {FIELD(pue), 0.5, "pue"},
    {FIELD(pue), NAN, "pue"},
    {FIELD(slowdown), -0.1, "slowdown"},
    {FIELD(slowdown), NAN, "slowdown"},
    {FIELD(slowdown_most), 0.001, "slowdown_most"}, /* less than slowdown */
    {FIELD(threshold_g_per_kwh), -5.0, "threshold_g_per_kwh"},
    {FIELD(threshold_g_per_kwh), NAN, "threshold_g_per_kwh"},
    {FIELD(density_min), 0.02, "density_min"}, /* more than density_max */
    {FIELD(density_min), 0.0, "density_min"},
    {FIELD(density_min), NAN, "density_min"},
    {FIELD(density_max), 1.5, "density_max"},
    {FIELD(density_max), NAN, "density_max"},
    {FIELD(residual_max), -1.0, "residual_max"},
    {FIELD(residual_max), NAN, "residual_max"},
    {FIELD(pace_max_s), -1.0, "pace_max_s"},
    {FIELD(pace_max_s), NAN, "pace_max_s"},
    {FIELD(pace_max_s), 1e6, "pace_max_s"},
    {FIELD(cap_min_w), 500.0, "cap_min_w"}, /* more than cap_max_w */
    {FIELD(cap_min_w), 0.0, "cap_min_w"},
    {FIELD(cap_min_w), NAN, "cap_min_w"},
    {FIELD(cap_max_w), NAN, "cap_max_w"},
    {FIELD(dead_band), -0.1, "dead_band"},
    {FIELD(dead_band), 0.9, "dead_band"},
    {FIELD(dead_band), NAN, "dead_band"},
    {FIELD(ramp_w_per_s), -1.0, "ramp_w_per_s"},
    {FIELD(ramp_w_per_s), NAN, "ramp_w_per_s"},
};

static void refuse(const tamis_governor_config *c, const char *word) {
    tamis_governor *g = NULL;
    assert_int_equal(tamis_governor_create(c, &g), TAMIS_E_ARGUMENT);
    assert_null(g);
    if (!strstr(tamis_last_error(), word))
        fail_msg("\"%s\" is not in: %s", word, tamis_last_error());
}

static void a_wrong_configuration_is_refused_and_the_field_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong_cases / sizeof wrong_cases[0]; i++) {
        tamis_governor_config c = open_config("budget");
        memcpy((char *)&c + wrong_cases[i].offset, &wrong_cases[i].value, sizeof(double));
        refuse(&c, wrong_cases[i].word);
    }
    tamis_governor_config c = open_config("budget");
    c.devices = 0;
    refuse(&c, "devices");
    c = open_config("budget");
    c.lead_steps = 0;
    refuse(&c, "lead_steps");
    c = open_config("budget");
    c.allow_cap = 7;
    refuse(&c, "allow_cap");
    c = open_config("budget");
    c.budget_w = c.budget_g_per_h = 0.0;
    refuse(&c, "needs budget_w");
    c = open_config("carbon-threshold");
    c.slowdown = 0.0;
    refuse(&c, "slowdown");
    c = open_config("off");
    c.size = 12;
    refuse(&c, "size");
    refuse(NULL, "config is NULL");
    c = open_config("off");
    assert_int_equal(tamis_governor_create(&c, NULL), TAMIS_E_ARGUMENT);
    tamis_governor_destroy(NULL);
}

static void an_unknown_policy_is_answered_with_those_that_there_are(void **state) {
    (void)state;
    static const char *const names[] = {"", "Budget", "budget ", "solar", NULL};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tamis_governor_config c = open_config(names[i]);
        for (size_t p = 0; p < sizeof all_policies / sizeof all_policies[0]; p++)
            refuse(&c, all_policies[p]);
    }
}

/* -- lines ------------------------------------------------------------------------------------ */

static void a_line_fits_and_unknown_numbers_are_null(void **state) {
    (void)state;
    char text[TAMIS_GOVERNOR_LINE_BYTES];
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT;
    assert_int_equal(tamis_governor_line(&w, &d, text, sizeof text), TAMIS_OK);
    assert_non_null(strstr(text, "\"intensity_g_per_kwh\":null"));
    assert_null(strstr(text, "nan"));
    const double longest = -2.2250738585072014e-308;
    w.step = w.steps = UINT64_MAX;
    w.uj = INT64_MIN;
    w.seconds = w.density = w.pace_s = w.cap_w = w.residual_norm = w.intensity_g_per_kwh = longest;
    w.outlook_g_per_kwh = w.outlook_low_g_per_kwh = longest;
    d.step = UINT64_MAX;
    d.reason = TAMIS_GOVERNOR_UNKNOWN_INTENSITY;
    d.changed = UINT32_MAX;
    d.density = d.pace_s = d.cap_w = d.watts = d.budget_w = d.expected_w = longest;
    d.slowdown = d.low_w = d.high_w = longest;
    assert_int_equal(tamis_governor_line(&w, &d, text, sizeof text), TAMIS_OK);
    size_t length = strlen(text);
    assert_string_equal(text + length - 2, "8}");
    assert_int_equal(tamis_governor_line(&w, &d, text, length + 1), TAMIS_OK);
    assert_int_equal(tamis_governor_line(&w, &d, text, length), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_governor_line(NULL, &d, text, length), TAMIS_E_ARGUMENT);
}

static void lack_of_memory_is_said(void **state) {
    (void)state;
    tamis_governor_config c = open_config("off");
    tamis_governor *g = NULL;
    tam_alloc_budget(0);
    tamis_status status = tamis_governor_create(&c, &g);
    tam_alloc_budget(-1);
    assert_int_equal(status, TAMIS_E_NOMEM);
    assert_null(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_configuration_is_refused_and_the_field_named),
        cmocka_unit_test(an_unknown_policy_is_answered_with_those_that_there_are),
        cmocka_unit_test(a_line_fits_and_unknown_numbers_are_null),
        cmocka_unit_test(lack_of_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
