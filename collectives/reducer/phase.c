/* SPDX-License-Identifier: MIT
 *
 * Phases as reported to the caller.
 */
#include "collectives/reducer/reducer.h"

static const char *const names[TAMIS_PHASES] = {
    [TAMIS_PHASE_ACCUMULATE] = "accumulate",
    [TAMIS_PHASE_CUT] = "cut",
    [TAMIS_PHASE_EXCHANGE] = "exchange",
    [TAMIS_PHASE_APPLY] = "apply",
    [TAMIS_PHASE_WAIT] = "wait",
    [TAMIS_PHASE_DEVICE] = "device",
    [TAMIS_PHASE_ARRIVE] = "arrive",
};

const char *tamis_phase_name(tamis_phase phase) {
    return (unsigned)phase < TAMIS_PHASES ? names[phase] : "";
}

void tam_phase_tell(const tamis_reducer *r, tamis_phase phase, uint32_t bucket, uint64_t step,
                    uint64_t begin_ns, uint64_t end_ns) {
    tamis_phase_event event = {sizeof event, phase, r->comm->rank, bucket, step, begin_ns, end_ns};
    if (r->config.on_phase)
        r->config.on_phase(r->config.on_phase_context, &event);
}

uint64_t tam_phase_end(const tamis_reducer *r, tamis_phase phase, uint32_t bucket,
                       uint64_t begin_ns, double *seconds) {
    uint64_t now_ns = tam_clock_ns();
    tam_phase_note(r, phase, bucket, begin_ns, now_ns, seconds);
    return now_ns;
}

void tam_phase_note(const tamis_reducer *r, tamis_phase phase, uint32_t bucket, uint64_t begin_ns,
                    uint64_t end_ns, double *seconds) {
    *seconds += (double)(end_ns - begin_ns) * 1e-9;
    tam_phase_tell(r, phase, bucket, r->step, begin_ns, end_ns);
}
