/* SPDX-License-Identifier: MIT
 *
 * Which sources a meter reads.
 */
#include "lib/energy/source/source.h"

#include <stdio.h>

#define TAM_SOURCE_ROW(name) &tam_source_##name,
static const tam_energy_source *const table[] = {TAM_ENERGY_SOURCES(TAM_SOURCE_ROW)};
#undef TAM_SOURCE_ROW

enum { ROWS = sizeof table / sizeof table[0] };

static tamis_status no_source(const char *name) {
    char known[128] = "";
    for (size_t i = 0, used = 0; i < ROWS && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s, ", table[i]->name);
    return tam_fail(TAMIS_E_ARGUMENT,
                    "energy: there is no source \"%s\"; known are %sand auto or none alone", name,
                    known);
}

static tamis_status pick(const tam_energy_source *source, const char *names, uint32_t most,
                         const tam_energy_source **out, uint32_t *n) {
    for (uint32_t i = 0; i < *n; i++) {
        if (out[i] == source)
            return tam_fail(TAMIS_E_ARGUMENT, "energy: sources \"%s\" names %s twice", names,
                            source->name);
    }
    if (*n == most)
        return tam_fail(TAMIS_E_UNSUPPORTED, "energy: a meter reads %u sources, not %s as well",
                        most, source->name);
    out[(*n)++] = source;
    return TAMIS_OK;
}

tamis_status tam_energy_sources_pick(const char *names, uint32_t most,
                                     const tam_energy_source **out, uint32_t *out_n) {
    bool all = strcmp(names, "auto") == 0;
    *out_n = 0;
    for (size_t i = 0; all && i < ROWS; i++)
        TAM_TRY(pick(table[i], names, most, out, out_n));
    if (all || strcmp(names, "none") == 0)
        return TAMIS_OK;
    for (const char *at = names; *at; at += *at == ',') {
        char name[32];
        size_t length = strcspn(at, ","), i = 0;
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        at += length;
        while (i < ROWS && strcmp(table[i]->name, name) != 0)
            i++;
        TAM_TRY(i < ROWS ? pick(table[i], names, most, out, out_n) : no_source(name));
    }
    return TAMIS_OK;
}
