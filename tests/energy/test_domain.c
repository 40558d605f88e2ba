/* SPDX-License-Identifier: MIT
 *
 * Readings become joules: wraps lose nothing, whatever else a counter does is flagged and never
 * becomes a huge or a negative value, and a sum counts nothing twice.
 */
#include "lib/energy/source/domain.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static tam_energy_domain make(uint64_t range_uj, double most_w) {
    tam_energy_domain d;
    tam_energy_sensor sensor = {.id = "rapl:package-0",
                                .kind = TAMIS_ENERGY_PACKAGE,
                                .range_uj = range_uj,
                                .most_w = most_w,
                                .period_s = 0.05};
    tam_domain_init(&d, &sensor);
    return d;
}

static bool give(tam_energy_domain *d, uint64_t at_ns, uint64_t value, tam_energy_gain *gain) {
    tam_energy_reading r = {.value = value, .at_ns = at_ns, .err_ns = 1000};
    return tam_domain_take(d, &r, gain);
}

static void feed(tam_energy_domain *d, uint64_t at_ns, uint64_t value) {
    tam_energy_gain gain;
    give(d, at_ns, value, &gain);
}

static void refuse(tam_energy_domain *d, uint64_t at_ns, tamis_energy_status status) {
    tam_energy_reading r = {.status = status, .at_ns = at_ns, .reason = "so it is"};
    tam_energy_gain gain;
    assert_false(tam_domain_take(d, &r, &gain));
}

static void expect(const tam_energy_domain *d, tamis_energy_status status, const char *words) {
    if (d->status != status || !strstr(d->reason, words) ||
        (status == TAMIS_ENERGY_OK) != (d->reason[0] == '\0'))
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", (int)d->status, d->reason, (int)status,
                 words);
}

/* Reads every 100 ms of a counter that gains 10 J each time, for 2 s. */
static tam_energy_domain run_in(uint64_t range_uj, uint64_t raw) {
    tam_energy_domain d = make(range_uj, 2000.0);
    for (uint64_t i = 0; i <= 20; i++)
        feed(&d, SECOND + i * 100 * MS, raw + i * 10000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 200000000);
    return d;
}

enum { RUN_IN_MS = 3000 }; /* when it ended */

/* -- wraps ------------------------------------------------------------------------------------ */

/* Steps from one microjoule to just below what would be ambiguous, ends of the range included. */
static uint64_t adverse_step(uint64_t seed, uint64_t range_uj, uint64_t raw) {
    switch (seed % 6) {
    case 0:
        return 1;
    case 1:
        return range_uj - raw; /* to the very end, which is the beginning */
    case 2:
        return range_uj - 1; /* all but one */
    case 3:
        return range_uj - raw > 1 ? range_uj - raw - 1 : 1; /* to the last before the end */
    case 4:
        return range_uj / 2 + data_mix(seed) % 1000;
    default:
        return 1 + data_mix(seed) % (range_uj - 1);
    }
}

static void check_wraps(uint64_t range_uj) {
    tam_energy_domain d = make(range_uj, 1000.0);
    uint64_t truth = range_uj - 5, now_ns = SECOND, seed = 0, gained = 0;
    uint64_t first = truth;
    feed(&d, now_ns, truth % range_uj);
    while (d.wraps < 1000) {
        uint64_t step = adverse_step(seed++, range_uj, truth % range_uj);
        tam_energy_gain gain;
        truth += step;
        now_ns += step; /* 1000 W: as fast as it may */
        if (give(&d, now_ns, truth % range_uj, &gain))
            gained += gain.uj;
        expect(&d, TAMIS_ENERGY_OK, "");
        assert_int_equal(d.total_uj, truth - first);
        assert_int_equal(gained, truth - first);
    }
    assert_int_equal(d.wraps, truth / range_uj - first / range_uj);
    assert_int_equal(d.resets, 0);
}

static void a_counter_that_wraps_loses_nothing(void **state) {
    (void)state;
    check_wraps(UINT64_C(262143328850));
    check_wraps(UINT64_C(65532610987));
}

static void the_end_of_the_range_is_its_beginning(void **state) {
    (void)state;
    tam_energy_domain d = make(1000000, 100.0); /* 10 ms */
    feed(&d, SECOND, 999000);
    feed(&d, SECOND + MS, 1000000);
    feed(&d, SECOND + 2 * MS, 500);
    assert_int_equal(d.total_uj, 1500);
    assert_int_equal(d.wraps, 1);
}

