/* SPDX-License-Identifier: MIT
 *
 * The ledger against pretended nodes whose truth is known: each domain once and exactly, whoever
 * reads it, and nothing believed that cannot be.
 */
#include "tests/energy/ledger_case.h"

/* -- once and exactly ------------------------------------------------------------------------- */

static void each_domain_is_counted_once_and_exactly(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 1);
    world.ranks[16].denied_rapl = true; /* the lowest of node 1 */
    for (uint64_t i = 0; i < REPORTS; i++) {
        advance(i);
        take(ledger, entries, show(0, METERS_RANKS));
        tamis_energy_totals totals = totals_of(ledger);
        assert_int_equal(totals.uj, meters_truth_of_all(&world));
        assert_int_equal(totals.known, 1);
        assert_string_equal(totals.missing, "");
        assert_true(totals.shares[TAMIS_ENERGY_COMPUTE].uj > totals.uj / 2 - METERS_COUNTERS &&
                    totals.shares[TAMIS_ENERGY_COMPUTE].uj <= totals.uj / 2);
    }
    assert_int_equal(ledger->ndomains, METERS_COUNTERS);
    assert_int_equal(of_node(ledger, 0, "package-0")->owner, 0);
    assert_int_equal(of_node(ledger, 1, "package-0")->owner, 17);
    assert_int_equal(of_node(ledger, 1, "gpu-0")->owner, 16);
    assert_int_equal(of_node(ledger, 3, "gpu-3")->owner, 60);
    assert_false(of_node(ledger, 0, "package-0")->counted); /* psys has it */
    assert_int_equal(of_node(ledger, 0, "package-0")->total_uj,
                     meters_find(&world, 0, "package-0")->true_uj);
    assert_int_equal(of_node(ledger, 0, "package-0")->counted_uj, 0);
    assert_true(of_node(ledger, 0, "psys")->counted);
    tam_ledger_close(ledger);
}

static void shuffle(uint64_t seed, uint32_t n) {
    for (uint32_t i = n; i-- > 1;) {
        uint32_t j = (uint32_t)(data_mix(seed * 1000 + i) % (i + 1));
        tam_energy_entry other = entries[i];
        entries[i] = entries[j];
        entries[j] = other;
    }
}

static void the_order_of_entries_does_not_matter(void **state) {
    (void)state;
    tam_ledger *straight = open_ledger(), *mixed = open_ledger();
    meters_begin(&world, 2);
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        world.ranks[r].lag_ms = data_mix(r) % 100;
    for (uint64_t i = 0; i < 20; i++) {
        advance(i);
        if (i == 5)
            meters_hang(&world, 0, true);
        if (i == 9)
            meters_hang(&world, 0, false);
        world.ranks[17].denied_rapl = i % 3 == 1;
        uint32_t n = show(i % 4 == 3 ? 16 : 0, METERS_RANKS);
        entries[n] = entries[5]; /* the same twice, and not quite */
        entries[n++].total_uj += 1000;
        take(straight, entries, n);
        shuffle(i, n);
        take(mixed, entries, n);
        assert_int_equal(mixed->digest, straight->digest);
        assert_memory_equal(mixed->domains, straight->domains,
                            straight->ndomains * sizeof straight->domains[0]);
        assert_memory_equal(mixed->views, straight->views,
                            straight->nviews * sizeof straight->views[0]);
    }
    tam_ledger_close(straight);
    tam_ledger_close(mixed);
}

static void a_thousand_wraps_lose_nothing_while_owners_change(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    uint64_t wraps = 0;
    meters_begin(&world, 3);
    take(ledger, entries, show(0, METERS_RANKS));
    for (uint64_t i = 0; wraps < 1000; i++) {
        meters_advance(&world, 3600000);
        uint32_t first = (uint32_t)(i % 8), n = 0;
        for (uint32_t id = 0; id < METERS_RANKS; id++) /* the owner is another each time */
            n += meters_show(&world, id, (id + METERS_RANKS - first) % METERS_RANKS, &entries[n]);
        take(ledger, entries, n);
        assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
        const meters_counter *c = meters_find(&world, 1, "package-0");
        wraps = c->true_uj / c->range_uj;
    }
    tam_ledger_close(ledger);
}

