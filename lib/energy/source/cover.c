/* SPDX-License-Identifier: MIT
 *
 * What contains what, and which domains make up a sum. Sources know it of their own domains
 * (`inside`); across sources the kinds say it:
 *
 *     node     all of the host
 *     psys     package, dram, core, uncore
 *     module   package, dram, core, uncore   (hosts with modules have no other processors)
 */
#include "lib/energy/source/domain.h"

#include <stdio.h>

typedef struct list {
    const tam_energy_domain *domains;
    uint32_t count;
} list;

/* What has broken down before it ever counted is no part of a sum. */
static bool cover_usable(const tam_energy_domain *d) {
    return d->status == TAMIS_ENERGY_OK || d->total_uj > 0;
}

static bool same_source(const tam_energy_domain *a, const tam_energy_domain *b) {
    size_t length = strcspn(a->sensor.id, ":");
    return strcspn(b->sensor.id, ":") == length && strncmp(a->sensor.id, b->sensor.id, length) == 0;
}

/* Two that measure the whole host, or the platform by two sources, are one: the first that is
 * usable counts. */
static bool contains_by_kind(const tam_energy_domain *a, const tam_energy_domain *b) {
    tamis_energy_kind outer = a->sensor.kind, inner = b->sensor.kind;
    if (outer == inner && a > b && cover_usable(b))
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

static bool is_contained(const list *l, const tam_energy_domain *d) {
    for (uint32_t i = 0; i < l->count; i++) {
        const tam_energy_domain *outer = &l->domains[i];
        if (outer != d && cover_usable(outer) && contains(l, outer, d))
            return true;
    }
    return false;
}

bool tam_domain_contains(const tam_energy_domain *domains, uint32_t n, uint32_t outer,
                         uint32_t inner) {
    list l = {domains, n};
    return contains(&l, &domains[outer], &domains[inner]);
}

/* What the sum lacks because of one domain; "" if nothing. If a package cannot be read,
 * its cores need not be named as well. */
static void cover_explain(const list *l, uint32_t i, bool counted, char line[TAMIS_ENERGY_TEXT]) {
    const tam_energy_domain *d = &l->domains[i];
    const tam_energy_domain *outer = cover_find(l, d->sensor.inside);
    line[0] = '\0';
    if (!counted && (is_contained(l, d) || (outer && !cover_usable(outer))))
        return;
    if (d->status != TAMIS_ENERGY_OK)
        tam_energy_say(line, "%s: %s", d->sensor.id, d->reason);
    else if (d->resets > 0)
        tam_energy_say(line, "%s: was reset %u times; what it lost is not counted", d->sensor.id,
                       d->resets);
}

/* As many as there is room for, with a note of how many more. */
static void cover_name_missing(const list *l, const bool *counted, char *missing) {
    enum { NOTE = 16 };
    char line[TAMIS_ENERGY_TEXT];
    uint32_t more = 0;
    size_t used = 0;
    missing[0] = '\0';
    for (uint32_t i = 0; i < l->count; i++) {
        cover_explain(l, i, counted[i], line);
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

void tam_domain_cover(const tam_energy_domain *domains, uint32_t n, bool *counted, char *missing) {
    list l = {domains, n};
    for (uint32_t i = 0; i < n; i++)
        counted[i] = cover_usable(&domains[i]) && !is_contained(&l, &domains[i]);
    cover_name_missing(&l, counted, missing);
}
