/* SPDX-License-Identifier: MIT
 *
 * Reports of energy: all ranks show each other their domains and take them into their ledgers.
 *
 *     board      how many entries, which ledger                         every report
 *     board      whether there is memory                                where some rank needs more
 *     chunks     the ledger of the rank with the most reports           where ledgers differ
 *     entries    padded to the largest count                            every report
 *
 * gather.c is all that; report.c joins it with the meter and is what callers see.
 */
#ifndef TAM_ENERGY_REPORT_H
#define TAM_ENERGY_REPORT_H

#include "collectives/transport/board.h"
#include "lib/energy/cluster/ledger.h"

enum { TAM_REPORT_ENTRIES_MOST = 4096 }; /* of one rank */

/**
 * A report. Ledgers are the same on all ranks afterwards, also where they were not before: ranks
 * that missed a report, or are new, take over the ledger of the rank that has taken the most.
 *
 * @param  mine  [in]  the rank's n domains, without rank and meter
 * @param  run   [in]  what the rank has done
 * @return             ARGUMENT, NOMEM, MISMATCH: on all ranks, the ledgers count as before; else
 *                     the comm is lost
 */
tamis_status tam_report_gather(tamis_comm *comm, const tam_energy_entry *mine, uint32_t n,
                               const tam_energy_run *run, tam_ledger *ledger);

/** Take part in a report only to say that this rank cannot, for `status`, whose sentence is
 * tamis_last_error. @return status */
tamis_status tam_report_decline(tamis_comm *comm, tamis_status status);

#endif