/* -- owners that go --------------------------------------------------------------------------- */

static void when_an_owner_dies_the_next_recovers_the_gap(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 4);
    meters_advance(&world, 5000);
    for (uint32_t r = 1; r < 4; r++) /* began later: their counts are others */
        meters_reopen(&world, r);
    for (uint32_t dead = 0; dead < 16; dead++) { /* rank after rank, renumbered each time */
        advance(dead);
        take(ledger, entries, show(dead, METERS_RANKS));
        assert_int_equal(of_node(ledger, 0, "psys")->owner, 0);
        if (dead < 4) /* gpu-0 is then seen by nobody */
            assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
        assert_int_equal(of_node(ledger, 0, "psys")->total_uj,
                         meters_find(&world, 0, "psys")->true_uj);
    }
    assert_int_equal(of_node(ledger, 0, "gpu-0")->status, TAMIS_ENERGY_LOST);
    tam_ledger_close(ledger);
}

static void ranks_that_read_late_cost_a_tick_and_no_drift(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 5);
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        world.ranks[r].lag_ms = data_mix(r) % 101;
    meters_advance(&world, 10000);
    take(ledger, entries, show(0, METERS_RANKS));
    for (uint64_t i = 0; i < 200; i++) {
        meters_advance(&world, 1000 + data_mix(i) % 5000);
        uint32_t first = (uint32_t)(i % 13), n = 0; /* another owner, or it dies for good */
        for (uint32_t id = first; id < METERS_RANKS; id++)
            n += meters_show(&world, id, id - first, &entries[n]);
        take(ledger, entries, n);
        const meters_counter *c = meters_find(&world, 0, "psys");
        int64_t error = (int64_t)(c->true_uj - of_node(ledger, 0, "psys")->total_uj);
        int64_t tick = (int64_t)c->most_w * 100 * 1000;
        assert_true(error >= 0 && error <= tick);
    }
    tam_ledger_close(ledger);
}

static void an_owner_that_is_denied_in_the_middle_loses_nothing(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 6);
    for (uint64_t i = 0; i < 20; i++) {
        advance(i);
        world.ranks[16].denied_rapl = i >= 5 && i < 12;
        take(ledger, entries, show(0, METERS_RANKS));
        assert_int_equal(of_node(ledger, 1, "dram-0")->owner, i >= 5 && i < 12 ? 17 : 16);
        assert_int_equal(of_node(ledger, 1, "dram-0")->status, TAMIS_ENERGY_OK);
        assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
    }
    tam_ledger_close(ledger);
}

static void a_driver_that_hangs_is_made_up_for(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 7);
    meters_advance(&world, 60000);
    take(ledger, entries, show(0, METERS_RANKS));
    meters_advance(&world, 30000);
    meters_hang(&world, 48, true);
    meters_advance(&world, 600000);
    take(ledger, entries, show(0, METERS_RANKS)); /* another reads it */
    assert_int_equal(of_node(ledger, 3, "gpu-0")->owner, 49);
    assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
    meters_advance(&world, 7200000);
    uint32_t n = show(0, 49); /* nobody else */
    uint64_t before = of_node(ledger, 3, "package-0")->total_uj;
    take(ledger, entries, n);
    assert_int_equal(of_node(ledger, 3, "package-0")->status, TAMIS_ENERGY_STALE);
    assert_int_equal(of_node(ledger, 3, "package-0")->by, 48);
    assert_int_equal(of_node(ledger, 3, "package-0")->total_uj, before);
    assert_non_null(strstr(totals_of(ledger).missing, "no answer since then; look at the driver"));
    meters_hang(&world, 48, false);
    take(ledger, entries, show(0, 49)); /* it has seen all wraps meanwhile */
    assert_int_equal(of_node(ledger, 3, "package-0")->total_uj,
                     meters_find(&world, 3, "package-0")->true_uj);
    tam_ledger_close(ledger);
}