static void beyond_the_range_is_garbled(void **state) {
    (void)state;
    tam_energy_domain d = run_in(UINT64_C(65532610987), 0);
    feed(&d, (RUN_IN_MS + 100) * MS, UINT64_C(65532610988));
    expect(&d, TAMIS_ENERGY_GARBLED, "exceeds its range");
    feed(&d, (RUN_IN_MS + 200) * MS, 220000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 220000000);
}

static void a_pause_that_one_range_outlasts_loses_nothing(void **state) {
    (void)state;
    tam_energy_domain d = run_in(UINT64_C(65532610987), UINT64_C(65532610987) - 300000000);
    /* 30 s at 1000 W: 30 kJ, while 2000 W would go through the range in 32.7 s */
    feed(&d, RUN_IN_MS * MS + 30 * SECOND, 30000000000 - 100000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 200000000 + UINT64_C(30000000000));
    assert_int_equal(d.wraps, 1);
}

static void a_pause_that_may_hide_a_wrap_is_a_reset(void **state) {
    (void)state;
    tam_energy_domain d = run_in(UINT64_C(65532610987), 0);
    feed(&d, RUN_IN_MS * MS + 60 * SECOND, 5000000000);
    expect(&d, TAMIS_ENERGY_GARBLED, "reads 5000000000 after 200000000 uJ");
    feed(&d, RUN_IN_MS * MS + 60 * SECOND + 100 * MS, 5010000000);
    expect(&d, TAMIS_ENERGY_RESET, "in 60.0 s: reset (driver reloaded?), or wrapped around");
    assert_int_equal(d.total_uj, 210000000);
    assert_int_equal(d.resets, 1);
}

static void a_pause_of_a_counter_without_range_loses_nothing(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    feed(&d, RUN_IN_MS * MS + 3600 * SECOND, UINT64_C(3600) * 500000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, UINT64_C(3600) * 500000000);
}

/* -- resets ----------------------------------------------------------------------------------- */

static void a_driver_that_was_reloaded_is_a_reset(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 7000000000);
    feed(&d, (RUN_IN_MS + 100) * MS, 4000000);
    expect(&d, TAMIS_ENERGY_GARBLED, "reads 4000000 after 7200000000 uJ: read too often, or");
    assert_int_equal(d.total_uj, 200000000);
    feed(&d, (RUN_IN_MS + 150) * MS, 4000000);
    expect(&d, TAMIS_ENERGY_RESET, "went from 7200000000 to 4000000 uJ");
    feed(&d, (RUN_IN_MS + 200) * MS, 14000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 210000000);
    assert_int_equal(d.resets, 1);
}

static void a_step_back_and_forth_is_flagged_and_counts_nothing_twice(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    feed(&d, (RUN_IN_MS + 100) * MS, 195000000);
    expect(&d, TAMIS_ENERGY_GARBLED, "reads 195000000 after 200000000 uJ");
    feed(&d, (RUN_IN_MS + 200) * MS, 220000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 220000000);
    assert_int_equal(d.resets, 0);
}

static void a_leap_is_flagged_and_not_added(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    feed(&d, (RUN_IN_MS + 100) * MS, UINT64_MAX);
    expect(&d, TAMIS_ENERGY_GARBLED, "reads 18446744073709551615 after 200000000");
    feed(&d, (RUN_IN_MS + 200) * MS, 220000000); /* it was one wrong answer */
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 220000000);
    feed(&d, (RUN_IN_MS + 300) * MS, 900000000000); /* this one stays */
    feed(&d, (RUN_IN_MS + 400) * MS, 900010000000);
    expect(&d, TAMIS_ENERGY_RESET, "went from 220000000 to 900000000000 uJ");
    feed(&d, (RUN_IN_MS + 500) * MS, 900020000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 240000000);
    assert_int_equal(d.resets, 1);
}

static void a_leap_across_the_range_is_a_reset(void **state) {
    (void)state;
    tam_energy_domain d = run_in(UINT64_C(65532610987), 7000000000);
    feed(&d, (RUN_IN_MS + 100) * MS, 1000); /* 58 kJ in 100 ms */
    feed(&d, (RUN_IN_MS + 200) * MS, 1000);
    expect(&d, TAMIS_ENERGY_RESET, "went from 7200000000 to 1000 uJ");
    assert_int_equal(d.wraps, 0);
    assert_int_equal(d.total_uj, 200000000);
}

