/* SPDX-License-Identifier: MIT
 *
 * Registries against pretended nodes whose truth is known: each domain once and exactly, whoever
 * reads it and whichever ranks report.
 */
#include "lib/energy/cluster/registry.h"
#include "tests/support/data.h"
#include "tests/support/meters.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static meters world;
static tam_registry *registries[METERS_RANKS];
static uint64_t nreports; /* names of reports */

/* -- reports without a communicator ----------------------------------------------------------- */

static void begin(uint64_t seed) {
    meters_begin(&world, seed);
    for (uint32_t id = 0; id < METERS_RANKS; id++)
        assert_int_equal(tam_registry_open(meters_show(&world, id, NULL), &registries[id]),
                         TAMIS_OK);
}

static void reopen(uint32_t id) {
    meters_reopen(&world, id);
    tam_registry_close(registries[id]);
    assert_int_equal(tam_registry_open(meters_show(&world, id, NULL), &registries[id]), TAMIS_OK);
}

static void end(void) {
    for (uint32_t id = 0; id < METERS_RANKS; id++)
        tam_registry_close(registries[id]);
}

/* Those of these ranks that complete it hold the same sums then; `fails` does not, if it is one. */
static void report_but(const uint32_t *ids, uint32_t nranks, uint32_t fails) {
    static tam_energy_entry offered[METERS_RANKS * METERS_SEEN];
    static tam_energy_entry taken[METERS_RANKS * METERS_SEEN];
    const tam_energy_run run = {.time_ns = 1000000000};
    tam_energy_sums latest = registries[ids[0]]->sums;
    uint32_t n = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        if (registries[ids[r]]->sums.reports > latest.reports)
            latest = registries[ids[r]]->sums;
    }
    nreports++;
    for (uint32_t r = 0; r < nranks; r++) {
        tam_registry *l = registries[ids[r]];
        tam_registry_offer(l, &latest, nreports, &offered[n]);
        n += l->n;
    }
    void *scratch = malloc(tam_registry_scratch(n) + 1);
    for (uint32_t r = 0; r < nranks; r++) {
        if (ids[r] == fails)
            continue;
        memcpy(taken, offered, n * sizeof taken[0]);
        tam_registry_take(registries[ids[r]], taken, n, &run, scratch);
        if (ids[0] != fails)
            assert_memory_equal(&registries[ids[r]]->sums, &registries[ids[0]]->sums,
                                sizeof(tam_energy_sums));
    }
    free(scratch);
}

/* What these ranks see now, and a report of theirs. */
static void report(const uint32_t *ids, uint32_t nranks) {
    for (uint32_t r = 0; r < nranks; r++)
        meters_show(&world, ids[r], registries[ids[r]]->shown);
    report_but(ids, nranks, METERS_RANKS);
}

/* Ranks first to last - 1 of the beginning. */
static tamis_energy_totals report_from_to(uint32_t first, uint32_t last) {
    uint32_t ids[METERS_RANKS];
    tamis_energy_totals totals;
    for (uint32_t id = first; id < last; id++)
        ids[id - first] = id;
    report(ids, last - first);
    tam_registry_totals(registries[first], &totals);
    int64_t sum = totals.unattributed_uj;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
        sum += totals.shares[k].uj;
    assert_int_equal(sum, totals.uj);
    return totals;
}

static tamis_energy_totals report_all(void) {
    return report_from_to(0, METERS_RANKS);
}

/* A second to an hour: dozens of wraps in a long one. */
static void advance(uint64_t seed) {
    meters_advance(&world, seed % 5 ? 1000 + data_mix(seed) % 60000 : 3600000);
}

/* -- once and exactly ------------------------------------------------------------------------- */

static void each_domain_is_counted_once_and_exactly(void **state) {
    (void)state;
    begin(1);
    world.ranks[16].denied_rapl = true; /* the lowest of node 1 */
    for (uint64_t i = 0; i < 50; i++) {
        advance(i);
        tamis_energy_totals totals = report_all();
        assert_int_equal(totals.uj, meters_truth_of_all(&world));
        assert_int_equal(totals.known, 1);
        assert_string_equal(totals.missing, "");
        assert_true(totals.shares[TAMIS_ENERGY_COMPUTE].uj <= totals.uj / 2 &&
                    totals.shares[TAMIS_ENERGY_COMPUTE].uj >
                        totals.uj / 2 - METERS_COUNTERS * (int64_t)(i + 1));
    }
    assert_int_equal(registries[5]->sums.ndomains, METERS_COUNTERS);
    end();
}

