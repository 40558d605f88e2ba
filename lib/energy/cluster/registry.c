/* SPDX-License-Identifier: MIT */
#include "lib/energy/cluster/registry.h"

#include <stdio.h>

/* They travel and are compared: no bytes between the fields. */
_Static_assert(sizeof(tam_energy_entry) == 320 + 8 + 16 + 48 + 8 * 32 + 32, "no padding");
_Static_assert(sizeof(tam_energy_run) == 24 + 8 * 32, "no padding");
_Static_assert(sizeof(tam_energy_sums) == 8 + 16 + 8 + 8 * 32 + 32, "no padding");

/* -- memory ----------------------------------------------------------------------------------- */

tamis_status tam_registry_open(uint32_t n, tam_registry **out) {
    tam_registry *l = tam_alloc(sizeof *l);
    if (!l)
        goto err_memory;
    l->n = n;
    l->shown = tam_alloc_array(n, sizeof l->shown[0]);
    l->bases = tam_alloc_array(n, sizeof l->bases[0]);
    l->tried = tam_alloc_array(n, sizeof l->tried[0]);
    if (!l->shown || !l->bases || !l->tried)
        goto err_memory;
    *out = l;
    return TAMIS_OK;

err_memory:
    tam_registry_close(l);
    return tam_fail(TAMIS_E_NOMEM, "no memory for reports of %u energy domains", n);
}

void tam_registry_close(tam_registry *l) {
    if (!l)
        return;
    tam_free(l->messages);
    tam_free(l->tried);
    tam_free(l->bases);
    tam_free(l->shown);
    tam_free(l);
}

tamis_status tam_registry_reserve(tam_registry *l, size_t bytes) {
    if (bytes <= l->messages_bytes)
        return TAMIS_OK;
    void *messages = tam_alloc(bytes);
    if (!messages)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %zu bytes of an energy report", bytes);
    tam_free(l->messages);
    l->messages = messages;
    l->messages_bytes = bytes;
    return TAMIS_OK;
}

void tam_registry_abandon(tam_registry *l) {
    l->messages = NULL;
    l->messages_bytes = 0;
}

/* -- what this rank shows --------------------------------------------------------------------- */

static bool readable(const tam_energy_entry *e) {
    return e->status == TAMIS_ENERGY_OK || e->status == TAMIS_ENERGY_RESET;
}

/* The last attempt may have been completed by others: then this rank's part of it has been counted,
 * and what it could not read may have been, by another. */
static void catch_up(tam_registry *l, const tam_energy_sums *latest) {
    bool tried = latest->name != l->sums.name && latest->name == l->tried_name;
    if (tried)
        memcpy(l->bases, l->tried, l->n * sizeof l->bases[0]);
    l->owes = latest->name == l->sums.name;
    l->late = !l->owes && !tried;
    l->next = *latest;
    if (!l->late)
        l->sums = *latest;
}

/* Where the count is now; not before its base, which may be another's later reading. */
static tam_registry_base registry_advance(const tam_registry_base *base,
                                          const tam_energy_entry *e) {
    tam_registry_base now = *base;
    now.overlaps = !readable(e);
    now.resets = e->resets;
    now.unread = !readable(e) && (base->unread || !e->has_raw);
    if (!readable(e))
        return now;
    now.uj = e->uj > base->uj ? e->uj : base->uj;
    memcpy(now.phases_uj, e->phases_uj, sizeof now.phases_uj);
    return now;
}

void tam_registry_offer(tam_registry *l, const tam_energy_sums *latest, uint64_t name,
                        tam_energy_entry *out) {
    catch_up(l, latest);
    for (uint32_t i = 0; i < l->n; i++) {
        const tam_registry_base *base = &l->bases[i];
        l->tried[i] = registry_advance(base, &l->shown[i]);
        out[i] = l->shown[i];
        out[i].overlaps = l->late || base->overlaps;
        out[i].owed_uj = l->owes && !base->unread ? base->owed_uj : TAM_OWED_UNKNOWN;
        out[i].new_resets = l->shown[i].resets - base->resets;
        out[i].uj = l->tried[i].uj - base->uj;
        for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
            out[i].phases_uj[k] -= base->phases_uj[k];
    }
    l->next.name = l->tried_name = name;
}

/* -- the domains of one host ------------------------------------------------------------------ */

typedef struct host {
    tam_energy_domain *domains;       /* [n] */
    const tam_energy_entry **tellers; /* [n] who is believed, or says why nobody can be */
    tam_cover_gain *gains;            /* [n] */
    bool *counted;                    /* [n] */
    uint32_t n;
    char missing[TAMIS_ENERGY_TEXT];
} host;

size_t tam_registry_scratch(size_t n) {
    const host *h = NULL;
    return n * (sizeof(tam_pair) + sizeof h->domains[0] + sizeof h->tellers[0] +
                sizeof h->gains[0] + sizeof h->counted[0]);
}

/* The lowest rank that can read it, else the status that is nearest to that. */
static uint32_t severity(const tam_energy_entry *e) {
    return readable(e) ? e->overlaps : 2 + e->status;
}

