/* SPDX-License-Identifier: MIT
 *
 * What a meter without counters writes and tells: steps, and what is unknown.
 *
 * test: tsan
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/stats.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/records.h"
#include "tests/support/scratch.h"

static tamis_energy *open_meter(const char *json) {
    tamis_energy *e = NULL;
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    config.sources = "none";
    config.json = json;
    config.window_s = 0.1;
    config.settle_s = 0.3;
    config.g_per_kwh = 300.0;
    assert_int_equal(tamis_energy_create(&config, &e), TAMIS_OK);
    return e;
}

static uint64_t number_in(const char *line, const char *key) {
    const char *at = strstr(line, key);
    assert_non_null(at);
    return strtoull(at + strlen(key), NULL, 10);
}

/* Lines follow one another without a gap, and hold all steps, whenever they were told. */
static void steps_of_all_lines_are_those_of_the_run(void **state) {
    (void)state;
    enum { STEPS = 600 };
    char path[SCRATCH_PATH];
    uint64_t steps = 0, windows = 0, bytes = 0;
    size_t length = 0;
    uint32_t window;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_energy *e = open_meter(scratch_path("steps.jsonl", path));
    stats.wire_bytes = 7;
    for (int step = 0; step < STEPS; step++) {
        if (step % 100 == 0)
            assert_int_equal(tamis_energy_window_begin(e, "part", &window), TAMIS_OK);
        tamis_energy_step(e, &stats);
        usleep(1000);
        if (step % 100 == 99)
            assert_int_equal(tamis_energy_window_end(e, window), TAMIS_OK);
    }
    tamis_energy_destroy(e);
    assert_true(record_lines(path) > 8);
    assert_int_equal(record_count_in(path, "\"name\":\"part\""), STEPS / 100);
    assert_int_equal(record_count_in(path, "\"steps\":600,"), 1); /* the summary */
    char *text = (char *)scratch_read(path, &length);
    text[length] = '\0';
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strstr(line, "\"name\":\"part\""))
            assert_int_equal(number_in(line, "\"steps\":"), 100);
        if (!strstr(line, "\"name\":\"window\""))
            continue;
        windows++;
        assert_int_equal(number_in(line, "\"step0\":"), steps);
        steps += number_in(line, "\"steps\":");
        bytes += number_in(line, "\"bytes_wire\":");
        assert_int_equal(number_in(line, "\"step1\":"), steps);
    }
    free(text);
    assert_true(windows > 2);
    assert_int_equal(steps, STEPS);
    assert_int_equal(bytes, 7 * STEPS);
}

static void of_unknown_joules_there_are_no_grams(void **state) {
    (void)state;
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    tamis_energy *e = open_meter(NULL);
    assert_int_equal(tamis_energy_read(e, &got), TAMIS_OK);
    assert_false(got.known);
    assert_true(isnan(got.grams));
    tamis_energy_destroy(e);
}

static void a_density_is_that_of_the_length(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_energy *e = open_meter(scratch_path("density.jsonl", path));
    stats.length = 8;
    stats.target = 2;
    tamis_energy_step(e, &stats);
    tamis_energy_destroy(e);
    assert_true(record_count_in(path, "\"density_asked\":0.25,") > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_all_lines_are_those_of_the_run),
        cmocka_unit_test(of_unknown_joules_there_are_no_grams),
        cmocka_unit_test(a_density_is_that_of_the_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
