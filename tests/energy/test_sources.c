/* SPDX-License-Identifier: MIT
 *
 * Counters in files: processors as powercap shows them, any file by a list, and the application's
 * callback. Whatever is broken about them has its status and its sentence.
 */
#include "tests/support/scratch.h"
#include "tests/support/sources.h"
#include "tests/support/tree.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define RANGE UINT64_C(262143328850)

static opened open_rapl(const char *root) {
    return source_open(&tam_source_rapl, &(tamis_energy_config){.sysfs_root = root});
}

static opened open_files(const char *root, const char *list) {
    return source_open(&tam_source_file, &(tamis_energy_config){.sysfs_root = root, .files = list});
}

static tamis_status choose(const char *names, uint32_t most, const char *expected) {
    const tam_energy_source *sources[8];
    char got[128] = "";
    uint32_t n;
    tamis_status status = tam_energy_sources_choose(names, most, sources, &n);
    for (uint32_t i = 0; status == TAMIS_OK && i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", sources[i]->name);
    assert_string_equal(got, expected);
    return status;
}

#define AND_SPACE(name) #name " "
#define AND_COMMA(name) #name ", "

static void sources_are_chosen_by_name(void **state) {
    static const char magic[] =
        "no source \"magic\"; known are " TAMIS_ENERGY_SOURCES(AND_COMMA) "and auto or none alone";
    (void)state;
    assert_int_equal(choose("auto", 8, TAMIS_ENERGY_SOURCES(AND_SPACE)), TAMIS_OK);
    assert_int_equal(choose("none", 8, ""), TAMIS_OK);
    assert_int_equal(choose("file,nvml", 8, "file nvml "), TAMIS_OK);
    assert_int_equal(choose("rapl,magic", 8, ""), TAMIS_E_ARGUMENT);
    assert_non_null(strstr(tamis_last_error(), magic));
    assert_int_equal(choose("rapl,rapl", 8, ""), TAMIS_E_ARGUMENT);
    assert_non_null(strstr(tamis_last_error(), "names rapl twice"));
    assert_int_equal(choose("callback,file,rapl", 2, ""), TAMIS_E_UNSUPPORTED);
    assert_non_null(strstr(tamis_last_error(), "reads 2 sources, not rapl as well"));
}

/* -- powercap --------------------------------------------------------------------------------- */

static const char *one_package(void) {
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-0", 1000, RANGE);
    return root;
}

static void without_powercap_the_source_is_absent(void **state) {
    (void)state;
    const char *root = tree_make();
    opened o = open_rapl(root);
    source_expect_sensor(&o, "rapl", TAMIS_ENERGY_ABSENT, "a virtual machine, a container");
    source_close(&o);
    tree_folder(root, "/sys/class/powercap/intel-rapl");
    o = open_rapl(root);
    assert_int_equal(o.n, 1);
    source_expect_sensor(&o, "rapl", TAMIS_ENERGY_ABSENT, "no zones");
    source_close(&o);
}

static void zones_are_what_their_names_say(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-1", 11, RANGE); /* listed before package 0 */
    tree_zone(root, "intel-rapl:1", "package-0", 10, RANGE);
    tree_zone(root, "intel-rapl:0:0", "dram", 12, 65532610987);
    tree_zone(root, "intel-rapl:0:1", "core", 13, RANGE);
    tree_zone(root, "intel-rapl:1:0", "uncore", 14, RANGE);
    tree_zone(root, "intel-rapl:2", "package-2-die-1", 15, RANGE);
    opened o = open_rapl(root);
    assert_int_equal(o.n, 6);
    source_expect_value(&o, "rapl:package-1", 11);
    source_expect_value(&o, "rapl:package-0", 10);
    source_expect_value(&o, "rapl:package-1/dram", 12);
    source_expect_value(&o, "rapl:package-1/core", 13);
    source_expect_value(&o, "rapl:package-0/uncore", 14);
    source_expect_value(&o, "rapl:package-2-die-1", 15);
    assert_int_equal(source_sensor(&o, "rapl:package-1/dram").range_uj, 65532610987);
    assert_int_equal(source_sensor(&o, "rapl:package-1/dram").kind, TAMIS_ENERGY_DRAM);
    assert_int_equal(source_sensor(&o, "rapl:package-2-die-1").kind, TAMIS_ENERGY_PACKAGE);
    assert_string_equal(source_sensor(&o, "rapl:package-1/dram").inside, "");
    assert_string_equal(source_sensor(&o, "rapl:package-1/core").inside, "rapl:package-1");
    assert_string_equal(source_sensor(&o, "rapl:package-0/uncore").inside, "rapl:package-0");
    source_close(&o);
}

static void the_platform_contains_packages_and_memory(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-0", 1, RANGE);
    tree_zone(root, "intel-rapl:0:0", "dram", 2, RANGE);
    tree_zone(root, "intel-rapl:1", "psys", 3, RANGE);
    tree_zone(root, "intel-rapl:2", "package-1", 4, RANGE);
    opened o = open_rapl(root);
    assert_string_equal(source_sensor(&o, "rapl:package-0").inside, "rapl:psys");
    assert_string_equal(source_sensor(&o, "rapl:package-0/dram").inside, "rapl:psys");
    assert_string_equal(source_sensor(&o, "rapl:package-1").inside, "rapl:psys");
    assert_string_equal(source_sensor(&o, "rapl:psys").inside, "");
    source_close(&o);
    tree_zone(root, "intel-rapl:3", "psys-1", 5, RANGE);
    o = open_rapl(root);
    assert_string_equal(source_sensor(&o, "rapl:package-0").inside, "rapl:psys");
    assert_string_equal(source_sensor(&o, "rapl:package-1").inside, "rapl:psys-1");
    source_close(&o);
}

static void a_zone_that_is_found_twice_is_one_counter(void **state) {
    (void)state;
    const char *root = one_package();
    tree_zone(root, "intel-rapl:0:0", "core", 21, RANGE);
    tree_zone(root, "intel-rapl-mmio:0", "package-0", 9, RANGE);
    tree_write(root, "/sys/class/powercap/dtpm:0/name", "dtpm\n"); /* has no counter */
    opened o = open_rapl(root);
    assert_int_equal(o.n, 2);
    source_expect_value(&o, "rapl:package-0", 1000);
    source_close(&o);
}

static void a_zone_of_unknown_name_is_not_counted(void **state) {
    (void)state;
    const char *root = one_package();
    tree_zone(root, "intel-rapl:5", "gizmo", 1, RANGE);
    opened o = open_rapl(root);
    source_expect_sensor(&o, "rapl:gizmo", TAMIS_ENERGY_UNSUPPORTED, "zone \"gizmo\"");
    source_expect_value(&o, "rapl:package-0", 1000);
    source_close(&o);
}

static void a_zone_without_name_is_absent(void **state) {
    (void)state;
    const char *root = one_package();
    tree_remove(root, "/sys/class/powercap/intel-rapl:0/name");
    opened o = open_rapl(root);
    source_expect_sensor(&o, "rapl:intel-rapl:0", TAMIS_ENERGY_ABSENT, "/name");
    source_close(&o);
}

static void a_disabled_zone_is_read_and_says_why_it_may_stand_still(void **state) {
    (void)state;
    const char *root = one_package();
    tree_write(root, "/sys/class/powercap/intel-rapl:0/enabled", "0\n");
    opened o = open_rapl(root);
    source_expect_value(&o, "rapl:package-0", 1000);
    source_expect_sensor(&o, "rapl:package-0", TAMIS_ENERGY_OK, "disabled, echo 1 >");
    source_close(&o);
}

static void a_missing_range_is_said(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-0", 1000, 0);
    opened o = open_rapl(root);
    source_expect_sensor(&o, "rapl:package-0", TAMIS_ENERGY_OK, "range is not known");
    assert_int_equal(source_sensor(&o, "rapl:package-0").range_uj, 0);
    source_close(&o);
}

/* What replaces the counter of the package, and what is said then. */
static void check_content(const char *content, tamis_energy_status status, const char *words) {
    const char *root = one_package();
    opened o = open_rapl(root);
    source_expect_value(&o, "rapl:package-0", 1000);
    tree_write(root, "/sys/class/powercap/intel-rapl:0/energy_uj", "%s", content);
    source_expect_read(&o, "rapl:package-0", status, words);
    tree_energy(root, "intel-rapl:0", 1001);
    source_expect_value(&o, "rapl:package-0", 1001); /* it recovers */
    source_close(&o);
}

static void garbage_is_garbled(void **state) {
    (void)state;
    check_content("gargle\n", TAMIS_ENERGY_GARBLED, "\"gargle\" is no number");
    check_content("12 monkeys\n", TAMIS_ENERGY_GARBLED, "\"12 monkeys\" is no number");
    check_content("12.5\n", TAMIS_ENERGY_GARBLED, "no number");
}

static void a_negative_number_is_garbled(void **state) {
    (void)state;
    check_content("-5\n", TAMIS_ENERGY_GARBLED, "\"-5\" is no number");
}

static void a_number_beyond_64_bits_is_garbled(void **state) {
    (void)state;
    check_content("18446744073709551616\n", TAMIS_ENERGY_GARBLED, "no number");
    check_content("99999999999999999999999999999999\n", TAMIS_ENERGY_GARBLED, "no number");
}

static void an_empty_file_is_garbled(void **state) {
    (void)state;
    check_content("", TAMIS_ENERGY_GARBLED, "it is empty");
    check_content("\n", TAMIS_ENERGY_GARBLED, "it is empty");
}

static void a_file_that_vanishes_is_absent(void **state) {
    (void)state;
    const char *root = one_package();
    opened o = open_rapl(root);
    tree_remove(root, "/sys/class/powercap/intel-rapl:0/energy_uj");
    source_expect_read(&o, "rapl:package-0", TAMIS_ENERGY_ABSENT, "there is no");
    source_close(&o);
    tree_zone(root, "intel-rapl:1", "package-1", 1, RANGE);
    o = open_rapl(root);
    source_expect_sensor(&o, "rapl:package-0", TAMIS_ENERGY_ABSENT, "energy_uj");
    source_close(&o);
}

static void a_folder_that_vanishes_is_absent(void **state) {
    (void)state;
    const char *root = one_package();
    opened o = open_rapl(root);
    tree_remove(root, "/sys/class/powercap/intel-rapl:0");
    source_expect_read(&o, "rapl:package-0", TAMIS_ENERGY_ABSENT, "there is no");
    source_close(&o);
}

static void an_error_of_reading_is_failed(void **state) {
    (void)state;
    const char *root = one_package();
    opened o = open_rapl(root);
    tree_remove(root, "/sys/class/powercap/intel-rapl:0/energy_uj");
    tree_folder(root, "/sys/class/powercap/intel-rapl:0/energy_uj");
    source_expect_read(&o, "rapl:package-0", TAMIS_ENERGY_FAILED, "cannot be read (error 21");
    source_close(&o);
}

static void without_permission_the_remedy_is_named(void **state) {
    (void)state;
    char path[2 * SCRATCH_PATH];
    const char *root = one_package();
    snprintf(path, sizeof path, "%s/sys/class/powercap/intel-rapl:0/energy_uj", root);
    assert_int_equal(chmod(path, getuid() == 0 ? 0400 : 0), 0);
    tam_energy_sensor sensor = source_sensor_unprivileged(&tam_source_rapl, root, "rapl:package-0");
    assert_int_equal(sensor.status, TAMIS_ENERGY_DENIED);
    assert_non_null(strstr(sensor.reason, "run as root, or chmod a+r"));
    snprintf(path, sizeof path, "%s/sys/class/powercap", root);
    assert_int_equal(chmod(path, 0), 0);
    sensor = source_sensor_unprivileged(&tam_source_rapl, root, "rapl");
    assert_int_equal(sensor.status, TAMIS_ENERGY_DENIED);
    assert_non_null(strstr(sensor.reason, "permission denied"));
    assert_int_equal(chmod(path, 0755), 0);
}

static void a_root_that_is_too_long_is_failed(void **state) {
    (void)state;
    char root[700];
    memset(root, 'x', sizeof root);
    root[0] = '/';
    root[sizeof root - 1] = '\0';
    opened o = open_rapl(root);
    source_expect_sensor(&o, "rapl", TAMIS_ENERGY_FAILED, "cannot be read (error 36");
    source_close(&o);
}

/* -- files by a list -------------------------------------------------------------------------- */

static void units_are_exact(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_write(root, "/sys/a", "123\n");
    tree_write(root, "/sys/b", "12.3456789 J 1700000000 us\n");
    opened o = open_files(root, "a=/sys/a:uJ,b=/sys/a:mJ,c=/sys/a:J,d=/sys/a:uW,e=/sys/a:mW,"
                                "f=/sys/a:W,g=/sys/b:J");
    assert_int_equal(o.n, 7);
    source_expect_value(&o, "file:a", 123);
    source_expect_value(&o, "file:b", 123000);
    source_expect_value(&o, "file:c", 123000000);
    source_expect_value(&o, "file:d", 123);
    source_expect_value(&o, "file:e", 123000);
    source_expect_value(&o, "file:f", 123000000);
    source_expect_value(&o, "file:g", 12345678);
    assert_false(source_sensor(&o, "file:c").power);
    assert_true(source_sensor(&o, "file:d").power);
    source_close(&o);
}

static void kinds_are_told_by_names(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_write(root, "/sys/a", "1\n");
    opened o = open_files(root, "node=/sys/a:J,gpu0=/sys/a:J,package-1=/sys/a:J,gpus=/sys/a:J");
    assert_int_equal(source_sensor(&o, "file:node").kind, TAMIS_ENERGY_NODE);
    assert_int_equal(source_sensor(&o, "file:gpu0").kind, TAMIS_ENERGY_GPU);
    assert_int_equal(source_sensor(&o, "file:package-1").kind, TAMIS_ENERGY_PACKAGE);
    assert_int_equal(source_sensor(&o, "file:gpus").kind, TAMIS_ENERGY_OTHER);
    source_close(&o);
}

static void an_unknown_unit_is_unsupported(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_write(root, "/sys/a", "1\n");
    opened o = open_files(root, "a=/sys/a:kWh,b=/sys/a:J");
    source_expect_sensor(&o, "file:a", TAMIS_ENERGY_UNSUPPORTED, "uJ, mJ, J, uW, mW, W: kWh");
    source_expect_value(&o, "file:b", 1000000);
    source_close(&o);
}

static void an_item_of_another_form_is_failed(void **state) {
    (void)state;
    static const char *const items[] = {"/sys/a", "a=/sys/a", "=/sys/a:J", "a=:J", "a", ":", "="};
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        opened o = open_files("", items[i]);
        assert_int_equal(o.n, 1);
        source_expect_sensor(&o, "file:0", TAMIS_ENERGY_FAILED, "not name=path:unit");
        source_close(&o);
    }
    opened o = open_files("", "a=/nonexistent:J,");
    assert_int_equal(o.n, 2);
    source_expect_sensor(&o, "file:1", TAMIS_ENERGY_FAILED, "not name=path:unit");
    source_close(&o);
    o = open_files("", NULL);
    assert_int_equal(o.n, 0);
    source_close(&o);
}

