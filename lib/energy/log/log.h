/* SPDX-License-Identifier: MIT
 *
 * What a meter writes: JSON Lines (docs/energy.md). All calls come from the meter's thread, which
 * may be held up by a slow disk; training is not.
 *
 * A file that cannot be opened fails tam_energy_log_open. What cannot be written later (disk full)
 * is counted, said once in the library's log, and left out whole: no half line stays.
 */
#ifndef TAM_ENERGY_LOG_H
#define TAM_ENERGY_LOG_H

#include "lib/base/base.h"

#include <tamis/energy.h>

typedef struct tam_energy_log tam_energy_log;

/** Where to, and what stays the same. One writer a path. */
typedef struct tam_energy_log_setup {
    const char *path;
    uint64_t rotate_bytes;            /* a file that is as long is renamed to PATH.1; 0: never */
    const char *run, *host, *boot_id; /* run may be NULL */
    uint32_t rank, nranks;
    uint64_t t0_ns; /* monotonic; t of a record counts from here */
    double t0_unix; /* the same in Unix seconds; 0: asked of the system's clocks */
    double pue;     /* NAN: unknown */
} tam_energy_log_setup;

/** A stretch of time, with what the reducer said of it. NAN: unknown. */
typedef struct tam_energy_record {
    const char *name; /* of the window */
    bool overlaps;    /* a window of the caller's: its joules are in others too */
    uint64_t begin_ns, end_ns;
    uint64_t step0, step1;
    /* [ndomains], as many and in the order as given to open. .uj, .wraps, .resets: of this stretch.
     * Of a domain that is not ok a gain of 0 means that nothing is known. */
    const tamis_energy_domain *domains;
    const int64_t *unattributed_uj; /* [ndomains]; NULL: unknown */
    const int64_t *idle_uj;         /* [ndomains]; NULL: unknown */
    uint32_t ndomains;
    tamis_energy_totals totals; /* of the stretch */
    double residual_w, condition;
    uint64_t elements_offered, elements_sent; /* n and k, summed over the steps */
    double density_asked, residual_norm;      /* of the last step */
    double slack_p50_s, slack_p95_s, slack_max_s;
    uint32_t straggler; /* UINT32_MAX: unknown */
    double intensity_g_per_kwh;
    uint64_t dropped; /* marks, since open */
} tam_energy_record;

/** Fails with IO naming the path; nothing is left open then. An existing file is appended to. */
tamis_status tam_energy_log_open(const tam_energy_log_setup *setup,
                                 const tamis_energy_domain *domains, uint32_t ndomains,
                                 tam_energy_log **out);

/** Windows follow one another, but for those that say that they overlap. */
void tam_energy_log_window(tam_energy_log *log, const tam_energy_record *record);

/** @param name  "wrap", "reset", "frozen", "lost", "denied", "stale", ...
 *  @param domain, detail  id, and one sentence; NULL or "": none */
void tam_energy_log_event(tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                          const char *detail);

/** A record that somebody else made: one JSON object without newline. */
void tam_energy_log_note(tam_energy_log *log, const char *line);

/** A sum over everything, last line of the file. */
void tam_energy_log_summary(tam_energy_log *log, const tam_energy_record *all);

/** Lines that could not be written. */
uint64_t tam_energy_log_lost(const tam_energy_log *log);

/** NULL is allowed. */
void tam_energy_log_close(tam_energy_log *log);

#endif
