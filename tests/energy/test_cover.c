/* SPDX-License-Identifier: MIT
 *
 * Which domains of a host are summed: each joule once, whatever contains what.
 */
#include "lib/energy/source/domain.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { MOST = 8 };

typedef struct set {
    tam_energy_domain domains[MOST];
    tam_cover_gain gains[MOST];
    uint32_t count;
    char missing[TAMIS_ENERGY_TEXT];
} set;

static tam_energy_domain *add(set *s, const char *id, const char *inside, tamis_energy_kind kind) {
    tam_energy_domain *d = &s->domains[s->count++];
    tam_energy_sensor sensor = {.kind = kind, .most_w = 1000.0, .period_s = 0.05};
    snprintf(sensor.id, sizeof sensor.id, "%s", id);
    snprintf(sensor.inside, sizeof sensor.inside, "%s", inside);
    tam_domain_init(d, &sensor);
    return d;
}

static void break_down(tam_energy_domain *d, tamis_energy_status status, const char *reason) {
    d->status = status;
    tam_energy_say(d->reason, "%s", reason);
}

static void compare_all(set *s) {
    for (uint32_t i = 0; i < s->count; i++)
        s->gains[i].compared = s->domains[i].status == TAMIS_ENERGY_OK ||
                               s->domains[i].total_uj > 0 || s->domains[i].has_raw;
}

static void expect_cover(set *s, const char *expected, const char *missing) {
    bool counted[MOST];
    char got[MOST + 1] = "";
    compare_all(s);
    tam_domain_cover(s->domains, s->count, s->gains, counted, s->missing);
    for (uint32_t i = 0; i < s->count; i++)
        got[i] = counted[i] ? '+' : '.';
    assert_string_equal(got, expected);
    assert_string_equal(s->missing, missing);
}

static set usual_host(void) {
    set s = {0};
    add(&s, "rapl:package-0", "", TAMIS_ENERGY_PACKAGE);
    add(&s, "rapl:package-0/core", "rapl:package-0", TAMIS_ENERGY_CORE);
    add(&s, "rapl:package-0/dram", "", TAMIS_ENERGY_DRAM);
    add(&s, "nvml:GPU-a", "", TAMIS_ENERGY_GPU);
    return s;
}

static void cores_are_part_of_their_package_and_memory_is_not(void **state) {
    (void)state;
    set s = usual_host();
    expect_cover(&s, "+.++", "");
}

static void without_the_package_its_cores_count_and_it_is_missing(void **state) {
    (void)state;
    set s = usual_host();
    break_down(&s.domains[0], TAMIS_ENERGY_DENIED, "run as root");
    expect_cover(&s, ".+++", "rapl:package-0: run as root");
    break_down(&s.domains[1], TAMIS_ENERGY_DENIED, "run as root");
    expect_cover(&s, "..++", "rapl:package-0: run as root");
}

static void the_platform_counts_for_packages_and_memory(void **state) {
    (void)state;
    set s = {0};
    add(&s, "rapl:psys", "", TAMIS_ENERGY_PSYS);
    add(&s, "rapl:package-0", "rapl:psys", TAMIS_ENERGY_PACKAGE);
    add(&s, "rapl:package-0/core", "rapl:package-0", TAMIS_ENERGY_CORE);
    add(&s, "rapl:package-0/dram", "rapl:psys", TAMIS_ENERGY_DRAM);
    add(&s, "nvml:GPU-a", "", TAMIS_ENERGY_GPU);
    expect_cover(&s, "+...+", "");
    break_down(&s.domains[1], TAMIS_ENERGY_DENIED, "run as root");
    expect_cover(&s, "+...+", "");
    break_down(&s.domains[0], TAMIS_ENERGY_DENIED, "run as root");
    expect_cover(&s, "..+++", "rapl:psys: run as root");
}