static void nothing_is_lost_while_owners_change(void **state) {
    (void)state;
    uint32_t ids[METERS_RANKS];
    begin(3);
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        world.ranks[r].lag_ms = data_mix(r) % 101;
    meters_advance(&world, 10000);
    report_all();
    for (uint64_t i = 0; i < 300; i++) { /* the owner is another each time */
        meters_advance(&world, i % 10 ? 10 + data_mix(i) % 5000 / (1 + i % 9 * 20) : 3600000);
        for (uint32_t r = 0; r < METERS_RANKS; r++)
            ids[r] = (uint32_t)((r + i * 7) % METERS_RANKS);
        report(ids, METERS_RANKS);
        int64_t late_uj = meters_truth_of_all(&world) - registries[0]->sums.uj;
        assert_true(late_uj >= 0 && late_uj < 18000 * 100000); /* 100 ms of all, and no drift */
    }
    assert_int_equal(registries[0]->sums.gaps, 0);
    end();
}

/* -- ranks that go and come ------------------------------------------------------------------- */

static void when_an_owner_dies_the_next_goes_on(void **state) {
    (void)state;
    begin(4);
    meters_advance(&world, 5000);
    for (uint32_t id = 1; id < 4; id++) /* began later: their counts are others */
        reopen(id);
    advance(1);
    report_all();
    for (uint32_t dead = 1; dead < 4; dead++) { /* gpu-0 is then seen by nobody */
        advance(dead);
        tamis_energy_totals totals = report_from_to(dead, METERS_RANKS);
        assert_int_equal(totals.uj, meters_truth_of_all(&world));
        assert_string_equal(totals.missing, "");
    }
    end();
}

static void a_node_that_dies_keeps_its_joules(void **state) {
    (void)state;
    begin(10);
    meters_advance(&world, 60000);
    report_all();
    int64_t dead_uj = (int64_t)meters_truth(&world, 0);
    for (int i = 0; i < 3; i++) {
        meters_advance(&world, 60000);
        int64_t alive_uj = (int64_t)(meters_truth_of_all(&world) - meters_truth(&world, 0));
        assert_int_equal(report_from_to(METERS_PER_NODE, METERS_RANKS).uj, dead_uj + alive_uj);
    }
    end();
}

static void an_owner_that_is_denied_in_the_middle_loses_nothing(void **state) {
    (void)state;
    begin(6);
    for (uint64_t i = 0; i < 20; i++) {
        advance(i);
        world.ranks[16].denied_rapl = i >= 5 && i < 12;
        tamis_energy_totals totals = report_all();
        assert_int_equal(totals.uj, meters_truth_of_all(&world));
        assert_string_equal(totals.missing, "");
    }
    end();
}

static void what_only_a_hung_driver_shows_is_counted_when_it_answers(void **state) {
    (void)state;
    begin(7);
    meters_advance(&world, 60000);
    report_from_to(0, 49); /* of node 3 only rank 48 */
    meters_hang(&world, 48, true);
    meters_advance(&world, 7200000);
    tamis_energy_totals totals = report_from_to(0, 49);
    assert_non_null(strstr(totals.missing, "no answer since then; look at the driver"));
    meters_hang(&world, 48, false);
    int64_t unseen_uj = 0;
    for (uint32_t i = 1; i < 4; i++) {
        char id[16];
        snprintf(id, sizeof id, "gpu-%u", i);
        unseen_uj += (int64_t)meters_find(&world, 3, id)->true_uj;
    }
    totals = report_from_to(0, 49); /* it has seen all wraps meanwhile */
    assert_int_equal(totals.uj, (int64_t)meters_truth_of_all(&world) - unseen_uj);
    assert_string_equal(totals.missing, "");
    end();
}

