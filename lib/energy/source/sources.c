/* SPDX-License-Identifier: MIT
 *
 * Which sources a meter reads, and what they share.
 */
#include "lib/energy/source/source.h"

#include <ctype.h>
#include <stdio.h>

/* -- which of them ---------------------------------------------------------------------------- */

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
    for (const char *rest = names; rest && *rest;) {
        char name[32];
        size_t i = 0;
        rest = tam_energy_item(rest, name, sizeof name);
        while (i < ROWS && strcmp(table[i]->name, name) != 0)
            i++;
        TAM_TRY(i < ROWS ? pick(table[i], names, most, out, out_n) : no_source(name));
    }
    return TAMIS_OK;
}

/* -- one of them ------------------------------------------------------------------------------ */

tamis_status tam_energy_find(const tam_energy_source *source, const tamis_energy_config *config,
                             tam_energy_found *out) {
    *out = (tam_energy_found){.source = source};
    source->find(config, out);
    if (!out->lacking)
        return TAMIS_OK;
    tam_energy_close(out);
    return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source %s", source->name);
}

void tam_energy_close(tam_energy_found *found) {
    if (found->source->close && found->self)
        found->source->close(found->self);
    for (uint32_t i = 0; i < found->n; i++)
        tam_free(found->places[i].own);
    tam_free(found->places);
    tam_free(found->self);
    *found = (tam_energy_found){.source = found->source};
}

void tam_energy_read(const tam_energy_found *found, const tam_energy_place *place,
                     tam_energy_reading *out) {
    *out = (tam_energy_reading){0};
    uint64_t begin_ns = tam_clock_ns();
    found->source->read(place->own, out);
    uint64_t took_ns = tam_clock_ns() - begin_ns;
    out->at_ns = begin_ns + took_ns / 2;
    out->err_ns = (took_ns + 1) / 2;
}

static bool make_room(tam_energy_found *found) {
    if (found->n < found->room)
        return true;
    uint32_t room = found->room ? 2 * found->room : 8;
    tam_energy_place *places = tam_alloc_array(room, sizeof places[0]);
    if (!places)
        return false;
    if (found->n)
        memcpy(places, found->places, found->n * sizeof places[0]);
    tam_free(found->places);
    found->places = places;
    found->room = room;
    return true;
}

tam_energy_place *tam_energy_add(tam_energy_found *found, const char *name, tamis_energy_kind kind,
                                 size_t own_bytes) {
    /* With much to spare: it only tells a counter that was reset from one that counts. */
    static const double most_w[TAMIS_ENERGY_KINDS] = {
        [TAMIS_ENERGY_NODE] = 50000.0,   [TAMIS_ENERGY_PSYS] = 10000.0,
        [TAMIS_ENERGY_MODULE] = 10000.0, [TAMIS_ENERGY_PACKAGE] = 2000.0,
        [TAMIS_ENERGY_DRAM] = 1000.0,    [TAMIS_ENERGY_CORE] = 2000.0,
        [TAMIS_ENERGY_UNCORE] = 2000.0,  [TAMIS_ENERGY_GPU] = 5000.0,
        [TAMIS_ENERGY_OTHER] = 1e6,
    };
    void *own = make_room(found) ? tam_alloc(own_bytes) : NULL;
    if (!own) {
        found->lacking = true;
        return NULL;
    }
    tam_energy_place *place = &found->places[found->n++];
    *place = (tam_energy_place){
        .kind = kind, .most_w = most_w[kind], .period_s = found->source->period_s, .own = own};
    snprintf(place->id, sizeof place->id, "%s%s%s", found->source->name, name[0] ? ":" : "", name);
    return place;
}

tam_energy_place *tam_energy_find_place(const tam_energy_found *found, const char *name) {
    size_t before = strlen(found->source->name) + 1;
    for (uint32_t i = 0; i < found->n; i++) {
        if (found->places[i].id[before - 1] && strcmp(found->places[i].id + before, name) == 0)
            return &found->places[i];
    }
    return NULL;
}

/* -- words ------------------------------------------------------------------------------------ */

const char *tam_energy_item(const char *list, char *item, size_t bytes) {
    size_t length = strcspn(list, ",");
    snprintf(item, bytes, "%.*s", (int)length, list);
    return list[length] ? list + length + 1 : NULL;
}

void tam_energy_say(char reason[TAMIS_ENERGY_TEXT], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(reason, TAMIS_ENERGY_TEXT, format, args);
    va_end(args);
}

void tam_energy_break(tam_energy_place *place, tamis_energy_status status, const char *format,
                      ...) {
    if (!place)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(place->reason, sizeof place->reason, format, args);
    va_end(args);
    place->status = status;
}

tamis_energy_kind tam_energy_kind_of(const char *name) {
    for (int kind = 0; kind < TAMIS_ENERGY_OTHER; kind++) {
        const char *own = tamis_energy_kind_name((tamis_energy_kind)kind);
        size_t length = strlen(own);
        if (strncmp(name, own, length) == 0 && !isalpha((unsigned char)name[length]))
            return (tamis_energy_kind)kind;
    }
    return TAMIS_ENERGY_OTHER;
}
