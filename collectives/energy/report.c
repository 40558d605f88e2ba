/* SPDX-License-Identifier: MIT
 *
 * What callers see of reports: a meter's domains go in, sums over the cluster come out.
 */
#include "collectives/energy/report.h"
#include "lib/base/fenv.h"

/* Everything that can be wrong on this rank alone, before anything is sent. */
static tamis_status prepare(tamis_energy *energy, tamis_energy_totals *out,
                            tam_energy_entry **entries, uint32_t *n, tam_energy_run *run) {
    if (!energy || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_energy_report: %s is NULL",
                        energy ? "out" : "energy");
    if (out->size < sizeof *out || out->size > 65536)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_energy_totals.size is %zu: set the struct by its _INIT macro",
                        out->size);
    TAM_TRY(tam_meter_present(energy, "tamis_energy_report"));
    uint32_t most = tam_meter_entries(energy, NULL, 0);
    TAM_TRY(tam_ledger_shelf(tam_meter_ledger(energy), most, entries));
    uint32_t found = tam_meter_entries(energy, *entries, most);
    *n = found < most ? found : most;
    tam_meter_run(energy, run);
    return TAMIS_OK;
}

tamis_status tamis_energy_report(tamis_energy *energy, tamis_comm *comm, tamis_energy_totals *out) {
    TAM_FENV_HELD();
    tam_energy_entry *entries = NULL;
    tam_energy_run run = {0};
    tamis_energy_totals totals;
    uint32_t n = 0;
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_energy_report: comm is NULL");
    TAM_TRY(tam_comm_check(comm));
    tamis_status status = prepare(energy, out, &entries, &n, &run);
    if (status != TAMIS_OK)
        return tam_report_decline(comm, status);
    tam_ledger *ledger = tam_meter_ledger(energy);
    TAM_TRY(tam_report_gather(comm, entries, n, &run, ledger));
    tam_ledger_totals(ledger, &totals);
    tam_meter_complete(energy, &totals);
    return tam_struct_give("tamis_energy_totals", &totals, sizeof totals, out);
}