static void ranks_that_missed_a_report_count_from_then_on(void **state) {
    (void)state;
    begin(9);
    advance(1);
    report_from_to(0, 48); /* node 3 is not there yet */
    advance(2);
    reopen(17); /* and this one begins anew, where others have gone on */
    int64_t left_out_uj = (int64_t)meters_truth(&world, 3);
    tamis_energy_totals totals = report_all();
    assert_int_equal(totals.uj, (int64_t)meters_truth_of_all(&world) - left_out_uj);
    assert_non_null(strstr(totals.missing, "earlier gains are left out"));
    assert_int_equal(registries[17]->sums.gaps, 8);
    for (uint64_t i = 0; i < 3; i++) {
        advance(i);
        totals = report_all();
        assert_int_equal(totals.uj, (int64_t)meters_truth_of_all(&world) - left_out_uj);
        assert_string_equal(totals.missing, "gains left out so far: 8");
    }
    end();
}

static void a_report_that_fails_on_one_rank_counts_nothing_twice(void **state) {
    (void)state;
    uint32_t ids[METERS_RANKS];
    for (uint32_t fails = 0; fails < METERS_RANKS; fails += 5) {
        begin(11);
        for (uint64_t i = 0; i < 6; i++) {
            advance(i);
            for (uint32_t id = 0; id < METERS_RANKS; id++) {
                ids[id] = id;
                meters_show(&world, id, registries[id]->shown);
            }
            report_but(ids, METERS_RANKS, i % 2 ? METERS_RANKS : fails);
            uint32_t other = fails ? 0 : 1;
            assert_int_equal(registries[other]->sums.uj, meters_truth_of_all(&world));
        }
        assert_int_equal(registries[fails]->sums.uj, meters_truth_of_all(&world));
        assert_int_equal(registries[fails]->sums.gaps, 0);
        end();
    }
}

/* -- what cannot be read ---------------------------------------------------------------------- */

static void where_all_are_denied_nothing_is_known_and_said_why(void **state) {
    (void)state;
    tam_registry *alone;
    tam_energy_run run = {0};
    tam_energy_sums none = {0};
    tamis_energy_totals totals;
    assert_int_equal(tam_registry_open(0, &alone), TAMIS_OK);
    tam_registry_offer(alone, &none, 1, NULL);
    tam_registry_take(alone, NULL, 0, &run, NULL);
    tam_registry_totals(alone, &totals);
    assert_int_equal(totals.known, 0);
    assert_string_equal(totals.missing, "no rank reports a domain");
    tam_registry_close(alone);
    begin(12);
    for (uint32_t id = 0; id < METERS_RANKS; id++)
        world.ranks[id].denied_rapl = true;
    meters_advance(&world, 60000);
    totals = report_all();
    assert_non_null(strstr(totals.missing, ": permission denied; run as root"));
    assert_non_null(strstr(totals.missing, "and on 3 more hosts"));
    end();
}

/* -- one rank, one host ----------------------------------------------------------------------- */

static tam_registry *one;

static void add(uint32_t index, const char *id, const char *inside, tamis_energy_kind kind) {
    tam_energy_entry *e = &one->shown[index];
    *e = (tam_energy_entry){.host = 1, .kind = (uint32_t)kind, .has_raw = 1};
    snprintf(e->id, sizeof e->id, "%s", id);
    snprintf(e->inside, sizeof e->inside, "%s", inside);
}

/* Each domain gains so much, but for those that cannot be read. */
static tamis_energy_totals gain(const uint64_t *uj) {
    static const tam_energy_run run;
    tam_energy_entry entries[4];
    tamis_energy_totals totals;
    char scratch[8192] __attribute__((aligned(64)));
    assert_true(tam_registry_scratch(one->n) <= sizeof scratch);
    for (uint32_t i = 0; i < one->n; i++) {
        one->shown[i].uj += uj[i];
        one->shown[i].raw_uj += uj[i];
    }
    tam_energy_sums sums = one->sums;
    tam_registry_offer(one, &sums, ++nreports, entries);
    tam_registry_take(one, entries, one->n, &run, scratch);
    tam_registry_totals(one, &totals);
    return totals;
}

