/* SPDX-License-Identifier: MIT
 *
 * Shares of joules add up to the microjoule, whatever is asked.
 */
#include "lib/energy/attribute/attribute.h"
#include "tests/support/generator.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { PHASES = TAMIS_ENERGY_PHASES };

typedef struct parts {
    double seconds[PHASES];
    tamis_energy_share shares[PHASES];
    int64_t unattributed_uj;
} parts;

static int64_t sum_of(const parts *p) {
    int64_t sum = 0;
    for (uint32_t k = 0; k < PHASES; k++)
        sum += p->shares[k].uj;
    return sum;
}

static void divide(const tam_fit *fit, int64_t uj, parts *p) {
    memset(p->shares, 0xff, sizeof p->shares);
    tam_fit_divide(fit, p->seconds, uj, p->shares, &p->unattributed_uj);
    assert_int_equal(sum_of(p) + p->unattributed_uj, uj);
    for (uint32_t k = 0; k < PHASES; k++) {
        const tamis_energy_share *share = &p->shares[k];
        assert_true(share->uj >= 0 && share->seconds >= 0.0);
        assert_true(share->low_uj >= 0 && share->low_uj <= share->uj);
        assert_true(share->high_uj >= share->uj && (uj < 0 || share->high_uj <= uj));
        assert_int_equal(share->method == TAMIS_ENERGY_NONE, share->seconds == 0.0 || uj < 0);
        assert_true(share->seconds > 0.0 || share->uj == 0);
    }
}

static tam_fit *untaught(void **state) {
    (void)state;
    tam_fit *fit;
    assert_int_equal(tam_fit_open(&fit), TAMIS_OK);
    return fit;
}

/* 60 s of the six phases. @param truth  [out]  may be NULL */
static tam_fit *taught(generator_truth *truth) {
    generator_config config = generator_six(3);
    config.seconds = 60.0;
    generator *g = generator_open(&config);
    tam_spans *spans;
    tam_fit *fit;
    uint64_t begin_ns, end_ns, uj;
    assert_non_null(g);
    assert_int_equal(tam_spans_open(&spans), TAMIS_OK);
    assert_int_equal(tam_fit_open(&fit), TAMIS_OK);
    while (generator_next(g, spans, &begin_ns, &end_ns, &uj))
        tam_fit_take(fit, spans, begin_ns, end_ns, uj, config.tick_s);
    if (truth)
        generator_look(g, truth);
    tam_spans_close(spans);
    generator_close(g);
    return fit;
}

static void before_there_are_rows_time_decides(void **state) {
    tam_fit *fit = untaught(state);
    parts p = {.seconds = {[3] = 1.0, [7] = 2.0, [TAMIS_ENERGY_IDLE] = 3.0}};
    divide(fit, 6000001, &p);
    assert_true(p.shares[3].uj / 2 == 500000 && p.shares[7].uj / 2 == 1000000);
    assert_int_equal(p.shares[TAMIS_ENERGY_IDLE].method, TAMIS_ENERGY_TIME_SHARE);
    assert_int_equal(p.shares[3].low_uj, p.shares[3].high_uj);
    assert_int_equal(p.unattributed_uj, 0);
    tam_fit_close(fit);
}

static void an_only_phase_has_what_the_counter_says(void **state) {
    tam_fit *fits[2] = {untaught(state), taught(NULL)};
    for (uint32_t i = 0; i < 2; i++) {
        parts p = {.seconds = {[TAMIS_ENERGY_BACKWARD] = 0.001}};
        divide(fits[i], 987654321, &p);
        assert_int_equal(p.shares[TAMIS_ENERGY_BACKWARD].uj, 987654321);
        assert_int_equal(p.shares[TAMIS_ENERGY_BACKWARD].method, TAMIS_ENERGY_COUNTER);
        tam_fit_close(fits[i]);
    }
}

static void without_exposure_all_is_unattributed(void **state) {
    tam_fit *fits[2] = {untaught(state), taught(NULL)};
    for (uint32_t i = 0; i < 2; i++) {
        parts p = {.seconds = {NAN, -1.0, INFINITY, 0.0, -INFINITY, 1e300}};
        divide(fits[i], 12345, &p);
        assert_int_equal(p.unattributed_uj, 12345);
        p.seconds[0] = 1.0;
        divide(fits[i], -5, &p); /* no counter says so; nothing is made of it */
        assert_int_equal(p.unattributed_uj, -5);
        tam_fit_close(fits[i]);
    }
}

