/* SPDX-License-Identifier: MIT
 *
 * The outcome of steps: reports that the device wrote to pinned memory.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* Read from pinned memory without a call to the driver. 0 while the device writes the report. */
static uint64_t serial_of(const tam_cuda_report *report) {
    return __atomic_load_n(&report->serial, __ATOMIC_ACQUIRE);
}

static const tam_cuda_report *report_at(const tam_cuda_step *s, uint64_t serial) {
    return &s->group->reports[TAM_CUDA_BY_HOST][serial % TAM_CUDA_STEPS];
}

/* Copy the report `serial`, which is there, word by word.
 * @return false if the device has meanwhile begun to write the next one there */
static bool read_report(const tam_cuda_report *from, uint64_t serial, tam_cuda_report *out) {
    _Static_assert(sizeof(tam_cuda_report) % 8 == 0, "read word by word");
    const uint64_t *words = (const uint64_t *)(const void *)from;
    uint64_t copy[sizeof *from / sizeof words[0]];
    for (size_t i = 0; i < sizeof copy / sizeof copy[0]; i++)
        copy[i] = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE);
    memcpy(out, copy, sizeof copy);
    return serial_of(from) == serial;
}

/* The newest report of the caller's graphs, whose launches the host does not count. */
static bool find_newest(const tam_cuda_report *ring, tam_cuda_report *out) {
    tam_cuda_report report;
    uint64_t newest = 0;
    for (int i = 0; i < TAM_CUDA_STEPS; i++) {
        uint64_t serial = serial_of(&ring[i]);
        if (serial <= newest || !read_report(&ring[i], serial, &report))
            continue;
        newest = serial;
        *out = report;
    }
    return newest > 0;
}

static tamis_status find_report(const tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    const tam_cuda_report *at = report_at(s, serial);
    *done = serial_of(at) == serial && read_report(at, serial, out);
    if (serial_of(at) > serial)
        return tam_fail(TAMIS_E_STATE, "the report of step %llu has been overwritten",
                        (unsigned long long)serial);
    return TAMIS_OK;
}

static tamis_status report_poll(tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    uint64_t launched = __atomic_load_n(&s->group->serial, __ATOMIC_ACQUIRE);
    cudaError_t error = cudaEventQuery(s->group->done);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return TAMIS_OK;
    }
    TAM_CUDA_TRY(error, "a step on the CUDA device");
    if (launched < serial) /* not all its buckets are launched: the event is of an earlier step */
        return TAMIS_OK;
    TAM_TRY(find_report(s, serial, done, out));
    if (!*done)
        return tam_fail(TAMIS_E_DEVICE,
                        "rank %u: the CUDA device has ended step %llu without a "
                        "report",
                        tam_cuda_rank(s), (unsigned long long)serial);
    return TAMIS_OK;
}

/* Asking takes the driver's locks, which launches need: detect failures a little later instead. */
static bool poll_is_due(tam_cuda_step *s) {
    enum { POLL_INTERVAL_NS = 500000 };
    uint64_t now_ns = tam_clock_ns();
    if (now_ns - __atomic_load_n(&s->group->asked_ns, __ATOMIC_RELAXED) < POLL_INTERVAL_NS)
        return false;
    __atomic_store_n(&s->group->asked_ns, now_ns, __ATOMIC_RELAXED);
    return true;
}

tamis_status tam_cuda_step_poll(tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    tam_cuda_guard guard;
    if (serial == 0) {
        *done = find_newest(s->group->reports[TAM_CUDA_BY_CALLER], out);
        return TAMIS_OK;
    }
    TAM_TRY(find_report(s, serial, done, out));
    if (*done || !poll_is_due(s))
        return TAMIS_OK;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = report_poll(s, serial, done, out);
    tam_cuda_leave(&guard);
    return status;
}
