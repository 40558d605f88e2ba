/* SPDX-License-Identifier: MIT
 *
 * Inside of a log: log.c holds the file and writes, log_lines.c makes the lines, '\n' included.
 */
#ifndef TAM_ENERGY_LOG_LINES_H
#define TAM_ENERGY_LOG_LINES_H

#include "lib/energy/log/log.h"
#include "lib/base/json.h"

struct tam_energy_log {
    char *path;
    int fd;    /* -1: not open */
    bool torn; /* the file may end with part of a line */
    uint64_t t0_ns, windows;
    uint64_t lost; /* lines that could not be written */
    uint32_t ndomains;
    tam_text text; /* the line that was made last */
};

void tam_line_header(tam_energy_log *log, const tam_energy_log_setup *setup,
                     const tamis_energy_domain *domains);

#endif