static void any_joules_add_up_to_the_microjoule(void **state) {
    (void)state;
    static const int64_t some[] = {0, 1, 2, 5, 31, 999999, 9000000000000000, INT64_MAX};
    generator_truth truth;
    tam_fit *fits[2] = {untaught(state), taught(&truth)};
    uint64_t random = 1;
    for (uint32_t i = 0; i < 4000; i++) {
        parts p = {0};
        for (uint32_t k = 0; k < PHASES; k++) {
            bool known = truth.seconds[k] > 0.0;
            if (generator_uniform(&random) < (known ? 0.8 : 0.1))
                p.seconds[k] = pow(10.0, 12.0 * generator_uniform(&random) - 8.0);
        }
        int64_t uj = i % 3 ? some[i % (sizeof some / sizeof some[0])]
                           : (int64_t)pow(10.0, 15.9 * generator_uniform(&random));
        divide(fits[i % 2], uj, &p);
    }
    tam_fit_close(fits[0]);
    tam_fit_close(fits[1]);
}

static void what_is_measured_beyond_three_deviations_is_unattributed(void **state) {
    (void)state;
    generator_truth truth;
    tam_fit *fit = taught(&truth);
    parts usual = {0}, more = {0}, less = {0};
    memcpy(usual.seconds, truth.seconds, sizeof truth.seconds);
    more = less = usual;
    divide(fit, truth.uj, &usual);
    assert_true(usual.unattributed_uj <= truth.uj / 1000);
    divide(fit, 2 * truth.uj, &more);
    divide(fit, truth.uj / 2, &less);
    assert_true(more.unattributed_uj > 8 * (truth.uj / 10));
    assert_int_equal(less.unattributed_uj, 0);
    for (uint32_t k = 0; k < PHASES; k++) {
        const tamis_energy_share *share = &usual.shares[k];
        double sd = (double)(share->high_uj - share->low_uj) / (2.0 * 1.96);
        assert_true((double)more.shares[k].uj <= (double)share->uj + 3.3 * sd + 1.0);
        assert_true(less.shares[k].uj <= share->uj);
    }
    tam_fit_close(fit);
}

/* Whose watts are known worse takes more of what is to be moved. */
static void adjustment_goes_by_variance(void **state) {
    (void)state;
    generator_truth truth;
    tam_fit *fit = taught(&truth);
    parts usual = {0}, more;
    memcpy(usual.seconds, truth.seconds, sizeof truth.seconds);
    more = usual;
    divide(fit, truth.uj, &usual);
    divide(fit, truth.uj + truth.uj / 200, &more);
    double part[PHASES];
    for (uint32_t k = 0; k < PHASES; k++)
        part[k] = (double)(more.shares[k].uj - usual.shares[k].uj) / (double)usual.shares[k].uj;
    assert_true(part[TAMIS_PHASE_WAIT] > part[TAMIS_ENERGY_BACKWARD]);
    assert_true(part[TAMIS_PHASE_APPLY] > part[TAMIS_ENERGY_FORWARD]);
    assert_true(part[TAMIS_ENERGY_BACKWARD] > 0.0);
    tam_fit_close(fit);
}

static void a_phase_that_was_never_seen_has_a_wide_interval(void **state) {
    (void)state;
    tam_fit *fit = taught(NULL);
    parts p = {.seconds = {[TAMIS_ENERGY_FORWARD] = 10.0, [TAMIS_ENERGY_USER + 4] = 1.0}};
    divide(fit, 4600000000, &p);
    const tamis_energy_share *fresh = &p.shares[TAMIS_ENERGY_USER + 4];
    assert_int_equal(fresh->low_uj, 0);
    assert_true(fresh->high_uj > 600000000);
    tam_fit_close(fit);
}