static void the_node_counts_for_all_and_once(void **state) {
    (void)state;
    set s = usual_host();
    add(&s, "file:node", "", TAMIS_ENERGY_NODE);
    add(&s, "callback:node", "", TAMIS_ENERGY_NODE);
    expect_cover(&s, "....+.", "");
    break_down(&s.domains[4], TAMIS_ENERGY_ABSENT, "there is no /x");
    expect_cover(&s, ".....+", "");
    break_down(&s.domains[5], TAMIS_ENERGY_FAILED, "it failed");
    expect_cover(&s, "+.++..", "file:node: there is no /x; callback:node: it failed");
}

static void a_module_counts_for_its_processors_but_not_for_other_boards(void **state) {
    (void)state;
    set s = usual_host();
    add(&s, "nvml:GPU-h", "", TAMIS_ENERGY_MODULE);
    expect_cover(&s, "...++", "");
}

static void a_platform_of_another_source_is_one_by_its_kind(void **state) {
    (void)state;
    set s = usual_host();
    add(&s, "file:psys", "", TAMIS_ENERGY_PSYS);
    expect_cover(&s, "...++", "");
    add(&s, "rapl:psys", "", TAMIS_ENERGY_PSYS);
    expect_cover(&s, "...++.", "");
}

static void one_that_broke_down_on_the_way_stays_in_and_is_named(void **state) {
    (void)state;
    set s = usual_host();
    s.domains[3].total_uj = 5;
    break_down(&s.domains[3], TAMIS_ENERGY_LOST, "off the bus");
    expect_cover(&s, "+.++", "nvml:GPU-a: off the bus");
    s = usual_host();
    s.domains[0].resets = 2;
    expect_cover(&s, "+.++", "rapl:package-0: was reset 2 times; what it lost is not counted");
}

static void of_many_missing_the_rest_is_numbered(void **state) {
    (void)state;
    set s = {0};
    for (int i = 0; i < MOST; i++) {
        char id[32];
        snprintf(id, sizeof id, "nvml:GPU-%d", i);
        break_down(add(&s, id, "", TAMIS_ENERGY_GPU), TAMIS_ENERGY_LOST,
                   "the GPU has fallen off the bus, says a long sentence about Xid");
    }
    expect_cover(&s, "........",
                 "nvml:GPU-0: the GPU has fallen off the bus, says a long sentence about Xid; "
                 "nvml:GPU-1: the GPU has fallen off the bus, says a long sentence about Xid; "
                 "and 6 more");
    tam_energy_say(s.domains[0].reason, "%s", s.missing);
    tam_domain_cover(s.domains, s.count, s.gains, (bool[MOST]){0}, s.missing);
    assert_true(strlen(s.missing) < TAMIS_ENERGY_TEXT);
    assert_non_null(strstr(s.missing, "; and 7 more"));
}

/* @param want  what counts of all together */
static void gain(set *s, uint64_t psys, uint64_t package, uint64_t want, const char *expected,
                 const char *missing) {
    uint64_t sum = 0;
    s->gains[0].uj = psys;
    s->gains[1].uj = package;
    s->gains[2].uj = package / 2; /* its cores */
    expect_cover(s, expected, missing);
    for (uint32_t i = 0; i < s->count; i++)
        sum += expected[i] == '+' ? s->gains[i].uj : 0;
    assert_int_equal(sum, want);
}

static set platform_host(void) {
    set s = {0};
    add(&s, "rapl:psys", "", TAMIS_ENERGY_PSYS);
    add(&s, "rapl:package-0", "rapl:psys", TAMIS_ENERGY_PACKAGE);
    add(&s, "rapl:package-0/core", "rapl:package-0", TAMIS_ENERGY_CORE);
    return s;
}

/* Its counter went on: then all that it has gained counts in the end. */
static void a_platform_that_is_late_counts_again_when_it_has_caught_up(void **state) {
    (void)state;
    set s = platform_host();
    gain(&s, 60, 50, 60, "+..", "");
    gain(&s, 0, 50, 50, ".+.", "rapl:psys: " TAM_COVER_BEHIND);
    gain(&s, 0, 50, 50, ".+.", "rapl:psys: " TAM_COVER_BEHIND);
    gain(&s, 190, 50, 90, "+..", "");
    gain(&s, 60, 50, 60, "+..", "");
}