static void zero_when_asked_too_often_is_garbled_and_asked_less_often(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    for (uint64_t i = 1; i <= 20; i++) {
        feed(&d, (RUN_IN_MS + i * 100 - 50) * MS, 0);
        expect(&d, TAMIS_ENERGY_GARBLED, "reads 0 after");
        feed(&d, (RUN_IN_MS + i * 100) * MS, 200000000 + i * 10000000);
        expect(&d, TAMIS_ENERGY_OK, "");
    }
    assert_int_equal(d.total_uj, 400000000);
    assert_int_equal(d.resets, 0);
    assert_true(tam_domain_next(&d, d.heard_ns) >= d.heard_ns + 50 * MS);
}

static void zero_that_counts_on_was_a_reset(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 7000000000);
    feed(&d, (RUN_IN_MS + 100) * MS, 0);
    feed(&d, (RUN_IN_MS + 150) * MS, 0);
    expect(&d, TAMIS_ENERGY_RESET, "went from 7200000000 to 0");
    feed(&d, (RUN_IN_MS + 200) * MS, 3000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.resets, 1);
    assert_int_equal(d.total_uj, 203000000); /* from 0 on it is known */
}

/* -- silence ---------------------------------------------------------------------------------- */

static void a_counter_that_stands_still_is_frozen_and_recovers(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    feed(&d, (RUN_IN_MS + 1900) * MS, 200000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    feed(&d, (RUN_IN_MS + 2100) * MS, 200000000);
    expect(&d, TAMIS_ENERGY_FROZEN, "has been stuck at 200000000 uJ for 2 s");
    feed(&d, (RUN_IN_MS + 2200) * MS, 300000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 300000000);
}

static void a_read_that_hung_is_no_standstill(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    tam_energy_gain gain;
    tam_energy_reading hung = {
        .value = 700000000, .at_ns = (RUN_IN_MS + 2500) * MS, .err_ns = 2400 * MS};
    assert_true(tam_domain_take(&d, &hung, &gain));
    feed(&d, (RUN_IN_MS + 5000) * MS, 700000000);
    expect(&d, TAMIS_ENERGY_OK, "");
}

static void a_slow_counter_is_frozen_after_twenty_ticks(void **state) {
    (void)state;
    tam_energy_domain d = make(0, 2000.0);
    for (uint64_t i = 0; i <= 10; i++)
        feed(&d, SECOND + i * SECOND, i * 100000000);
    for (uint64_t i = 11; i <= 29; i++) {
        feed(&d, SECOND + i * SECOND, 1000000000);
        expect(&d, TAMIS_ENERGY_OK, "");
    }
    feed(&d, 32 * SECOND, 1000000000);
    expect(&d, TAMIS_ENERGY_FROZEN, "been stuck");
}

static void a_counter_that_never_moved_is_no_zero(void **state) {
    (void)state;
    tam_energy_domain d = make(0, 2000.0);
    tam_energy_say(d.sensor.reason, "the zone is disabled");
    for (uint64_t i = 0; i <= 100; i++)
        feed(&d, SECOND + i * 100 * MS, 77);
    expect(&d, TAMIS_ENERGY_OK, "");
    feed(&d, 12 * SECOND, 77);
    expect(&d, TAMIS_ENERGY_FROZEN, "; the zone is disabled");
}

static void without_answer_it_is_stale_until_the_next(void **state) {
    (void)state;
    tam_energy_domain d = run_in(0, 0);
    tam_domain_age(&d, (RUN_IN_MS + 1999) * MS);
    expect(&d, TAMIS_ENERGY_OK, "");
    tam_domain_age(&d, (RUN_IN_MS + 5000) * MS);
    expect(&d, TAMIS_ENERGY_STALE, "no answer for 5.0 s");
    feed(&d, (RUN_IN_MS + 5100) * MS, 700000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 700000000);
}

static void one_that_never_answered_is_stale_too(void **state) {
    (void)state;
    tam_energy_domain d = make(0, 2000.0);
    tam_domain_age(&d, 5 * SECOND);
    expect(&d, TAMIS_ENERGY_OK, "");
    tam_domain_age(&d, 8 * SECOND);
    expect(&d, TAMIS_ENERGY_STALE, "no answer for 3.0 s");
}

static void errors_keep_their_status_and_nothing_is_lost_when_they_end(void **state) {
    (void)state;
    static const tamis_energy_status statuses[][2] = {
        {TAMIS_ENERGY_LOST, TAMIS_ENERGY_LOST},
        {TAMIS_ENERGY_DENIED, TAMIS_ENERGY_DENIED},
        {TAMIS_ENERGY_UNSUPPORTED, TAMIS_ENERGY_UNSUPPORTED},
        {TAMIS_ENERGY_FAILED, TAMIS_ENERGY_FAILED},
        {TAMIS_ENERGY_GARBLED, TAMIS_ENERGY_GARBLED},
        {TAMIS_ENERGY_STALE, TAMIS_ENERGY_STALE},
        {TAMIS_ENERGY_ABSENT, TAMIS_ENERGY_LOST}, /* it answered once */
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        tam_energy_domain d = run_in(0, 0);
        refuse(&d, (RUN_IN_MS + 100) * MS, statuses[i][0]);
        expect(&d, statuses[i][1], "so it is");
        assert_int_equal(d.total_uj, 200000000);
        feed(&d, (RUN_IN_MS + 1100) * MS, 310000000);
        expect(&d, TAMIS_ENERGY_OK, "");
        assert_int_equal(d.total_uj, 310000000);
    }
    tam_energy_domain d = make(0, 2000.0);
    refuse(&d, SECOND, TAMIS_ENERGY_ABSENT);
    expect(&d, TAMIS_ENERGY_ABSENT, "so it is");
}

static void what_cannot_be_read_keeps_the_sentence_of_its_sensor(void **state) {
    (void)state;
    tam_energy_domain d = make(0, 2000.0);
    d.sensor.status = TAMIS_ENERGY_DENIED;
    tam_energy_say(d.sensor.reason, "run as root");
    tam_energy_sensor sensor = d.sensor;
    tam_domain_init(&d, &sensor);
    expect(&d, TAMIS_ENERGY_DENIED, "run as root");
    tam_domain_age(&d, 100 * SECOND);
    expect(&d, TAMIS_ENERGY_DENIED, "run as root");
    assert_true(tam_domain_next(&d, SECOND) == UINT64_MAX);
}

/* Whatever is answered: the total never falls, nor grows beyond what the device can draw. */
static void no_answer_makes_a_huge_or_negative_value(void **state) {
    (void)state;
    for (uint64_t run = 0; run < 400; run++) {
        const uint64_t range = run % 2 ? UINT64_C(65532610987) : 0;
        tam_energy_domain d = make(range, 1000.0);
        uint64_t now_ns = SECOND, value = 0, before = 0;
        for (uint64_t i = 0; i < 300; i++) {
            uint64_t seed = run * 1000 + i, luck = data_mix(seed);
            now_ns += 1 + data_mix(seed + 7) % (200 * MS);
            switch (luck % 8) {
            case 0:
                value = data_mix(luck);
                break;
            case 1:
                value -= data_mix(luck) % 100000;
                break;
            case 2:
                value = luck % 3 ? 0 : UINT64_MAX;
                break;
            case 3:
                refuse(&d, now_ns, (tamis_energy_status)(1 + luck % 9));
                continue;
            default:
                value += data_mix(luck) % 50000000;
            }
            feed(&d, now_ns, range ? value % (range + 2) : value);
            assert_true(d.total_uj >= before);
            before = d.total_uj;
        }
        /* a margin of 2 s where its tick is not known, two ticks and 0.1 s after that, by change */
        double elapsed_s = (double)(now_ns - SECOND) * 1e-9;
        assert_true((double)d.total_uj <= 1e9 * (elapsed_s + 2.0 * 300.0));
    }
}

/* -- power ------------------------------------------------------------------------------------ */

static tam_energy_domain make_power(void) {
    tam_energy_domain d = make(0, 1000.0);
    d.sensor.kind = TAMIS_ENERGY_GPU;
    d.sensor.power = true;
    return d;
}

static void power_is_integrated_by_trapezoids_to_the_microjoule(void **state) {
    (void)state;
    tam_energy_domain d = make_power();
    __uint128_t twice = 0; /* uW * ns */
    uint64_t now_ns = SECOND, before_uw = 0, gained = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        uint64_t step_ns = 1 + data_mix(i) % (100 * MS), uw = 1 + data_mix(i + 9999) % 700000000;
        tam_energy_gain gain;
        now_ns += step_ns;
        if (give(&d, now_ns, uw, &gain))
            gained += gain.uj;
        twice += i ? (__uint128_t)(before_uw + uw) * step_ns : 0;
        before_uw = uw;
        assert_int_equal(d.status, TAMIS_ENERGY_OK);
    }
    assert_int_equal(d.total_uj, (uint64_t)(twice / (2 * SECOND)));
    assert_int_equal(gained, d.total_uj);
}

