/* SPDX-License-Identifier: MIT
 *
 * Carbon traces: what they say, where they say nothing, and how damaged ones are refused.
 */
#include "lib/energy/govern/carbon.h"
#include "tests/support/records.h"
#include "tests/support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/governor.h>
#include <unistd.h>

#include <cmocka.h>

static const int64_t kwh = 3600000000000;

/* Opens `bytes` bytes as a trace. */
static tamis_status open_bytes(const char *text, size_t bytes, tamis_carbon **out) {
    char path[] = "/tmp/tamis_carbon_XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    tamis_status status = tamis_carbon_open(path, NAN, out);
    assert_int_equal(unlink(path), 0);
    return status;
}

static tamis_carbon *trace(const char *text) {
    tamis_carbon *carbon = NULL;
    assert_int_equal(open_bytes(text, strlen(text), &carbon), TAMIS_OK);
    return carbon;
}

static void grams_are_kwh_times_pue_times_intensity(void **state) {
    (void)state;
    tamis_carbon *c;
    assert_int_equal(tamis_carbon_open(NULL, 400.0, &c), TAMIS_OK);
    assert_true(tamis_carbon_grams(c, 0.0, 3600.0, kwh, 1.0) == 400.0);
    assert_true(tamis_carbon_grams(c, 0.0, 3600.0, kwh, 1.5) == 600.0);
    assert_true(tamis_carbon_grams(c, 7.0, 7.0, 2 * kwh, 1.0) == 800.0);
    assert_true(tamis_carbon_grams(c, 0.0, 1.0, 0, 1.0) == 0.0);
    tamis_carbon_close(c);
}

static void energy_is_spread_evenly_over_the_rows(void **state) {
    (void)state;
    tamis_carbon *c = trace("time,g_per_kwh\n100,100\n200,400\n400,700\n");
    assert_true(tamis_carbon_grams(c, 100.0, 200.0, kwh, 1.0) == 100.0);
    assert_true(tamis_carbon_grams(c, 150.0, 250.0, kwh, 1.0) == 250.0);
    /* 50 s of 100, 200 s of 400, 50 s of 700 */
    assert_true(tamis_carbon_grams(c, 150.0, 450.0, 6 * kwh, 1.0) == 6.0 * 400.0);
    assert_true(tamis_carbon_grams(c, 399.0, 401.0, kwh, 1.0) == 550.0);
    tamis_carbon_close(c);
}

static void a_sum_over_parts_is_the_whole(void **state) {
    (void)state;
    tamis_carbon *c = trace("0,10\n7,450\n11,3\n40,999\n41,0\n100,77\n");
    double parts = 0.0;
    for (int i = 0; i < 80; i++)
        parts += tamis_carbon_grams(c, i, i + 1, kwh / 80, 1.2);
    assert_true(fabs(parts - tamis_carbon_grams(c, 0.0, 80.0, kwh, 1.2)) < 1e-9 * parts);
    tamis_carbon_close(c);
}

static void a_value_holds_until_the_next_row_and_the_last_as_long_as_the_one_before(void **state) {
    (void)state;
    tamis_carbon *c = trace("100,1\r\n200,2\r\n\r\n230,3"); /* other line ends, none at the end */
    assert_true(isnan(tamis_carbon_intensity(c, 99.999)));
    assert_true(tamis_carbon_intensity(c, 100.0) == 1.0);
    assert_true(tamis_carbon_intensity(c, 199.999) == 1.0);
    assert_true(tamis_carbon_intensity(c, 200.0) == 2.0);
    assert_true(tamis_carbon_intensity(c, 259.999) == 3.0);
    assert_true(isnan(tamis_carbon_intensity(c, 260.0)));
    tamis_carbon_close(c);
}