static void two_items_of_one_name_are_refused(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_write(root, "/sys/a", "1\n");
    opened o = open_files(root, "a=/sys/a:J,a=/sys/a:J");
    source_expect_value(&o, "file:a", 1000000);
    source_expect_sensor(&o, "file:1", TAMIS_ENERGY_FAILED, "two items have the same name: a");
    source_close(&o);
}

static void a_listed_file_that_is_not_there_is_absent(void **state) {
    (void)state;
    opened o = open_files("", "a=/nonexistent/energy:J");
    source_expect_sensor(&o, "file:a", TAMIS_ENERGY_ABSENT, "there is no /nonexistent/energy");
    source_close(&o);
}

static void another_unit_behind_the_number_is_garbled(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_write(root, "/sys/a", "5 W\n");
    opened o = open_files(root, "a=/sys/a:J");
    source_expect_read(&o, "file:a", TAMIS_ENERGY_GARBLED, "\"5 W\" is no number of J");
    tree_write(root, "/sys/a", "nan\n");
    source_expect_read(&o, "file:a", TAMIS_ENERGY_GARBLED, "\"nan\"");
    tree_write(root, "/sys/a", "1e3\n");
    source_expect_read(&o, "file:a", TAMIS_ENERGY_GARBLED, "\"1e3\"");
    source_close(&o);
}