static void a_meter_that_begins_anew_counts_the_gap_from_the_counter(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 8);
    meters_advance(&world, 60000);
    take(ledger, entries, show(0, METERS_RANKS));
    meters_advance(&world, 20000); /* all of them end; the node goes on */
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        meters_reopen(&world, r);
    meters_advance(&world, 15000);
    take(ledger, entries, show(0, METERS_RANKS));
    assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
    assert_int_equal(of_node(ledger, 1, "package-0")->refused, 0);

    uint64_t before = of_node(ledger, 1, "package-0")->total_uj;
    meters_advance(&world, 7200000); /* long enough for wraps that nobody saw */
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        meters_reopen(&world, r);
    uint64_t reopened_uj = meters_find(&world, 1, "package-0")->true_uj;
    meters_advance(&world, 15000);
    take(ledger, entries, show(0, METERS_RANKS));
    assert_int_equal(of_node(ledger, 1, "package-0")->total_uj,
                     before + meters_find(&world, 1, "package-0")->true_uj - reopened_uj);
    assert_int_equal(of_node(ledger, 1, "package-0")->refused, 1);
    assert_non_null(strstr(of_node(ledger, 1, "package-0")->reason, "could not be recovered"));
    assert_int_equal(of_node(ledger, 1, "gpu-0")->total_uj,
                     meters_find(&world, 1, "gpu-0")->true_uj); /* it does not wrap */
    tam_ledger_close(ledger);
}

static void a_meter_that_others_have_not_seen_counts_nothing_twice(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 9);
    meters_advance(&world, 60000);
    take(ledger, entries, show(0, 17)); /* 17 has been open all the time */
    meters_advance(&world, 60000);
    uint32_t n = meters_show(&world, 17, 0, entries);
    take(ledger, entries, n);
    uint64_t known_uj = meters_find(&world, 1, "package-0")->true_uj;
    assert_int_equal(of_node(ledger, 1, "package-0")->total_uj, known_uj);
    meters_advance(&world, 7200000); /* so long that the counter does not tell */
    take(ledger, entries, meters_show(&world, 18, 0, entries));
    assert_int_equal(of_node(ledger, 1, "package-0")->total_uj, known_uj);
    assert_non_null(strstr(of_node(ledger, 1, "package-0")->reason, "could not be recovered"));
    meters_advance(&world, 7200000); /* but it is known from here on */
    take(ledger, entries, meters_show(&world, 18, 0, entries));
    assert_true(of_node(ledger, 1, "package-0")->total_uj > known_uj);
    tam_ledger_close(ledger);
}

static void a_late_reader_that_takes_over_takes_nothing_back(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 15);
    world.ranks[1].lag_ms = 100;
    meters_advance(&world, 10000);
    take(ledger, entries, show(0, METERS_RANKS));
    meters_counter *psys = meters_find(&world, 0, "psys");
    uint64_t before = of_node(ledger, 0, "psys")->total_uj, rate_w = psys->rate_w;
    meters_advance(&world, 10); /* rank 1 is not there yet where rank 0 was */
    psys->rate_w = rate_w;      /* and later than it was itself */
    take(ledger, entries, show(1, METERS_RANKS));
    assert_int_equal(of_node(ledger, 0, "psys")->owner, 0);
    assert_int_equal(of_node(ledger, 0, "psys")->refused, 0);
    assert_int_equal(of_node(ledger, 0, "psys")->total_uj, before);
    world.ranks[1].lag_ms = 0;
    meters_advance(&world, 1000);
    take(ledger, entries, show(1, METERS_RANKS));
    assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
    tam_ledger_close(ledger);
}

