/* SPDX-License-Identifier: MIT
 *
 * The ledger's memory, and a report: entries are sorted, those of one domain are told together.
 */
#include "lib/energy/cluster/ledger.h"

#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>

/* -- memory ----------------------------------------------------------------------------------- */

tamis_status tam_ledger_open(tam_ledger **out) {
    tam_ledger *ledger = tam_alloc(sizeof *ledger);
    if (!ledger)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a ledger of energy");
    uint64_t origin[] = {tam_clock_ns(), (uint64_t)getpid(), (uintptr_t)ledger};
    ledger->self = XXH3_64bits(origin, sizeof origin);
    *out = ledger;
    return TAMIS_OK;
}

void tam_ledger_close(tam_ledger *ledger) {
    if (!ledger)
        return;
    tam_free(ledger->shelf);
    tam_free(ledger->desk);
    tam_free(ledger->order);
    tam_free(ledger->next_views);
    tam_free(ledger->views);
    tam_free(ledger->domains);
    tam_free(ledger);
}

static tamis_status no_room(uint64_t ndomains, uint64_t nviews) {
    return tam_fail(TAMIS_E_NOMEM, "no memory for a ledger of %llu domains and %llu entries",
                    (unsigned long long)ndomains, (unsigned long long)nviews);
}

static tamis_status grow_domains(tam_ledger *ledger, uint64_t room) {
    if (room <= ledger->domains_room)
        return TAMIS_OK;
    tam_ledger_domain *domains =
        room < TAM_NOBODY ? tam_alloc_array(room, sizeof domains[0]) : NULL;
    if (!domains)
        return no_room(room, ledger->views_room);
    if (ledger->ndomains)
        memcpy(domains, ledger->domains, ledger->ndomains * sizeof domains[0]);
    tam_free(ledger->domains);
    ledger->domains = domains;
    ledger->domains_room = (uint32_t)room;
    return TAMIS_OK;
}

static tamis_status grow_views(tam_ledger *ledger, uint64_t room) {
    if (room <= ledger->views_room)
        return TAMIS_OK;
    bool fits = room < TAM_NOBODY;
    tam_ledger_view *views = fits ? tam_alloc_array(room, sizeof views[0]) : NULL;
    tam_ledger_view *next = fits ? tam_alloc_array(room, sizeof next[0]) : NULL;
    uint32_t *order = fits ? tam_alloc_array(room, sizeof order[0]) : NULL;
    if (!views || !next || !order) {
        tam_free(order);
        tam_free(next);
        tam_free(views);
        return no_room(ledger->domains_room, room);
    }
    if (ledger->nviews)
        memcpy(views, ledger->views, ledger->nviews * sizeof views[0]);
    tam_free(ledger->order);
    tam_free(ledger->next_views);
    tam_free(ledger->views);
    ledger->views = views;
    ledger->next_views = next;
    ledger->order = order;
    ledger->views_room = (uint32_t)room;
    return TAMIS_OK;
}

tamis_status tam_ledger_room(tam_ledger *ledger, uint64_t ndomains, uint64_t nviews) {
    TAM_TRY(grow_domains(ledger, ndomains));
    return grow_views(ledger, nviews);
}

tamis_status tam_ledger_desk(tam_ledger *ledger, size_t bytes) {
    if (bytes <= ledger->desk_bytes)
        return TAMIS_OK;
    void *desk = tam_alloc(bytes);
    if (!desk)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %zu bytes of a report of energy", bytes);
    tam_free(ledger->desk);
    ledger->desk = desk;
    ledger->desk_bytes = bytes;
    return TAMIS_OK;
}