static void gains_that_say_nothing_do_no_harm(void **state) {
    (void)state;
    tam_spans *spans;
    tam_fit *fit;
    double lag_s, duty, residual_w, condition;
    assert_int_equal(tam_spans_open(&spans), TAMIS_OK);
    assert_int_equal(tam_fit_open(&fit), TAMIS_OK);
    tam_fit_take(fit, spans, 5, 5, 1, 0.1);
    tam_fit_take(fit, spans, 9, 5, UINT64_MAX, 0.1);
    tam_fit_take(fit, spans, 0, 100, 1, 0.1); /* before anything is known */
    tam_fit_take(fit, spans, 500000000, 600000000, 1, 0.0);
    tam_fit_take(fit, spans, 500000000, 600000000, 1, NAN);
    for (uint64_t i = 10; i < 300; i++) {
        for (uint32_t phase = 0; phase < TAMIS_ENERGY_IDLE; phase++)
            tam_spans_add(spans, phase, i * 100000000 + phase, i * 100000000 + 90000000 - phase);
        uint64_t uj = i % 50 == 49 ? UINT64_MAX : 0;
        tam_fit_take(fit, spans, i * 100000000, (i + 1) * 100000000, uj, 0.1);
    }
    tam_fit_sensor(fit, &lag_s, &duty);
    tam_fit_quality(fit, &residual_w, &condition);
    assert_true(lag_s >= 0.0 && lag_s < 0.1 && duty >= 0.0 && duty <= 1.0);
    divide(fit, 1000001, &(parts){.seconds = {1.0, 2.0, 3.0}});
    tam_fit_close(fit);
    tam_spans_close(spans);
}

static void without_memory_opening_says_so(void **state) {
    (void)state;
    tam_fit *fit = NULL;
    tam_alloc_budget(0);
    tamis_status status = tam_fit_open(&fit);
    tam_alloc_budget(-1);
    assert_int_equal(status, TAMIS_E_NOMEM);
    assert_null(fit);
    tam_fit_close(NULL);
}

static void numbers_have_names_that_never_change(void **state) {
    (void)state;
    assert_string_equal(tamis_energy_kind_name(TAMIS_ENERGY_GPU), "gpu");
    assert_string_equal(tamis_energy_kind_name(TAMIS_ENERGY_KINDS), "");
    assert_string_equal(tamis_energy_kind_name((tamis_energy_kind)-1), "");
    assert_string_equal(tamis_energy_status_name(TAMIS_ENERGY_OK), "ok");
    assert_string_equal(tamis_energy_status_name((tamis_energy_status)99), "");
    assert_string_equal(tamis_energy_method_name(TAMIS_ENERGY_TIME_SHARE), "time_share");
    assert_string_equal(tamis_energy_method_name(TAMIS_ENERGY_METHODS), "");
    assert_string_equal(tamis_energy_phase_name(TAMIS_PHASE_EXCHANGE), "exchange");
    assert_string_equal(tamis_energy_phase_name(TAMIS_PHASES), "");
    assert_string_equal(tamis_energy_phase_name(TAMIS_ENERGY_USER), "user0");
    assert_string_equal(tamis_energy_phase_name(30), "user9");
    assert_string_equal(tamis_energy_phase_name(TAMIS_ENERGY_IDLE), "idle");
    assert_string_equal(tamis_energy_phase_name(UINT32_MAX), "");
    for (uint32_t i = 0; i < TAMIS_ENERGY_STATUSES; i++)
        assert_true(tamis_energy_status_name((tamis_energy_status)i)[0] != '\0');
    for (uint32_t i = 0; i < TAMIS_ENERGY_KINDS; i++)
        assert_true(tamis_energy_kind_name((tamis_energy_kind)i)[0] != '\0');
    for (uint32_t i = 0; i < TAMIS_ENERGY_METHODS; i++)
        assert_true(tamis_energy_method_name((tamis_energy_method)i)[0] != '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_there_are_rows_time_decides),
        cmocka_unit_test(an_only_phase_has_what_the_counter_says),
        cmocka_unit_test(without_exposure_all_is_unattributed),
        cmocka_unit_test(any_joules_add_up_to_the_microjoule),
        cmocka_unit_test(what_is_measured_beyond_three_deviations_is_unattributed),
        cmocka_unit_test(adjustment_goes_by_variance),
        cmocka_unit_test(a_phase_that_was_never_seen_has_a_wide_interval),
        cmocka_unit_test(gains_that_say_nothing_do_no_harm),
        cmocka_unit_test(without_memory_opening_says_so),
        cmocka_unit_test(numbers_have_names_that_never_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
