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
 *
 * A package of several dies may have one counter that the zones of all its dies show (AMD: the
 * register is the socket's). So a later die is read between two reads of the first one. A value
 * that lies between theirs may be theirs, and after some ticks it is.
 *
 *     die 0   7001            7001                         die 0   7001            7002
 *     die 1           7001          one counter            die 1          91433          another
 */
#include "lib/energy/source/path.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define POWERCAP "/sys/class/powercap"

enum { TWIN_TICKS = 3 };

#define FAR_UJ UINT64_C(100000000)

typedef struct zone zone;

struct zone {
    char counter[TAM_PATH_BYTES];
    const zone *twin; /* of the first die, which may show the same counter; NULL: it does not */
    char twin_id[64], inside[64]; /* of the twin; the own one, if it is another counter */
    bool compared;                /* these hold: */
    uint64_t first, last;         /* value; value that was the twin's too */
    uint32_t ticks, odd;          /* changes of it; values in a row that were not */
    uint64_t range_uj;
};

/* -- what a zone is --------------------------------------------------------------------------- */

static void read_range(tam_energy_sensor *sensor, const char *class, const char *folder) {
    char path[TAM_PATH_BYTES], why[TAMIS_ENERGY_TEXT];
    tam_path_print(path, "%s/%s/max_energy_range_uj", class, folder);
    if (tam_path_number(path, &sensor->range_uj, why) == TAMIS_ENERGY_OK && sensor->range_uj > 0)
        return;
    sensor->range_uj = 0;
    tam_energy_say(sensor->reason, "its range is not known, so a wrap-around counts as a reset: %s",
                   why);
    tam_log(TAM_WARN, "energy: %s: %s", sensor->id, sensor->reason);
}

static void read_enabled(tam_energy_sensor *sensor, const char *class, const char *folder) {
    char path[TAM_PATH_BYTES], why[TAMIS_ENERGY_TEXT];
    uint64_t enabled;
    tam_path_print(path, "%s/%s/enabled", class, folder);
    if (tam_path_number(path, &enabled, why) == TAMIS_ENERGY_OK && enabled == 0)
        tam_energy_say(sensor->reason, "the zone is disabled, echo 1 > %s", path);
}

/* What fails otherwise may answer later: reading tells. */
static void rapl_try_sensor(tam_energy_sensor *sensor, const char *class, const char *folder) {
    char why[TAMIS_ENERGY_TEXT];
    uint64_t uj;
    tamis_energy_status status = tam_path_number(((zone *)sensor->own)->counter, &uj, why);
    if (status == TAMIS_ENERGY_ABSENT || status == TAMIS_ENERGY_DENIED) {
        tam_energy_break(sensor, status, "%s", why);
        return;
    }
    read_enabled(sensor, class, folder);
    read_range(sensor, class, folder);
}

/* -- which zones there are -------------------------------------------------------------------- */

/* Through registers, not through memory. */
static bool is_register(const char *folder) {
    return strncmp(folder, "intel-rapl:", 11) == 0;
}

/* "intel-rapl:0", "intel-rapl:0:1" */
static int is_zone(const struct dirent *entry) {
    return strchr(entry->d_name, ':') != NULL;
}

/* Parents before their children. A zone that is found twice is one counter: registers first. */
static int rapl_compare(const struct dirent **a, const struct dirent **b) {
    int registers = is_register((*b)->d_name) - is_register((*a)->d_name);
    return registers ? registers : strcmp((*a)->d_name, (*b)->d_name);
}

/* @param length  of the folder's name, of which the zone's is a part */
static tamis_energy_status read_name(const char *class, const char *folder, size_t length,
                                     char text[TAM_PATH_TEXT], char why[TAMIS_ENERGY_TEXT]) {
    char path[TAM_PATH_BYTES];
    tam_path_print(path, "%s/%.*s/name", class, (int)length, folder);
    return tam_path_read(path, text, why);
}

static void add_zone(tam_energy_found *found, const char *class, const char *folder) {
    char name[TAM_PATH_TEXT], outer[TAM_PATH_TEXT], why[TAMIS_ENERGY_TEXT], full[56];
    size_t inner = (size_t)(strrchr(folder, ':') - folder);
    zone z = {.twin = NULL};
    bool nested = read_name(class, folder, inner, outer, why) == TAMIS_ENERGY_OK;
    tamis_energy_status named = read_name(class, folder, strlen(folder), name, why);
    tamis_energy_kind kind =
        named == TAMIS_ENERGY_OK ? tam_energy_kind_of(name) : TAMIS_ENERGY_OTHER;
    bool understood = kind == TAMIS_ENERGY_PSYS || tam_energy_is_processor(kind);
    tam_path_print(z.counter, "%s/%s/energy_uj", class, folder);
    if (!understood && access(z.counter, F_OK) != 0)
        return; /* powercap has zones without a counter too */
    snprintf(full, sizeof full, "%.30s%s%.24s", nested ? outer : "", nested ? "/" : "",
             named == TAMIS_ENERGY_OK ? name : folder);
    if (tam_energy_find_sensor(found, full))
        return;
    tam_energy_sensor *sensor =
        tam_energy_add(found, full, understood ? kind : TAMIS_ENERGY_OTHER, sizeof z);
    if (!sensor)
        return;
    *(zone *)sensor->own = z;
    if (named != TAMIS_ENERGY_OK)
        tam_energy_break(sensor, named, "%s", why);
    else if (!understood)
        tam_energy_break(sensor, TAMIS_ENERGY_UNSUPPORTED,
                         "zone \"%.24s\": its parent is unknown: %s", name, z.counter);
    else
        rapl_try_sensor(sensor, class, folder);
}

/* -- what contains what ----------------------------------------------------------------------- */

/* The platform of package N: psys-N, or the one psys. */
static const tam_energy_sensor *platform_of(const tam_energy_found *found, const char *name) {
    unsigned package;
    char wanted[32];
    if (sscanf(name, "package-%u", &package) == 1) {
        snprintf(wanted, sizeof wanted, "psys-%u", package);
        const tam_energy_sensor *own = tam_energy_find_sensor(found, wanted);
        if (own)
            return own;
    }
    return tam_energy_find_sensor(found, "psys");
}

static void set_parent(const tam_energy_found *found, tam_energy_sensor *sensor) {
    const char *name = sensor->id + strlen("rapl:"), *slash = strrchr(name, '/');
    tamis_energy_kind kind = sensor->kind;
    const tam_energy_sensor *outer = NULL;
    if (kind == TAMIS_ENERGY_PACKAGE || kind == TAMIS_ENERGY_DRAM)
        outer = platform_of(found, name);
    if (outer)
        memcpy(sensor->inside, outer->id, sizeof sensor->inside);
    else if (slash && (kind == TAMIS_ENERGY_CORE || kind == TAMIS_ENERGY_UNCORE ||
                       kind == TAMIS_ENERGY_OTHER))
        snprintf(sensor->inside, sizeof sensor->inside, "%.*s", (int)(slash - sensor->id),
                 sensor->id);
}

/* -- one counter in several zones ------------------------------------------------------------- */

/* "package-0-die-1/core". @return what follows the die; NULL: it names none */
static const char *parse_die(const tam_energy_sensor *sensor, unsigned *package, unsigned *die) {
    const char *name = sensor->id + strlen("rapl:");
    int used = 0;
    return sscanf(name, "package-%u-die-%u%n", package, die, &used) == 2 ? name + used : NULL;
}

static void set_twin(const tam_energy_found *found, tam_energy_sensor *sensor) {
    unsigned package, first, other, die;
    const char *part = parse_die(sensor, &package, &first), *own;
    zone *z = sensor->own;
    for (uint32_t i = 0; part && i < found->n; i++) {
        const tam_energy_sensor *s = &found->sensors[i];
        own = parse_die(s, &other, &die);
        if (!own || strcmp(own, part) != 0 || other != package || die >= first)
            continue;
        first = die;
        z->twin = s->own;
        memcpy(z->twin_id, s->id, sizeof z->twin_id);
        memcpy(z->inside, sensor->inside, sizeof z->inside);
        z->range_uj = sensor->range_uj;
    }
}

static uint64_t distance(uint64_t a, uint64_t b, uint64_t range) {
    uint64_t apart = a > b ? a - b : b - a;
    return apart < range && range - apart < apart ? range - apart : apart;
}

/* Far apart, or again and again: zones of one counter may be written one after another. */
static bool are_two(zone *z, uint64_t begin, uint64_t value, uint64_t end) {
    uint64_t reach = distance(begin, end, z->range_uj);
    uint64_t low = distance(begin, value, z->range_uj), high = distance(value, end, z->range_uj);
    if (low <= reach && high <= reach) {
        z->odd = 0;
        z->ticks += z->compared && value != z->last;
        z->last = value;
        return false;
    }
    return low > FAR_UJ || ++z->odd == TWIN_TICKS;
}

/* @return whether that is the answer; what cannot be read says so itself */
static bool read_twin(zone *z, tam_energy_reading *out) {
    char why[TAMIS_ENERGY_TEXT];
    uint64_t begin, value, end;
    if (tam_path_number(z->twin->counter, &begin, why) != TAMIS_ENERGY_OK)
        return false; /* the twin stands in for it */
    if (z->ticks < TWIN_TICKS) {
        if (tam_path_number(z->counter, &value, why) != TAMIS_ENERGY_OK ||
            tam_path_number(z->twin->counter, &end, why) != TAMIS_ENERGY_OK)
            return false;
        if (!z->compared)
            z->first = value;
        if (are_two(z, begin, value, end)) {
            z->twin = NULL;
            out->value = z->first; /* nothing that it counted meanwhile is lost */
            out->inside = z->inside;
            return true;
        }
        z->compared = true;
    }
    bool known = z->ticks >= TWIN_TICKS;
    out->inside = z->twin_id;
    out->status = known ? TAMIS_ENERGY_UNSUPPORTED : TAMIS_ENERGY_STALE;
    tam_energy_say(out->reason,
                   known ? "shows the counter of %s, which counts"
                         : "shows what %s shows, so far: they are compared",
                   z->twin_id);
    return true;
}

/* -- the source ------------------------------------------------------------------------------- */

/* Nothing was found: one domain that says so. */
static void rapl_add_nothing(tam_energy_found *found, int error, const char *class) {
    char why[TAMIS_ENERGY_TEXT];
    tam_energy_sensor *sensor = tam_energy_add(found, "", TAMIS_ENERGY_PACKAGE, sizeof(zone));
    if (error && error != ENOENT)
        tam_energy_break(sensor, tam_path_failed(error, class, why), "%s", why);
    else
        tam_energy_break(sensor, TAMIS_ENERGY_ABSENT,
                         "no zones: a virtual machine, a container, or the module intel_rapl_msr "
                         "is not loaded: %s",
                         class);
}

static void find_rapl(const tamis_energy_config *config, tam_energy_found *found) {
    char class[TAM_PATH_BYTES];
    struct dirent **folders = NULL;
    bool fits = tam_path_under(config, POWERCAP, class);
    int count = fits ? scandir(class, &folders, is_zone, rapl_compare) : -1;
    int error = count >= 0 ? 0 : fits ? errno : ENAMETOOLONG;
    for (int i = 0; i < count; i++) {
        add_zone(found, class, folders[i]->d_name);
        free(folders[i]);
    }
    free(folders);
    for (uint32_t i = 0; i < found->n; i++) {
        set_parent(found, &found->sensors[i]);
        set_twin(found, &found->sensors[i]);
    }
    if (found->n == 0)
        rapl_add_nothing(found, error, class);
}

static void read_rapl(void *own, tam_energy_reading *out) {
    zone *z = own;
    if (!z->twin || !read_twin(z, out))
        out->status = tam_path_number(z->counter, &out->value, out->reason);
}

const tam_energy_source tam_source_rapl = {
    .name = "rapl",
    .period_s = 0.05, /* the counter moves every millisecond; every read interrupts the package */
    .find = find_rapl,
    .read = read_rapl,
};
