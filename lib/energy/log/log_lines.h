/* SPDX-License-Identifier: MIT
 *
 * Inside of a log: log.c holds it and writes, log_lines.c makes the lines, '\n' included.
 */
#ifndef TAM_ENERGY_LOG_LINES_H
#define TAM_ENERGY_LOG_LINES_H

#include "lib/energy/log/log.h"
#include "lib/energy/log/log_file.h"
#include "lib/energy/log/log_json.h"

struct tam_energy_log {
    tam_line_file file;
    uint64_t rotate_bytes, t0_ns;
    uint32_t rank;
    tam_text head;                /* of each header: what stays the same */
    tamis_energy_domain *domains; /* [ndomains], as last seen */
    uint32_t ndomains;
    bool headless;  /* a file was begun whose header could not be written */
    uint64_t lines; /* since the last header */
    uint64_t windows;
    tam_text header, text;
};

/** The part of a header that stays the same. */
void tam_line_head(const tam_energy_log_setup *setup, tam_text *out);

void tam_line_header(const tam_energy_log *log, tam_text *out);
void tam_line_window(const tam_energy_log *log, const tam_energy_record *record, tam_text *out);
void tam_line_event(const tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                    const char *detail, tam_text *out);
void tam_line_summary(const tam_energy_log *log, const tam_energy_record *all, tam_text *out);

#endif
