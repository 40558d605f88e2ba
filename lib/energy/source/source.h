/* SPDX-License-Identifier: MIT
 *
 * The source contract: who can read counters. A source finds its domains once, when it is opened,
 * and reads them one at a time, on a thread of its own: a call may hang in a driver.
 *
 * What is absent, denied or unsupported is a domain with that status (a source of which nothing at
 * all was found has one domain, "nvml" or "rapl", that says so): never an error, never silence.
 */
#ifndef TAM_ENERGY_SOURCE_H
#define TAM_ENERGY_SOURCE_H

#include "lib/base/base.h"

#include <tamis/energy.h>

/** What a counter is, as found. */
typedef struct tam_energy_place {
    char id[64];     /* as tamis_energy_domain.id */
    char inside[64]; /* id of the domain that contains it; "": none */
    tamis_energy_kind kind;
    tamis_energy_status status;     /* not OK: it is never read */
    char reason[TAMIS_ENERGY_TEXT]; /* not OK: why. OK: why it may stand still, or "" */
    bool power;                     /* it answers microwatts, to be integrated; else microjoules */
    uint64_t range_uj;              /* the counter begins again after this; 0: it does not */
    double most_w;                  /* a gain that implies more is a reset */
    double period_s;                /* between two reads while its tick is not known */
} tam_energy_place;

/** An answer. */
typedef struct tam_energy_reading {
    tamis_energy_status status;
    char reason[TAMIS_ENERGY_TEXT]; /* "" when ok */
    uint64_t value;                 /* uJ or uW */
    uint64_t at_ns;                 /* middle of the call, or the counter's own time stamp */
    uint64_t err_ns;                /* half its length */
    bool stamped;                   /* at_ns is when the counter got this value */
} tam_energy_reading;

/** Where sources look. Texts are NULL or "" for the default. */
typedef struct tam_energy_setup {
    const char *sysfs_root; /* put before every path under /sys and /proc */
    const char *nvml_path;
    const char *gpus;  /* UUIDs or PCI bus ids joined by ','; all */
    const char *files; /* name=path:unit joined by ','; unit uJ, mJ, J, uW, mW, W */
    tamis_status (*callback)(void *context, uint64_t *out_uj);
    void *callback_context;
    const char *callback_name;
    uint64_t (*clock_ns)(void *context); /* NULL: tam_clock_ns; tests give their own */
    void *clock_context;
} tam_energy_setup;

typedef struct tam_energy_source {
    const char *name;
    /** NOMEM is the only failure. */
    tamis_status (*open)(const tam_energy_setup *setup, void **out);
    uint32_t (*count)(const void *self);
    void (*place)(const void *self, uint32_t index, tam_energy_place *out);
    void (*read)(void *self, uint32_t index, tam_energy_reading *out);
    void (*close)(void *self);
} tam_energy_source;

extern const tam_energy_source tam_source_nvml;     /* nvml.c */
extern const tam_energy_source tam_source_rapl;     /* rapl.c */
extern const tam_energy_source tam_source_file;     /* file.c */
extern const tam_energy_source tam_source_callback; /* callback.c */

/** The row of a name; NULL: there is none. */
const tam_energy_source *tam_energy_source_find(const char *name);

/** Rows in the order of the table; NULL behind the last. */
const tam_energy_source *tam_energy_source_at(uint32_t index);

/**
 * As source->open, but a driver that does not answer until then is given up: a source whose one
 * domain says so comes out, to be used with *out_source.
 */
tamis_status tam_energy_source_open(const tam_energy_source *source, const tam_energy_setup *setup,
                                    uint64_t until_ns, const tam_energy_source **out_source,
                                    void **out);

/* -- what sources share ----------------------------------------------------------------------- */

typedef struct tam_energy_clock {
    uint64_t (*now_ns)(void *context);
    void *context;
} tam_energy_clock;

tam_energy_clock tam_energy_clock_of(const tam_energy_setup *setup);

static inline uint64_t tam_energy_now(const tam_energy_clock *clock) {
    return clock->now_ns(clock->context);
}

/** One sentence, cut to TAMIS_ENERGY_TEXT: what may be long (a path) stands last. */
void tam_energy_say(char reason[TAMIS_ENERGY_TEXT], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** A place that can be read: "<source>:<name>", of a kind and with the most that this can draw. */
void tam_energy_place_init(tam_energy_place *place, const char *source, const char *name,
                           tamis_energy_kind kind, double period_s);

/** Kind of which a name says that it is one: "node", "gpu0", "package-1"; OTHER for the rest. */
tamis_energy_kind tam_energy_kind_of(const char *name);

/** The reading came between these times. */
void tam_energy_reading_time(tam_energy_reading *reading, uint64_t begin_ns, uint64_t end_ns);

#endif
