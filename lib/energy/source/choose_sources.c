/* SPDX-License-Identifier: MIT
 *
 * Which sources a meter reads: the table, and words that choose from it.
 */
#include "lib/contracts/energy_source.h"

#define TAM_SOURCE_ROW(name) &tam_source_##name,
static const tam_energy_source *const table[] = {TAMIS_ENERGY_SOURCES(TAM_SOURCE_ROW)};
#undef TAM_SOURCE_ROW

#define TAM_SOURCE_FITS(name)                                                                      \
    _Static_assert(sizeof #name <= sizeof((tamis_energy_domain *)NULL)->source, "15 letters");
TAMIS_ENERGY_SOURCES(TAM_SOURCE_FITS)
#undef TAM_SOURCE_FITS

#define TAM_SOURCE_WORD(name) #name ", "
static const char known[] = TAMIS_ENERGY_SOURCES(TAM_SOURCE_WORD);
#undef TAM_SOURCE_WORD

enum { ROWS = sizeof table / sizeof table[0] };

static tamis_status no_source(const char *name) {
    return tam_fail(TAMIS_E_ARGUMENT,
                    "energy: there is no source \"%s\"; known are %sand auto or none alone", name,
                    known);
}

static tamis_status choose_sources_choose(const tam_energy_source *source, const char *names,
                                          uint32_t most, const tam_energy_source **out,
                                          uint32_t *n) {
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

tamis_status tam_energy_sources_choose(const char *names, uint32_t most,
                                       const tam_energy_source **out, uint32_t *out_n) {
    bool all = strcmp(names, "auto") == 0;
    *out_n = 0;
    for (size_t i = 0; all && i < ROWS; i++)
        TAM_TRY(choose_sources_choose(table[i], names, most, out, out_n));
    if (all || strcmp(names, "none") == 0)
        return TAMIS_OK;
    for (const char *rest = names; rest && *rest;) {
        char name[32];
        size_t i = 0;
        rest = tam_energy_item(rest, name, sizeof name);
        while (i < ROWS && strcmp(table[i]->name, name) != 0)
            i++;
        TAM_TRY(i < ROWS ? choose_sources_choose(table[i], names, most, out, out_n)
                         : no_source(name));
    }
    return TAMIS_OK;
}
