/* SPDX-License-Identifier: MIT
 *
 * start, wait, and what can be read between steps.
 */
#include "collectives/reducer/reducer.h"

#include <math.h>

/* -- start ------------------------------------------------------------------------------------ */

static tamis_status check_pointer(const float *grad, const char *where) {
    if (!grad)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradient of %s is NULL", where);
    if ((uintptr_t)grad % sizeof *grad != 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradient of %s is not 4-byte aligned",
                        where);
    return TAMIS_OK;
}

/* The residual may be handed out for reading, so it may come back as a gradient by mistake. */
static tamis_status check_residual(const tamis_reducer *r, const float *grad, uint64_t length,
                                   const char *where) {
    const float *end = grad + length;
    if (r->acc && grad < r->acc + r->layout->length && end > r->acc)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_step: the gradient of %s overlaps the reducer's residual", where);
    return TAMIS_OK;
}

static tamis_status check_segments(tamis_reducer *r, float *const *grads) {
    const tamis_layout *l = r->layout;
    for (uint32_t s = 0; s < l->nsegments; s++) {
        TAM_TRY(check_pointer(grads[s], l->names[s]));
        TAM_TRY(check_residual(r, grads[s], tam_segment_length(l, s), l->names[s]));
        r->overlaps[s] = (tam_pair){(uintptr_t)grads[s], s};
    }
    tam_sort(r->overlaps, l->nsegments);
    for (uint32_t i = 1; i < l->nsegments; i++) {
        uint32_t before = (uint32_t)r->overlaps[i - 1].value, s = (uint32_t)r->overlaps[i].value;
        if (grads[before] + tam_segment_length(l, before) > grads[s])
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
    TAM_TRY(check_pointer(step->grad, "the step"));
    return check_residual(r, step->grad, r->layout->length, "the step");
}

static tamis_status accumulate(tamis_reducer *r) {
    uint64_t begin_ns = tam_clock_ns();
    if (!r->acc)
        return TAMIS_OK;
    TAM_TRY(r->device->accumulate(r->kernels, &r->target, &r->accumulated));
    r->now.accumulate_s = (double)(tam_clock_ns() - begin_ns) * 1e-9;
    return TAMIS_OK;
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
        .scale = own.scale,
        .clear = r->config.output == TAMIS_OUTPUT_DENSE,
        .mine = tam_part_of(&r->division, r->step, r->comm->rank),
        .thresholds = r->control.thresholds,
    };
    r->has_result = false;
    TAM_TRY(accumulate(r));
    r->started = true;
    tam_comm_submit(r->comm, &r->job);
    return TAMIS_OK;
}

/* -- wait ------------------------------------------------------------------------------------- */

/* Figures that the job cannot know. */
static void complete_stats(tamis_reducer *r, uint64_t begin_ns) {
    tamis_stats *s = &r->now;
    s->steps = r->stats.steps + 1;
    s->length = r->layout->length;
    s->target = r->k;
    s->selected = r->count;
    s->density = (double)r->count / (double)r->layout->length;
    s->wire_bytes = r->job.wire_bytes;
    s->wire_bytes_total = r->stats.wire_bytes_total + s->wire_bytes;
    s->rescans_total = r->stats.rescans_total + s->rescans;
    s->wait_s = (double)(tam_clock_ns() - begin_ns) * 1e-9;
    r->stats = *s;
}

tamis_status tamis_reduce_wait(tamis_reducer *r) {
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reduce_wait: reducer is NULL");
    if (!r->started)
        return tam_fail(TAMIS_E_STATE, "rank %u: tamis_reduce_wait without tamis_reduce_start",
                        r->comm->rank);
    uint64_t begin_ns = tam_clock_ns();
    tamis_status status = tam_comm_finish(r->comm, &r->job);
    r->started = false;
    r->abandoned = atomic_load(&r->job.state) == TAM_JOB_ABANDONED;
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        return status;
    complete_stats(r, begin_ns);
    r->step++;
    r->has_result = true;
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
    *out = (tamis_result){.count = r->count};
    if (r->acc) {
        out->indices = r->indices;
        out->values = r->values;
    }
    return TAMIS_OK;
}

tamis_status tamis_reducer_residual(const tamis_reducer *r, const float **out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_residual"));
    *out = r->acc;
    return TAMIS_OK;
}

tamis_status tamis_reducer_stats(const tamis_reducer *r, tamis_stats *out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_stats"));
    size_t theirs = out->size; /* a newer program's struct is longer; this version has no more */
    if (theirs < sizeof *out || theirs > 65536)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_stats.size is %zu: set the struct by TAMIS_STATS_INIT", theirs);
    memset(out, 0, theirs);
    memcpy(out, &r->stats, sizeof *out);
    out->size = theirs;
    return TAMIS_OK;
}
