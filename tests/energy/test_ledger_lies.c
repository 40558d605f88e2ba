/* SPDX-License-Identifier: MIT
 *
 * What a ledger makes of readings that cannot be: flagged, not counted, and no harm to the rest.
 */
#include "tests/energy/ledger_case.h"

typedef struct lie {
    const char *name;
    void (*tell)(tam_energy_entry *e);
    tamis_energy_status status; /* of the domain */
    bool first;                 /* told in the first report already */
} lie;

static void go_back(tam_energy_entry *e) {
    e->total_uj /= 1000;
}

static void go_back_without_range(tam_energy_entry *e) {
    go_back(e);
    e->raw_uj = e->range_uj = 0;
}

static void leap(tam_energy_entry *e) {
    e->total_uj += UINT64_C(1) << 60;
}

static void show_the_most(tam_energy_entry *e) {
    e->total_uj = e->raw_uj = e->most_w = e->read_ns = UINT64_MAX;
    e->range_uj = 0;
}

static void leave_the_range(tam_energy_entry *e) {
    e->raw_uj = e->range_uj + 1;
}

static void show_no_status(tam_energy_entry *e) {
    e->status = 4711;
}

static void show_no_kind(tam_energy_entry *e) {
    e->kind = UINT32_MAX;
}

static void read_before_open(tam_energy_entry *e) {
    e->since_ns = e->read_ns + 1;
}

static const lie lies[] = {
    {"it goes back", go_back, TAMIS_ENERGY_RESET, false},
    {"it goes back, and says that it does not wrap", go_back_without_range, TAMIS_ENERGY_RESET,
     false},
    {"it leaps", leap, TAMIS_ENERGY_RESET, false},
    {"it has leapt when it begins", leap, TAMIS_ENERGY_RESET, true},
    {"the largest numbers there are", show_the_most, TAMIS_ENERGY_RESET, false},
    {"they are its first", show_the_most, TAMIS_ENERGY_RESET, true},
    {"raw beyond its range", leave_the_range, TAMIS_ENERGY_GARBLED, false},
    {"raw beyond its range at first", leave_the_range, TAMIS_ENERGY_GARBLED, true},
    {"no such status", show_no_status, TAMIS_ENERGY_GARBLED, false},
    {"no such kind", show_no_kind, TAMIS_ENERGY_GARBLED, true},
    {"read before it was opened", read_before_open, TAMIS_ENERGY_GARBLED, false},
};

static void a_reading_that_cannot_be_is_flagged_and_not_counted(void **state) {
    (void)state;
    const uint64_t joules[] = {5000000};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const lie *l = &lies[i];
        small s = {.ledger = open_ledger()};
        add_small(&s, "gpu", "");
        int64_t counted = 0;
        if (!l->first) {
            gain_small(&s, joules);
            counted = report_small(&s);
            assert_int_equal(counted, 5000000);
        }
        tam_energy_entry honest = s.entries[0];
        l->tell(&s.entries[0]);
        int64_t uj = report_small(&s);
        const tam_ledger_domain *d = find(s.ledger, 1, "gpu");
        if (d->status != (uint32_t)l->status || uj != counted || !d->reason[0])
            fail_msg("%s: status %u, %lld uJ: %s", l->name, d->status, (long long)uj, d->reason);
        s.entries[0] = honest; /* and then it tells the truth again */
        for (int k = 0; k < 3; k++) {
            gain_small(&s, joules);
            counted += 5000000;
            uj = report_small(&s);
            if (uj != counted)
                fail_msg("%s: %lld uJ of %lld", l->name, (long long)uj, (long long)counted);
        }
        tam_ledger_close(s.ledger);
    }
}

static void a_liar_is_passed_over_for_who_tells_the_truth(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        tam_ledger *ledger = open_ledger();
        meters_begin(&world, 12);
        meters_advance(&world, 10000);
        take(ledger, entries, show(0, METERS_RANKS));
        for (int k = 0; k < 3; k++) {
            meters_advance(&world, 10000);
            uint32_t n = show(0, METERS_RANKS);
            for (uint32_t e = 0; e < n; e++) {
                if (k == 1 && entries[e].rank % METERS_PER_NODE == 0)
                    lies[i].tell(&entries[e]);
            }
            take(ledger, entries, n);
            if (totals_of(ledger).uj != (int64_t)meters_truth_of_all(&world))
                fail_msg("%s, report %d: %lld uJ of %lld", lies[i].name, k,
                         (long long)totals_of(ledger).uj, (long long)meters_truth_of_all(&world));
        }
        tam_ledger_close(ledger);
    }
}

