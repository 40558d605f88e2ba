/* SPDX-License-Identifier: MIT
 *
 * Lines of a log, '\n' included, behind what `out` holds.
 */
#ifndef TAM_ENERGY_LOG_LINES_H
#define TAM_ENERGY_LOG_LINES_H

#include "lib/energy/log/log.h"
#include "lib/energy/log/log_json.h"

void tam_line_header(const tam_energy_log_setup *setup, const tamis_energy_domain *domains,
                     uint32_t ndomains, tam_text *out);
void tam_line_window(uint64_t t0_ns, uint64_t seq, const tam_energy_record *record, tam_text *out);
void tam_line_summary(uint64_t t0_ns, uint64_t lost, const tam_energy_record *all, tam_text *out);

#endif
