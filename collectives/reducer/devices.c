/* SPDX-License-Identifier: MIT
 *
 * Which kernels a reducer works with, and what drives its steps.
 */
#include "collectives/reducer/reducer.h"

#include "kernels/cpu/cpu.h"
#ifdef TAM_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

static tamis_status find_cuda(const tam_device **out) {
#ifdef TAM_HAVE_CUDA
    const char *reason = tam_cuda_find(out);
    if (reason)
        return tam_fail(TAMIS_E_UNSUPPORTED, "TAMIS_DEVICE_CUDA: %s", reason);
    return TAMIS_OK;
#else
    (void)out;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "TAMIS_DEVICE_CUDA: this library was built without CUDA (TAMIS_CUDA)");
#endif
}

tamis_status tam_device_find(tamis_device device, const tam_device **out) {
    switch (device) {
    case TAMIS_DEVICE_CPU:
        *out = &tam_device_cpu;
        return TAMIS_OK;
    case TAMIS_DEVICE_CUDA:
        return find_cuda(out);
    }
    return tam_fail(TAMIS_E_ARGUMENT,
                    "tamis_reducer_config.device is %d, which is not a tamis_device", (int)device);
}

#ifdef TAM_HAVE_CUDA
/* Bounded lists whose length the device finds by itself. */
static const char *why_threshold(const tamis_reducer *r) {
    tam_scheme s = r->scheme;
    if (!tam_scheme_by_threshold(s) || s.threshold == TAM_THRESHOLD_SAGE ||
        s.threshold == TAM_THRESHOLD_REUSE || s.ownership == TAM_OWN_BALANCED)
        return "how much the scheme sends is known only within a step";
    return r->config.capacity > 0.0 ? "" : "the scheme's count has no bound (capacity)";
}

/* Steps need nothing from the host if the sizes of messages follow from k, ranks agree on no plan
 * in a step, the threshold is known before the pass, and parts never change. */
static const char *why_not_by_itself(const tamis_reducer *r) {
    if (!r->on_device)
        return "the scheme's exchange runs on the host";
    if (r->layout->nrow_segments > 0 && r->config.rows_capacity == 0)
        return "segments have rows whose lists have no bound (rows_capacity)";
    if (!(r->traits & TAM_TRAIT_SELECTS))
        return "";
    return tam_scheme_exact_count(r->scheme) ? "" : why_threshold(r);
}
#endif

const char *tam_driver_reason(const tamis_reducer *r) {
#ifdef TAM_HAVE_CUDA
    if (r->config.device != TAMIS_DEVICE_CUDA)
        return "";
    return r->comm->transport->stream ? why_not_by_itself(r)
                                      : "the communicator's transport is not nccl";
#else
    (void)r;
    return "";
#endif
}

const tam_driver *tam_driver_find(const tamis_reducer *r) {
#ifdef TAM_HAVE_CUDA
    if (r->config.device == TAMIS_DEVICE_CUDA && !tam_driver_reason(r)[0])
        return &tam_driver_stream;
#else
    (void)r;
#endif
    return &tam_driver_host;
}