static void power_of_a_gap_is_not_invented(void **state) {
    (void)state;
    tam_energy_domain d = make_power();
    feed(&d, SECOND, 100000000);
    feed(&d, 2 * SECOND, 100000000);
    feed(&d, 12 * SECOND, 100000000);
    expect(&d, TAMIS_ENERGY_RESET, "no power was read for 10.0 s");
    feed(&d, 13 * SECOND, 100000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 200000000);
    assert_int_equal(d.resets, 1);
}

static void power_that_no_device_draws_is_garbled(void **state) {
    (void)state;
    tam_energy_domain d = make_power();
    feed(&d, SECOND, 100000000);
    feed(&d, SECOND + 500 * MS, UINT64_MAX);
    expect(&d, TAMIS_ENERGY_GARBLED, "not a plausible power of such a device");
    feed(&d, SECOND + 600 * MS, 0);
    expect(&d, TAMIS_ENERGY_GARBLED, "0 uW is not a plausible power");
    feed(&d, 2 * SECOND, 100000000);
    expect(&d, TAMIS_ENERGY_OK, "");
    assert_int_equal(d.total_uj, 100000000);
}

/* -- ticks ------------------------------------------------------------------------------------ */

typedef struct outcome {
    double reads_per_tick, worst_ms, reads_per_s;
    uint64_t outside; /* changes that lay farther from the truth than err_ns said */
} outcome;

