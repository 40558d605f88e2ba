/* SPDX-License-Identifier: MIT
 *
 * What contains what, and which domains make up a sum. Sources know it of their own domains
 * (`inside`); across sources the kinds say it:
 *
 *     node     all of the host
 *     psys     package, dram, core, uncore
 *     module   package, dram, core, uncore   (hosts with modules have no other processors)
 *
 * A wider domain that gains less than those in it stands still, lacks a part or is late. They count
 * in its place, and it owes what it lacks: it counts again once it has gained that, too.
 *
 *     package gains   50 50 50 50 50
 *     psys gains      60  0  0 190 60      counted: 60 50 50 90 60
 *     psys owes        0 50 100 0  0
 */
#include "lib/base/numbers.h"
#include "lib/energy/source/domain.h"

#include <stdio.h>

typedef struct list {
    const tam_energy_domain *domains;
    uint32_t count;
    tam_cover_gain *gains;
    bool *counted;
} list;

/* What has broken down before it ever counted is no part of a sum. */
static bool cover_usable(const tam_energy_domain *d) {
    return d->status == TAMIS_ENERGY_OK || d->total_uj > 0;
}

/* It has answered, so it may yet show what it has counted meanwhile. */
static bool was_read(const tam_energy_domain *d) {
    return cover_usable(d) || d->has_raw;
}

static bool same_source(const tam_energy_domain *a, const tam_energy_domain *b) {
    size_t length = strcspn(a->sensor.id, ":");
    return strcspn(b->sensor.id, ":") == length && strncmp(a->sensor.id, b->sensor.id, length) == 0;
}

/* Two that measure the whole host, or the platform by two sources, are one: the first that is
 * usable counts. */
static bool contains_by_kind(const tam_energy_domain *a, const tam_energy_domain *b) {
    tamis_energy_kind outer = a->sensor.kind, inner = b->sensor.kind;
    if (outer == inner && a > b && was_read(b))
        return false;
    if (outer == TAMIS_ENERGY_NODE)
        return true;
    if (b->sensor.inside[0]) /* its source knows */
        return false;
    if (outer == TAMIS_ENERGY_PSYS && inner == TAMIS_ENERGY_PSYS)
        return !same_source(a, b);
    return (outer == TAMIS_ENERGY_PSYS || outer == TAMIS_ENERGY_MODULE) &&
           tam_energy_is_processor(inner);
}

static const tam_energy_domain *cover_find(const list *l, const char *id) {
    for (uint32_t i = 0; id[0] && i < l->count; i++) {
        if (strcmp(l->domains[i].sensor.id, id) == 0)
            return &l->domains[i];
    }
    return NULL;
}

/* Also by way of those between them; a ring of these would have no end. */
static bool contains(const list *l, const tam_energy_domain *outer, const tam_energy_domain *d) {
    for (uint32_t depth = 0; d && depth <= l->count; depth++) {
        if (outer != d && contains_by_kind(outer, d))
            return true;
        d = cover_find(l, d->sensor.inside);
        if (d == outer)
            return true;
    }
    return false;
}

/* @return the narrowest that is compared and contains domain i; l->count: there is none */
static uint32_t find_outer(const list *l, uint32_t i) {
    uint32_t best = l->count;
    for (uint32_t k = 0; k < l->count; k++) {
        const tam_energy_domain *outer = &l->domains[k];
        if (k != i && l->gains[k].compared && contains(l, outer, &l->domains[i]) &&
            (best == l->count || contains(l, &l->domains[best], outer)))
            best = k;
    }
    return best;
}

bool tam_domain_contains(const tam_energy_domain *domains, uint32_t n, uint32_t outer,
                         uint32_t inner) {
    list l = {.domains = domains, .count = n};
    return contains(&l, &domains[outer], &domains[inner]);
}

/* -- who counts ------------------------------------------------------------------------------- */

static void uncount_parts(list *l, uint32_t outer) {
    for (uint32_t i = 0; i < l->count; i++) {
        if (l->gains[i].outer != outer)
            continue;
        l->counted[i] = false;
        uncount_parts(l, i);
    }
}

