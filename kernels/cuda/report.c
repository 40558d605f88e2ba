/* SPDX-License-Identifier: MIT
 *
 * The outcome of steps: reports that the device wrote to pinned memory.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* The serial in the report's place, read from pinned memory without a call to the driver. */
static uint64_t last_report(const tam_cuda_step *s, uint64_t serial) {
    return __atomic_load_n(&s->round->reports[TAM_CUDA_BY_HOST][serial % TAM_CUDA_STEPS].serial,
                           __ATOMIC_ACQUIRE);
}

/* Copy a report word by word. @return its serial; 0 if the device has meanwhile begun to write the
 * next one there */
static uint64_t read_report(const tam_cuda_report *from, tam_cuda_report *out) {
    const uint64_t *words = (const uint64_t *)(const void *)from;
    uint64_t copy[sizeof *from / sizeof words[0]];
    for (size_t i = 0; i < sizeof copy / sizeof copy[0]; i++)
        copy[i] = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE);
    memcpy(out, copy, sizeof copy);
    return __atomic_load_n(&from->serial, __ATOMIC_ACQUIRE) == out->serial ? out->serial : 0;
}

/* The newest report of the caller's graphs, whose launches the host does not count. */
static bool find_newest(const tam_cuda_report *ring, tam_cuda_report *out) {
    _Static_assert(sizeof(tam_cuda_report) % 8 == 0, "read word by word");
    tam_cuda_report report;
    uint64_t newest = 0;
    for (int i = 0; i < TAM_CUDA_STEPS; i++) {
        uint64_t serial = read_report(&ring[i], &report);
        if (serial <= newest)
            continue;
        newest = serial;
        *out = report;
    }
    return newest > 0;
}

static tamis_status find_report(const tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    const tam_cuda_report *at = &s->round->reports[TAM_CUDA_BY_HOST][serial % TAM_CUDA_STEPS];
    *done = read_report(at, out) == serial;
    uint64_t there = last_report(s, serial);
    if (there > serial)
        return tam_fail(TAMIS_E_STATE, "the report of step %llu has been overwritten",
                        (unsigned long long)serial);
    return TAMIS_OK;
}

static tamis_status poll(tam_cuda_step *s, uint64_t serial, bool *done, tam_cuda_report *out) {
    uint64_t launched = __atomic_load_n(&s->round->serial, __ATOMIC_ACQUIRE);
    cudaError_t error = cudaEventQuery(s->round->done);
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
                        s->plan.rank, (unsigned long long)serial);
    return TAMIS_OK;
}

/* Asking takes the driver's locks, which launches need: detect failures a little later instead. */
static bool poll_is_due(tam_cuda_step *s) {
    enum { POLL_INTERVAL_NS = 500000 };
    uint64_t now_ns = tam_clock_ns();
    if (now_ns - __atomic_load_n(&s->round->asked_ns, __ATOMIC_RELAXED) < POLL_INTERVAL_NS)
        return false;
    __atomic_store_n(&s->round->asked_ns, now_ns, __ATOMIC_RELAXED);
    return true;
}

tamis_status tam_cuda_step_poll(tam_cuda_step *s, uint64_t serial, bool *done,
                                tam_cuda_report *out) {
    tam_cuda_guard guard;
    if (serial == 0) {
        *done = find_newest(s->round->reports[TAM_CUDA_BY_CALLER], out);
        return TAMIS_OK;
    }
    TAM_TRY(find_report(s, serial, done, out));
    if (*done || !poll_is_due(s))
        return TAMIS_OK;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = poll(s, serial, done, out);
    tam_cuda_leave(&guard);
    return status;
}
