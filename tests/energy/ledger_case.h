/* SPDX-License-Identifier: MIT
 *
 * A world of pretended nodes and a ledger that hears of it: what the tests of ledgers share.
 */
#ifndef TEST_LEDGER_CASE_H
#define TEST_LEDGER_CASE_H

#include "lib/energy/cluster/ledger.h"
#include "tests/support/data.h"
#include "tests/support/meters.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { REPORTS = 50 };

#define SECOND UINT64_C(1000000000)

static tam_energy_entry entries[METERS_RANKS * METERS_SEEN];
static meters world;

static inline tam_ledger *open_ledger(void) {
    tam_ledger *ledger = NULL;
    assert_int_equal(tam_ledger_open(&ledger), TAMIS_OK);
    return ledger;
}

/* Ranks first to last of the beginning, numbered anew from 0. @return entries */
static inline uint32_t show(uint32_t first, uint32_t last) {
    uint32_t n = 0;
    for (uint32_t id = first; id < last; id++)
        n += meters_show(&world, id, id - first, &entries[n]);
    return n;
}

static inline void take(tam_ledger *ledger, const tam_energy_entry *some, uint32_t n) {
    assert_int_equal(tam_ledger_take(ledger, some, n, NULL), TAMIS_OK);
}

static inline tamis_energy_totals totals_of(const tam_ledger *ledger) {
    tamis_energy_totals totals;
    tam_ledger_totals(ledger, &totals);
    int64_t sum = totals.unattributed_uj;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
        sum += totals.shares[k].uj;
    assert_int_equal(sum, totals.uj);
    return totals;
}

static inline const tam_ledger_domain *find(const tam_ledger *ledger, uint64_t host,
                                            const char *id) {
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        const tam_ledger_domain *d = &ledger->domains[i];
        if (d->host == host && strcmp(d->id, id) == 0)
            return d;
    }
    fail_msg("there is no %s", id);
    return NULL;
}

static inline const tam_ledger_domain *of_node(const tam_ledger *ledger, uint32_t node,
                                               const char *id) {
    return find(ledger, 0x1000 + node, id);
}

/* A second to an hour: dozens of wraps in a long one. */
static inline void advance(uint64_t seed) {
    meters_advance(&world, seed % 5 ? 1000 + data_mix(seed) % 60000 : 3600000);
}

/* One rank, one host. */
typedef struct small {
    tam_energy_entry entries[4];
    uint32_t n;
    tam_ledger *ledger;
} small;

static inline void add_small(small *s, const char *id, const char *inside) {
    tam_energy_entry *e = &s->entries[s->n++];
    *e = (tam_energy_entry){
        .host = 1, .meter = 5, .has_raw = 1, .range_uj = 1000000000000, .most_w = 1000};
    snprintf(e->id, sizeof e->id, "%s", id);
    snprintf(e->inside, sizeof e->inside, "%s", inside);
}

static inline void gain_small(small *s, const uint64_t *joules) {
    for (uint32_t i = 0; i < s->n; i++) {
        s->entries[i].total_uj += joules[i];
        s->entries[i].raw_uj += joules[i];
        s->entries[i].read_ns += SECOND;
    }
}

static inline int64_t report_small(small *s) {
    take(s->ledger, s->entries, s->n);
    return totals_of(s->ledger).uj;
}

#endif