/* A counter of a tick, read when the domain wants to, 60 s, late by up to `late_ns`. */
static outcome simulate(uint64_t tick_ns, double period_s, uint64_t jitter_ns, uint64_t late_ns) {
    tam_energy_domain d = make(0, 2000.0);
    outcome o = {0};
    uint64_t now_ns = SECOND, reads = 0, gains = 0, from_ns = 11 * SECOND;
    d.sensor.period_s = period_s;
    tam_energy_sensor sensor = d.sensor;
    tam_domain_init(&d, &sensor);
    for (uint64_t i = 0; now_ns < 61 * SECOND; i++) {
        uint64_t ticks = now_ns / tick_ns,
                 at_ns = ticks * tick_ns + data_mix(ticks) % (jitter_ns + 1);
        if (at_ns > now_ns) { /* this tick is late */
            ticks--;
            at_ns = ticks * tick_ns + data_mix(ticks) % (jitter_ns + 1);
        }
        tam_energy_gain gain;
        bool some = give(&d, now_ns, ticks * 1000000, &gain);
        if (now_ns >= from_ns) {
            reads++;
            gains += some;
        }
        if (some && now_ns >= from_ns && tick_ns > 5 * MS) {
            uint64_t off_ns = gain.end_ns > at_ns ? gain.end_ns - at_ns : at_ns - gain.end_ns;
            o.worst_ms = (double)off_ns * 1e-6 > o.worst_ms ? (double)off_ns * 1e-6 : o.worst_ms;
            o.outside += off_ns > d.changed_err_ns;
        }
        uint64_t next_ns = tam_domain_next(&d, now_ns);
        assert_true(next_ns > now_ns);
        now_ns = next_ns + data_mix(i) % (late_ns + 1);
    }
    o.reads_per_tick = (double)reads / (50.0 / ((double)tick_ns * 1e-9));
    o.reads_per_s = (double)reads / 50.0;
    assert_true(gains > 0);
    return o;
}

