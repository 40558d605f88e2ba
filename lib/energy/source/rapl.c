/* SPDX-License-Identifier: MIT
 *
 * Processors' counters as the kernel's powercap shows them (Intel and AMD):
 *
 *     /sys/class/powercap/intel-rapl:1/        name "package-0"
 *     /sys/class/powercap/intel-rapl:1:0/      name "dram"      a child of intel-rapl:1
 *     .../energy_uj, max_energy_range_uj, enabled
 *
 * Numbers and order of folders mean nothing; `name` does. A package holds its core and uncore but
 * not its DRAM, psys holds packages and DRAM. The counter has 32 bits of some 61 uJ and begins
 * again after max_energy_range_uj; that is one unit less than it should be, so a wrap may lose
 * 61 uJ. `enabled` is about power limits: mostly the counter counts all the same, so it is read.
 */
#include "lib/energy/source/path.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* The counter moves every millisecond, and every read interrupts the package. */
#define PERIOD_S 0.05

#define POWERCAP "/sys/class/powercap"

typedef struct zone {
    tam_energy_place place;
    char folder[TAM_PATH_BYTES];
    char name[64]; /* of the folder */
    bool dropped;
} zone;

typedef struct rapl {
    tam_energy_clock clock;
    uint32_t count, room;
    zone *zones; /* by the names of their folders */
} rapl;

/* -- folders ---------------------------------------------------------------------------------- */

static bool make_room(rapl *self) {
    if (self->count < self->room)
        return true;
    uint32_t room = self->room ? 2 * self->room : 8;
    zone *zones = tam_alloc_array(room, sizeof *zones);
    if (!zones)
        return false;
    if (self->count)
        memcpy(zones, self->zones, self->count * sizeof *zones);
    tam_free(self->zones);
    self->zones = zones;
    self->room = room;
    return true;
}

/* Folders are listed in any order, and children both beside their parents and in them. */
static bool add_zone(rapl *self, const char *folder, const char *name) {
    uint32_t at = 0;
    while (at < self->count && strcmp(self->zones[at].name, name) < 0)
        at++;
    if (at < self->count && strcmp(self->zones[at].name, name) == 0)
        return true;
    if (!make_room(self))
        return false;
    zone *z = &self->zones[at];
    memmove(z + 1, z, (self->count - at) * sizeof *z);
    memset(z, 0, sizeof *z);
    snprintf(z->folder, sizeof z->folder, "%s", folder);
    snprintf(z->name, sizeof z->name, "%s", name);
    self->count++;
    return true;
}

/* "intel-rapl:0" in the class's folder (parent ""), "intel-rapl:0:1" in either. */
static bool is_zone(const char *name, const char *parent) {
    size_t length = strlen(parent);
    if (length > 0 && (strncmp(name, parent, length) != 0 || name[length] != ':'))
        return false;
    return strchr(name, ':') != NULL && strlen(name) < sizeof((zone *)NULL)->name;
}

/* @return 0, or errno; ENOMEM */
static int scan(rapl *self, const char *folder, const char *parent) {
    int error = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return errno;
    for (struct dirent *entry = readdir(dir); entry && error != ENOMEM; entry = readdir(dir)) {
        char path[TAM_PATH_BYTES];
        if (!is_zone(entry->d_name, parent) || !tam_path_join(folder, entry->d_name, path))
            continue;
        error = add_zone(self, path, entry->d_name) ? scan(self, path, entry->d_name) : ENOMEM;
    }
    closedir(dir);
    return error == ENOMEM ? ENOMEM : 0;
}

/* -- what a zone is --------------------------------------------------------------------------- */

/* "package-0", "package-0-die-1", "psys", "psys-1", "core", "uncore", "dram" */
static bool known(const char *name) {
    unsigned package, die;
    int end = 0;
    if (sscanf(name, "package-%u%n", &package, &end) == 1 && name[end] == '\0')
        return true;
    if (sscanf(name, "package-%u-die-%u%n", &package, &die, &end) == 2 && name[end] == '\0')
        return true;
    if (sscanf(name, "psys-%u%n", &package, &end) == 1 && name[end] == '\0')
        return true;
    return strcmp(name, "psys") == 0 || strcmp(name, "core") == 0 || strcmp(name, "uncore") == 0 ||
           strcmp(name, "dram") == 0;
}