/* Take from those in a domain what has counted already. @return what is left of that */
static uint64_t reduce_parts(list *l, uint32_t outer, uint64_t uj) {
    for (uint32_t i = 0; i < l->count && uj > 0; i++) {
        if (l->gains[i].outer != outer)
            continue;
        uint64_t less = l->counted[i] ? tam_min(uj, l->gains[i].uj) : 0;
        l->gains[i].uj -= less;
        uj -= less;
        if (!l->counted[i])
            uj = reduce_parts(l, i, uj);
    }
    return uj;
}

/* @return what counts of domain i and of those in it */
static uint64_t cover_settle(list *l, uint32_t i) {
    tam_cover_gain *g = &l->gains[i];
    uint64_t parts_uj = 0;
    for (uint32_t k = 0; k < l->count; k++) {
        if (l->gains[k].outer == i)
            parts_uj += cover_settle(l, k);
    }
    uint64_t known_uj = tam_min(g->ahead_uj, parts_uj), more_uj = parts_uj - known_uj;
    g->ahead_uj = parts_uj > 0 ? 0 : g->ahead_uj;
    l->counted[i] = cover_usable(&l->domains[i]) && g->uj >= g->owed_uj + more_uj;
    if (!l->counted[i]) {
        g->owed_uj += more_uj;
        g->owed_uj -= tam_min(g->owed_uj, g->uj);
        reduce_parts(l, i, known_uj);
        return more_uj;
    }
    uncount_parts(l, i);
    g->uj -= g->owed_uj;
    g->owed_uj = 0;
    g->ahead_uj += parts_uj == 0 ? g->uj : 0;
    return g->uj;
}

/* -- what is missing -------------------------------------------------------------------------- */

static bool is_covered(const list *l, uint32_t i) {
    uint32_t outer = l->gains[i].outer;
    for (uint32_t depth = 0; outer < l->count && depth < l->count; depth++) {
        if (l->counted[outer])
            return true;
        outer = l->gains[outer].outer;
    }
    return false;
}

/* What the sum lacks because of one domain; "" if nothing. If a package cannot be read,
 * its cores need not be named as well. */
static void cover_explain(const list *l, uint32_t i, char line[TAMIS_ENERGY_TEXT]) {
    const tam_energy_domain *d = &l->domains[i];
    const tam_energy_domain *outer = cover_find(l, d->sensor.inside);
    line[0] = '\0';
    if (!l->counted[i] && (is_covered(l, i) || (outer && !cover_usable(outer))))
        return;
    if (d->status != TAMIS_ENERGY_OK)
        tam_energy_say(line, "%s: %s", d->sensor.id, d->reason);
    else if (!l->counted[i])
        tam_energy_say(line, "%s: " TAM_COVER_BEHIND, d->sensor.id);
    else if (d->resets > 0)
        tam_energy_say(line, "%s: was reset %u times; what it lost is not counted", d->sensor.id,
                       d->resets);
}

/* As many as there is room for, with a note of how many more. */
static void cover_name_missing(const list *l, char *missing) {
    enum { NOTE = 16 };
    char line[TAMIS_ENERGY_TEXT];
    uint32_t more = 0;
    size_t used = 0;
    missing[0] = '\0';
    for (uint32_t i = 0; i < l->count; i++) {
        cover_explain(l, i, line);
        size_t length = strlen(line);
        if (length == 0)
            continue;
        if (used > 0 && used + 2 + length + NOTE > TAMIS_ENERGY_TEXT) {
            more++;
            continue;
        }
        used += (size_t)snprintf(missing + used, TAMIS_ENERGY_TEXT - used, "%s%.*s",
                                 used ? "; " : "", TAMIS_ENERGY_TEXT - NOTE - 1, line);
    }
    if (more > 0)
        snprintf(missing + used, TAMIS_ENERGY_TEXT - used, "; and %u more", more);
}

void tam_domain_cover(const tam_energy_domain *domains, uint32_t n, tam_cover_gain *gains,
                      bool *counted, char *missing) {
    list l = {domains, n, gains, counted};
    for (uint32_t i = 0; i < n; i++) {
        counted[i] = false;
        gains[i].outer = find_outer(&l, i);
    }
    for (uint32_t i = 0; i < n; i++) { /* not those in a ring */
        if (gains[i].outer == n)
            cover_settle(&l, i);
    }
    cover_name_missing(&l, missing);
}
