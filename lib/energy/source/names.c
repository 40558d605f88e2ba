/* SPDX-License-Identifier: MIT
 *
 * Names of the numbers in <tamis/energy.h>. Logs and metrics carry them: they never change.
 */
#include "lib/base/base.h"

#include <tamis/energy.h>

static const char *const kinds[TAMIS_ENERGY_KINDS] = {
    [TAMIS_ENERGY_NODE] = "node",     [TAMIS_ENERGY_PSYS] = "psys",
    [TAMIS_ENERGY_MODULE] = "module", [TAMIS_ENERGY_PACKAGE] = "package",
    [TAMIS_ENERGY_DRAM] = "dram",     [TAMIS_ENERGY_CORE] = "core",
    [TAMIS_ENERGY_UNCORE] = "uncore", [TAMIS_ENERGY_GPU] = "gpu",
    [TAMIS_ENERGY_OTHER] = "other",
};

static const char *const statuses[TAMIS_ENERGY_STATUSES] = {
    [TAMIS_ENERGY_OK] = "ok",
    [TAMIS_ENERGY_STALE] = "stale",
    [TAMIS_ENERGY_FROZEN] = "frozen",
    [TAMIS_ENERGY_RESET] = "reset",
    [TAMIS_ENERGY_LOST] = "lost",
    [TAMIS_ENERGY_DENIED] = "denied",
    [TAMIS_ENERGY_UNSUPPORTED] = "unsupported",
    [TAMIS_ENERGY_ABSENT] = "absent",
    [TAMIS_ENERGY_FAILED] = "failed",
    [TAMIS_ENERGY_GARBLED] = "garbled",
};

static const char *const methods[TAMIS_ENERGY_METHODS] = {
    [TAMIS_ENERGY_NONE] = "none",
    [TAMIS_ENERGY_COUNTER] = "counter",
    [TAMIS_ENERGY_REGRESSED] = "regressed",
    [TAMIS_ENERGY_TIME_SHARE] = "time_share",
};

/* Beyond those of tamis_phase. */
static const char *const phases[TAMIS_ENERGY_PHASES] = {
    [TAMIS_ENERGY_COMPUTE] = "compute",   [TAMIS_ENERGY_FORWARD] = "forward",
    [TAMIS_ENERGY_BACKWARD] = "backward", [TAMIS_ENERGY_OPTIMIZER] = "optimizer",
    [TAMIS_ENERGY_INPUT] = "input",       [TAMIS_ENERGY_USER] = "user0",
    [TAMIS_ENERGY_USER + 1] = "user1",    [TAMIS_ENERGY_USER + 2] = "user2",
    [TAMIS_ENERGY_USER + 3] = "user3",    [TAMIS_ENERGY_USER + 4] = "user4",
    [TAMIS_ENERGY_USER + 5] = "user5",    [TAMIS_ENERGY_USER + 6] = "user6",
    [TAMIS_ENERGY_USER + 7] = "user7",    [TAMIS_ENERGY_USER + 8] = "user8",
    [TAMIS_ENERGY_USER + 9] = "user9",    [TAMIS_ENERGY_IDLE] = "idle",
};

static const char *names_choose(const char *const *names, uint32_t count, uint32_t number) {
    return number < count && names[number] ? names[number] : "";
}

const char *tamis_energy_kind_name(tamis_energy_kind kind) {
    return names_choose(kinds, TAMIS_ENERGY_KINDS, (uint32_t)kind);
}

const char *tamis_energy_status_name(tamis_energy_status status) {
    return names_choose(statuses, TAMIS_ENERGY_STATUSES, (uint32_t)status);
}

const char *tamis_energy_method_name(tamis_energy_method method) {
    return names_choose(methods, TAMIS_ENERGY_METHODS, (uint32_t)method);
}

const char *tamis_energy_phase_name(uint32_t phase) {
    return phase < TAMIS_PHASES ? tamis_phase_name((tamis_phase)phase)
                                : names_choose(phases, TAMIS_ENERGY_PHASES, phase);
}
