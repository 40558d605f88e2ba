/* SPDX-License-Identifier: MIT
 *
 * States in memory, for callers that keep their own checkpoints: control and residual of a state
 * file (moments: state_moments.c).
 */
#include "collectives/state/state.h"
#include "lib/base/fenv.h"

#include <math.h>
#include <tamis/state.h>

static tamis_status state_memory_check_arguments(const tamis_reducer *r, const void *memory,
                                                 const char *call) {
    if (r && memory)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, r ? "memory" : "reducer");
}

tamis_status tamis_reducer_control_bytes(const tamis_reducer *r, size_t *out) {
    TAM_TRY(state_memory_check_arguments(r, out, "tamis_reducer_control_bytes"));
    *out = tam_state_sizes_of(r).control;
    return TAMIS_OK;
}

static tamis_status pass_over(void *arg, size_t at, const void *piece, size_t bytes) {
    (void)arg, (void)at, (void)piece, (void)bytes;
    return TAMIS_OK;
}

tamis_status tamis_reducer_save_control(tamis_reducer *r, void *memory, size_t bytes) {
    static const char call[] = "tamis_reducer_save_control";
    uint64_t hash = 0;
    TAM_TRY(state_memory_check_arguments(r, memory, call));
    size_t needed = tam_state_sizes_of(r).control;
    if (bytes != needed)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: bytes is %zu, but this part of the state has %zu",
                        call, bytes, needed);
    TAM_TRY(tam_state_quiesce(r, call));
    void *control = tam_alloc(needed); /* aligned, and `memory` is written only on success */
    if (!control)
        return tam_fail(TAMIS_E_NOMEM, "%s: no memory for %zu bytes", call, needed);
    tamis_status status = r->acc ? tam_state_vector(r, r->acc, pass_over, NULL, &hash) : TAMIS_OK;
    if (status == TAMIS_OK) { /* a copy to go back to may be made before the first step */
        tam_state_pack(r, hash, 0, control);
        memcpy(memory, control, needed);
    }
    tam_free(control);
    return status;
}

static tamis_status check_has_residual(const tamis_reducer *r, const char *call) {
    return r->acc ? TAMIS_OK
                  : tam_fail(TAMIS_E_UNSUPPORTED, "%s: scheme dense has no residual", call);
}

tamis_status tamis_reducer_save_residual(tamis_reducer *r, float *out) {
    static const char call[] = "tamis_reducer_save_residual";
    TAM_TRY(state_memory_check_arguments(r, out, call));
    TAM_TRY(check_has_residual(r, call));
    TAM_TRY(tam_state_quiesce(r, call));
    return tam_state_copy(r, r->acc, out);
}

/* -- restore ---------------------------------------------------------------------------------- */

static tamis_status check_finite(const tamis_reducer *r, const float *residual) {
    for (uint64_t i = 0; i < r->residual_length; i++) {
        if (!isfinite(residual[i]))
            return tam_fail(TAMIS_E_ARGUMENT,
                            "tamis_reducer_load_memory: element %llu of the residual is not finite",
                            (unsigned long long)i);
    }
    return TAMIS_OK;
}

static tamis_status check_control(const tamis_reducer *r, const void *control, size_t bytes,
                                  bool alone) {
    static const char where[] = "tamis_reducer_load_memory";
    tam_state_header header;
    if (bytes < sizeof header)
        return tam_state_refuse(where, "the control part is truncated");
    memcpy(&header, control, sizeof header);
    TAM_TRY(tam_state_check_header(r, &header, alone, where));
    if (bytes != header.control_bytes)
        return tam_state_refuse(where,
                                "the control part is truncated or has extra data at its end");
    return TAMIS_OK;
}

/* Works on a copy, for the caller's memory may be unaligned. */
static tamis_status restore_control(tamis_reducer *r, const void *control, size_t bytes,
                                    const float *residual) {
    TAM_TRY(check_control(r, control, bytes, !residual));
    void *own = tam_alloc(bytes);
    if (!own)
        return tam_fail(TAMIS_E_NOMEM, "tamis_reducer_load_memory: no memory for %zu bytes", bytes);
    memcpy(own, control, bytes);
    tamis_status status = tam_state_check_parts(r, own, residual, "tamis_reducer_load_memory");
    if (status == TAMIS_OK)
        status = tam_state_take(r, own, residual);
    tam_free(own);
    return status;
}

tamis_status tamis_reducer_load_memory(tamis_reducer *r, const void *control, size_t control_bytes,
                                       const float *residual) {
    TAM_FENV_HELD();
    static const char call[] = "tamis_reducer_load_memory";
    if (!r || (!control && !residual))
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s", call,
                        r ? "control and residual are both NULL" : "reducer is NULL");
    if (residual)
        TAM_TRY(check_has_residual(r, call));
    TAM_TRY(tam_state_quiesce_to_load(r, call));
    if (residual)
        TAM_TRY(check_finite(r, residual));
    return control ? restore_control(r, control, control_bytes, residual)
                   : tam_state_take(r, NULL, residual);
}
