/* SPDX-License-Identifier: MIT
 *
 * What the governor promises whatever the windows are: bounds, the same bits. Every policy goes
 * through the same body.
 *
 * test: slow long
 */
#include "tests/energy/governor_case.h"
#include "tests/support/data.h"

enum { RANKS = 8, WINDOWS = 100000 };

static double uniform(uint64_t seed) {
    return (double)(data_mix(seed) >> 11) / 9007199254740992.0;
}

/* Wild windows, of integers only: watts from 15 to 30 kW, now and then leaps, stalls, no joules, no
 * intensity, no steps. */
static tamis_governor_window wild_window(uint64_t i, uint64_t *step) {
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    uint64_t key = 100 * i;
    w.steps = data_mix(key) % 97 == 0 ? 0 : 1 + data_mix(key + 1) % 20;
    w.step = *step += w.steps + (data_mix(key + 2) % 10 == 0);
    w.seconds = 0.25 + (double)w.steps * (0.25 + uniform(key + 3));
    if (data_mix(key + 4) % 50 == 0)
        w.seconds *= 1000.0;
    w.uj = (int64_t)(w.seconds * (15e9 + 15e9 * uniform(key + 5)));
    if (data_mix(key + 6) % 50 == 0)
        w.uj = (int64_t)(data_mix(key + 7) >> 1) * (data_mix(key + 8) % 2 ? 1 : -1);
    w.known = data_mix(key + 9) % 20 != 0;
    if (data_mix(key + 10) % 20) {
        w.intensity_g_per_kwh = 600.0 * uniform(key + 11);
        w.outlook_low_g_per_kwh = 100.0 * uniform(key + 12);
        w.outlook_g_per_kwh = 100.0 + 300.0 * uniform(key + 13);
    }
    if (data_mix(key + 14) % 2)
        w.residual_norm = 100.0 * uniform(key + 15);
    return w;
}

static void check_bounds(const tamis_governor_config *c, const tamis_governor_window *w,
                         const tamis_governor_decision *d) {
    assert_true(d->density >= c->density_min && d->density <= c->density_max);
    assert_true(d->pace_s >= 0.0 && d->pace_s <= c->pace_max_s);
    assert_true(d->cap_w == 0.0 || (c->allow_cap && d->cap_w >= c->cap_min_w));
    assert_true(d->cap_w <= c->cap_max_w);
    assert_true(d->step == w->step + c->lead_steps || !d->changed);
    assert_true(d->step >= w->step);
    assert_true(*tamis_governor_reason_name(d->reason));
    assert_true(d->reason < TAMIS_GOVERNOR_UNKNOWN_ENERGY || !d->changed);
    assert_false(isinf(d->expected_w) || isinf(d->slowdown));
}

/* One policy, as RANKS copies. */
static uint64_t run_policy(const char *policy, uint64_t windows) {
    tamis_governor_config config = open_config(policy);
    tamis_governor *ranks[RANKS];
    uint64_t step = 0, hash = 0, reasons = 0, changes = 0;
    for (int r = 0; r < RANKS; r++)
        ranks[r] = make(&config);
    for (uint64_t i = 0; i < windows; i++) {
        tamis_governor_window w = wild_window(i, &step);
        tamis_governor_decision first = TAMIS_GOVERNOR_DECISION_INIT;
        for (int r = 0; r < RANKS; r++) {
            tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT;
            assert_int_equal(tamis_governor_decide(ranks[r], &w, &d), TAMIS_OK);
            if (r == 0)
                first = d;
            assert_memory_equal(&d, &first, sizeof d);
        }
        check_bounds(&config, &w, &first);
        hash = data_hash(hash, &first.density, sizeof first.density);
        hash = data_hash(hash, &first.pace_s, sizeof first.pace_s);
        hash = data_hash(hash, &first.cap_w, sizeof first.cap_w);
        hash = data_hash(hash, &first.expected_w, sizeof first.expected_w);
        reasons |= 1ull << first.reason;
        changes += first.changed;
    }
    print_message("%s: bits %016llx, %llu changes, reasons %llx\n", policy,
                  (unsigned long long)hash, (unsigned long long)changes,
                  (unsigned long long)reasons);
    assert_true(strcmp(policy, "off") == 0 ? changes == 0 : changes > windows / 100);
    for (int r = 0; r < RANKS; r++)
        tamis_governor_destroy(ranks[r]);
    return hash;
}