static void a_change_of_cover_counts_nothing_twice(void **state) {
    (void)state;
    const uint64_t each[] = {1, 10, 100, 1000}, without_psys[] = {1, 10, 100, 0};
    assert_int_equal(tam_registry_open(4, &one), TAMIS_OK);
    add(0, "rapl:core", "rapl:package", TAMIS_ENERGY_CORE);
    add(1, "rapl:dram", "rapl:psys", TAMIS_ENERGY_DRAM);
    add(2, "rapl:package", "rapl:psys", TAMIS_ENERGY_PACKAGE);
    add(3, "rapl:psys", "", TAMIS_ENERGY_PSYS);
    assert_int_equal(gain(each).uj, 1000);
    one->shown[3].status = TAMIS_ENERGY_STALE; /* package and dram, from here on */
    snprintf(one->shown[3].reason, TAMIS_ENERGY_TEXT, "it hangs");
    tamis_energy_totals totals = gain(without_psys);
    assert_int_equal(totals.uj, 1110);
    assert_string_equal(totals.missing, "rapl:psys: it hangs");
    one->shown[3].status = TAMIS_ENERGY_OK; /* its gain reaches back to the first report */
    assert_int_equal(gain((uint64_t[]){1, 10, 100, 2000}).uj, 1220);
    totals = gain(each);
    assert_int_equal(totals.uj, 2220);
    one->shown[2].status = one->shown[3].status = TAMIS_ENERGY_DENIED;
    totals = gain((uint64_t[]){1, 10, 0, 0});
    assert_int_equal(totals.uj, 2231);      /* dram and core */
    one->shown[2].status = TAMIS_ENERGY_OK; /* its core was counted, psys was not */
    assert_int_equal(gain((uint64_t[]){1, 10, 200, 0}).uj, 2242);
    assert_int_equal(gain((uint64_t[]){1, 10, 100, 0}).uj, 2352);
    tam_registry_close(one);
}

static void what_stands_still_beside_others_is_made_up_for(void **state) {
    (void)state;
    assert_int_equal(tam_registry_open(2, &one), TAMIS_OK);
    add(0, "rapl:package", "", TAMIS_ENERGY_PACKAGE);
    add(1, "nvml:gpu", "", TAMIS_ENERGY_GPU);
    assert_int_equal(gain((uint64_t[]){1, 10}).uj, 11);
    one->shown[1].status = TAMIS_ENERGY_STALE;
    assert_int_equal(gain((uint64_t[]){1, 0}).uj, 12);
    one->shown[1].status = TAMIS_ENERGY_OK;
    assert_int_equal(gain((uint64_t[]){1, 20}).uj, 33);
    assert_int_equal(one->sums.gaps, 0);
    tam_registry_close(one);
}

static void the_whole_host_contains_what_other_sources_count(void **state) {
    (void)state;
    assert_int_equal(tam_registry_open(3, &one), TAMIS_OK);
    add(0, "rapl:package", "", TAMIS_ENERGY_PACKAGE);
    add(1, "nvml:gpu", "", TAMIS_ENERGY_GPU);
    add(2, "file:node", "", TAMIS_ENERGY_NODE);
    assert_int_equal(gain((uint64_t[]){1, 10, 100}).uj, 100);
    assert_int_equal(gain((uint64_t[]){1, 10, 100}).uj, 200);
    tam_registry_close(one);
}

/* Then those in it count in its place; what it shows in the end counts once. */
static void what_gains_less_than_its_parts_does_not_count(void **state) {
    (void)state;
    assert_int_equal(tam_registry_open(2, &one), TAMIS_OK);
    add(0, "rapl:package-0", "rapl:psys", TAMIS_ENERGY_PACKAGE);
    add(1, "rapl:psys", "", TAMIS_ENERGY_PSYS);
    assert_int_equal(gain((uint64_t[]){50, 60}).uj, 60);
    tamis_energy_totals totals = gain((uint64_t[]){50, 0});
    assert_int_equal(totals.uj, 110);
    assert_string_equal(totals.missing, "rapl:psys: " TAM_COVER_BEHIND);
    assert_int_equal(gain((uint64_t[]){50, 20}).uj, 160);
    totals = gain((uint64_t[]){50, 160});
    assert_int_equal(totals.uj, 240);
    assert_string_equal(totals.missing, "");
    for (int i = 0; i < 20; i++) /* it lacks a part */
        totals = gain((uint64_t[]){50, 20});
    assert_int_equal(totals.uj, 240 + 20 * 50);
    tam_registry_close(one);
}