static void a_node_that_dies_is_lost_and_its_joules_stay(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    meters_begin(&world, 10);
    meters_advance(&world, 60000);
    take(ledger, entries, show(0, METERS_RANKS));
    uint64_t dead_uj = meters_truth(&world, 0);
    for (int i = 0; i < 3; i++) {
        meters_advance(&world, 60000);
        take(ledger, entries, show(METERS_PER_NODE, METERS_RANKS));
        uint64_t alive_uj = meters_truth_of_all(&world) - meters_truth(&world, 0);
        assert_int_equal(totals_of(ledger).uj, dead_uj + alive_uj);
        assert_int_equal(of_node(ledger, 0, "psys")->status, TAMIS_ENERGY_LOST);
        assert_int_equal(of_node(ledger, 0, "psys")->owner, TAM_NOBODY);
        assert_non_null(strstr(totals_of(ledger).missing, "9 of 33 domains"));
    }
    take(ledger, entries, 0); /* nobody shows anything */
    assert_int_equal(of_node(ledger, 3, "gpu-0")->status, TAMIS_ENERGY_LOST);
    meters_advance(&world, 7200000); /* it was only away, and has seen all wraps */
    take(ledger, entries, show(0, METERS_RANKS));
    assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
    tam_ledger_close(ledger);
}

static void where_all_are_denied_nothing_is_known_and_said_why(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    tamis_energy_totals totals;
    tam_ledger_totals(ledger, &totals);
    assert_int_equal(totals.known, 0);
    assert_string_equal(totals.missing, "no rank shows a domain");
    meters_begin(&world, 11);
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        world.ranks[r].denied_rapl = true;
    for (int i = 0; i < 2; i++) {
        meters_advance(&world, 60000);
        uint32_t n = show(0, METERS_RANKS), rapl = 0;
        for (uint32_t e = 0; e < n; e++) {
            if (entries[e].kind != TAMIS_ENERGY_GPU)
                entries[rapl++] = entries[e];
        }
        take(ledger, entries, rapl);
        totals = totals_of(ledger);
        assert_int_equal(totals.known, 0);
        assert_int_equal(totals.uj, 0);
        assert_non_null(strstr(totals.missing, "17 of 17 domains; dram-0: permission denied; run"));
        assert_int_equal(of_node(ledger, 2, "package-1")->status, TAMIS_ENERGY_DENIED);
        assert_int_equal(of_node(ledger, 2, "package-1")->by, 32);
    }
    tam_ledger_close(ledger);
}

static void the_status_nearest_to_readable_is_told(void **state) {
    (void)state;
    static const tamis_energy_status seen[] = {TAMIS_ENERGY_ABSENT, TAMIS_ENERGY_UNSUPPORTED,
                                               TAMIS_ENERGY_DENIED, TAMIS_ENERGY_FAILED,
                                               TAMIS_ENERGY_DENIED};
    tam_ledger *ledger = open_ledger();
    for (uint32_t r = 0; r < 5; r++) {
        entries[r] = (tam_energy_entry){
            .id = "nvml", .host = 1, .meter = r, .rank = r, .status = (uint32_t)seen[r]};
        entries[r].since_ns = 5; /* and it was never read */
        snprintf(entries[r].reason, sizeof entries[r].reason, "said by %u", r);
    }
    take(ledger, entries, 5);
    assert_int_equal(find(ledger, 1, "nvml")->status, TAMIS_ENERGY_DENIED);
    assert_int_equal(find(ledger, 1, "nvml")->by, 2);
    assert_string_equal(totals_of(ledger).missing, "1 of 1 domains; nvml: said by 2");
    tam_ledger_close(ledger);
}

/* -- nested domains --------------------------------------------------------------------------- */

