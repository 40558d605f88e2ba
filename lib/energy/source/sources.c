/* SPDX-License-Identifier: MIT
 *
 * The table of sources, and what they share.
 */
#include "lib/energy/source/source.h"

#include <ctype.h>
#include <stdio.h>

static const tam_energy_source *const table[] = {
    &tam_source_nvml,
    &tam_source_rapl,
    &tam_source_file,
    &tam_source_callback,
};

enum { ROWS = sizeof table / sizeof table[0] };

const tam_energy_source *tam_energy_source_at(uint32_t index) {
    return index < ROWS ? table[index] : NULL;
}

const tam_energy_source *tam_energy_source_find(const char *name) {
    for (size_t i = 0; name && i < ROWS; i++) {
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    }
    return NULL;
}

static uint64_t real_now(void *context) {
    (void)context;
    return tam_clock_ns();
}

tam_energy_clock tam_energy_clock_of(const tam_energy_setup *setup) {
    if (!setup->clock_ns)
        return (tam_energy_clock){real_now, NULL};
    return (tam_energy_clock){setup->clock_ns, setup->clock_context};
}

void tam_energy_say(char reason[TAMIS_ENERGY_TEXT], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(reason, TAMIS_ENERGY_TEXT, format, args);
    va_end(args);
}

/* By names that people give, and the most that one of a kind can draw: with much to spare, for it
 * only tells a counter that was reset from one that counts. */
typedef struct kind_row {
    const char *name;
    double most_w;
} kind_row;

static const kind_row kinds[TAMIS_ENERGY_KINDS] = {
    [TAMIS_ENERGY_NODE] = {"node", 50000.0},
    [TAMIS_ENERGY_PSYS] = {"psys", 10000.0},
    [TAMIS_ENERGY_MODULE] = {"module", 10000.0},
    [TAMIS_ENERGY_PACKAGE] = {"package", 2000.0},
    [TAMIS_ENERGY_DRAM] = {"dram", 1000.0},
    [TAMIS_ENERGY_CORE] = {"core", 2000.0},
    [TAMIS_ENERGY_UNCORE] = {"uncore", 2000.0},
    [TAMIS_ENERGY_GPU] = {"gpu", 5000.0},
    [TAMIS_ENERGY_OTHER] = {"", 1e6},
};

tamis_energy_kind tam_energy_kind_of(const char *name) {
    for (int kind = 0; kind < TAMIS_ENERGY_OTHER; kind++) {
        size_t length = strlen(kinds[kind].name);
        if (strncmp(name, kinds[kind].name, length) == 0 && !isalpha((unsigned char)name[length]))
            return (tamis_energy_kind)kind;
    }
    return TAMIS_ENERGY_OTHER;
}

void tam_energy_place_init(tam_energy_place *place, const char *source, const char *name,
                           tamis_energy_kind kind, double period_s) {
    *place = (tam_energy_place){
        .kind = kind,
        .status = TAMIS_ENERGY_OK,
        .most_w = kinds[kind].most_w,
        .period_s = period_s,
    };
    snprintf(place->id, sizeof place->id, "%s%s%s", source, name[0] ? ":" : "", name);
}

void tam_energy_reading_time(tam_energy_reading *reading, uint64_t begin_ns, uint64_t end_ns) {
    reading->at_ns = begin_ns + (end_ns - begin_ns) / 2;
    reading->err_ns = (end_ns - begin_ns + 1) / 2;
}
