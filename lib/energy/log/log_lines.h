/* SPDX-License-Identifier: MIT
 *
 * Inside of a log: log.c holds the file and writes, log_lines.c makes the lines, '\n' included.
 */
#ifndef TAM_ENERGY_LOG_LINES_H
#define TAM_ENERGY_LOG_LINES_H

#include "lib/energy/log/log.h"
#include "lib/energy/log/log_json.h"

struct tam_energy_log {
    char *path;
    int fd;         /* -1: not open */
    uint64_t bytes; /* in the file */
    uint64_t lost;  /* lines that could not be written */
    bool torn;      /* the file may end with part of a line */
    bool headless;  /* it has no header of this run yet */
    uint64_t lines; /* after the header */
    uint64_t rotate_bytes, t0_ns, windows;
    uint32_t rank;
    tam_text head;                /* of each header: what stays the same */
    tamis_energy_domain *domains; /* [ndomains], as last seen */
    uint32_t ndomains;
    tam_text text; /* to be written next */
};

/** The part of a header that stays the same. */
void tam_line_head(const tam_energy_log_setup *setup, tam_text *out);

/** Lines, behind what `out` holds. */
void tam_line_header(const tam_energy_log *log, tam_text *out);
void tam_line_window(const tam_energy_log *log, const tam_energy_record *record, tam_text *out);
void tam_line_event(const tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                    const char *detail, tam_text *out);
void tam_line_summary(const tam_energy_log *log, const tam_energy_record *all, tam_text *out);

#endif
