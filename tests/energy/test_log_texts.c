/* SPDX-License-Identifier: MIT
 *
 * What the energy log makes of records: numbers, texts, what is unknown. With a
 * folder as argument it writes there what check_log.py compares with docs/energy.md.
 */
#include "lib/energy/log/log.h"
#include "lib/base/json.h"
#include "tests/support/data.h"
#include "tests/support/records.h"
#include "tests/support/scratch.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void check_has(const char *path, const char *words) {
    if (record_count_in(path, words) == 0)
        fail_msg("'%s' is not in %s", words, path);
}

/* -- numbers ---------------------------------------------------------------------------------- */

static const char *number_text(double value, char out[64]) {
    tam_text text = {0};
    tam_json_number(&text, NULL, value);
    assert_true(text.length < 64);
    memcpy(out, text.bytes, text.length);
    out[text.length] = '\0';
    tam_text_free(&text);
    return out;
}

static void check_number(double value) {
    char text[64];
    double back = strtod(number_text(value, text), NULL);
    if (memcmp(&back, &value, sizeof value) != 0)
        fail_msg("%a became %s", value, text);
}

static void a_number_reads_back_as_the_same_bits(void **state) {
    (void)state;
    static const double some[] = {0.0, -0.0, 0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 1e21};
    char text[64];
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        check_number(some[i]);
    for (uint64_t seed = 0; seed < 100000; seed++) {
        uint64_t bits = data_mix(seed);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value))
            check_number(value);
    }
    assert_string_equal(number_text(0.1, text), "0.1");
    assert_string_equal(number_text(5.0, text), "5");
}

static void check_plain(const char *number, const char *expected) {
    char text[32];
    snprintf(text, sizeof text, "%s", number);
    tam_json_plain(text);
    assert_string_equal(text, expected);
}

/* A locale with a decimal comma: one that there is, or one made here. */
static bool take_comma_locale(void) {
    char folder[SCRATCH_PATH], command[SCRATCH_PATH + 128];
    if (setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "fr_FR.UTF-8"))
        return true;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tamis-locale-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(folder))
        return false;
    snprintf(command, sizeof command,
             "localedef -c -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", folder);
    bool made = system(command) == 0;
    setenv("LOCPATH", folder, 1);
    bool taken = made && setlocale(LC_ALL, "de_DE.UTF-8");
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    made = system(command) == 0;
    unsetenv("LOCPATH");
    return taken;
}

static void a_decimal_comma_never_reaches_a_file(void **state) {
    (void)state;
    char text[64];
    check_plain("-3,25e-07", "-3.25e-07");
    check_plain("3\xd9\xab"
                "5",
                "3.5"); /* U+066B */
    check_plain("42", "42");
    if (!take_comma_locale()) {
        print_message("no locale with a decimal comma here, and none could be made\n");
        return;
    }
    snprintf(text, sizeof text, "%g", 0.5);
    assert_string_equal(text, "0,5"); /* the locale is what it should be */
    assert_string_equal(number_text(1.0 / 3, text), "0.3333333333333333");
    setlocale(LC_ALL, "C");
}

/* -- JSON ------------------------------------------------------------------------------------- */

static void texts_are_escaped_and_mended(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    setup.config.json = scratch_path("escape.jsonl", path);
    setup.config.run = "a\"b\\c\n\x01\x7f\xc3\xa9";
    setup.host = "\xff|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\xe2\x82|\xf0\x9f\x98\x80";
    tam_energy_log_close(record_log(&setup));
#define BAD "\xef\xbf\xbd"
    check_has(path, "\"run\":\"a\\\"b\\\\c\\u000a\\u0001\x7f\xc3\xa9\",\"host\":\"" BAD "|" BAD BAD
                    "|" BAD BAD BAD "|" BAD BAD BAD BAD "|" BAD BAD "|\xf0\x9f\x98\x80\",");
}

static void what_is_unknown_is_null_and_never_zero(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    test_record window;
    setup.config.json = scratch_path("unknown.jsonl", path);
    tam_energy_log *log = record_log(&setup);
    record_unknown(&window, 0);
    window.domains[0].status = TAMIS_ENERGY_LOST; /* after it gained something */
    window.gained[0].uj = 5;
    window.domains[2].status = TAMIS_ENERGY_OK; /* it used nothing, and that is known */
    record_write(log, &window);
    tam_energy_log_close(log);
    check_has(path, "\"uj\":null,\"unattributed_uj\":null,\"domains\":[");
    check_has(path, "{\"id\":\"nvml:GPU-5a1c\",\"uj\":5,\"counted_uj\":0,"
                    "\"unattributed_uj\":0,\"idle_uj\":0,"
                    "\"status\":\"lost\",\"counted\":true,\"wraps\":0,\"resets\":0,"
                    "\"tick_s\":null,\"lag_s\":null,\"duty\":null}");
    check_has(path, "{\"id\":\"rapl:package-0\",\"uj\":null,\"counted_uj\":null,"
                    "\"unattributed_uj\":null,\"idle_uj\":null,");
    check_has(path, "{\"id\":\"nvml:GPU-77e0\",\"uj\":0,");
    check_has(path, "{\"name\":\"skew\",\"group\":[],\"t_s\":0.7,\"uj\":null,\"lo_uj\":null,"
                    "\"hi_uj\":null,\"method\":\"none\"}");
    check_has(path, "\"density\":null");
    check_has(path, "\"carbon\":{\"g\":null,\"intensity_g_per_kwh\":null}");
}

static void phases_say_how_well_they_are_known(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    setup.config.json = scratch_path("phases.jsonl", path);
    tam_energy_log *log = record_log(&setup);
    record_add(log, 0);
    tam_energy_log_close(log);
    check_has(path, "{\"name\":\"select\",\"group\":[],\"t_s\":0.1,\"uj\":50000000,\"lo_uj\":null,"
                    "\"hi_uj\":null,\"method\":\"time_share\"}");
    check_has(path, "{\"name\":\"skew\",\"group\":[],\"t_s\":0.7,\"uj\":200000000,"
                    "\"lo_uj\":190000000,\"hi_uj\":210000000,\"method\":\"regressed\"}");
    check_has(path, "{\"name\":\"forward\",\"group\":[\"forward\",\"backward\"],");
}

int main(int argc, char **argv) {
    if (argc == 2)
        return record_samples(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_reads_back_as_the_same_bits),
        cmocka_unit_test(a_decimal_comma_never_reaches_a_file),
        cmocka_unit_test(texts_are_escaped_and_mended),
        cmocka_unit_test(what_is_unknown_is_null_and_never_zero),
        cmocka_unit_test(phases_say_how_well_they_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