static void a_reset_is_told_for_as_long_as_it_matters(void **state) {
    (void)state;
    assert_int_equal(tam_registry_open(1, &one), TAMIS_OK);
    add(0, "nvml:gpu", "", TAMIS_ENERGY_GPU);
    one->shown[0].resets = 2;
    assert_string_equal(gain((uint64_t[]){1}).missing,
                        "nvml:gpu: was reset 2 times; what it lost is not counted");
    tam_registry_close(one);
}

static void the_status_nearest_to_readable_is_told(void **state) {
    (void)state;
    static const tamis_energy_status seen[] = {TAMIS_ENERGY_ABSENT, TAMIS_ENERGY_DENIED,
                                               TAMIS_ENERGY_FAILED, TAMIS_ENERGY_DENIED};
    assert_int_equal(tam_registry_open(4, &one), TAMIS_OK);
    for (uint32_t i = 0; i < 4; i++) {
        add(i, "nvml", "", TAMIS_ENERGY_GPU);
        one->shown[i].status = (uint32_t)seen[i];
        snprintf(one->shown[i].reason, sizeof one->shown[i].reason, "said by %u", i);
    }
    tamis_energy_totals totals = gain((uint64_t[]){0, 0, 0, 0});
    assert_int_equal(totals.known, 0);
    assert_string_equal(totals.missing, "nvml: said by 1");
    tam_registry_close(one);
}

static void what_comes_damaged_harms_no_memory(void **state) {
    (void)state;
    static const tam_energy_run run;
    char scratch[8192] __attribute__((aligned(64)));
    for (uint64_t seed = 0; seed < 200; seed++) {
        tam_energy_entry entries[4];
        tamis_energy_totals totals;
        unsigned char *bytes = (unsigned char *)entries;
        assert_int_equal(tam_registry_open(0, &one), TAMIS_OK);
        for (size_t i = 0; i < sizeof entries; i++)
            bytes[i] = (unsigned char)data_mix(seed * sizeof entries + i);
        tam_energy_sums sums = {0};
        tam_registry_offer(one, &sums, 1, NULL);
        tam_registry_take(one, entries, 4, &run, scratch);
        tam_registry_totals(one, &totals);
        assert_non_null(memchr(totals.missing, '\0', sizeof totals.missing));
        tam_registry_close(one);
    }
}

static void a_registry_without_memory_is_not_opened(void **state) {
    (void)state;
    uint64_t live = tam_alloc_live();
    for (long budget = 0; budget < 4; budget++) {
        tam_alloc_budget(budget);
        assert_int_equal(tam_registry_open(3, &one), TAMIS_E_NOMEM);
        tam_alloc_budget(-1);
    }
    assert_int_equal(tam_registry_open(3, &one), TAMIS_OK);
    tam_registry_close(one);
    tam_registry_close(NULL);
    assert_int_equal(tam_alloc_live(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_domain_is_counted_once_and_exactly),
        cmocka_unit_test(nothing_is_lost_while_owners_change),
        cmocka_unit_test(when_an_owner_dies_the_next_goes_on),
        cmocka_unit_test(a_node_that_dies_keeps_its_joules),
        cmocka_unit_test(an_owner_that_is_denied_in_the_middle_loses_nothing),
        cmocka_unit_test(what_only_a_hung_driver_shows_is_counted_when_it_answers),
        cmocka_unit_test(ranks_that_missed_a_report_count_from_then_on),
        cmocka_unit_test(a_report_that_fails_on_one_rank_counts_nothing_twice),
        cmocka_unit_test(where_all_are_denied_nothing_is_known_and_said_why),
        cmocka_unit_test(a_change_of_cover_counts_nothing_twice),
        cmocka_unit_test(what_stands_still_beside_others_is_made_up_for),
        cmocka_unit_test(the_whole_host_contains_what_other_sources_count),
        cmocka_unit_test(what_gains_less_than_its_parts_does_not_count),
        cmocka_unit_test(a_reset_is_told_for_as_long_as_it_matters),
        cmocka_unit_test(the_status_nearest_to_readable_is_told),
        cmocka_unit_test(what_comes_damaged_harms_no_memory),
        cmocka_unit_test(a_registry_without_memory_is_not_opened),
    };
    return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
