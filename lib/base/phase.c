/* SPDX-License-Identifier: MIT
 *
 * Names of the phases of a step.
 */
#include "lib/base/base.h"

static const char *const names[TAMIS_PHASES] = {
    [TAMIS_PHASE_ACCUMULATE] = "accumulate",
    [TAMIS_PHASE_SELECT] = "select",
    [TAMIS_PHASE_EXCHANGE] = "exchange",
    [TAMIS_PHASE_APPLY] = "apply",
    [TAMIS_PHASE_WAIT] = "wait",
    [TAMIS_PHASE_DEVICE] = "device",
    [TAMIS_PHASE_SKEW] = "skew",
};

const char *tamis_phase_name(tamis_phase phase) {
    return (unsigned)phase < TAMIS_PHASES ? names[phase] : "";
}
