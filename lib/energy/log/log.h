/* SPDX-License-Identifier: MIT
 *
 * What a meter writes: JSON Lines (docs/energy.md). A line is made by one call and written by
 * another, so that a slow disk holds up nobody but the thread that writes.
 *
 * A file that cannot be opened fails tam_energy_log_open. What cannot be written later (disk full)
 * is counted, said once in the library's log, and left out whole: no half line stays.
 */
#ifndef TAM_ENERGY_LOG_H
#define TAM_ENERGY_LOG_H

#include "lib/base/base.h"

#include <tamis/energy.h>

typedef struct tam_energy_log tam_energy_log;

/** Where to (config.json), and what a header says. One writer a path. */
typedef struct tam_energy_log_setup {
    tamis_energy_config config;
    const char *host, *boot_id;
    uint64_t t0_ns;              /* monotonic; t of a record counts from here */
    double t0_unix, clock_err_s; /* the same in Unix seconds, and its error */
} tam_energy_log_setup;

/** What a domain came to in a stretch of time. */
typedef struct tam_period_domain {
    int64_t uj, counted_uj, unattributed_uj, idle_uj;
    uint32_t wraps, resets;
} tam_period_domain;

/** A stretch of time, and what it came to. */
typedef struct tam_period {
    uint64_t begin_ns, end_ns;
    uint64_t first_step;
    uint64_t offered, sent; /* gradient elements, n and k, summed over the steps */
    tamis_energy_totals totals;
    tam_period_domain *domains; /* as many as the log has */

    /* As things are when it ends. NAN: unknown. */
    double residual_w, condition;
    double density_asked, residual_norm; /* of the last step */
    double intensity_g_per_kwh;
    uint64_t dropped; /* marks, since open */
} tam_period;

/** Fails with IO naming the path; nothing is left open then. An existing file is appended to. */
tamis_status tam_energy_log_open(const tam_energy_log_setup *setup,
                                 const tamis_energy_domain *domains, uint32_t ndomains,
                                 tam_energy_log **out);

/** Make the line of a window, or of the sum over everything, which is the last one of the file.
 * Windows follow one another, but for those that overlap: the callers', whose joules are in others
 * too.
 *
 * @param domains  as they are, in the order given to open */
void tam_energy_log_window(tam_energy_log *log, const char *name, bool overlaps,
                           const tam_period *period, const tamis_energy_domain *domains);
void tam_energy_log_summary(tam_energy_log *log, const tam_period *all,
                            const tamis_energy_domain *domains);

/** Write the line that was made last. */
void tam_energy_log_write(tam_energy_log *log);

/** Lines that could not be written. */
uint64_t tam_energy_log_lost(const tam_energy_log *log);

/** NULL is allowed. */
void tam_energy_log_close(tam_energy_log *log);

#endif