/* NULL: it is at the top. */
static const zone *parent_of(const rapl *self, const zone *z) {
    size_t length = (size_t)(strrchr(z->name, ':') - z->name);
    for (uint32_t i = 0; i < self->count; i++) {
        const char *name = self->zones[i].name;
        if (strlen(name) == length && strncmp(name, z->name, length) == 0)
            return &self->zones[i];
    }
    return NULL;
}

static void read_range(zone *z) {
    char path[TAM_PATH_BYTES], why[TAMIS_ENERGY_TEXT];
    tam_path_join(z->folder, "max_energy_range_uj", path);
    if (tam_path_number(path, &z->place.range_uj, why) == TAMIS_ENERGY_OK && z->place.range_uj > 0)
        return;
    z->place.range_uj = 0;
    tam_energy_say(z->place.reason, "its range is not known, so a wrap counts as a reset: %s", why);
    tam_log(TAM_WARN, "energy: %s: %s", z->place.id, z->place.reason);
}

static void read_enabled(zone *z) {
    char path[TAM_PATH_BYTES], why[TAMIS_ENERGY_TEXT];
    uint64_t enabled;
    tam_path_join(z->folder, "enabled", path);
    if (tam_path_number(path, &enabled, why) == TAMIS_ENERGY_OK && enabled == 0)
        tam_energy_say(z->place.reason, "the zone is disabled, echo 1 > %s", path);
}

static void probe(zone *z) {
    char path[TAM_PATH_BYTES];
    uint64_t uj;
    tam_path_join(z->folder, "energy_uj", path);
    tamis_energy_status status = tam_path_number(path, &uj, z->place.reason);
    if (status == TAMIS_ENERGY_ABSENT || status == TAMIS_ENERGY_DENIED) {
        z->place.status = status;
        return;
    }
    z->place.reason[0] = '\0'; /* what fails now may answer later: reading tells */
    read_enabled(z);
    read_range(z);
}

/* A zone that is found twice, through registers and through memory, is one counter. */
static bool named_before(const rapl *self, const zone *z) {
    bool registers = strncmp(z->name, "intel-rapl:", 11) == 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const zone *other = &self->zones[i];
        bool others = strncmp(other->name, "intel-rapl:", 11) == 0;
        bool first = others == registers ? other < z : others;
        if (first && strcmp(other->place.id, z->place.id) == 0)
            return true;
    }
    return false;
}

/* Powercap has zones without a counter too. */
static bool counts_nothing(const zone *z) {
    char path[TAM_PATH_BYTES];
    return z->place.status != TAMIS_ENERGY_OK &&
           !(tam_path_join(z->folder, "energy_uj", path) && access(path, F_OK) == 0);
}

static void name_zone(const rapl *self, zone *z) {
    char path[TAM_PATH_BYTES], text[TAM_PATH_TEXT], why[TAMIS_ENERGY_TEXT], name[56];
    const zone *parent = parent_of(self, z); /* its folder's name is shorter: named before */
    tam_path_join(z->folder, "name", path);
    tamis_energy_status status = tam_path_read(path, text, why);
    if (status != TAMIS_ENERGY_OK) {
        tam_energy_place_init(&z->place, "rapl", z->name, TAMIS_ENERGY_OTHER, PERIOD_S);
        z->place.status = status;
        memcpy(z->place.reason, why, sizeof why);
        return;
    }
    snprintf(name, sizeof name, "%.30s%s%.24s", parent ? parent->place.id + strlen("rapl:") : "",
             parent ? "/" : "", text);
    tam_energy_place_init(&z->place, "rapl", name, tam_energy_kind_of(text), PERIOD_S);
    if (!known(text)) {
        z->place.status = TAMIS_ENERGY_UNSUPPORTED;
        tam_energy_say(z->place.reason, "zone \"%.24s\": what it is part of is not known: %s", text,
                       path);
    }
}

/* Top down, so that names of children can begin with those of their parents. */
static void name_zones(rapl *self) {
    for (uint32_t i = 0; i < self->count; i++)
        name_zone(self, &self->zones[i]);
    for (uint32_t i = 0; i < self->count; i++)
        self->zones[i].dropped =
            named_before(self, &self->zones[i]) || counts_nothing(&self->zones[i]);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        if (!self->zones[i].dropped)
            self->zones[kept++] = self->zones[i];
    }
    self->count = kept;
}