static void every_policy_decides_the_same_way_on_all_ranks_and_within_its_bounds(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof all_policies / sizeof all_policies[0]; i++)
        run_policy(all_policies[i],
                   strcmp(all_policies[i], "budget") == 0 ? WINDOWS : WINDOWS / 10);
}

/* The bits hold for this program built by other compilers, with other flags, on other processors. A
 * policy that is changed on purpose has other bits: put in those that the message shows. */
static void decisions_have_the_same_bits_in_every_build(void **state) {
    (void)state;
    static const struct {
        const char *policy;
        uint64_t bits;
    } known[] = {
        {"budget", 0xaca291a754e544fd},
        {"carbon-threshold", 0xacd5009379a86cdf},
        {"carbon-proportional", 0x92302d8d0678ee20},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_true(run_policy(known[i].policy, 3000) == known[i].bits);
}

/* -- windows ---------------------------------------------------------------------------------- */

static void a_window_that_cannot_be_has_no_effect(void **state) {
    (void)state;
    tamis_governor_config c = open_config("budget");
    c.budget_g_per_h = 0.0;
    tamis_governor *g = make(&c), *unharmed = make(&c);
    tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT, before = d;
    tamis_governor_window good = window_of(10);
    decide(g, &good);
    decide(unharmed, &good);
    static const double bad[] = {0.0, -1.0, NAN, INFINITY, 1e300};
    for (int i = 0; i < 21; i++) {
        tamis_governor_window w = window_of(20);
        double value = bad[i % 5 ? 1 : 0];
        if (i < 5)
            w.seconds = bad[i];
        else if (i == 5)
            w.steps = 21; /* more than there were */
        else if (i == 6)
            w.steps = 11; /* one of them was in the window before */
        else if (i == 7)
            w.step = UINT64_MAX;
        else if (i < 10)
            w.density = i == 8 ? 2.0 : -1.0;
        else if (i < 12)
            w.pace_s = i == 10 ? -1.0 : 6.0; /* a step paused longer than all took */
        else if (i == 12)
            w.cap_w = -1.0;
        else if (i < 15)
            w.intensity_g_per_kwh = i == 13 ? -1.0 : INFINITY;
        else if (i < 17)
            w.outlook_g_per_kwh = i == 15 ? -1.0 : INFINITY;
        else if (i < 19)
            w.outlook_low_g_per_kwh = i == 17 ? -1.0 : 1e9;
        else if (i == 19)
            w.residual_norm = value - 1.0;
        else
            w.size = 3;
        assert_int_equal(tamis_governor_decide(g, &w, &d), TAMIS_E_ARGUMENT);
        assert_memory_equal(&d, &before, sizeof d);
    }
    tamis_governor_window w = window_of(20);
    assert_int_equal(tamis_governor_decide(NULL, &w, &d), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_governor_decide(g, NULL, &d), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_governor_decide(g, &w, NULL), TAMIS_E_ARGUMENT);
    d = decide(g, &w);
    before = decide(unharmed, &w);
    assert_memory_equal(&d, &before, sizeof d);
    tamis_governor_destroy(unharmed);
    tamis_governor_destroy(g);
}

static void a_decision_names_a_step_that_is_yet_to_come(void **state) {
    (void)state;
    tamis_governor_config c = open_config("budget");
    c.lead_steps = 15;
    tamis_governor *g = make(&c);
    tamis_governor_window w = window_of(10);
    w.intensity_g_per_kwh = 300.0;
    tamis_governor_decision d = decide(g, &w);
    assert_int_equal(d.changed, 1);
    assert_int_equal(d.step, 25);
    w.step = 20; /* it has not taken hold by then */
    d = decide(g, &w);
    assert_int_equal(d.reason, TAMIS_GOVERNOR_PENDING);
    assert_int_equal(d.changed, 0);
    tamis_governor_destroy(g);
}

/* -- budgets ---------------------------------------------------------------------------------- */

static void the_smaller_budget_holds_and_grams_need_an_intensity(void **state) {
    (void)state;
    tamis_governor_config c = open_config("budget"); /* 20 kW, 9 kg/h, PUE 1.2 */
    tamis_governor *g = make(&c);
    tamis_governor_window w = window_of(10);
    w.intensity_g_per_kwh = 300.0; /* 9000 / 300 / 1.2 = 25 kW */
    assert_true(decide(g, &w).budget_w == 20000.0);
    w.step = 20;
    w.intensity_g_per_kwh = 500.0; /* 15 kW */
    assert_true(fabs(decide(g, &w).budget_w - 15000.0) < 1e-6);
    w.step = 30;
    w.intensity_g_per_kwh = 0.0; /* as many as there are */
    assert_true(decide(g, &w).budget_w == 20000.0);
    w.step = 40;
    w.intensity_g_per_kwh = NAN;
    tamis_governor_decision d = decide(g, &w);
    assert_int_equal(d.reason, TAMIS_GOVERNOR_UNKNOWN_INTENSITY);
    assert_int_equal(d.changed, 0);
    tamis_governor_destroy(g);
}

static void a_budget_that_was_set_expires(void **state) {
    (void)state;
    tamis_governor_config c = open_config("budget");
    c.budget_g_per_h = 0.0;
    tamis_governor *g = make(&c);
    assert_int_equal(tamis_governor_set_budget(g, 18000.0, 0.0, 25), TAMIS_OK);
    tamis_governor_window w = window_of(10);
    assert_true(decide(g, &w).budget_w == 18000.0);
    w.step = 25;
    assert_true(decide(g, &w).budget_w == 18000.0);
    w.step = 35;
    assert_true(decide(g, &w).budget_w == 20000.0);
    assert_int_equal(tamis_governor_set_budget(g, 0.0, 0.0, 0), TAMIS_OK);
    w.step = 45;
    assert_true(decide(g, &w).budget_w == 0.0);
    assert_int_equal(tamis_governor_set_budget(g, -1.0, 0.0, 0), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_governor_set_budget(g, NAN, 0.0, 0), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_governor_set_budget(g, 1.0, INFINITY, 0), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_governor_set_budget(NULL, 1.0, 1.0, 0), TAMIS_E_ARGUMENT);
    tamis_governor_destroy(g);
    c = open_config("carbon-threshold");
    g = make(&c);
    assert_int_equal(tamis_governor_set_budget(g, 1.0, 0.0, 0), TAMIS_E_UNSUPPORTED);
    tamis_governor_destroy(g);
}

/* -- density ---------------------------------------------------------------------------------- */

static void a_residual_that_grows_too_large_brings_density_back(void **state) {
    (void)state;
    static const struct {
        double norm;
        int largest;
    } steps[] = {{50.0, 0}, {96.0, 1}, {80.0, 1}, {NAN, 1}, {77.0, 1}, {75.0, 0}, {94.0, 0}};
    tamis_governor_config c = open_config("budget");
    c.budget_g_per_h = c.ramp_w_per_s = 0.0;
    tamis_governor *g = make(&c);
    tamis_governor_window w = window_of(0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        w.step += 10;
        w.residual_norm = steps[i].norm;
        w.uj = 160000000000; /* far above the budget whatever is done */
        tamis_governor_decision d = decide(g, &w);
        assert_int_equal(d.density == c.density_max, steps[i].largest);
    }
    tamis_governor_destroy(g);
}

static void without_a_range_density_and_cap_are_left_alone(void **state) {
    (void)state;
    tamis_governor_config c = TAMIS_GOVERNOR_CONFIG_INIT;
    uint64_t step = 0;
    c.policy = "budget";
    c.budget_w = 100.0;
    c.pace_max_s = 1.0;
    tamis_governor *g = make(&c);
    for (uint64_t i = 0; i < 1000; i++) {
        tamis_governor_window w = wild_window(i, &step);
        tamis_governor_decision d = decide(g, &w);
        assert_true(d.density == c.density_max && d.cap_w == 0.0);
    }
    tamis_governor_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_decides_the_same_way_on_all_ranks_and_within_its_bounds),
        cmocka_unit_test(decisions_have_the_same_bits_in_every_build),
        cmocka_unit_test(a_window_that_cannot_be_has_no_effect),
        cmocka_unit_test(a_decision_names_a_step_that_is_yet_to_come),
        cmocka_unit_test(the_smaller_budget_holds_and_grams_need_an_intensity),
        cmocka_unit_test(a_budget_that_was_set_expires),
        cmocka_unit_test(a_residual_that_grows_too_large_brings_density_back),
        cmocka_unit_test(without_a_range_density_and_cap_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
