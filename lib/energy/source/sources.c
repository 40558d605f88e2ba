/* SPDX-License-Identifier: MIT
 *
 * What sources share.
 */
#include "lib/contracts/energy_source.h"

#include <ctype.h>
#include <stdio.h>

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
        tam_free(found->sensors[i].own);
    tam_free(found->sensors);
    tam_free(found->self);
    *found = (tam_energy_found){.source = found->source};
}

void tam_energy_read(const tam_energy_found *found, const tam_energy_sensor *sensor,
                     tam_energy_reading *out) {
    *out = (tam_energy_reading){0};
    uint64_t begin_ns = tam_clock_ns();
    found->source->read(sensor->own, out);
    uint64_t took_ns = tam_clock_ns() - begin_ns;
    out->at_ns = begin_ns + took_ns / 2;
    out->err_ns = (took_ns + 1) / 2;
}

static bool sources_reserve(tam_energy_found *found) {
    if (found->n < found->capacity)
        return true;
    uint32_t capacity = found->capacity ? 2 * found->capacity : 8;
    tam_energy_sensor *sensors = tam_alloc_array(capacity, sizeof sensors[0]);
    if (!sensors)
        return false;
    if (found->n)
        memcpy(sensors, found->sensors, found->n * sizeof sensors[0]);
    tam_free(found->sensors);
    found->sensors = sensors;
    found->capacity = capacity;
    return true;
}

tam_energy_sensor *tam_energy_add(tam_energy_found *found, const char *name, tamis_energy_kind kind,
                                  size_t own_bytes) {
    /* With much to spare: it only tells a counter that was reset from one that counts. */
    static const double most_w[TAMIS_ENERGY_KINDS] = {
        [TAMIS_ENERGY_NODE] = 50000.0,   [TAMIS_ENERGY_PSYS] = 10000.0,
        [TAMIS_ENERGY_MODULE] = 10000.0, [TAMIS_ENERGY_PACKAGE] = 2000.0,
        [TAMIS_ENERGY_DRAM] = 1000.0,    [TAMIS_ENERGY_CORE] = 2000.0,
        [TAMIS_ENERGY_UNCORE] = 2000.0,  [TAMIS_ENERGY_GPU] = 5000.0,
        [TAMIS_ENERGY_OTHER] = 1e6,
    };
    void *own = sources_reserve(found) ? tam_alloc(own_bytes) : NULL;
    if (!own) {
        found->lacking = true;
        return NULL;
    }
    tam_energy_sensor *sensor = &found->sensors[found->n++];
    *sensor = (tam_energy_sensor){
        .kind = kind, .most_w = most_w[kind], .period_s = found->source->period_s, .own = own};
    snprintf(sensor->id, sizeof sensor->id, "%s%s%s", found->source->name, name[0] ? ":" : "",
             name);
    return sensor;
}

tam_energy_sensor *tam_energy_find_sensor(const tam_energy_found *found, const char *name) {
    size_t before = strlen(found->source->name) + 1;
    for (uint32_t i = 0; i < found->n; i++) {
        if (found->sensors[i].id[before - 1] && strcmp(found->sensors[i].id + before, name) == 0)
            return &found->sensors[i];
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

void tam_energy_break(tam_energy_sensor *sensor, tamis_energy_status status, const char *format,
                      ...) {
    if (!sensor)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(sensor->reason, sizeof sensor->reason, format, args);
    va_end(args);
    sensor->status = status;
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