/* -- what contains what ----------------------------------------------------------------------- */

static const zone *find(const rapl *self, const char *name) {
    for (uint32_t i = 0; i < self->count; i++) {
        if (strcmp(self->zones[i].place.id + strlen("rapl:"), name) == 0)
            return &self->zones[i];
    }
    return NULL;
}

/* The platform of package N: psys-N, or the one psys. */
static const zone *platform_of(const rapl *self, const char *name) {
    unsigned package;
    char wanted[32];
    if (sscanf(name, "package-%u", &package) == 1) {
        snprintf(wanted, sizeof wanted, "psys-%u", package);
        const zone *own = find(self, wanted);
        if (own)
            return own;
    }
    return find(self, "psys");
}

static void place_inside(const rapl *self, zone *z) {
    const char *name = z->place.id + strlen("rapl:");
    tamis_energy_kind kind = z->place.kind;
    const zone *outer = NULL;
    if (kind == TAMIS_ENERGY_CORE || kind == TAMIS_ENERGY_UNCORE || kind == TAMIS_ENERGY_OTHER)
        outer = parent_of(self, z);
    else if (kind == TAMIS_ENERGY_PACKAGE || kind == TAMIS_ENERGY_DRAM)
        outer = platform_of(self, name);
    if (outer && outer != z)
        memcpy(z->place.inside, outer->place.id, sizeof z->place.inside);
}

/* -- the source ------------------------------------------------------------------------------- */

static void close_rapl(void *opaque) {
    rapl *self = opaque;
    tam_free(self->zones);
    tam_free(self);
}

/* Nothing was found: one domain that says so. */
static bool add_nothing(rapl *self, int error, const char *folder) {
    if (!add_zone(self, folder, "rapl"))
        return false;
    tam_energy_place *place = &self->zones[0].place;
    tam_energy_place_init(place, "rapl", "", TAMIS_ENERGY_PACKAGE, PERIOD_S);
    place->status = TAMIS_ENERGY_ABSENT;
    if (error && error != ENOENT)
        place->status = tam_path_failed(error, folder, place->reason);
    else
        tam_energy_say(place->reason,
                       "no zones: a virtual machine, a container, or the module intel_rapl_msr is "
                       "not loaded: %s",
                       folder);
    return true;
}

static tamis_status open_rapl(const tam_energy_setup *setup, void **out) {
    char folder[TAM_PATH_BYTES];
    int error = ENAMETOOLONG;
    rapl *self = tam_alloc(sizeof *self);
    if (!self)
        goto err_memory;
    self->clock = tam_energy_clock_of(setup);
    if (tam_path_under(setup, POWERCAP, folder))
        error = scan(self, folder, "");
    if (error == ENOMEM)
        goto err_close;
    name_zones(self);
    for (uint32_t i = 0; i < self->count; i++) {
        place_inside(self, &self->zones[i]);
        if (self->zones[i].place.status == TAMIS_ENERGY_OK)
            probe(&self->zones[i]);
    }
    if (self->count == 0 && !add_nothing(self, error, folder))
        goto err_close;
    *out = self;
    return TAMIS_OK;

err_close:
    close_rapl(self);
err_memory:
    return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source rapl");
}

static uint32_t count_rapl(const void *self) {
    return ((const rapl *)self)->count;
}

static void place_rapl(const void *self, uint32_t index, tam_energy_place *out) {
    *out = ((const rapl *)self)->zones[index].place;
}

static void read_rapl(void *opaque, uint32_t index, tam_energy_reading *out) {
    rapl *self = opaque;
    char path[TAM_PATH_BYTES];
    *out = (tam_energy_reading){0};
    tam_path_join(self->zones[index].folder, "energy_uj", path);
    uint64_t begin_ns = tam_energy_now(&self->clock);
    out->status = tam_path_number(path, &out->value, out->reason);
    tam_energy_reading_time(out, begin_ns, tam_energy_now(&self->clock));
}

const tam_energy_source tam_source_rapl = {
    .name = "rapl",
    .open = open_rapl,
    .count = count_rapl,
    .place = place_rapl,
    .read = read_rapl,
    .close = close_rapl,
};