static void a_platform_that_gains_less_than_its_packages_never_counts(void **state) {
    (void)state;
    set s = platform_host();
    for (int i = 0; i < 20; i++)
        gain(&s, 20, 50, 50, ".+.", "rapl:psys: " TAM_COVER_BEHIND);
    s = platform_host();
    s.domains[0].total_uj = 5;
    break_down(&s.domains[0], TAMIS_ENERGY_FROZEN, "stands still");
    gain(&s, 0, 50, 50, ".+.", "rapl:psys: stands still");
}

/* A counter that is first seen to gain later still owes what counted in its place. */
static void a_platform_that_has_not_moved_yet_owes_all_the_same(void **state) {
    (void)state;
    set s = platform_host();
    s.domains[0].has_raw = true;
    break_down(&s.domains[0], TAMIS_ENERGY_FROZEN, "stands still");
    gain(&s, 0, 50, 50, ".+.", "rapl:psys: stands still");
    gain(&s, 0, 50, 50, ".+.", "rapl:psys: stands still");
    s.domains[0].status = TAMIS_ENERGY_OK;
    gain(&s, 190, 50, 90, "+..", "");
}

/* What the platform had is not counted again when its packages show it. */
static void packages_that_are_late_count_once(void **state) {
    (void)state;
    set s = platform_host();
    gain(&s, 100, 0, 100, "+..", "");
    gain(&s, 0, 160, 60, ".+.", "rapl:psys: " TAM_COVER_BEHIND);
    gain(&s, 200, 80, 140, "+..", "");
}

static void what_is_left_out_hides_nothing_that_is_missing(void **state) {
    (void)state;
    set s = platform_host();
    add(&s, "rapl:package-1", "rapl:psys", TAMIS_ENERGY_PACKAGE);
    break_down(&s.domains[3], TAMIS_ENERGY_DENIED, "run as root");
    gain(&s, 100, 50, 100, "+...", "");
    gain(&s, 20, 50, 50, ".+..", "rapl:psys: " TAM_COVER_BEHIND "; rapl:package-1: run as root");
}

static void domains_in_a_ring_have_an_end(void **state) {
    (void)state;
    set s = {0};
    add(&s, "file:a", "file:b", TAMIS_ENERGY_OTHER);
    add(&s, "file:b", "file:a", TAMIS_ENERGY_OTHER);
    bool counted[MOST];
    compare_all(&s);
    tam_domain_cover(s.domains, s.count, s.gains, counted, s.missing);
    assert_false(counted[0] && counted[1]);
    break_down(&s.domains[0], TAMIS_ENERGY_LOST, "gone");
    break_down(&s.domains[1], TAMIS_ENERGY_LOST, "gone");
    tam_domain_cover(s.domains, s.count, s.gains, counted, s.missing);
    assert_false(counted[0] || counted[1]);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_part_of_their_package_and_memory_is_not),
        cmocka_unit_test(without_the_package_its_cores_count_and_it_is_missing),
        cmocka_unit_test(the_platform_counts_for_packages_and_memory),
        cmocka_unit_test(the_node_counts_for_all_and_once),
        cmocka_unit_test(a_module_counts_for_its_processors_but_not_for_other_boards),
        cmocka_unit_test(a_platform_of_another_source_is_one_by_its_kind),
        cmocka_unit_test(one_that_broke_down_on_the_way_stays_in_and_is_named),
        cmocka_unit_test(of_many_missing_the_rest_is_numbered),
        cmocka_unit_test(a_platform_that_is_late_counts_again_when_it_has_caught_up),
        cmocka_unit_test(a_platform_that_gains_less_than_its_packages_never_counts),
        cmocka_unit_test(a_platform_that_has_not_moved_yet_owes_all_the_same),
        cmocka_unit_test(packages_that_are_late_count_once),
        cmocka_unit_test(what_is_left_out_hides_nothing_that_is_missing),
        cmocka_unit_test(domains_in_a_ring_have_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