static void a_pipe_in_place_of_a_file_holds_nobody_up(void **state) {
    (void)state;
    char path[SCRATCH_PATH], list[2 * SCRATCH_PATH];
    const char *root = tree_make();
    snprintf(path, sizeof path, "%.400s/pipe", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(list, sizeof list, "a=%s:J", path);
    opened o = open_files(root, list);
    source_expect_read(&o, "file:a", TAMIS_ENERGY_GARBLED, "it is empty");
    source_close(&o);
}

static void a_counter_that_nobody_brings_up_to_date_is_stale(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_write(root, "/sys/cray/pm_counters/energy", "100 J\n");
    tree_write(root, "/sys/cray/pm_counters/freshness", "7\n");
    opened o = open_files(root, "node=/sys/cray/pm_counters/energy:J");
    source_expect_value(&o, "file:node", 100000000);
    source_expect_value(&o, "file:node", 100000000);
    usleep(2050000);
    source_expect_read(&o, "file:node", TAMIS_ENERGY_STALE, "brought it up to date for 2.");
    tree_write(root, "/sys/cray/pm_counters/freshness", "8\n");
    source_expect_value(&o, "file:node", 100000000);
    source_close(&o);
}

/* -- the callback ----------------------------------------------------------------------------- */

static tamis_status answer(void *context, uint64_t *out_uj) {
    const uint64_t *value = context;
    *out_uj = *value;
    return *value == 13 ? TAMIS_E_IO : TAMIS_OK;
}

static void a_callback_that_fails_says_so_and_recovers(void **state) {
    (void)state;
    uint64_t value = 42;
    opened o = source_open(&tam_source_callback, &(tamis_energy_config){.callback = answer,
                                                                        .callback_context = &value,
                                                                        .callback_name = "rack"});
    source_expect_value(&o, "callback:rack", 42);
    value = 13;
    source_expect_read(&o, "callback:rack", TAMIS_ENERGY_FAILED, "returned TAMIS_E_IO");
    value = 43;
    source_expect_value(&o, "callback:rack", 43);
    source_close(&o);
    o = source_open(&tam_source_callback, &(tamis_energy_config){0});
    assert_int_equal(o.n, 0);
    source_close(&o);
}

static void a_callback_that_goes_back_is_a_reset(void **state) {
    (void)state;
    uint64_t value = 5000, now_ns = 1000000000;
    opened o = source_open(&tam_source_callback,
                           &(tamis_energy_config){.callback = answer, .callback_context = &value});
    tam_energy_sensor sensor = source_sensor(&o, "callback:0");
    tam_energy_domain d;
    tam_energy_gain gain;
    tam_domain_init(&d, &sensor);
    for (int i = 0; i < 3; i++, value += 10, now_ns += 100000000) {
        tam_energy_reading reading = source_read(&o, "callback:0");
        reading.at_ns = now_ns;
        tam_domain_take(&d, &reading, &gain);
    }
    for (value = 100; value <= 110; value += 10, now_ns += 100000000) {
        tam_energy_reading reading = source_read(&o, "callback:0");
        reading.at_ns = now_ns;
        tam_domain_take(&d, &reading, &gain);
    }
    assert_int_equal(d.status, TAMIS_ENERGY_RESET);
    assert_non_null(strstr(d.reason, "went from 5020 to 100"));
    assert_int_equal(d.total_uj, 30);
    source_close(&o);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    const char *root = tree_make(), *empty = tree_make();
    for (unsigned i = 0; i < 20; i++) {
        char folder[32], name[32];
        snprintf(folder, sizeof folder, "intel-rapl:%u", i);
        snprintf(name, sizeof name, "package-%u", i);
        tree_zone(root, folder, name, 1, RANGE);
    }
    source_check_memory(&tam_source_rapl, &(tamis_energy_config){.sysfs_root = root});
    source_check_memory(&tam_source_rapl, &(tamis_energy_config){.sysfs_root = empty});
    source_check_memory(&tam_source_file, &(tamis_energy_config){.files = "a=/b:J,c=/d:W"});
    source_check_memory(&tam_source_callback, &(tamis_energy_config){.callback = answer});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_chosen_by_name),
        cmocka_unit_test(without_powercap_the_source_is_absent),
        cmocka_unit_test(zones_are_what_their_names_say),
        cmocka_unit_test(the_platform_contains_packages_and_memory),
        cmocka_unit_test(a_zone_that_is_found_twice_is_one_counter),
        cmocka_unit_test(a_zone_of_unknown_name_is_not_counted),
        cmocka_unit_test(a_zone_without_name_is_absent),
        cmocka_unit_test(a_disabled_zone_is_read_and_says_why_it_may_stand_still),
        cmocka_unit_test(a_missing_range_is_said),
        cmocka_unit_test(garbage_is_garbled),
        cmocka_unit_test(a_negative_number_is_garbled),
        cmocka_unit_test(a_number_beyond_64_bits_is_garbled),
        cmocka_unit_test(an_empty_file_is_garbled),
        cmocka_unit_test(a_file_that_vanishes_is_absent),
        cmocka_unit_test(a_folder_that_vanishes_is_absent),
        cmocka_unit_test(an_error_of_reading_is_failed),
        cmocka_unit_test(without_permission_the_remedy_is_named),
        cmocka_unit_test(a_root_that_is_too_long_is_failed),
        cmocka_unit_test(units_are_exact),
        cmocka_unit_test(kinds_are_told_by_names),
        cmocka_unit_test(an_unknown_unit_is_unsupported),
        cmocka_unit_test(an_item_of_another_form_is_failed),
        cmocka_unit_test(two_items_of_one_name_are_refused),
        cmocka_unit_test(a_listed_file_that_is_not_there_is_absent),
        cmocka_unit_test(another_unit_behind_the_number_is_garbled),
        cmocka_unit_test(a_pipe_in_place_of_a_file_holds_nobody_up),
        cmocka_unit_test(a_counter_that_nobody_brings_up_to_date_is_stale),
        cmocka_unit_test(a_callback_that_fails_says_so_and_recovers),
        cmocka_unit_test(a_callback_that_goes_back_is_a_reset),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
