/* SPDX-License-Identifier: MIT
 *
 * Which domains make a sum that counts nothing twice, and the sums.
 *
 *     report        1      2       3        4      5
 *     psys          ok     ok    stale     ok     ok       its gain at 4 reaches back to 2, and
 *     package-0     ok     ok     ok       ok     ok       package-0 was counted at 3: so
 *     counted      psys   psys   package  package psys     psys is left out once more
 */
#include "lib/energy/cluster/ledger.h"

#include <math.h>
#include <stdio.h>

/* -- what contains what ----------------------------------------------------------------------- */

static uint32_t find(const tam_ledger *ledger, uint64_t host, const char *id) {
    uint32_t low = 0, high = ledger->ndomains;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tam_ledger_domain *d = &ledger->domains[middle];
        int order = tam_ledger_order(d->host, d->id, host, id);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return TAM_NOBODY;
}

static bool goes_round(const tam_ledger *ledger, uint32_t index) {
    uint32_t at = ledger->domains[index].outer;
    for (uint32_t i = 0; i < ledger->ndomains && at != TAM_NOBODY && at != index; i++)
        at = ledger->domains[at].outer;
    return at == index;
}

/* Domains that claim to contain each other: the first of them contains the others. */
static void link_up(tam_ledger *ledger) {
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        tam_ledger_domain *d = &ledger->domains[i];
        d->outer = d->inside[0] ? find(ledger, d->host, d->inside) : TAM_NOBODY;
        d->kin_at = d->inner_counted = d->counted = 0;
    }
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        if (goes_round(ledger, i))
            ledger->domains[i].outer = TAM_NOBODY;
    }
}

static tam_ledger_domain *outer(const tam_ledger *ledger, const tam_ledger_domain *d) {
    return d->outer == TAM_NOBODY ? NULL : &ledger->domains[d->outer];
}

/* -- the cover -------------------------------------------------------------------------------- */

/* When any that it contains, or that contains it, was last counted. */
static void date_kin(tam_ledger *ledger) {
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        tam_ledger_domain *d = &ledger->domains[i];
        for (tam_ledger_domain *a = outer(ledger, d); a; a = outer(ledger, a)) {
            a->kin_at = d->counted_at > a->kin_at ? d->counted_at : a->kin_at;
            d->kin_at = a->counted_at > d->kin_at ? a->counted_at : d->kin_at;
        }
    }
}

/* Told in this report, and its gain reaches over no time that its kin was counted in. */
static bool eligible(const tam_ledger *ledger, const tam_ledger_domain *d) {
    return d->told_at == ledger->reports && d->kin_at <= d->told_before;
}

static void choose_cover(tam_ledger *ledger) {
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        tam_ledger_domain *d = &ledger->domains[i];
        d->counted = eligible(ledger, d);
        for (const tam_ledger_domain *a = outer(ledger, d); a && d->counted; a = outer(ledger, a))
            d->counted = !eligible(ledger, a);
        for (tam_ledger_domain *a = outer(ledger, d); a && d->counted; a = outer(ledger, a))
            a->inner_counted = 1;
    }
}

void tam_ledger_add_up(tam_ledger *ledger) {
    link_up(ledger);
    date_kin(ledger);
    choose_cover(ledger);
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        tam_ledger_domain *d = &ledger->domains[i];
        if (!d->counted)
            continue;
        d->counted_at = ledger->reports;
        d->counted_uj += d->gain_uj;
        for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
            d->phases_uj[k] += d->phase_gains[k];
    }
}

/* -- sums ------------------------------------------------------------------------------------- */

static bool is_missing(const tam_ledger *ledger, const tam_ledger_domain *d) {
    bool covered = d->counted || (d->told_at == ledger->reports && d->inner_counted);
    for (const tam_ledger_domain *a = outer(ledger, d); a && !covered; a = outer(ledger, a))
        covered = a->counted;
    return !covered;
}

static void name_missing(const tam_ledger *ledger, char text[TAMIS_ENERGY_TEXT]) {
    char sentence[64 + sizeof ledger->domains->id + TAMIS_ENERGY_TEXT] = "";
    const tam_ledger_domain *worst = NULL;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        const tam_ledger_domain *d = &ledger->domains[i];
        if (!is_missing(ledger, d))
            continue;
        missing++;
        worst = worst && worst->status <= d->status ? worst : d;
    }
    if (ledger->ndomains == 0)
        snprintf(sentence, sizeof sentence, "no rank shows a domain");
    if (worst)
        snprintf(sentence, sizeof sentence, "%u of %u domains; %s: %s", missing, ledger->ndomains,
                 worst->id,
                 worst->told_at == ledger->reports ? "counted again from the next report on"
                                                   : worst->reason);
    memcpy(text, sentence, TAMIS_ENERGY_TEXT - 1); /* what does not fit is cut off */
    text[TAMIS_ENERGY_TEXT - 1] = '\0';
}

static int64_t add(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* Phases are attributed later than counters are read: where they would have more than there is, the
 * largest give it back. @return what is left unattributed */
static int64_t give_back(tamis_energy_totals *t, int64_t attributed) {
    int64_t excess = attributed - t->uj;
    for (uint32_t pass = 0; pass < TAMIS_ENERGY_PHASES && excess > 0; pass++) {
        tamis_energy_share *most = &t->shares[0];
        for (uint32_t k = 1; k < TAMIS_ENERGY_PHASES; k++)
            most = t->shares[k].uj > most->uj ? &t->shares[k] : most;
        int64_t back = most->uj < excess ? most->uj : excess;
        most->uj -= back;
        excess -= back;
    }
    return excess < 0 ? -excess : 0;
}

void tam_ledger_totals(const tam_ledger *ledger, tamis_energy_totals *out) {
    *out = (tamis_energy_totals){.size = sizeof *out,
                                 .seconds = (double)ledger->run.time_ns * 1e-9,
                                 .steps = ledger->run.steps,
                                 .wire_bytes = ledger->run.wire_bytes,
                                 .grams = NAN};
    int64_t attributed = 0;
    for (uint32_t i = 0; i < ledger->ndomains; i++) {
        const tam_ledger_domain *d = &ledger->domains[i];
        out->known |= d->counted_at > 0;
        out->uj = add(out->uj, (int64_t)d->counted_uj);
        for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) {
            tamis_energy_share *share = &out->shares[k];
            share->uj = add(share->uj, d->phases_uj[k]);
            attributed = add(attributed, d->phases_uj[k]);
            if (d->phases_uj[k] && d->methods[k] > (uint32_t)share->method)
                share->method = (tamis_energy_method)d->methods[k];
        }
    }
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) {
        tamis_energy_share *share = &out->shares[k];
        share->seconds = (double)ledger->run.exposure_ns[k] * 1e-9;
        share->group = UINT32_C(1) << k;
    }
    out->unattributed_uj = give_back(out, attributed);
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
        out->shares[k].low_uj = out->shares[k].high_uj = out->shares[k].uj;
    name_missing(ledger, out->missing);
}
