/* SPDX-License-Identifier: MIT
 *
 * Exposure of phases, against counting milliseconds.
 *
 * test: tsan
 */
#include "lib/energy/attribute/attribute.h"
#include "tests/support/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { PHASES = TAMIS_ENERGY_PHASES, SPANS = 400, RANGE_MS = 2000, MS = 1000000 };

static tam_spans *spans_open(void) {
    tam_spans *spans;
    assert_int_equal(tam_spans_open(&spans), TAMIS_OK);
    return spans;
}

static double seconds_of(const tam_spans *spans, uint32_t phase, uint64_t begin, uint64_t end) {
    double seconds[PHASES];
    tam_spans_seconds(spans, begin, end, seconds);
    return seconds[phase];
}

/* Milliseconds of every phase by counting. */
typedef struct counted {
    uint32_t level[PHASES][RANGE_MS];
} counted;

static void add(tam_spans *spans, counted *c, uint64_t seed) {
    uint32_t phase = (uint32_t)(data_mix(seed) % 3) * 7;
    uint64_t begin = data_mix(seed + 1) % RANGE_MS, length = data_mix(seed + 2) % 40;
    uint64_t end = begin + length < RANGE_MS ? begin + length : RANGE_MS;
    tam_spans_add(spans, phase, begin * MS, end * MS);
    for (uint64_t ms = begin; ms < end; ms++)
        c->level[phase][ms]++;
}

static void check(const tam_spans *spans, const counted *c, uint64_t begin, uint64_t end) {
    double seconds[PHASES];
    uint64_t expected[PHASES] = {0};
    for (uint64_t ms = begin; ms < end; ms++) {
        bool busy = false;
        for (uint32_t k = 0; k < TAMIS_ENERGY_IDLE; k++) {
            expected[k] += c->level[k][ms];
            busy = busy || c->level[k][ms];
        }
        expected[TAMIS_ENERGY_IDLE] += !busy;
    }
    tam_spans_seconds(spans, begin * MS, end * MS, seconds);
    for (uint32_t k = 0; k < PHASES; k++)
        assert_int_equal(llround(seconds[k] * 1e6), expected[k] * 1000);
}

static void spans_in_any_order_add_up(void **state) {
    (void)state;
    static counted c;
    for (uint64_t seed = 0; seed < 20; seed++) {
        tam_spans *spans = spans_open();
        memset(&c, 0, sizeof c);
        for (uint64_t i = 0; i < SPANS; i++) {
            add(spans, &c, seed * 100000 + 3 * i);
            uint64_t begin = data_mix(seed + 7 * i) % RANGE_MS;
            check(spans, &c, begin, begin + data_mix(i) % (RANGE_MS - begin));
        }
        check(spans, &c, 0, RANGE_MS);
        assert_int_equal(tam_spans_dropped(spans), 0);
        tam_spans_close(spans);
    }
}

static void what_is_forgotten_changes_nothing_after(void **state) {
    (void)state;
    static counted c;
    for (uint64_t seed = 0; seed < 20; seed++) {
        tam_spans *spans = spans_open();
        memset(&c, 0, sizeof c);
        for (uint64_t i = 0; i < SPANS; i++)
            add(spans, &c, seed * 99991 + 3 * i);
        for (uint64_t before = 100; before < RANGE_MS; before += 100) {
            tam_spans_forget(spans, before * MS);
            tam_spans_forget(spans, (before - 50) * MS); /* known already */
            assert_int_equal(tam_spans_known_ns(spans), before * MS);
            check(spans, &c, before, RANGE_MS);
            tam_spans_add(spans, 3, (before - 90) * MS, (before + 10) * MS); /* half of it late */
            for (uint64_t ms = before; ms < before + 10 && ms < RANGE_MS; ms++)
                c.level[3][ms]++;
            check(spans, &c, before, RANGE_MS);
        }
        assert_int_equal(tam_spans_dropped(spans), 0);
        tam_spans_add(spans, 3, 5 * MS, 6 * MS); /* all of it late */
        assert_int_equal(tam_spans_dropped(spans), 1);
        tam_spans_close(spans);
    }
}

static void times_that_descend_are_as_single_ones(void **state) {
    (void)state;
    static counted c;
    tam_spans *spans = spans_open();
    memset(&c, 0, sizeof c);
    for (uint64_t i = 0; i < SPANS; i++)
        add(spans, &c, 31 * i);
    uint64_t at_ns[50];
    tam_exposure until[50];
    for (uint32_t i = 0; i < 50; i++)
        at_ns[i] = (uint64_t)(RANGE_MS - 3 * i) * MS;
    tam_spans_until(spans, at_ns, 50, until);
    for (uint32_t i = 1; i < 50; i++) {
        for (uint32_t k = 0; k < PHASES; k++) {
            double seconds = (double)(until[0].ns[k] - until[i].ns[k]) * 1e-9;
            assert_true(fabs(seconds - seconds_of(spans, k, at_ns[i], at_ns[0])) < 1e-12);
        }
    }
    tam_spans_close(spans);
}

