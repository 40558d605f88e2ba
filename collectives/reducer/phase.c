/* SPDX-License-Identifier: MIT
 *
 * Report phases to the caller.
 */
#include "collectives/reducer/reducer.h"

void tam_phase_report(const tamis_reducer *r, tamis_phase phase, uint32_t bucket, uint64_t step,
                      uint64_t begin_ns, uint64_t end_ns) {
    tamis_phase_event event = {sizeof event, phase, r->comm->rank, bucket, step, begin_ns, end_ns};
    if (r->config.on_phase)
        r->config.on_phase(r->config.on_phase_context, &event);
}

uint64_t tam_phase_end(const tamis_reducer *r, tamis_phase phase, uint32_t bucket,
                       uint64_t begin_ns, double *seconds) {
    uint64_t now_ns = tam_clock_ns();
    tam_phase_record(r, phase, bucket, begin_ns, now_ns, seconds);
    return now_ns;
}

void tam_phase_record(const tamis_reducer *r, tamis_phase phase, uint32_t bucket, uint64_t begin_ns,
                      uint64_t end_ns, double *seconds) {
    *seconds += (double)(end_ns - begin_ns) * 1e-9;
    tam_phase_report(r, phase, bucket, r->step, begin_ns, end_ns);
}
