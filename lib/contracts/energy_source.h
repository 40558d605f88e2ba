/* SPDX-License-Identifier: MIT
 *
 * The source contract: who can read counters. A source finds its domains once and then reads them
 * one at a time, all on a thread of its own (sampler.h): a call may hang in a driver.
 *
 * What is absent, denied or unsupported is a domain with that status, never an error or silence:
 *
 *     source of the machine   reads without options, and so in every meter with "auto". If it finds
 *                             nothing it adds one domain without a name, "nvml" or "rapl", which is
 *                             ABSENT or DENIED and says why (add_nothing in rapl.c)
 *     source of the caller    needs options of tamis_energy_config; without them it adds nothing
 *
 * To add a source, write lib/energy/source/<name>.c that defines tam_source_<name>, and add its row
 * to TAMIS_ENERGY_SOURCES: it is then known by its name and part of "auto". rapl.c is the model;
 * path.h reads small files, and says why where it cannot. Sensors with `power` answer microwatts.
 */
#ifndef TAM_CONTRACTS_ENERGY_SOURCE_H
#define TAM_CONTRACTS_ENERGY_SOURCE_H

#include "lib/base/base.h"

#include <tamis/energy.h>

/**
 * What a sensor is, a counter or a power reading, as found. A sum counts the widest domains that
 * can be read, so it matters what contains what (cover.c):
 *
 *     node      every domain of the host; of two nodes the first that can be read counts
 *     psys      package, dram, core and uncore that are not `inside` another; the psys of another
 *               source is the same platform
 *     module    package, dram, core and uncore that are not `inside` another; no gpu
 *     any       what names it as `inside`, and what that contains
 *
 * So OTHER is added to everything but a node. A counter that may be part of another, and nobody
 * knows which, is UNSUPPORTED, as a zone of unknown name in rapl.c.
 */
typedef struct tam_energy_sensor {
    char id[64];     /* as tamis_energy_domain.id */
    char inside[64]; /* id of the narrowest domain that contains it; "": only its kind tells */
    tamis_energy_kind kind;
    tamis_energy_status status;     /* not OK: it is never read */
    char reason[TAMIS_ENERGY_TEXT]; /* not OK: why. OK: why it may stand still, or "" */
    bool power;                     /* it answers microwatts, to be integrated; else microjoules */
    uint64_t range_uj;              /* the counter begins again after this; 0: it does not */
    double most_w;                  /* a gain that implies more is a reset */
    double period_s;                /* as of its source */
    void *own;                      /* memory of its source */
} tam_energy_sensor;

/** An answer. */
typedef struct tam_energy_reading {
    tamis_energy_status status;
    char reason[TAMIS_ENERGY_TEXT]; /* "" when ok */
    uint64_t value;                 /* uJ or uW */
    uint64_t at_ns;                 /* middle of the call */
    uint64_t err_ns;                /* half its length */
    const char *inside;             /* what has turned out to contain it; NULL: as before. Memory of
                                       its source */
} tam_energy_reading;

typedef struct tam_energy_source tam_energy_source;

/** What a source has found. */
typedef struct tam_energy_found {
    const tam_energy_source *source;
    tam_energy_sensor *sensors; /* [n] */
    uint32_t n, capacity;
    void *self;   /* memory of the source */
    bool lacking; /* it had no memory */
} tam_energy_found;

struct tam_energy_source {
    const char *name;
    double period_s; /* between two reads of a sensor: of power, and of a counter whose tick is not
                        yet known, or shorter. The dearer a read, the longer */
    /** Adds what is there. A thread that hangs here, or in read, is given up. */
    void (*find)(const tamis_energy_config *config, tam_energy_found *found);
    /** Sets value, or status and reason, which are OK and "" before. */
    void (*read)(void *own, tam_energy_reading *out);
    void (*close)(void *self); /* NULL: there is nothing to do but free it */
};

#define TAM_DECLARE_SOURCE(name) extern const tam_energy_source tam_source_##name;
TAMIS_ENERGY_SOURCES(TAM_DECLARE_SOURCE)
#undef TAM_DECLARE_SOURCE

/**
 * Sources by a list of names, as tamis_energy_config.sources.
 *
 * Errors: ARGUMENT: no such name, or one twice; UNSUPPORTED: more than `most`
 */
tamis_status tam_energy_sources_choose(const char *names, uint32_t most,
                                       const tam_energy_source **out, uint32_t *out_n);

/** Let a source find its domains. Texts of the configuration may be NULL or "". Errors: NOMEM */
tamis_status tam_energy_find(const tam_energy_source *source, const tamis_energy_config *config,
                             tam_energy_found *out);
void tam_energy_read(const tam_energy_found *found, const tam_energy_sensor *sensor,
                     tam_energy_reading *out);
void tam_energy_close(tam_energy_found *found);

/* -- what sources share ----------------------------------------------------------------------- */

/** A domain "<source>:<name>" that can be read, with memory of its own. Places move when one is
 * added. @return NULL: no memory, which is recorded */
tam_energy_sensor *tam_energy_add(tam_energy_found *found, const char *name, tamis_energy_kind kind,
                                  size_t own_bytes);

/** It cannot be read: why, in one sentence. @param sensor  NULL: nothing is done */
void tam_energy_break(tam_energy_sensor *sensor, tamis_energy_status status, const char *format,
                      ...) __attribute__((format(printf, 3, 4)));

/** NULL: there is none of this name. */
tam_energy_sensor *tam_energy_find_sensor(const tam_energy_found *found, const char *name);

/** One sentence, cut to TAMIS_ENERGY_TEXT: what may be long (a path) stands last. */
void tam_energy_say(char reason[TAMIS_ENERGY_TEXT], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** The next of what ',' joins. @return what follows it; NULL: it was the last one */
const char *tam_energy_item(const char *list, char *item, size_t bytes);

/** Kind of which a name says that it is one: "node", "gpu0", "package-1"; OTHER for the rest. */
tamis_energy_kind tam_energy_kind_of(const char *name);

/** Package, DRAM, core, uncore. */
static inline bool tam_energy_is_processor(tamis_energy_kind kind) {
    return kind >= TAMIS_ENERGY_PACKAGE && kind <= TAMIS_ENERGY_UNCORE;
}

#endif
