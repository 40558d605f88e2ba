/* SPDX-License-Identifier: MIT
 *
 * Any file of a number: "name=path:unit", joined by ','. hwmon (energy1_input:uJ, power1_average:uW),
 * Cray's pm_counters (energy:J, whose neighbour `freshness` moves while the counter is alive), or
 * what a service processor's side-car writes. A unit behind the number must be the one given.
 */
#include "lib/energy/source/path.h"

#include <stdio.h>

#define PERIOD_S 0.05
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
    tam_energy_place place;
    char path[TAM_PATH_BYTES], freshness[TAM_PATH_BYTES]; /* "": there is no such file */
    const unit *unit;
    uint64_t fresh, fresh_ns; /* last seen, and when it moved */
} item;

typedef struct files {
    tam_energy_clock clock;
    uint32_t count;
    item *items;
} files;

/* -- the list --------------------------------------------------------------------------------- */

static const unit *find_unit(const char *name) {
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(units[i].name, name) == 0)
            return &units[i];
    }
    return NULL;
}

static void refuse(item *it, tamis_energy_status status, const char *what, const char *text) {
    it->place.status = status;
    tam_energy_say(it->place.reason, "%s: %s", what, text);
}

/* Cray's folder has the files energy, power, ... and freshness, which counts updates. */
static void look_for_freshness(item *it) {
    char why[TAMIS_ENERGY_TEXT];
    const char *slash = strrchr(it->path, '/');
    int length = slash ? (int)(slash - it->path) : 1;
    snprintf(it->freshness, sizeof it->freshness, "%.*s/freshness", length, slash ? it->path : ".");
    if (tam_path_number(it->freshness, &it->fresh, why) != TAMIS_ENERGY_OK)
        it->freshness[0] = '\0';
}

/* What is absent or denied is never read; what else fails may answer later, so reading tells. */
static void probe(item *it) {
    char text[TAM_PATH_TEXT];
    tamis_energy_status status = tam_path_read(it->path, text, it->place.reason);
    if (status == TAMIS_ENERGY_ABSENT || status == TAMIS_ENERGY_DENIED)
        it->place.status = status;
    else
        it->place.reason[0] = '\0';
    look_for_freshness(it);
}

/* `text` is cut to pieces. */
static void parse_item(const tam_energy_setup *setup, uint32_t index, char *text, item *it) {
    char *path = strchr(text, '='), *colon = strrchr(text, ':'), number[24];
    snprintf(number, sizeof number, "%u", index);
    tam_energy_place_init(&it->place, "file", number, TAMIS_ENERGY_OTHER, PERIOD_S);
    if (!path || path == text || path - text > 48 || !colon || colon <= path + 1) {
        refuse(it, TAMIS_ENERGY_FAILED, "an item is not name=path:unit (name: 48 letters at most)",
               text);
        return;
    }
    *path++ = '\0';
    *colon++ = '\0';
    tam_energy_place_init(&it->place, "file", text, tam_energy_kind_of(text), PERIOD_S);
    it->unit = find_unit(colon);
    if (!it->unit) {
        refuse(it, TAMIS_ENERGY_UNSUPPORTED, "the unit is none of uJ, mJ, J, uW, mW, W", colon);
        return;
    }
    it->place.power = it->unit->power;
    if (tam_path_under(setup, path, it->path))
        probe(it);
    else
        refuse(it, TAMIS_ENERGY_FAILED, "its path is too long", path);
}

static uint32_t count_items(const char *list) {
    uint32_t count = list && list[0] ? 1 : 0;
    for (; count && *list; list++)
        count += *list == ',';
    return count;
}

/* A name that came before would be a domain counted twice. */
static void refuse_twins(files *self) {
    for (uint32_t i = 1; i < self->count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            item *it = &self->items[i];
            if (strcmp(it->place.id, self->items[j].place.id) != 0)
                continue;
            char name[64];
            snprintf(name, sizeof name, "%s", it->place.id + strlen("file:"));
            snprintf(it->place.id, sizeof it->place.id, "file:%u", i);
            refuse(it, TAMIS_ENERGY_FAILED, "two items have the same name", name);
        }
    }
}

static tamis_status open_file(const tam_energy_setup *setup, void **out) {
    uint32_t count = count_items(setup->files);
    files *self = tam_alloc(sizeof *self);
    char *list = tam_strdup(count ? setup->files : "");
    item *items = tam_alloc_array(count, sizeof *items);
    if (!self || !list || !items) {
        tam_free(items);
        tam_free(list);
        tam_free(self);
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source file");
    }
    self->clock = tam_energy_clock_of(setup);
    self->items = items;
    for (char *at = list; self->count < count;) {
        char *text = at;
        at += strcspn(at, ",");
        *at++ = '\0';
        parse_item(setup, self->count, text, &items[self->count]);
        self->count++;
    }
    refuse_twins(self);
    tam_free(list);
    *out = self;
    return TAMIS_OK;
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

static void read_file(void *opaque, uint32_t index, tam_energy_reading *out) {
    files *self = opaque;
    item *it = &self->items[index];
    char text[TAM_PATH_TEXT];
    *out = (tam_energy_reading){0};
    uint64_t begin_ns = tam_energy_now(&self->clock);
    out->status = tam_path_read(it->path, text, out->reason);
    uint64_t end_ns = tam_energy_now(&self->clock);
    tam_energy_reading_time(out, begin_ns, end_ns);
    if (out->status == TAMIS_ENERGY_OK)
        parse_value(it, text, out);
    if (out->status == TAMIS_ENERGY_OK)
        check_freshness(it, end_ns, out);
}

static uint32_t count_file(const void *self) {
    return ((const files *)self)->count;
}

static void place_file(const void *self, uint32_t index, tam_energy_place *out) {
    *out = ((const files *)self)->items[index].place;
}

static void close_file(void *opaque) {
    files *self = opaque;
    tam_free(self->items);
    tam_free(self);
}

const tam_energy_source tam_source_file = {
    .name = "file",
    .open = open_file,
    .count = count_file,
    .place = place_file,
    .read = read_file,
    .close = close_file,
};
