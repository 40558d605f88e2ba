/* SPDX-License-Identifier: MIT
 *
 * start, wait, join, and what can be read between steps.
 */
#include "collectives/reducer/reducer.h"

#include <math.h>
#include <stdio.h>

/* -- start ------------------------------------------------------------------------------------ */

static size_t element_bytes(const tamis_reducer *r) {
    return r->config.grad_type == TAMIS_TYPE_FLOAT32 ? 4 : 2;
}

static tamis_status check_pointer(const tamis_reducer *r, const void *grad, const char *where) {
    char what[128];
    if (!grad)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradient of %s is NULL", where);
    if ((uintptr_t)grad % element_bytes(r) != 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradient of %s is not %zu-byte aligned",
                        where, element_bytes(r));
    snprintf(what, sizeof what, "tamis_step: the gradient of %s", where);
    return r->device->check(r->kernels, grad, what);
}

/* The residual may be handed out for reading, so it may come back as a gradient by mistake. */
static tamis_status check_residual(const tamis_reducer *r, const void *grad, uint64_t length,
                                   const char *where) {
    const char *begin = grad, *end = begin + length * element_bytes(r);
    if (r->acc && begin < (const char *)(r->acc + r->layout->length) && end > (const char *)r->acc)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_step: the gradient of %s overlaps the reducer's residual", where);
    return TAMIS_OK;
}

static tamis_status check_segments(tamis_reducer *r, void *const *grads) {
    const tamis_layout *l = r->layout;
    for (uint32_t s = 0; s < l->nsegments; s++) {
        TAM_TRY(check_pointer(r, grads[s], l->names[s]));
        TAM_TRY(check_residual(r, grads[s], tam_segment_length(l, s), l->names[s]));
        r->overlaps[s] = (tam_pair){(uintptr_t)grads[s], s};
    }
    tam_sort(r->overlaps, l->nsegments);
    for (uint32_t i = 1; i < l->nsegments; i++) {
        uint32_t before = (uint32_t)r->overlaps[i - 1].value, s = (uint32_t)r->overlaps[i].value;
        if ((char *)grads[before] + tam_segment_length(l, before) * element_bytes(r) >
            (char *)grads[s])
            return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradients of %s and %s overlap",
                            l->names[before], l->names[s]);
    }
    return TAMIS_OK;
}

static tamis_status check_step(tamis_reducer *r, const tamis_step *step) {
    if (!step->grad == !step->grads)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: set exactly one of grad and grads");
    if (!isfinite(step->scale))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step.scale is %g, not a finite number",
                        (double)step->scale);
    if (!step->grad)
        return check_segments(r, step->grads);
    TAM_TRY(check_pointer(r, step->grad, "the step"));
    return check_residual(r, step->grad, r->layout->length, "the step");
}

tamis_status tamis_reduce_start(tamis_reducer *r, const tamis_step *step) {
    tamis_step own = TAMIS_STEP_INIT;
    if (!r || !step)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reduce_start: %s is NULL", r ? "step" : "reducer");
    TAM_TRY(tam_comm_check(r->comm));
    if (r->started)
        return tam_fail(TAMIS_E_STATE, "rank %u: tamis_reduce_start twice without a wait",
                        r->comm->rank);
    TAM_TRY(tam_struct_copy("tamis_step", &own, sizeof own, sizeof own, step));
    TAM_TRY(check_step(r, &own));
    r->target = (tam_accumulate){
        .acc = r->acc,
        .grad = own.grad,
        .grads = own.grads,
        .seg_begin = r->layout->begins,
        .type = r->config.grad_type,
        .scale = own.scale,
        .clear = r->config.output == TAMIS_OUTPUT_DENSE,
        .mine = tam_part_of(&r->division, r->step, r->comm->rank),
        .thresholds = r->control.thresholds,
    };
    r->has_result = false;
    tamis_status status = r->driver->start(r, own.stream);
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        tam_comm_lose(r->comm, status); /* half a step may be under way */
    r->started = status == TAMIS_OK;
    return status;
}

/* -- wait ------------------------------------------------------------------------------------- */

tamis_status tamis_reduce_wait(tamis_reducer *r) {
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reduce_wait: reducer is NULL");
    if (!r->started)
        return tam_fail(TAMIS_E_STATE, "rank %u: tamis_reduce_wait without tamis_reduce_start",
                        r->comm->rank);
    tamis_status status = r->driver->wait(r);
    r->started = status == TAMIS_E_STATE; /* which had no effect */
    r->has_result = !r->started && tamis_status_loss(status) != TAMIS_LOST_COMM;
    return status;
}

tamis_status tamis_reduce_join(tamis_reducer *r, void *stream) {
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reduce_join: reducer is NULL");
    if (!r->started)
        return tam_fail(TAMIS_E_STATE, "rank %u: tamis_reduce_join without tamis_reduce_start",
                        r->comm->rank);
    tamis_status status = r->driver->join(r, stream);
    r->started = status == TAMIS_E_STATE; /* which had no effect */
    return status;
}

/* -- results ---------------------------------------------------------------------------------- */

static tamis_status check_idle(const tamis_reducer *r, const void *out, const char *call) {
    if (!r || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, r ? "out" : "reducer");
    if (r->started)
        return tam_fail(TAMIS_E_STATE, "%s: a step is under way; call tamis_reduce_wait first",
                        call);
    return TAMIS_OK;
}

tamis_status tamis_reduce_result(const tamis_reducer *r, tamis_result *out) {
    TAM_TRY(check_idle(r, out, "tamis_reduce_result"));
    if (!r->has_result)
        return tam_fail(TAMIS_E_STATE, "tamis_reduce_result: no step has been finished");
    r->driver->result(r, out);
    return TAMIS_OK;
}

tamis_status tamis_reducer_residual(const tamis_reducer *r, const float **out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_residual"));
    *out = r->acc;
    return TAMIS_OK;
}

tamis_status tamis_reducer_stats(tamis_reducer *r, tamis_stats *out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_stats"));
    r->driver->look(r);
    size_t theirs = out->size; /* a newer program's struct is longer; this version has no more */
    if (theirs < sizeof *out || theirs > 65536)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_stats.size is %zu: set the struct by TAMIS_STATS_INIT", theirs);
    memset(out, 0, theirs);
    memcpy(out, &r->stats, sizeof *out);
    out->size = theirs;
    return TAMIS_OK;
}