static void a_change_of_cover_counts_nothing_twice(void **state) {
    (void)state;
    small s = {.ledger = open_ledger()};
    add_small(&s, "core", "package");
    add_small(&s, "dram", "psys");
    add_small(&s, "package", "psys");
    add_small(&s, "psys", "");
    uint64_t each[] = {1, 10, 100, 1000};
    gain_small(&s, each);
    assert_int_equal(report_small(&s), 1000);
    s.entries[3].status = TAMIS_ENERGY_STALE; /* package and dram, from here on */
    tam_energy_entry hung = s.entries[3];
    gain_small(&s, each);
    s.entries[3] = hung;
    assert_int_equal(report_small(&s), 1110);
    assert_string_equal(totals_of(s.ledger).missing, "1 of 4 domains; psys: ");
    s.entries[3].status = TAMIS_ENERGY_OK; /* its gain reaches back to the first report */
    gain_small(&s, each);
    gain_small(&s, (uint64_t[]){0, 0, 0, 1000});
    assert_int_equal(report_small(&s), 1220);
    assert_string_equal(totals_of(s.ledger).missing, "");
    gain_small(&s, each);
    assert_int_equal(report_small(&s), 2220);
    s.entries[2].status = s.entries[3].status = TAMIS_ENERGY_DENIED;
    gain_small(&s, each);
    assert_int_equal(report_small(&s), 2231); /* dram and core */
    assert_non_null(strstr(totals_of(s.ledger).missing, "2 of 4 domains; package"));
    assert_int_equal(find(s.ledger, 1, "psys")->counted_uj, 2000);
    assert_int_equal(find(s.ledger, 1, "package")->counted_uj, 200);
    tam_ledger_close(s.ledger);
}

static void a_wide_domain_that_appears_late_counts_from_then_on(void **state) {
    (void)state;
    small s = {.ledger = open_ledger()};
    add_small(&s, "a", "wide");
    add_small(&s, "b", "wide");
    add_small(&s, "wide", "");
    uint64_t each[] = {10, 20, 100};
    s.n = 2;
    gain_small(&s, each);
    assert_int_equal(report_small(&s), 30);
    s.n = 3; /* it has been open all the time */
    gain_small(&s, each);
    assert_int_equal(report_small(&s), 60);
    gain_small(&s, each);
    assert_int_equal(report_small(&s), 160);
    tam_ledger_close(s.ledger);
}