tamis_status tam_ledger_shelf(tam_ledger *ledger, uint32_t n, tam_energy_entry **out) {
    if (n > ledger->shelf_room) {
        tam_energy_entry *shelf = tam_alloc_array(n, sizeof shelf[0]);
        if (!shelf)
            return tam_fail(TAMIS_E_NOMEM, "no memory for %u domains of a report of energy", n);
        tam_free(ledger->shelf);
        ledger->shelf = shelf;
        ledger->shelf_room = n;
    }
    *out = ledger->shelf;
    return TAMIS_OK;
}

void tam_ledger_leave_desk(tam_ledger *ledger) {
    ledger->desk = NULL;
    ledger->desk_bytes = 0;
}

/* -- order: the same whatever order the entries come in ---------------------------------------- */

static int compare(const tam_energy_entry *a, const tam_energy_entry *b) {
    int order = tam_ledger_order(a->host, a->id, b->host, b->id);
    if (order == 0 && a->rank != b->rank)
        order = a->rank < b->rank ? -1 : 1;
    return order ? order : memcmp(a, b, sizeof *a);
}

static void sift(const tam_energy_entry *entries, uint32_t *order, uint32_t at, uint32_t count) {
    uint32_t moving = order[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && compare(&entries[order[child]], &entries[order[child + 1]]) < 0)
            child++;
        if (compare(&entries[moving], &entries[order[child]]) >= 0)
            break;
        order[at] = order[child];
    }
    order[at] = moving;
}

/* Heap sort, as lib/base/sort.c. */
static void sort(const tam_energy_entry *entries, uint32_t *order, uint32_t count) {
    for (uint32_t i = count / 2; i-- > 0;)
        sift(entries, order, i, count);
    for (uint32_t end = count; end-- > 1;) {
        uint32_t largest = order[0];
        order[0] = order[end];
        order[end] = largest;
        sift(entries, order, 0, end);
    }
}

static bool is_text(const char *text, size_t size) {
    return memchr(text, '\0', size) != NULL;
}

static bool usable(const tam_energy_entry *e) {
    return e->id[0] && is_text(e->id, sizeof e->id) && is_text(e->inside, sizeof e->inside) &&
           is_text(e->reason, sizeof e->reason);
}

static uint32_t put_in_order(tam_ledger *ledger, const tam_energy_entry *entries, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (usable(&entries[i]))
            ledger->order[count++] = i;
        else
            ledger->refused++;
    }
    sort(entries, ledger->order, count);
    return count;
}

/* -- a report --------------------------------------------------------------------------------- */

/* The domain of an entry, at `at` or, by way of a new one, just before it. */
static tam_ledger_domain *place(tam_ledger *ledger, uint32_t at, const tam_energy_entry *e) {
    tam_ledger_domain *d = &ledger->domains[at];
    if (at < ledger->ndomains && tam_ledger_order(d->host, d->id, e->host, e->id) == 0)
        return d;
    memmove(d + 1, d, (ledger->ndomains - at) * sizeof *d);
    ledger->ndomains++;
    memset(d, 0, sizeof *d);
    d->host = e->host;
    snprintf(d->id, sizeof d->id, "%s", e->id); /* nothing behind the end of the text */
    d->kind = TAMIS_ENERGY_OTHER;
    d->outer = TAM_NOBODY;
    return d;
}

static void lose(tam_ledger_domain *d) {
    d->status = TAMIS_ENERGY_LOST;
    d->owner = d->by = TAM_NOBODY;
    d->gain_uj = 0;
    memset(d->phase_gains, 0, sizeof d->phase_gains);
    snprintf(d->reason, sizeof d->reason,
             "no rank shows it any more; its joules until then are counted");
}

static bool shown_before(const tam_energy_entry *entries, const uint32_t *group, uint32_t n,
                         const tam_energy_entry *e) {
    for (uint32_t i = 0; i < n; i++) {
        if (entries[group[i]].rank == e->rank || entries[group[i]].meter == e->meter)
            return true;
    }
    return false;
}