static void phases_that_cannot_be_stay_unattributed(void **state) {
    (void)state;
    static const int64_t odd[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 60};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        small s = {.ledger = open_ledger()};
        add_small(&s, "gpu", "");
        gain_small(&s, (uint64_t[]){1000});
        s.entries[0].phases_uj[3] = s.entries[0].phases_uj[4] = odd[i];
        assert_int_equal(report_small(&s), 1000);
        assert_int_equal(totals_of(s.ledger).unattributed_uj, 1000);
        tam_ledger_close(s.ledger);
    }
}

static void entries_without_id_or_end_are_refused(void **state) {
    (void)state;
    small s = {.ledger = open_ledger()};
    add_small(&s, "good", "");
    add_small(&s, "", "");
    add_small(&s, "x", "");
    add_small(&s, "y", "");
    memset(s.entries[2].id, 'x', sizeof s.entries[2].id);
    memset(s.entries[3].reason, 'y', sizeof s.entries[3].reason);
    gain_small(&s, (uint64_t[]){1, 10, 100, 1000});
    assert_int_equal(report_small(&s), 1);
    assert_int_equal(s.ledger->ndomains, 1);
    assert_int_equal(s.ledger->refused, 3);
    tam_ledger_close(s.ledger);
}

static void what_is_shown_twice_is_taken_once(void **state) {
    (void)state;
    small s = {.ledger = open_ledger()};
    for (uint32_t i = 0; i < 3; i++)
        add_small(&s, "gpu", "");
    s.entries[1].meter = 6; /* the same rank with another meter */
    s.entries[2].rank = 1;  /* another rank with the same meter */
    gain_small(&s, (uint64_t[]){100, 100, 100});
    assert_int_equal(report_small(&s), 100);
    assert_int_equal(s.ledger->refused, 2);
    assert_int_equal(s.ledger->nviews, 1);
    tam_ledger_close(s.ledger);
}

/* Domains of power, integrated by each meter for itself. */
static void who_was_there_before_tells_rather_than_who_is_new(void **state) {
    (void)state;
    small s = {.ledger = open_ledger()};
    add_small(&s, "file:node", "");
    add_small(&s, "file:node", "");
    s.entries[1].meter = 6; /* of rank 0 from the second report on */
    s.entries[0].rank = 1;
    s.entries[0].has_raw = s.entries[1].has_raw = 0;
    s.n = 1;
    gain_small(&s, (uint64_t[]){100});
    assert_int_equal(report_small(&s), 100);
    s.n = 2;
    gain_small(&s, (uint64_t[]){100, 30});
    s.entries[1].since_ns = s.entries[1].read_ns = s.entries[0].read_ns;
    assert_int_equal(report_small(&s), 200);
    assert_int_equal(find(s.ledger, 1, "file:node")->owner, 1);
    gain_small(&s, (uint64_t[]){50, 51});
    assert_int_equal(report_small(&s), 251); /* now both are known */
    assert_int_equal(find(s.ledger, 1, "file:node")->owner, 0);
    assert_int_equal(find(s.ledger, 1, "file:node")->refused, 0);
    tam_ledger_close(s.ledger);
}

static void sums_stop_at_the_largest_number(void **state) {
    (void)state;
    tam_ledger *ledger = open_ledger();
    small s = {.ledger = ledger};
    add_small(&s, "liar", "");
    s.entries[0].most_w = UINT64_MAX;
    s.entries[0].range_uj = 0;
    int64_t last = 0;
    for (int i = 0; i < 2000; i++) {
        s.entries[0].read_ns += UINT64_C(1) << 52;
        s.entries[0].total_uj += UINT64_C(1) << 53;
        s.entries[0].raw_uj += UINT64_C(1) << 53;
        int64_t uj = report_small(&s);
        assert_true(uj >= last && uj <= INT64_C(1) << 62);
        last = uj;
    }
    tam_ledger_close(ledger);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reading_that_cannot_be_is_flagged_and_not_counted),
        cmocka_unit_test(a_liar_is_passed_over_for_who_tells_the_truth),
        cmocka_unit_test(phases_that_cannot_be_stay_unattributed),
        cmocka_unit_test(entries_without_id_or_end_are_refused),
        cmocka_unit_test(what_is_shown_twice_is_taken_once),
        cmocka_unit_test(who_was_there_before_tells_rather_than_who_is_new),
        cmocka_unit_test(sums_stop_at_the_largest_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
