/* SPDX-License-Identifier: MIT
 *
 * Reports of energy: all ranks show each other their domains and add them up in the same way.
 *
 *     records      how many entries, the sums so far
 *     entries    what each domain gained, padded to the largest count
 */
#ifndef TAM_ENERGY_REPORT_H
#define TAM_ENERGY_REPORT_H

#include "collectives/transport/handshake.h"
#include "lib/energy/cluster/registry.h"

enum { TAM_REPORT_ENTRIES_MAX = 4096 }; /* of one rank */

/**
 * A report of what registry->shown shows. The sums are the same on all ranks afterwards, also where
 * they were not before: they go on from those of the rank that has taken part in the most.
 *
 * @param  run     [in]  what this rank has done
 * @param  status  [in]  not OK: this rank can only say that it cannot, for this, whose sentence is
 *                       tamis_last_error; registry and run may be NULL then
 * @return               ARGUMENT, NOMEM, MISMATCH: on all ranks, nothing is counted; else
 *                       the comm is lost
 */
tamis_status tam_report_gather(tamis_comm *comm, const tam_energy_run *run, tam_registry *registry,
                               tamis_status status);

#endif