static void what_is_unknown_is_never_an_average(void **state) {
    (void)state;
    tamis_carbon *c = trace("0,100\n100,\n200,300\n300,400\n");
    assert_false(isnan(tamis_carbon_grams(c, 0.0, 100.0, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_grams(c, 0.0, 101.0, kwh, 1.0)));   /* into the gap */
    assert_true(isnan(tamis_carbon_grams(c, 50.0, 250.0, kwh, 1.0)));  /* across it */
    assert_true(isnan(tamis_carbon_grams(c, 150.0, 160.0, kwh, 1.0))); /* within it */
    assert_true(isnan(tamis_carbon_grams(c, -1.0, 50.0, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_grams(c, 350.0, 400.1, kwh, 1.0)));
    assert_false(isnan(tamis_carbon_grams(c, 200.0, 400.0, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_grams(c, 1000.0, 2000.0, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_grams(c, 60.0, 50.0, kwh, 1.0))); /* ends before it begins */
    assert_true(isnan(tamis_carbon_grams(c, NAN, 50.0, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_grams(c, 0.0, INFINITY, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_grams(c, 0.0, 50.0, kwh, 0.9)));
    assert_true(isnan(tamis_carbon_grams(c, 0.0, 50.0, kwh, NAN)));
    assert_true(isnan(tamis_carbon_grams(NULL, 0.0, 50.0, kwh, 1.0)));
    tamis_carbon_close(c);
    assert_int_equal(tamis_carbon_open("", NAN, &c), TAMIS_OK);
    assert_true(isnan(tamis_carbon_grams(c, 0.0, 1.0, kwh, 1.0)));
    assert_true(isnan(tamis_carbon_intensity(c, 0.0)));
    tamis_carbon_close(c);
}

typedef struct damage {
    const char *text;
    size_t bytes; /* 0: strlen */
    const char *line;
} damage;

static const damage damages[] = {
    {"", 0, "line 1"},
    {"time,g_per_kwh\n", 0, "line 2"},
    {"100,1\n", 0, "line 2"},
    {"100,1\n200\n", 0, "line 2"},
    {"100,1\ntime,g_per_kwh\n200,2\n", 0, "line 2"},
    {"100,1\n200,abc\n", 0, "line 2"},
    {"100,1\n200,2,3\n", 0, "line 2"},
    {"100,1\n200,2 g\n", 0, "line 2"},
    {"100,1\n200,-2\n", 0, "line 2"},
    {"100,1\n200,nan\n", 0, "line 2"},
    {"100,1\n200,inf\n", 0, "line 2"},
    {"100,1\n200,1e9\n", 0, "line 2"},
    {"nan,1\n200,2\n", 0, "line 1"},
    {"100,1\n200,2\n200,3\n", 0, "line 3"},
    {"100,1\n200,2\n150,3\n", 0, "line 3"},
    {"100,1\n200,2\0\0\0\0", 16, "line 2"},
    {"100,1\n\0\n200,2\n", 14, "line 2"},
    {"100;1\n200;2\n", 0, "line 1"},
    {"100,1\n\xef\xbb\xbf"
     "200,2\n",
     0, "line 2"},
    {"time,lb_per_mwh\n100,1\n200,2\n", 0,
     "line 1: the second column is 'lb_per_mwh', not g_per_kwh"},
    {"time,g_per_kwh,source\n100,1\n200,2\n", 0, "'g_per_kwh,source'"},
    {"time\n100,1\n200,2\n", 0, "the second column is ''"},
    {"Datetime (UTC),Country\n100,1\n200,2\n", 0, "line 1: the first column"},
    {"100,1\n1718000000000,2\n", 0, "line 2: its time looks like milliseconds"},
    {"95617584000,1\n95617584001,2\n", 0, "line 1: its time looks like milliseconds"},
};

static void a_damaged_trace_is_refused_and_the_line_named(void **state) {
    (void)state;
    uint64_t live = tam_alloc_live();
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const damage *d = &damages[i];
        tamis_carbon *c = NULL;
        size_t bytes = d->bytes ? d->bytes : strlen(d->text);
        assert_int_equal(open_bytes(d->text, bytes, &c), TAMIS_E_FORMAT);
        assert_null(c);
        assert_non_null(strstr(tamis_last_error(), d->line));
    }
    char longer[1000];
    memset(longer, '1', sizeof longer);
    tamis_carbon *c;
    assert_int_equal(open_bytes(longer, sizeof longer, &c), TAMIS_E_FORMAT);
    assert_non_null(strstr(tamis_last_error(), "line 1"));
    assert_int_equal(tam_alloc_live(), live);
}

static void headings_marks_of_byte_order_and_line_ends_are_no_values(void **state) {
    (void)state;
    static const char *const begins[] = {"", "time,g_per_kwh\n", "time,g_per_kwh\r\n",
                                         "time , g_per_kwh \n", "timestamp,g_per_kwh\n"};
    for (size_t i = 0; i < 2 * sizeof begins / sizeof begins[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%s100,1\r\n200,2\r\n", i % 2 ? "\xef\xbb\xbf" : "",
                 begins[i / 2]);
        tamis_carbon *c = trace(text);
        assert_true(tamis_carbon_intensity(c, 100.0) == 1.0);
        tamis_carbon_close(c);
    }
    tamis_carbon *c = trace("95617583998,1\n95617583999,2\n"); /* the last second of 4999 */
    tamis_carbon_close(c);
}

/* -- why there are no grams ------------------------------------------------------------------- */

static void check_reason(const tamis_carbon *c, double unix_s, const char *expected) {
    char reason[256];
    tam_carbon_explain(c, unix_s, reason, sizeof reason);
    assert_string_equal(reason, expected);
}

static void what_is_unknown_has_a_reason(void **state) {
    (void)state;
    tamis_carbon *c = NULL;
    check_reason(NULL, 0.0, "no carbon intensity was given");
    assert_int_equal(tamis_carbon_open(NULL, NAN, &c), TAMIS_OK);
    check_reason(c, 0.0, "no carbon intensity was given");
    tamis_carbon_close(c);
    assert_int_equal(tamis_carbon_open(NULL, 400.0, &c), TAMIS_OK);
    check_reason(c, 0.0, "");
    tamis_carbon_close(c);
    c = trace("1718000000,100\n1718003600,\n1718007200,300\n");
    check_reason(c, 1718000000.0, "");
    check_reason(c, 1718010799.0, "");
    check_reason(
        c, 1718010800.0,
        "the carbon trace covers 2024-06-10 06:13 to 2024-06-10 09:13, not 2024-06-10 09:13 "
        "(UTC)");
    check_reason(
        c, 1717000000.5,
        "the carbon trace covers 2024-06-10 06:13 to 2024-06-10 09:13, not 2024-05-29 16:26 "
        "(UTC)");
    check_reason(c, 1718003600.0, "the carbon trace has no value at 2024-06-10 07:13 (UTC)");
    check_reason(c, 1e300,
                 "the carbon trace covers 2024-06-10 06:13 to 2024-06-10 09:13, not 1e+300 "
                 "(UTC)");
    check_reason(c, NAN,
                 "the carbon trace covers 2024-06-10 06:13 to 2024-06-10 09:13, not nan "
                 "(UTC)");
    tamis_carbon_close(c);
}

static char library_log[SCRATCH_PATH];

static void unknown_grams_are_logged_once(void **state) {
    (void)state;
    size_t before = record_count_in(library_log, "grams of CO2 are unknown: /");
    tamis_carbon *c = trace("1718000000,100\n1718003600,200\n");
    assert_false(isnan(tamis_carbon_grams(c, 1718000000.0, 1718003600.0, kwh, 1.0)));
    assert_int_equal(record_count_in(library_log, "grams of CO2 are unknown: /"), before);
    for (int i = 0; i < 3; i++)
        assert_true(isnan(tamis_carbon_grams(c, 1718003600.0, 1718010000.0, kwh, 1.0)));
    assert_int_equal(record_count_in(library_log, "grams of CO2 are unknown: /"), before + 1);
    assert_true(record_count_in(library_log, "covers 2024-06-10 06:13 to 2024-06-10 08:13, not "
                                             "2024-06-10 08:13 (UTC)") == 1);
    tamis_carbon_close(c);
}

static void a_path_that_cannot_be_read_is_named(void **state) {
    (void)state;
    tamis_carbon *c;
    assert_int_equal(tamis_carbon_open("/tmp/no such file", NAN, &c), TAMIS_E_IO);
    assert_non_null(strstr(tamis_last_error(), "/tmp/no such file"));
    assert_int_equal(tamis_carbon_open("/tmp", NAN, &c), TAMIS_E_IO); /* a folder */
    assert_int_equal(tamis_carbon_open(NULL, 1.0, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_carbon_open(NULL, -1.0, &c), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_carbon_open(NULL, INFINITY, &c), TAMIS_E_ARGUMENT);
    tamis_carbon_close(NULL);
}

/* Many rows, so that the table grows: every failing allocation leaves nothing behind. */
static void lack_of_memory_loses_nothing(void **state) {
    (void)state;
    char *text = malloc(1 << 16);
    size_t at = 0;
    assert_non_null(text);
    for (int i = 0; i < 1000; i++)
        at += (size_t)sprintf(text + at, "%d,%d\n", 10 * i, i % 500);
    uint64_t live = tam_alloc_live();
    tamis_status status = TAMIS_E_NOMEM;
    for (long budget = 0; status == TAMIS_E_NOMEM; budget++) {
        tamis_carbon *c = NULL;
        tam_alloc_budget(budget);
        status = open_bytes(text, at, &c);
        tam_alloc_budget(-1);
        assert_true(budget < 20);
        assert_true(status == TAMIS_OK ? tamis_carbon_intensity(c, 9990.0) == 499.0 : c == NULL);
        tamis_carbon_close(c);
        assert_int_equal(tam_alloc_live(), live);
    }
    free(text);
}

static void the_outlook_says_how_far_it_sees(void **state) {
    (void)state;
    tamis_carbon_outlook o = TAMIS_CARBON_OUTLOOK_INIT;
    tamis_carbon *c = trace("0,100\n100,300\n200,200\n300,\n400,900\n500,900\n");
    assert_int_equal(tamis_carbon_look(c, 50.0, 100.0, &o), TAMIS_OK);
    assert_true(o.known_s == 100.0 && o.mean == 200.0 && o.low == 100.0 && o.high == 300.0);
    assert_int_equal(tamis_carbon_look(c, 100.0, 1000.0, &o), TAMIS_OK); /* up to the gap */
    assert_true(o.known_s == 200.0 && o.mean == 250.0 && o.low == 200.0 && o.high == 300.0);
    assert_int_equal(tamis_carbon_look(c, 350.0, 1000.0, &o), TAMIS_OK);
    assert_true(o.known_s == 0.0 && isnan(o.mean) && isnan(o.low) && isnan(o.high));
    assert_int_equal(tamis_carbon_look(c, 0.0, 0.0, &o), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_carbon_look(c, NAN, 1.0, &o), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_carbon_look(NULL, 0.0, 1.0, &o), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_carbon_look(c, 0.0, 1.0, NULL), TAMIS_E_ARGUMENT);
    tamis_carbon_close(c);
    assert_int_equal(tamis_carbon_open(NULL, 42.0, &c), TAMIS_OK);
    assert_int_equal(tamis_carbon_look(c, 0.0, 5.0, &o), TAMIS_OK);
    assert_true(o.known_s == 5.0 && o.mean == 42.0 && o.low == 42.0 && o.high == 42.0);
    tamis_carbon_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grams_are_kwh_times_pue_times_intensity),
        cmocka_unit_test(energy_is_spread_evenly_over_the_rows),
        cmocka_unit_test(a_sum_over_parts_is_the_whole),
        cmocka_unit_test(a_value_holds_until_the_next_row_and_the_last_as_long_as_the_one_before),
        cmocka_unit_test(what_is_unknown_is_never_an_average),
        cmocka_unit_test(a_damaged_trace_is_refused_and_the_line_named),
        cmocka_unit_test(headings_marks_of_byte_order_and_line_ends_are_no_values),
        cmocka_unit_test(what_is_unknown_has_a_reason),
        cmocka_unit_test(unknown_grams_are_logged_once),
        cmocka_unit_test(a_path_that_cannot_be_read_is_named),
        cmocka_unit_test(lack_of_memory_loses_nothing),
        cmocka_unit_test(the_outlook_says_how_far_it_sees),
    };
    setenv("TAMIS_LOG_FILE", scratch_path("carbon.log", library_log), 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