static uint32_t registry_find(const host *h, const char *id) {
    uint32_t i = 0;
    while (i < h->n && strcmp(h->tellers[i]->id, id) != 0)
        i++;
    return i;
}

static void add_entry(host *h, const tam_energy_entry *e) {
    uint32_t i = registry_find(h, e->id);
    if (i == h->n) {
        h->tellers[h->n] = e;
        h->gains[h->n++] = (tam_cover_gain){0};
    } else if (severity(e) < severity(h->tellers[i])) {
        h->tellers[i] = e;
    }
    if (e->owed_uj == TAM_OWED_UNKNOWN)
        return;
    h->gains[i].compared = true;
    h->gains[i].owed_uj = e->owed_uj; /* the same on all that know it */
}

/* As a meter would have it, so that sums of a cluster and of a host follow the same rules. */
static void make_domain(const tam_energy_entry *e, tam_energy_domain *d) {
    *d = (tam_energy_domain){.resets = e->resets, .sensor.kind = (tamis_energy_kind)e->kind};
    memcpy(d->sensor.id, e->id, sizeof e->id);
    memcpy(d->sensor.inside, e->inside, sizeof e->inside);
    if (severity(e) == 0)
        return;
    d->status = readable(e) ? TAMIS_ENERGY_STALE : (tamis_energy_status)e->status;
    tam_energy_say(d->reason, "%s",
                   readable(e) ? "counted from here on; earlier gains are left out, as some of "
                                 "them may have been counted already"
                               : e->reason);
}

/* @return whether any that is counted is the domain, contains it or, if `both`, is part of it */
static bool touches(const host *h, uint32_t index, bool both) {
    for (uint32_t i = 0; i < h->n; i++) {
        if (h->counted[i] && (i == index || tam_domain_contains(h->domains, h->n, i, index) ||
                              (both && tam_domain_contains(h->domains, h->n, index, i))))
            return true;
    }
    return false;
}

static int64_t registry_add(int64_t a, int64_t b) {
    int64_t sum;
    if (!__builtin_add_overflow(a, b, &sum))
        return sum;
    return a < 0 ? INT64_MIN : INT64_MAX;
}

/* @param uj  what of the gain counts */
static void add_gain(const tam_energy_entry *e, uint64_t uj, tam_energy_sums *sums) {
    double share = e->uj > uj ? (double)uj / (double)e->uj : 1.0;
    sums->known = 1;
    sums->uj = registry_add(sums->uj, uj < INT64_MAX ? (int64_t)uj : INT64_MAX);
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) {
        int64_t phase_uj =
            share < 1.0 ? (int64_t)(share * (double)e->phases_uj[k]) : e->phases_uj[k];
        sums->phases_uj[k] = registry_add(sums->phases_uj[k], phase_uj);
        if (e->phases_uj[k] && e->methods[k] > sums->methods[k])
            sums->methods[k] = e->methods[k];
    }
}

static void registry_add_up(host *h, tam_energy_sums *sums) {
    for (uint32_t i = 0; i < h->n; i++) {
        const tam_energy_entry *e = h->tellers[i];
        make_domain(e, &h->domains[i]);
        h->gains[i].uj = severity(e) > 0 && e->owed_uj == TAM_OWED_UNKNOWN ? 0 : e->uj;
        h->gains[i].compared = h->gains[i].compared || severity(e) == 0;
    }
    tam_domain_cover(h->domains, h->n, h->gains, h->counted, h->missing);
    sums->ndomains += h->n;
    for (uint32_t i = 0; i < h->n; i++) {
        const tam_energy_entry *e = h->tellers[i];
        if (h->counted[i])
            add_gain(e, h->gains[i].uj, sums);
        else if (readable(e) && e->overlaps && !touches(h, i, false))
            sums->gaps++;
        if (e->new_resets > 0) /* it will never show what it owes */
            h->gains[i].owed_uj = 0;
    }
}

/* -- a report --------------------------------------------------------------------------------- */

/* Whatever has come over the wire can be used. */
static void registry_clean(tam_energy_entry *e) {
    e->id[sizeof e->id - 1] = e->inside[sizeof e->inside - 1] = '\0';
    e->reason[sizeof e->reason - 1] = '\0';
    e->overlaps = e->overlaps != 0;
    if (e->kind >= TAMIS_ENERGY_KINDS)
        e->kind = TAMIS_ENERGY_OTHER;
    if (e->status >= TAMIS_ENERGY_STATUSES)
        e->status = TAMIS_ENERGY_GARBLED;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) {
        if (e->methods[k] >= TAMIS_ENERGY_METHODS)
            e->methods[k] = TAMIS_ENERGY_TIME_SHARE;
    }
}

/* Names the first host in the order of hosts, and says how many others there are and were. */
static void record_missing(tam_registry *l, const char *first, uint32_t hosts) {
    char notes[80] = "";
    int used = 0;
    if (hosts > 1)
        used = snprintf(notes, sizeof notes, "; and on %u more hosts", hosts - 1);
    if (l->next.gaps > 0)
        snprintf(notes + used, sizeof notes - (size_t)used, "%sgains left out so far: %u",
                 hosts ? "; " : "", l->next.gaps);
    if (l->next.ndomains == 0)
        first = "no rank reports a domain";
    snprintf(l->missing, sizeof l->missing, "%.*s%s", (int)(sizeof l->missing - 1 - strlen(notes)),
             first, notes);
}