static void domains_that_contain_each_other_are_counted_once(void **state) {
    (void)state;
    small s = {.ledger = open_ledger()};
    add_small(&s, "a", "b");
    add_small(&s, "b", "c");
    add_small(&s, "c", "a");
    add_small(&s, "itself", "itself");
    for (int64_t i = 1; i <= 3; i++) {
        gain_small(&s, (uint64_t[]){7, 7, 7, 100});
        assert_int_equal(report_small(&s), 107 * i);
    }
    tam_ledger_close(s.ledger);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void a_ledger_without_memory_stays_as_it_was(void **state) {
    (void)state;
    uint64_t live = tam_alloc_live();
    tam_ledger *ledger = NULL;
    tam_alloc_budget(0);
    assert_int_equal(tam_ledger_open(&ledger), TAMIS_E_NOMEM);
    tam_alloc_budget(-1);
    ledger = open_ledger();
    meters_begin(&world, 13);
    meters_advance(&world, 10000);
    take(ledger, entries, show(0, 3));
    meters_advance(&world, 10000);
    uint32_t n = show(0, METERS_RANKS);
    uint64_t digest = ledger->digest;
    long budget = 0;
    for (; budget < 10; budget++) {
        tam_alloc_budget(budget);
        tamis_status status = tam_ledger_take(ledger, entries, n, NULL);
        tam_alloc_budget(-1);
        if (status == TAMIS_OK)
            break;
        assert_int_equal(status, TAMIS_E_NOMEM);
        assert_int_equal(ledger->digest, digest);
        assert_int_equal(tam_ledger_digest(ledger), digest);
    }
    assert_in_range(budget, 3, 9);
    assert_int_equal(totals_of(ledger).uj, meters_truth_of_all(&world));
    take(ledger, entries, n);
    uint64_t made = tam_alloc_made(); /* from the second on a report allocates nothing */
    take(ledger, entries, n);
    assert_int_equal(tam_alloc_made(), made);
    tam_ledger_close(ledger);
    assert_int_equal(tam_alloc_live(), live);
}

static void a_packed_ledger_is_the_same_and_a_damaged_one_refused(void **state) {
    (void)state;
    static unsigned char packed[1 << 20];
    tam_ledger *ledger = open_ledger(), *other = open_ledger();
    meters_begin(&world, 14);
    meters_advance(&world, 10000);
    uint32_t n = show(0, METERS_RANKS);
    entries[n++] = (tam_energy_entry){.host = 1}; /* refused */
    take(ledger, entries, n);
    size_t bytes = tam_ledger_packed_bytes(ledger->ndomains, ledger->nviews);
    assert_true(bytes <= sizeof packed);
    tam_ledger_pack(ledger, packed);
    for (size_t i = 0; i < bytes; i += 97) {
        packed[i] ^= 0x10;
        assert_int_equal(tam_ledger_unpack(other, packed, bytes), TAMIS_E_FORMAT);
        packed[i] ^= 0x10;
    }
    assert_int_equal(tam_ledger_unpack(other, packed, bytes - 1), TAMIS_E_FORMAT);
    assert_int_equal(tam_ledger_unpack(other, packed, 3), TAMIS_E_FORMAT);
    assert_int_equal(other->ndomains, 0);
    uint64_t self = other->self;
    assert_int_equal(tam_ledger_unpack(other, packed, bytes), TAMIS_OK);
    assert_int_equal(other->self, self);
    meters_advance(&world, 10000);
    n = show(0, METERS_RANKS);
    take(ledger, entries, n);
    take(other, entries, n);
    assert_int_equal(other->refused, 1);
    assert_int_equal(other->digest, ledger->digest);
    assert_int_equal(totals_of(other).uj, meters_truth_of_all(&world));
    tam_ledger_close(ledger);
    tam_ledger_close(other);
}

static void meters_of_one_process_are_told_apart(void **state) {
    (void)state;
    tam_ledger *a = open_ledger(), *b = open_ledger();
    assert_int_not_equal(a->self, b->self);
    tam_ledger_close(a);
    tam_ledger_close(b);
    tam_ledger_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_domain_is_counted_once_and_exactly),
        cmocka_unit_test(the_order_of_entries_does_not_matter),
        cmocka_unit_test(a_thousand_wraps_lose_nothing_while_owners_change),
        cmocka_unit_test(when_an_owner_dies_the_next_recovers_the_gap),
        cmocka_unit_test(ranks_that_read_late_cost_a_tick_and_no_drift),
        cmocka_unit_test(an_owner_that_is_denied_in_the_middle_loses_nothing),
        cmocka_unit_test(a_driver_that_hangs_is_made_up_for),
        cmocka_unit_test(a_meter_that_begins_anew_counts_the_gap_from_the_counter),
        cmocka_unit_test(a_meter_that_others_have_not_seen_counts_nothing_twice),
        cmocka_unit_test(a_late_reader_that_takes_over_takes_nothing_back),
        cmocka_unit_test(a_node_that_dies_is_lost_and_its_joules_stay),
        cmocka_unit_test(where_all_are_denied_nothing_is_known_and_said_why),
        cmocka_unit_test(the_status_nearest_to_readable_is_told),
        cmocka_unit_test(a_change_of_cover_counts_nothing_twice),
        cmocka_unit_test(a_wide_domain_that_appears_late_counts_from_then_on),
        cmocka_unit_test(domains_that_contain_each_other_are_counted_once),
        cmocka_unit_test(a_ledger_without_memory_stays_as_it_was),
        cmocka_unit_test(a_packed_ledger_is_the_same_and_a_damaged_one_refused),
        cmocka_unit_test(meters_of_one_process_are_told_apart),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
