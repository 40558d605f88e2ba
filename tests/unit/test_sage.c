/* SPDX-License-Identifier: MIT
 *
 * The threshold of a rank from a sample and a count.
 */
#include "lib/policy/control.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* As binary32. */
static double single(double x) {
    return (double)(float)x;
}

/* Worked from the formulas of SAGE, in binary32; d = 0.1 here. */
static void sage_threshold_is_scaled_and_corrected(void **state) {
    (void)state;
    static const struct {
        double mean, before;
        uint64_t counted;
        double alpha, gamma;
    } cases[] = {
        {3.0, 2.0, 100, 1.5, 1.0},  {3.0, 2.0, 9, 1.5, 0.95}, {3.0, 2.0, 11, 1.5, 1.0},
        {1.0, 2.0, 1000, 0.5, 1.0}, {0.0, 2.0, 0, 1.0, 0.95}, {2.0, 0.0, 50, 1.0, 1.0},
    };
    tam_sage s;
    assert_int_equal(tam_sage_open(1000, &s), TAMIS_OK);
    assert_int_equal(s.count, 285); /* floor(1000 / 3.5) */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tam_control_state state_now = {.primed = 1, .threshold = 0.25, .mean = cases[i].before};
        for (uint32_t j = 0; j < s.count; j++)
            s.values[j] = (float)(j % 2 ? cases[i].mean : -cases[i].mean);
        double probe = tam_sage_measure(&s, &state_now);
        assert_true(probe == 0.25 * cases[i].alpha);
        tam_sage_correct(&s, cases[i].counted, 100);
        double beta = 2.0 / (1.0 + exp(0.1 - (double)cases[i].counted / 1000.0));
        assert_true(s.threshold == single(single(probe * single(beta)) * single(cases[i].gamma)));
        assert_true(state_now.threshold == 0.25 && state_now.mean == cases[i].before);
        tam_sage_keep(&s, &state_now);
        assert_true(state_now.threshold == s.threshold && state_now.mean == cases[i].mean);
    }
    s.threshold = 1.0;
    tam_sage_correct(&s, 1000, 99); /* d' / d > 10 */
    assert_true(s.threshold == single(single(2.0 / (1.0 + exp(0.099 - 1.0))) * single(1.05)));
    s.threshold = 3e38;
    tam_sage_correct(&s, 1000, 99); /* stays a number */
    assert_true(s.threshold == single(1e38));
    tam_sage_close(&s);
}

static void sage_begins_with_the_first_threshold(void **state) {
    (void)state;
    tam_control_state state_now = {.threshold = 0.25, .mean = 7.0};
    tam_sage s;
    assert_int_equal(tam_sage_open(1, &s), TAMIS_OK);
    assert_int_equal(s.count, 1);
    s.values[0] = -3.0f;
    assert_true(tam_sage_measure(&s, &state_now) == 0.25);
    tam_sage_keep(&s, &state_now);
    assert_true(state_now.threshold == 0.25 && state_now.mean == 3.0 && state_now.primed == 1);
    tam_sage_close(&s);
}

/* Places differ by rank, bucket and step, lie in the vector, and are spread over it. */
static void sage_draws_other_places_for_every_rank_bucket_and_step(void **state) {
    (void)state;
    enum { N = 100000, DRAWS = 4, PLACES = 398 };
    static const uint32_t of[DRAWS][3] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    uint32_t places[DRAWS][PLACES];
    tam_sage s;
    assert_int_equal(tam_sage_open(N, &s), TAMIS_OK);
    assert_int_equal(s.count, PLACES);
    for (int i = 0; i < DRAWS; i++) {
        uint32_t low = 0;
        tam_sage_draw(&s, of[i][0], of[i][1], of[i][2]);
        memcpy(places[i], s.positions, sizeof places[i]);
        for (uint32_t j = 0; j < PLACES; j++) {
            assert_true(places[i][j] < N);
            low += places[i][j] < N / 2;
        }
        assert_in_range(low, 150, 250);
        for (int before = 0; before < i; before++)
            assert_memory_not_equal(places[before], places[i], sizeof places[i]);
    }
    tam_sage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sage_threshold_is_scaled_and_corrected),
        cmocka_unit_test(sage_begins_with_the_first_threshold),
        cmocka_unit_test(sage_draws_other_places_for_every_rank_bucket_and_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