/* Entries of one domain lie side by side. Those shown twice go. @return where the next begin */
static uint32_t gather_group(tam_ledger *ledger, const tam_energy_entry *entries, uint32_t begin,
                             uint32_t count, uint32_t *out_n) {
    uint32_t *order = ledger->order, n = 0, i = begin;
    const tam_energy_entry *first = &entries[order[begin]];
    for (; i < count; i++) {
        const tam_energy_entry *e = &entries[order[i]];
        if (tam_ledger_order(first->host, first->id, e->host, e->id) != 0)
            break;
        if (shown_before(entries, &order[begin], n, e))
            ledger->refused++;
        else
            order[begin + n++] = order[i];
    }
    *out_n = n;
    return i;
}

static void note_outer(tam_ledger_domain *d, const tam_energy_entry *entries, const uint32_t *group,
                       uint32_t n) {
    for (uint32_t i = 0; i < n && !d->inside[0]; i++)
        snprintf(d->inside, sizeof d->inside, "%s", entries[group[i]].inside);
}

/* How far a report has come: domain, old view, new views. */
typedef struct cursor {
    uint32_t domain, old, nviews;
} cursor;

static uint32_t views_upto(const tam_ledger *ledger, uint32_t from, uint64_t host, const char *id) {
    const tam_ledger_view *v = ledger->views;
    while (from < ledger->nviews && tam_ledger_order(v[from].host, v[from].id, host, id) <= 0)
        from++;
    return from;
}

/* No rank shows the next domain. Its views stay: it may come back. */
static void skip_domain(tam_ledger *ledger, cursor *c) {
    tam_ledger_domain *d = &ledger->domains[c->domain++];
    uint32_t upto = views_upto(ledger, c->old, d->host, d->id);
    lose(d);
    for (; c->old < upto; c->old++)
        ledger->next_views[c->nviews++] = ledger->views[c->old];
}

static void tell_group(tam_ledger *ledger, const tam_energy_entry *entries, const uint32_t *group,
                       uint32_t n, cursor *c) {
    const tam_energy_entry *e = &entries[group[0]];
    uint32_t upto = views_upto(ledger, c->old, e->host, e->id);
    tam_ledger_domain *d = place(ledger, c->domain++, e);
    note_outer(d, entries, group, n);
    c->nviews += tam_ledger_tell(d, ledger->reports, entries, group, n, &ledger->views[c->old],
                                 upto - c->old, &ledger->next_views[c->nviews]);
    c->old = upto;
}

static void tell_all(tam_ledger *ledger, const tam_energy_entry *entries, uint32_t count) {
    cursor c = {0};
    for (uint32_t begin = 0, n; begin < count;) {
        const uint32_t *group = &ledger->order[begin];
        const tam_energy_entry *e = &entries[group[0]];
        while (c.domain < ledger->ndomains) {
            const tam_ledger_domain *d = &ledger->domains[c.domain];
            if (tam_ledger_order(d->host, d->id, e->host, e->id) >= 0)
                break;
            skip_domain(ledger, &c);
        }
        begin = gather_group(ledger, entries, begin, count, &n);
        tell_group(ledger, entries, group, n, &c);
    }
    while (c.domain < ledger->ndomains)
        skip_domain(ledger, &c);
    tam_ledger_view *spare = ledger->views;
    ledger->views = ledger->next_views;
    ledger->next_views = spare;
    ledger->nviews = c.nviews;
}

tamis_status tam_ledger_take(tam_ledger *ledger, const tam_energy_entry *entries, uint32_t n,
                             const tam_energy_run *run) {
    TAM_TRY(tam_ledger_room(ledger, (uint64_t)ledger->ndomains + n, (uint64_t)ledger->nviews + n));
    ledger->reports++;
    if (run)
        ledger->run = *run;
    tell_all(ledger, entries, put_in_order(ledger, entries, n));
    tam_ledger_add_up(ledger);
    ledger->digest = tam_ledger_digest(ledger);
    return TAMIS_OK;
}
