/* SPDX-License-Identifier: MIT
 *
 * Forecasts from times that are written down here: quantiles by nearest rank, the window of 64
 * steps, and a straggler that is said late and taken back late.
 */
#include "lib/policy/forecast.h"
#include <setjmp.h>
#include <stdarg.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3, STEP_US = 100000, NOBODY = UINT32_MAX };

static tam_forecast made(void) {
    tam_forecast f = {0};
    assert_int_equal(tam_forecast_open(&f, RANKS), TAMIS_OK);
    return f;
}

static void note(tam_forecast *f, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t *busy_us = tam_forecast_next(f);
    busy_us[0] = a;
    busy_us[1] = b;
    busy_us[2] = c;
    tam_forecast_note(f, STEP_US);
}

/* One rank is later than the others. */
static void note_last(tam_forecast *f, uint32_t rank, uint32_t by_us) {
    uint32_t busy_us[RANKS] = {50000, 50000, 50000};
    busy_us[rank] += by_us;
    note(f, busy_us[0], busy_us[1], busy_us[2]);
}

static tamis_forecast read_of(const tam_forecast *f, uint32_t rank) {
    tamis_forecast out = TAMIS_FORECAST_INIT;
    tam_forecast_read(f, rank, &out);
    assert_int_equal(out.rank, rank);
    return out;
}

static void expect_s(double got, double expected) {
    if (got < expected - 1e-9 || got > expected + 1e-9)
        fail_msg("%.9f s, not %.9f", got, expected);
}

static void test_nothing_is_known_of_no_steps(void **state) {
    tam_forecast f = made();
    (void)state;
    tamis_forecast out = read_of(&f, 1);
    assert_int_equal(out.steps, 0);
    assert_int_equal(out.straggler, NOBODY);
    expect_s(out.step_s + out.slack_p95_s + out.late_p95_s, 0.0);
    tam_forecast_close(&f);
}

/* Rank 1 is 1000, 2000, ..., 20000 us behind rank 0; rank 2 is in the middle. */
static void test_quantiles_are_those_of_the_steps_by_nearest_rank(void **state) {
    tam_forecast f = made();
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t late = 1000 * (1 + (i * 7) % 20); /* in another order */
        note(&f, 50000, 50000 + late, 50000 + late / 2);
    }
    tamis_forecast early = read_of(&f, 0), middle = read_of(&f, 2), late = read_of(&f, 1);
    assert_int_equal(early.steps, 20);
    expect_s(early.slack_p05_s, 0.001);
    expect_s(early.slack_p50_s, 0.010);
    expect_s(early.slack_p95_s, 0.019);
    expect_s(early.late_p95_s, 0.0);
    expect_s(late.slack_p95_s, 0.0);
    expect_s(late.late_p05_s, 0.001);
    expect_s(late.late_p50_s, 0.010);
    expect_s(late.late_p95_s, 0.019);
    expect_s(middle.slack_p50_s, 0.005);
    expect_s(middle.late_p50_s, 0.005);
    expect_s(middle.step_s, 1e-6 * STEP_US);
    tam_forecast_close(&f);
}

static void test_steps_older_than_the_window_are_forgotten(void **state) {
    tam_forecast f = made();
    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        note_last(&f, 0, 30000);
    for (uint32_t i = 0; i < TAM_FORECAST_STEPS; i++)
        note_last(&f, 0, 7000);
    tamis_forecast out = read_of(&f, 0);
    assert_int_equal(out.steps, TAM_FORECAST_STEPS);
    expect_s(out.late_p95_s, 0.007);
    expect_s(out.late_p05_s, 0.007);
    tam_forecast_close(&f);
}

static void test_a_straggler_appears_after_24_of_32_steps_and_goes_below_16(void **state) {
    tam_forecast f = made();
    (void)state;
    for (uint32_t i = 0; i < 40; i++)
        note_last(&f, 0, 0);
    for (uint32_t i = 1; i < 24; i++)
        note_last(&f, 2, 20000);
    assert_int_equal(f.straggler, NOBODY);
    note_last(&f, 2, 20000);
    assert_int_equal(read_of(&f, 0).straggler, 2);
    for (uint32_t i = 0; i < 8; i++)
        note_last(&f, 2, 20000);
    for (uint32_t i = 0; i < 16; i++)
        note_last(&f, 0, 0);
    assert_int_equal(f.straggler, 2);
    note_last(&f, 0, 0);
    assert_int_equal(f.straggler, NOBODY);
    tam_forecast_close(&f);
}

/* Last in half to three quarters of the steps: whatever was said stays said. */
static void test_a_straggler_that_comes_and_goes_does_not_flap(void **state) {
    tam_forecast f = made();
    uint32_t changes = 0, before = NOBODY;
    (void)state;
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t share = i < 1000 ? 5 : i / 1000 % 2 ? 9 : 5; /* of 10 */
        note_last(&f, 1, (i * 7 + i / 3) % 10 < share ? 20000 : 0);
        changes += f.straggler != before;
        before = f.straggler;
        if (i < 1000)
            assert_int_equal(f.straggler, NOBODY);
    }
    assert_int_equal(before, 1);
    if (changes > 4)
        fail_msg("it changed %u times", changes);
    tam_forecast_close(&f);
}

static void test_ranks_that_are_last_by_turns_or_by_little_are_no_stragglers(void **state) {
    tam_forecast f = made();
    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        note_last(&f, i % RANKS, 20000);
        assert_int_equal(f.straggler, NOBODY);
    }
    for (uint32_t i = 0; i < 300; i++) {
        note_last(&f, 1, STEP_US / 50);
        assert_int_equal(f.straggler, NOBODY);
    }
    for (uint32_t i = 0; i < 300; i++) {
        note(&f, 70000, 50000, 70000); /* two are equally late */
        assert_int_equal(f.straggler, NOBODY);
    }
    tam_forecast_close(&f);
}

static void test_another_straggler_takes_over_once_the_first_has_gone(void **state) {
    tam_forecast f = made();
    bool none = false;
    (void)state;
    for (uint32_t i = 0; i < 64; i++)
        note_last(&f, 0, 20000);
    for (uint32_t i = 0; i < 24; i++) {
        note_last(&f, 2, 20000);
        none = none || f.straggler == NOBODY;
    }
    assert_true(none);
    assert_int_equal(f.straggler, 2);
    tam_forecast_forget(&f);
    assert_int_equal(read_of(&f, 0).steps, 0);
    assert_int_equal(read_of(&f, 0).straggler, NOBODY);
    tam_forecast_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_known_of_no_steps),
        cmocka_unit_test(test_quantiles_are_those_of_the_steps_by_nearest_rank),
        cmocka_unit_test(test_steps_older_than_the_window_are_forgotten),
        cmocka_unit_test(test_a_straggler_appears_after_24_of_32_steps_and_goes_below_16),
        cmocka_unit_test(test_a_straggler_that_comes_and_goes_does_not_flap),
        cmocka_unit_test(test_ranks_that_are_last_by_turns_or_by_little_are_no_stragglers),
        cmocka_unit_test(test_another_straggler_takes_over_once_the_first_has_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