/* Both have read one counter, at about one moment: the base moves to the reading that was believed,
 * unless it was reset between the two. */
static void align(tam_registry_base *tried, const tam_registry_base *base,
                  const tam_energy_entry *mine, const tam_energy_entry *teller) {
    const uint64_t most = UINT64_C(10000000) * mine->most_w; /* of 10 s */
    uint64_t up = teller->raw_uj - mine->raw_uj, down = mine->raw_uj - teller->raw_uj;
    uint64_t at = mine->uj;
    if (!mine->has_raw || !teller->has_raw)
        return;
    if (teller->raw_uj < mine->raw_uj)
        up += mine->range_uj;
    else
        down += mine->range_uj;
    if (up <= down && up <= most)
        at += up;
    else if (down < up && down <= most)
        at -= down < at ? down : at;
    tried->uj = at > base->uj ? at : base->uj;
}

/* Where the counts of this rank go on; what it could not read from where it was, unless another was
 * counted for it. */
static void registry_settle(tam_registry *l, const host *h, uint64_t name) {
    for (uint32_t i = 0; i < l->n; i++) {
        const tam_energy_entry *mine = &l->shown[i];
        uint32_t index = mine->host == name ? registry_find(h, mine->id) : h->n;
        if (index == h->n)
            continue;
        l->tried[i].owed_uj = h->gains[index].owed_uj;
        if (!readable(mine))
            l->tried[i].overlaps = l->late || l->bases[i].overlaps || touches(h, index, true);
        else if (severity(h->tellers[index]) == 0)
            align(&l->tried[i], &l->bases[i], mine, h->tellers[index]);
    }
}

void tam_registry_take(tam_registry *l, tam_energy_entry *entries, uint32_t n,
                       const tam_energy_run *run, void *scratch) {
    tam_pair *order = scratch; /* by host, then rank */
    host h = {.domains = (tam_energy_domain *)(void *)(order + n)};
    h.tellers = (const tam_energy_entry **)(void *)(h.domains + n);
    h.gains = (tam_cover_gain *)(void *)(h.tellers + n);
    h.counted = (bool *)(void *)(h.gains + n);
    char missing[TAMIS_ENERGY_TEXT] = "";
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < n; i++) {
        registry_clean(&entries[i]);
        order[i] = (tam_pair){entries[i].host, i};
    }
    tam_sort(order, n);
    l->next.reports++;
    l->next.ndomains = 0;
    for (uint32_t i = 0; i < n;) {
        uint64_t name = order[i].key;
        for (h.n = 0; i < n && order[i].key == name; i++)
            add_entry(&h, &entries[order[i].value]);
        registry_add_up(&h, &l->next);
        registry_settle(l, &h, name);
        if (h.missing[0] && hosts++ == 0)
            memcpy(missing, h.missing, sizeof missing);
    }
    record_missing(l, missing, hosts);
    memcpy(l->bases, l->tried, l->n * sizeof l->bases[0]);
    l->sums = l->next;
    l->run = *run;
}

/* -- totals ----------------------------------------------------------------------------------- */

/* Phases are attributed later than counters are read: where they would have more than there is, the
 * largest give it back. @return what is left unattributed */
static int64_t trim_shares(tamis_energy_totals *t, int64_t attributed) {
    int64_t excess = attributed - t->uj;
    for (uint32_t pass = 0; pass < TAMIS_ENERGY_PHASES && excess > 0; pass++) {
        tamis_energy_share *most = &t->shares[0];
        for (uint32_t k = 1; k < TAMIS_ENERGY_PHASES; k++)
            most = t->shares[k].uj > most->uj ? &t->shares[k] : most;
        int64_t back = most->uj < excess ? most->uj : excess;
        most->uj -= back;
        excess -= back;
    }
    return -excess;
}

void tam_registry_totals(const tam_registry *l, tamis_energy_totals *out) {
    *out = (tamis_energy_totals){.size = sizeof *out,
                                 .seconds = (double)l->run.time_ns * 1e-9,
                                 .steps = l->run.steps,
                                 .wire_bytes = l->run.wire_bytes,
                                 .known = (int)l->sums.known,
                                 .uj = l->sums.uj,
                                 .grams = NAN};
    int64_t attributed = 0;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) {
        tamis_energy_share *share = &out->shares[k];
        share->seconds = (double)l->run.exposure_ns[k] * 1e-9;
        share->group = UINT32_C(1) << k;
        share->uj = l->sums.phases_uj[k];
        if (share->uj)
            share->method = (tamis_energy_method)l->sums.methods[k];
        attributed = registry_add(attributed, share->uj);
    }
    out->unattributed_uj = trim_shares(out, attributed);
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
        out->shares[k].low_uj = out->shares[k].high_uj = out->shares[k].uj;
    memcpy(out->missing, l->missing, sizeof out->missing);
}
