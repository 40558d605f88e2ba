/* SPDX-License-Identifier: MIT
 *
 * Any file of a number: "name=path:unit", joined by ','. hwmon (energy1_input:uJ,
 * power1_average:uW), Cray's pm_counters (energy:J, whose neighbour `freshness` moves while the
 * counter is alive), or what a service processor's side-car writes. A unit behind the number must
 * be the one given.
 */
#include "lib/energy/source/path.h"

#include <stdio.h>

#define FRESH_NS UINT64_C(2000000000)

typedef struct unit {
    const char *name;
    uint64_t micro; /* millionths in one */
    bool power;
} unit;

static const unit units[] = {
    {"uJ", 1, false}, {"mJ", 1000, false}, {"J", 1000000, false},
    {"uW", 1, true},  {"mW", 1000, true},  {"W", 1000000, true},
};

typedef struct item {
    char path[TAM_PATH_BYTES], freshness[TAM_PATH_BYTES]; /* "": there is no such file */
    const unit *unit;
    uint64_t fresh, fresh_ns; /* last seen, and when it moved */
} item;

/* -- the list --------------------------------------------------------------------------------- */

static const unit *find_unit(const char *name) {
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(units[i].name, name) == 0)
            return &units[i];
    }
    return NULL;
}

/* Cray's folder has the files energy, power, ... and freshness, which counts updates. */
static void look_for_freshness(item *it) {
    char why[TAMIS_ENERGY_TEXT];
    const char *slash = strrchr(it->path, '/');
    int length = slash ? (int)(slash - it->path) : 1;
    tam_path_print(it->freshness, "%.*s/freshness", length, slash ? it->path : ".");
    if (tam_path_number(it->freshness, &it->fresh, why) != TAMIS_ENERGY_OK)
        it->freshness[0] = '\0';
}

/* What is absent or denied is never read; what else fails may answer later, so reading tells. */
static void file_try_sensor(tam_energy_sensor *sensor, item *it) {
    char text[TAM_PATH_TEXT], why[TAMIS_ENERGY_TEXT];
    tamis_energy_status status = tam_path_read(it->path, text, why);
    if (status == TAMIS_ENERGY_ABSENT || status == TAMIS_ENERGY_DENIED)
        tam_energy_break(sensor, status, "%s", why);
    look_for_freshness(it);
}

/* @param number  in the list: its name where it has none, or one that came before, which would be a
 * domain counted twice */
static void file_refuse(tam_energy_found *found, uint32_t number, const char *what,
                        const char *text) {
    char name[24];
    snprintf(name, sizeof name, "%u", number);
    tam_energy_break(tam_energy_add(found, name, TAMIS_ENERGY_OTHER, sizeof(item)),
                     TAMIS_ENERGY_FAILED, "%s: %s", what, text);
}

/* `text` is cut to pieces. */
static void add_item(const tamis_energy_config *config, tam_energy_found *found, uint32_t number,
                     char *text) {
    char *path = strchr(text, '='), *colon = strrchr(text, ':');
    if (!path || path == text || path - text > 48 || !colon || colon <= path + 1) {
        file_refuse(found, number, "an item is not name=path:unit (name: at most 48 letters)",
                    text);
        return;
    }
    *path++ = '\0';
    *colon++ = '\0';
    if (tam_energy_find_sensor(found, text)) {
        file_refuse(found, number, "two items have the same name", text);
        return;
    }
    tam_energy_sensor *sensor = tam_energy_add(found, text, tam_energy_kind_of(text), sizeof(item));
    if (!sensor)
        return;
    item *it = sensor->own;
    it->unit = find_unit(colon);
    sensor->power = it->unit && it->unit->power;
    if (!it->unit)
        tam_energy_break(sensor, TAMIS_ENERGY_UNSUPPORTED,
                         "the unit is not one of uJ, mJ, J, uW, mW, W: %s", colon);
    else if (!tam_path_under(config, path, it->path))
        tam_energy_break(sensor, TAMIS_ENERGY_FAILED, "its path is too long: %s", path);
    else
        file_try_sensor(sensor, it);
}

static void find_files(const tamis_energy_config *config, tam_energy_found *found) {
    if (!config->files || !config->files[0])
        return;
    char *list = found->self = tam_strdup(config->files);
    found->lacking = !list;
    for (uint32_t number = 0; list; number++) {
        char *text = list;
        list = strchr(text, ',');
        if (list)
            *list++ = '\0';
        add_item(config, found, number, text);
    }
}

/* -- reading ---------------------------------------------------------------------------------- */

static void parse_value(const item *it, const char *text, tam_energy_reading *out) {
    const char *rest = tam_path_decimal(text, it->unit->micro, &out->value);
    if (rest) {
        rest += strspn(rest, " \t");
        size_t length = strcspn(rest, " \t\n");
        if (length == 0 ||
            (strlen(it->unit->name) == length && strncmp(rest, it->unit->name, length) == 0))
            return;
    }
    out->status = TAMIS_ENERGY_GARBLED;
    tam_energy_say(out->reason, "\"%.24s\" is no number of %s: %s", text, it->unit->name, it->path);
}

/* A counter may stand still because nothing is drawn, but not if nobody brings it up to date. */
static void check_freshness(item *it, uint64_t now_ns, tam_energy_reading *out) {
    uint64_t fresh;
    char why[TAMIS_ENERGY_TEXT];
    if (!it->freshness[0] || tam_path_number(it->freshness, &fresh, why) != TAMIS_ENERGY_OK)
        return;
    if (fresh != it->fresh || it->fresh_ns == 0) {
        it->fresh = fresh;
        it->fresh_ns = now_ns;
    }
    if (now_ns - it->fresh_ns < FRESH_NS)
        return;
    out->status = TAMIS_ENERGY_STALE;
    tam_energy_say(out->reason, "nobody has brought it up to date for %.1f s: %s",
                   (double)(now_ns - it->fresh_ns) * 1e-9, it->freshness);
}

static void read_file(void *own, tam_energy_reading *out) {
    char text[TAM_PATH_TEXT];
    item *it = own;
    out->status = tam_path_read(it->path, text, out->reason);
    if (out->status == TAMIS_ENERGY_OK)
        parse_value(it, text, out);
    if (out->status == TAMIS_ENERGY_OK)
        check_freshness(it, tam_clock_ns(), out);
}

const tam_energy_source tam_source_file = {
    .name = "file",
    .period_s = 0.05,
    .find = find_files,
    .read = read_file,
};