static void phases_under_way_go_on_until_asked(void **state) {
    (void)state;
    tam_spans *spans = spans_open();
    tam_marks *marks;
    assert_int_equal(tam_marks_open(&marks), TAMIS_OK);
    tam_marks_begin(marks, 4, 100 * MS);
    tam_marks_span(marks, 5, 20 * MS, 50 * MS);
    tam_spans_drain(spans, marks);
    assert_true(fabs(seconds_of(spans, 4, 0, 300 * MS) - 0.2) < 1e-9);
    assert_true(fabs(seconds_of(spans, 4, 150 * MS, 200 * MS) - 0.05) < 1e-9);
    assert_true(fabs(seconds_of(spans, TAMIS_ENERGY_IDLE, 0, 300 * MS) - 0.07) < 1e-9);
    assert_int_equal(tam_spans_phases(spans), 1u << 4 | 1u << 5 | 1u << TAMIS_ENERGY_IDLE);

    tam_marks_span(marks, 5, 160 * MS, 170 * MS); /* inside the one under way */
    tam_spans_drain(spans, marks);
    assert_true(fabs(seconds_of(spans, TAMIS_ENERGY_IDLE, 0, 300 * MS) - 0.07) < 1e-9);
    assert_true(fabs(seconds_of(spans, 4, 0, 300 * MS) - 0.2) < 1e-9); /* not told twice */

    tam_marks_end(marks, 4, 250 * MS);
    tam_spans_drain(spans, marks);
    assert_true(fabs(seconds_of(spans, 4, 0, 300 * MS) - 0.15) < 1e-9);
    assert_true(fabs(seconds_of(spans, TAMIS_ENERGY_IDLE, 0, 300 * MS) - 0.12) < 1e-9);
    tam_marks_close(marks);
    tam_spans_close(spans);
}

static void a_meter_that_never_forgets_keeps_the_newest(void **state) {
    (void)state;
    enum { MANY = 300000 };
    tam_spans *spans = spans_open();
    for (uint64_t i = 0; i < MANY; i++)
        tam_spans_add(spans, (uint32_t)(i % 2), i * MS, i * MS + MS / 2);
    assert_true(tam_spans_dropped(spans) > 0);
    uint64_t known = tam_spans_known_ns(spans);
    assert_true(known > 0 && known < (MANY - 10000) * (uint64_t)MS);
    uint64_t begin = (MANY - 10000) * (uint64_t)MS, end = MANY * (uint64_t)MS;
    assert_true(fabs(seconds_of(spans, 0, begin, end) - 2.5) < 1e-9);
    assert_true(fabs(seconds_of(spans, 1, begin, end) - 2.5) < 1e-9);
    assert_true(fabs(seconds_of(spans, TAMIS_ENERGY_IDLE, begin, end) - 5.0) < 1e-9);
    tam_spans_close(spans);
}

static void what_is_no_span_is_ignored(void **state) {
    (void)state;
    tam_spans *spans = spans_open();
    tam_spans_add(spans, TAMIS_ENERGY_IDLE, 0, 100);
    tam_spans_add(spans, 32, 0, 100);
    tam_spans_add(spans, UINT32_MAX, 0, 100);
    tam_spans_add(spans, 1, 100, 100);
    tam_spans_add(spans, 1, 100, 50);
    assert_true(seconds_of(spans, TAMIS_ENERGY_IDLE, 0, 1000000000) == 1.0);
    assert_true(seconds_of(spans, 1, 0, 1000000000) == 0.0);
    assert_true(seconds_of(spans, TAMIS_ENERGY_IDLE, 5, 5) == 0.0);
    assert_true(seconds_of(spans, TAMIS_ENERGY_IDLE, 9, 5) == 0.0);
    tam_spans_close(spans);
}

static void without_memory_spans_are_dropped_and_counted(void **state) {
    (void)state;
    tam_spans *spans = NULL;
    tam_alloc_budget(0);
    tamis_status status = tam_spans_open(&spans);
    tam_alloc_budget(-1);
    assert_int_equal(status, TAMIS_E_NOMEM);
    for (long budget = 0; budget < 3; budget++) {
        spans = spans_open();
        tam_alloc_budget(budget);
        tam_spans_add(spans, 1, 10, 20);
        tam_alloc_budget(-1);
        assert_int_equal(tam_spans_dropped(spans), budget < 2);
        tam_spans_add(spans, 1, 30, 40);
        assert_int_equal(llround(1e9 * seconds_of(spans, 1, 0, 50)), budget < 2 ? 10 : 20);
        tam_spans_close(spans);
    }
    tam_spans_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_in_any_order_add_up),
        cmocka_unit_test(what_is_forgotten_changes_nothing_after),
        cmocka_unit_test(times_that_descend_are_as_single_ones),
        cmocka_unit_test(phases_under_way_go_on_until_asked),
        cmocka_unit_test(a_meter_that_never_forgets_keeps_the_newest),
        cmocka_unit_test(what_is_no_span_is_ignored),
        cmocka_unit_test(without_memory_spans_are_dropped_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