static void a_slow_tick_is_met_closely_with_few_reads(void **state) {
    (void)state;
    static const uint64_t ticks_ms[] = {60, 100, 250, 1000};
    for (size_t i = 0; i < sizeof ticks_ms / sizeof ticks_ms[0]; i++) {
        outcome exact = simulate(ticks_ms[i] * MS, 0.025, 0, 100000);
        outcome late = simulate(ticks_ms[i] * MS, 0.025, MS, 200000);
        print_message("tick %u ms: %.2f reads a tick, worst %.2f ms; with 1 ms of jitter %.2f, "
                      "%.2f ms, %u beyond their error\n",
                      (unsigned)ticks_ms[i], exact.reads_per_tick, exact.worst_ms,
                      late.reads_per_tick, late.worst_ms, (unsigned)late.outside);
        double allowed = ticks_ms[i] <= 250 ? 3.0 : 5.0; /* 1 s: one more each 500 ms */
        assert_true(exact.reads_per_tick <= allowed && late.reads_per_tick <= allowed + 0.6);
        double tick_ms = (double)ticks_ms[i];
        assert_true(exact.worst_ms <= 1.0 + tick_ms / 1000.0);
        assert_true(late.worst_ms <= 2.0 + tick_ms / 1000.0);
        assert_int_equal(exact.outside, 0);
    }
}

static void a_fast_counter_is_read_a_few_times_a_second(void **state) {
    (void)state;
    outcome o = simulate(MS, 0.05, 0, 100000);
    print_message("tick 1 ms: %.1f reads a second\n", o.reads_per_s);
    assert_true(o.reads_per_s <= 20.5);
}

static void a_tick_that_changes_is_learnt_anew(void **state) {
    (void)state;
    tam_energy_domain d = make(0, 2000.0);
    uint64_t now_ns = SECOND;
    while (now_ns < 10 * SECOND) {
        feed(&d, now_ns, now_ns / (100 * MS) * 1000000);
        now_ns = tam_domain_next(&d, now_ns);
    }
    assert_true(d.tick_s > 0.099 && d.tick_s < 0.101);
    while (now_ns < 20 * SECOND) {
        feed(&d, now_ns, 100000000 + (now_ns - 10 * SECOND) / (160 * MS) * 1000000);
        now_ns = tam_domain_next(&d, now_ns);
    }
    assert_true(d.tick_s > 0.159 && d.tick_s < 0.161);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counter_that_wraps_loses_nothing),
        cmocka_unit_test(the_end_of_the_range_is_its_beginning),
        cmocka_unit_test(beyond_the_range_is_garbled),
        cmocka_unit_test(a_pause_that_one_range_outlasts_loses_nothing),
        cmocka_unit_test(a_pause_that_may_hide_a_wrap_is_a_reset),
        cmocka_unit_test(a_pause_of_a_counter_without_range_loses_nothing),
        cmocka_unit_test(a_driver_that_was_reloaded_is_a_reset),
        cmocka_unit_test(a_step_back_and_forth_is_flagged_and_counts_nothing_twice),
        cmocka_unit_test(a_leap_is_flagged_and_not_added),
        cmocka_unit_test(a_leap_across_the_range_is_a_reset),
        cmocka_unit_test(zero_when_asked_too_often_is_garbled_and_asked_less_often),
        cmocka_unit_test(zero_that_counts_on_was_a_reset),
        cmocka_unit_test(a_counter_that_stands_still_is_frozen_and_recovers),
        cmocka_unit_test(a_read_that_hung_is_no_standstill),
        cmocka_unit_test(a_slow_counter_is_frozen_after_twenty_ticks),
        cmocka_unit_test(a_counter_that_never_moved_is_no_zero),
        cmocka_unit_test(without_answer_it_is_stale_until_the_next),
        cmocka_unit_test(one_that_never_answered_is_stale_too),
        cmocka_unit_test(errors_keep_their_status_and_nothing_is_lost_when_they_end),
        cmocka_unit_test(what_cannot_be_read_keeps_the_sentence_of_its_sensor),
        cmocka_unit_test(no_answer_makes_a_huge_or_negative_value),
        cmocka_unit_test(power_is_integrated_by_trapezoids_to_the_microjoule),
        cmocka_unit_test(power_of_a_gap_is_not_invented),
        cmocka_unit_test(power_that_no_device_draws_is_garbled),
        cmocka_unit_test(a_slow_tick_is_met_closely_with_few_reads),
        cmocka_unit_test(a_fast_counter_is_read_a_few_times_a_second),
        cmocka_unit_test(a_tick_that_changes_is_learnt_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
