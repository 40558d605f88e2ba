/* SPDX-License-Identifier: MIT
 *
 * Reports of a cluster while a platform's counter is late: it stands still, cannot be read, is
 * reset, or its ranks change, and its package counts meanwhile. What it shows in the end counts
 * once.
 */
#include "lib/energy/cluster/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 2, NOBODY = RANKS };

static tam_registry *registries[RANKS];
static uint64_t nreports;

static int begin(void **state) {
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(tam_registry_open(2, &registries[r]), TAMIS_OK);
    return 0;
}

static int end(void **state) {
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        tam_registry_close(registries[r]);
    return 0;
}

/* Half of what a domain gains is attributed. */
static void show_one(tam_energy_entry *e, const char *id, const char *inside,
                     tamis_energy_kind kind, uint64_t uj) {
    *e = (tam_energy_entry){.host = 7,
                            .kind = (uint32_t)kind,
                            .uj = uj,
                            .raw_uj = uj,
                            .has_raw = 1,
                            .most_w = 1000,
                            .range_uj = 1000000000000};
    snprintf(e->id, sizeof e->id, "%s", id);
    snprintf(e->inside, sizeof e->inside, "%s", inside);
    e->phases_uj[0] = (int64_t)(uj / 2);
}

static void show(uint32_t rank, uint64_t psys, uint64_t package) {
    tam_energy_entry *e = registries[rank]->shown;
    show_one(&e[0], "rapl:psys", "", TAMIS_ENERGY_PSYS, psys);
    show_one(&e[1], "rapl:package-0", "rapl:psys", TAMIS_ENERGY_PACKAGE, package);
}

static void break_psys(uint32_t rank, tamis_energy_status status, uint32_t resets) {
    registries[rank]->shown[0].status = (uint32_t)status;
    registries[rank]->shown[0].resets = resets;
}

/* The first nranks report. @param fails  which has sent, but does not complete it */
static tamis_energy_totals report(uint32_t nranks, uint32_t fails) {
    static const tam_energy_run run;
    tam_energy_entry offered[2 * RANKS], taken[2 * RANKS];
    tam_energy_sums latest = registries[0]->sums;
    tamis_energy_totals totals;
    void *scratch = malloc(tam_registry_scratch(2 * RANKS));
    for (uint32_t r = 1; r < nranks; r++) {
        if (registries[r]->sums.reports > latest.reports)
            latest = registries[r]->sums;
    }
    nreports++;
    for (uint32_t r = 0; r < nranks; r++)
        tam_registry_offer(registries[r], &latest, nreports, &offered[2 * r]);
    for (uint32_t r = 0; r < nranks; r++) {
        memcpy(taken, offered, sizeof taken);
        if (r != fails)
            tam_registry_take(registries[r], taken, 2 * nranks, &run, scratch);
    }
    free(scratch);
    tam_registry_totals(registries[fails == 0 ? 1 : 0], &totals);
    return totals;
}

static void expect(uint64_t psys, uint64_t package, int64_t want) {
    show(0, psys, package);
    assert_int_equal(report(1, NOBODY).uj, want);
}

static void a_leap_after_a_report_without_it_counts_once(void **state) {
    (void)state;
    expect(0, 0, 0);
    expect(0, 50, 50);
    show(0, 0, 100);
    break_psys(0, TAMIS_ENERGY_STALE, 0);
    assert_int_equal(report(1, NOBODY).uj, 100);
    expect(0, 150, 150);
    expect(320, 200, 320);
}

static void what_a_reset_took_is_not_waited_for(void **state) {
    (void)state;
    expect(0, 0, 0);
    expect(0, 100, 100);
    for (uint64_t i = 1; i <= 4; i++) { /* 80 J each beside 50; the first is with the reset */
        show(0, 80 * i, 100 + 50 * i);
        break_psys(0, i == 1 ? TAMIS_ENERGY_RESET : TAMIS_ENERGY_OK, 1);
        assert_int_equal(report(1, NOBODY).uj, 150 + 80 * (i - 1));
    }
}

static void phases_count_as_much_as_their_domain(void **state) {
    (void)state;
    expect(0, 0, 0);
    expect(0, 100, 100);
    show(0, 300, 200);
    tamis_energy_totals totals = report(1, NOBODY);
    assert_int_equal(totals.uj, 300);
    assert_int_equal(totals.shares[0].uj, 150);
}

static void a_rank_that_missed_a_report_learns_what_is_owed(void **state) {
    (void)state;
    static const uint64_t rows[][4] = {/* psys, package, who fails, sum */
                                       {0, 0, NOBODY, 0},
                                       {0, 50, 0, 50},
                                       {160, 100, NOBODY, 160}};
    for (size_t i = 0; i < 3; i++) {
        for (uint32_t r = 0; r < RANKS; r++)
            show(r, rows[i][0], rows[i][1]);
        assert_int_equal(report(RANKS, (uint32_t)rows[i][2]).uj, rows[i][3]);
    }
}

static void a_newcomer_goes_on_with_what_is_owed(void **state) {
    (void)state;
    static const uint64_t rows[][3] = {{0, 50, 100}, {0, 100, 150}, {400, 150, 400}};
    expect(0, 0, 0);
    expect(0, 50, 50);
    for (size_t i = 0; i < 3; i++) {
        show(0, 0, 100 + 50 * i);
        break_psys(0, TAMIS_ENERGY_DENIED, 0);
        show(1, rows[i][0], rows[i][1]);
        assert_int_equal(report(RANKS, NOBODY).uj, rows[i][2]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_leap_after_a_report_without_it_counts_once, begin, end),
        cmocka_unit_test_setup_teardown(what_a_reset_took_is_not_waited_for, begin, end),
        cmocka_unit_test_setup_teardown(phases_count_as_much_as_their_domain, begin, end),
        cmocka_unit_test_setup_teardown(a_rank_that_missed_a_report_learns_what_is_owed, begin,
                                        end),
        cmocka_unit_test_setup_teardown(a_newcomer_goes_on_with_what_is_owed, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
