/* SPDX-License-Identifier: MIT
 *
 * A step begins: by start, which marks all segments ready, or by ready, segment after segment. The
 * call that completes the bucket whose turn it is launches that bucket.
 */
#include "collectives/reducer/reducer.h"

#include "lib/base/fenv.h"
#include "lib/base/half.h"
#include "lib/base/hash.h"

#include <math.h>
#include <stdio.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>

/* -- gradients -------------------------------------------------------------------------------- */

static size_t segment_bytes(const tamis_reducer *r, uint32_t segment) {
    return tam_segment_length(r->layout, segment) * tam_type_bytes(r->config.grad_dtype);
}

/* Check a run of the gradient. Callers can read the residual, so might pass it here by mistake. */
static tamis_status check_run(const tamis_reducer *r, const void *grad, size_t bytes,
                              const char *where) {
    size_t element = tam_type_bytes(r->config.grad_dtype);
    char what[128];
    if (!grad)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradient of %s is NULL", where);
    const char *begin = grad, *end = begin + bytes;
    if ((uintptr_t)grad % element != 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradient of %s is not %zu-byte aligned",
                        where, element);
    if (r->acc && begin < (const char *)(r->acc + r->residual_length) && end > (const char *)r->acc)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_step: the gradient of %s overlaps the reducer's residual", where);
    if (!r->device->check)
        return TAMIS_OK;
    snprintf(what, sizeof what, "tamis_step: the gradient of %s", where);
    return r->device->check(r->buckets[0].view.kernels, grad, what);
}

static void begin_addresses(tamis_reducer *r) {
    memset(r->ready, 0, r->layout->nsegments * sizeof r->ready[0]);
    tam_addresses_begin(&r->addresses);
}

/* Check that a gradient given by segment is sound and overlaps no other. On failure the reducer
 * stays as it is. */
static tamis_status add_address(tamis_reducer *r, uint32_t segment, const void *grad) {
    TAM_TRY(check_run(r, grad, segment_bytes(r, segment), r->layout->names[segment]));
    return tam_addresses_add(&r->addresses, segment, grad, r->ready);
}

/* Add those of all segments that are not ready. The usual addresses are left before the first is
 * added, because only those of ready segments are sorted then. */
static tamis_status add_other_addresses(tamis_reducer *r, void *const *grads) {
    tamis_status status = TAMIS_OK;
    uint32_t nsegments = r->layout->nsegments;
    for (uint32_t s = 0; s < nsegments && r->addresses.at_usual; s++) {
        if (!r->ready[s] && !tam_addresses_is_usual(&r->addresses, s, grads[s]))
            tam_addresses_leave_usual(&r->addresses, r->ready);
    }
    for (uint32_t s = 0; s < nsegments && status == TAMIS_OK; s++)
        status = r->ready[s] ? TAMIS_OK : add_address(r, s, grads[s]);
    if (status != TAMIS_OK)
        tam_addresses_withdraw(&r->addresses, r->ready);
    return status;
}

/* -- the parameters before -------------------------------------------------------------------- */

static bool sound_rate(float rate) {
    return rate == 0.0f || (isnormal(rate) && rate > 0.0f);
}

/* The segment's gradient is sound or will be refused. */
static tamis_status check_before(const tamis_reducer *r, const tamis_step *step, uint32_t segment) {
    const char *name = r->layout->names[segment];
    uintptr_t before = (uintptr_t)step->before[segment], grad = (uintptr_t)step->grads[segment];
    size_t bytes = segment_bytes(r, segment);
    TAM_FENV_HELD();
    if (!before)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: before of %s is NULL", name);
    if (before % sizeof(float) != 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: before of %s is not %zu-byte aligned", name,
                        sizeof(float));
    if (before < grad + bytes && grad < before + bytes)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: before and the gradient of %s overlap",
                        name);
    if (!sound_rate(step->rates[segment]))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_step: the rate of %s is %g, which is not 0 or a normal number "
                        "above it",
                        name, (double)step->rates[segment]);
    return TAMIS_OK;
}

static tamis_status check_others_before(const tamis_reducer *r, const tamis_step *step) {
    for (uint32_t s = 0; step->before && s < r->layout->nsegments; s++) {
        if (!r->started || !r->ready[s])
            TAM_TRY(check_before(r, step, s));
    }
    return TAMIS_OK;
}

/* What `before` needs of the step, and of the reducer. */
static tamis_status check_moved(const tamis_reducer *r, const tamis_step *step) {
    if (!step->before && !step->rates)
        return TAMIS_OK;
    if (!step->before || !step->rates)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: %s is NULL: set both of before and rates",
                        step->before ? "rates" : "before");
    if (!step->grads)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: before is by segment and needs grads");
    if (step->scale != 1.0f)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: with before, scale must be 1: use rates");
    return tam_refuse(r, "tamis_reducer_start");
}

/* -- arguments -------------------------------------------------------------------------------- */

static tamis_status step_check_same(const tamis_reducer *r, const tamis_step *step) {
    const tamis_step *given = &r->given;
    if (step->grad == given->grad && step->grads == given->grads && step->scale == given->scale &&
        step->stream == given->stream && step->before == given->before &&
        step->rates == given->rates && step->agreed == given->agreed)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT,
                    "rank %u: grad, grads, scale, stream, before, rates and agreed must be the "
                    "same in all calls of a step",
                    r->comm->rank);
}

static tamis_status check_scale(const tamis_reducer *r, float scale) {
    char text[TAM_NONFINITE_TEXT];
    if (tam_magnitude(scale) < TAM_INFINITE_BITS)
        return TAMIS_OK;
    TAM_FENV_HELD();
    return tam_fail(TAMIS_E_ARGUMENT, "tamis_step.scale is %g, not a finite number%s",
                    (double)scale, tam_nonfinite_row_text(r, text));
}

static tamis_status read_step(const tamis_reducer *r, const tamis_step *theirs, const char *call,
                              tamis_step *out) {
    enum { FIRST_VERSION = offsetof(tamis_step, before) };
    *out = (tamis_step)TAMIS_STEP_INIT;
    if (!r || !theirs)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, r ? "step" : "reducer");
    TAM_TRY(tam_comm_check(r->comm));
    TAM_TRY(tam_struct_copy("tamis_step", out, sizeof *out, FIRST_VERSION, theirs));
    if (!out->grad == !out->grads)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: set exactly one of grad and grads");
    TAM_TRY(check_scale(r, out->scale));
    TAM_TRY(check_moved(r, out));
    return r->started ? step_check_same(r, out) : TAMIS_OK;
}

static tamis_status check_flat(const tamis_reducer *r, const tamis_step *step) {
    size_t bytes = (size_t)r->layout->length * tam_type_bytes(r->config.grad_dtype);
    return check_run(r, step->grad, bytes, "the step");
}

/* -- begin and launch ------------------------------------------------------------------------- */

/* Set a bucket's target: its part of the gradient. Rows are exact, late ones too: they do not
 * decay. */
static void step_set_target(tam_bucket *b, const tamis_step *step) {
    TAM_FENV_HELD();
    const tamis_reducer *r = b->reducer;
    tam_bucket_view *v = &b->view;
    size_t bytes = tam_type_bytes(r->config.grad_dtype);
    bool decays = !b->begun && b->layout->nrow_segments == 0;
    v->step = r->step;
    v->divisor = tam_divisor(r);
    v->target = (tam_accumulate){
        .acc = v->acc,
        .grad = step->grad ? (char *)step->grad + v->begin * bytes : NULL,
        .grads = step->grads ? step->grads + b->first_segment : NULL,
        .seg_begin = b->layout->begins,
        .type = r->config.grad_dtype,
        .decay = decays ? (float)r->config.residual_decay : 1.0f,
        .scale = step->scale,
        .before = step->before ? step->before + b->first_segment : NULL,
        .rates = step->rates ? step->rates + b->first_segment : NULL,
        .clear = r->config.output == TAMIS_OUTPUT_DENSE,
        .mine = tam_part_of(&b->division, r->step, r->rank),
        .thresholds = b->control.thresholds,
    };
    if (r->config.update)
        tam_update_set_target(b);
}

static void step_begin(tamis_reducer *r, const tamis_step *step) {
    memset(r->ready, 0, r->layout->nsegments * sizeof r->ready[0]);
    r->now = (tamis_stats)TAMIS_STATS_INIT;
    r->now.straggler = UINT32_MAX;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        b->now = (tam_bucket_times){0};
        b->view.out = (tam_outcome){.selected = b->view.out.selected, .means = b->view.out.means};
        b->unready = b->layout->nsegments;
        step_set_target(b, step);
    }
    r->given = *step;
    r->launched = 0;
    r->launching = r->given_up = false;
    r->has_result = false;
    r->all_ready = false;
    r->started = true;
    tam_comm_record(r->comm, TAM_FLIGHT_START, r->step, TAMIS_OK);
}

static void step_mark(tamis_reducer *r, uint32_t segment) {
    r->ready[segment] = true;
    r->buckets[r->bucket_of[segment]].unready--;
}

/* With the lock held: whether the caller is to launch the bucket whose turn it is. */
static bool claim_next(tamis_reducer *r) {
    r->launching =
        !r->given_up && r->launched < r->nbuckets && r->buckets[r->launched].unready == 0;
    return r->launching;
}

/* Takes the lock only once: as soon as the last bucket is counted, the next step may begin.
 * @param status  [in,out]  of the launch; lost if nobody waits for it any more
 * @return                  whether the next bucket is to be launched */
static bool record_launch(tamis_reducer *r, tamis_status *status) {
    pthread_mutex_lock(&r->lock);
    bool left = !r->launching, launched = *status == TAMIS_OK;
    r->launched += launched && !left;
    if (launched && r->given_up)
        *status = tam_comm_check(r->comm);
    bool more = launched && claim_next(r);
    r->launching = more;
    pthread_cond_broadcast(&r->progress);
    pthread_mutex_unlock(&r->lock);
    return more;
}

/* The hash, for a bucket whose segments are ready, of what ranks use to apply in the same way
 * what they have exchanged. */
static uint64_t hash_agreed(const tam_bucket *b) {
    const tamis_step *step = &b->reducer->given;
    uint64_t words[2] = {step->agreed, 0};
    if (step->rates)
        words[1] = tam_hash(step->rates + b->first_segment, b->layout->nsegments * sizeof(float));
    return words[0] || words[1] ? tam_hash(words, sizeof words) : 0;
}

static tamis_status launch_one(tamis_reducer *r) {
    tam_bucket *b = &r->buckets[r->launched];
    b->view.target.agreed = hash_agreed(b);
    tamis_status status = r->driver->launch(b, r->given.stream);
    b->begun = b->begun && status != TAMIS_OK;
    bool half = status != TAMIS_OK && r->launched > 0;
    if (half && tamis_status_loss(status) != TAMIS_LOST_COMM)
        status = tam_fail(TAMIS_E_TRANSPORT, "rank %u: a step failed halfway: %s", r->comm->rank,
                          tamis_status_name(status));
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        tam_comm_lose(r->comm, status);
    return status;
}

/* Launch buckets in turn, as long as the next one's segments are ready. */
static tamis_status step_launch(tamis_reducer *r, bool claimed) {
    tamis_status status = TAMIS_OK;
    for (bool more = claimed; more; more = record_launch(r, &status))
        status = launch_one(r);
    return status;
}

/* -- public ----------------------------------------------------------------------------------- */

static tamis_status check_start(tamis_reducer *r, const tamis_step *step) {
    if (r->started && r->all_ready)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: tamis_reducer_start was called twice without a wait",
                        r->comm->rank);
    if (step->grad)
        return check_flat(r, step);
    TAM_TRY(check_others_before(r, step));
    if (!r->started)
        begin_addresses(r);
    return add_other_addresses(r, step->grads);
}

tamis_status tamis_reducer_start(tamis_reducer *r, const tamis_step *step) {
    tamis_step own;
    TAM_TRY(read_step(r, step, "tamis_reducer_start", &own));
    TAM_TRY(check_start(r, &own));
    pthread_mutex_lock(&r->lock);
    bool first = !r->started;
    if (first)
        step_begin(r, &own);
    r->all_ready = true;
    for (uint32_t s = 0; s < r->layout->nsegments; s++) {
        if (!r->ready[s])
            step_mark(r, s);
    }
    bool claimed = claim_next(r);
    pthread_mutex_unlock(&r->lock);
    tamis_status status = step_launch(r, claimed);
    if (status == TAMIS_OK)
        return TAMIS_OK;
    if (r->launched > 0) { /* those end first */
        r->driver->wait(r, tam_clock_ns(), tam_comm_deadline(r->comm));
        status = tam_comm_check(r->comm);
    }
    r->all_ready = false; /* where nothing is lost, start may be called again */
    r->started = !first && tamis_status_loss(status) == TAMIS_LOST_NOTHING;
    return status;
}

static tamis_status check_ready(const tamis_reducer *r, uint32_t segment) {
    if (segment >= r->layout->nsegments)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_reducer_ready: segment %u is out of range: there are %u", segment,
                        r->layout->nsegments);
    if (r->started && (r->all_ready || r->ready[segment]))
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: the gradient of %s was already marked ready in this step, which "
                        "has not been waited for",
                        r->comm->rank, r->layout->names[segment]);
    return TAMIS_OK;
}

/* With the lock held: another thread may be about to end the step. */
static tamis_status step_mark_ready(tamis_reducer *r, uint32_t segment, const tamis_step *step) {
    tamis_step own;
    TAM_TRY(read_step(r, step, "tamis_reducer_ready", &own));
    TAM_TRY(check_ready(r, segment));
    if (own.before)
        TAM_TRY(check_before(r, &own, segment));
    if (!r->started)
        begin_addresses(r);
    if (own.grads)
        TAM_TRY(add_address(r, segment, own.grads[segment]));
    else if (!r->started)
        TAM_TRY(check_flat(r, &own));
    if (!r->started)
        step_begin(r, &own);
    step_mark(r, segment);
    return TAMIS_OK;
}

/* The bucket could not be launched, and nothing is lost. */
static void take_back(tamis_reducer *r, uint32_t segment, bool first) {
    pthread_mutex_lock(&r->lock);
    r->ready[segment] = false;
    r->buckets[r->bucket_of[segment]].unready++;
    r->started = !first;
    tam_addresses_withdraw(&r->addresses, r->ready);
    pthread_mutex_unlock(&r->lock);
}

tamis_status tamis_reducer_ready(tamis_reducer *r, uint32_t segment, const tamis_step *step) {
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_ready: reducer is NULL");
    TAM_TRY(tam_comm_usable(r->comm)); /* before the lock, which a child may have got held */
    pthread_mutex_lock(&r->lock);
    bool first = !r->started;
    tamis_status status = step_mark_ready(r, segment, step);
    bool claimed = status == TAMIS_OK && claim_next(r);
    pthread_mutex_unlock(&r->lock);
    TAM_TRY(status);
    status = step_launch(r, claimed);
    if (status != TAMIS_OK && tamis_status_loss(status) == TAMIS_LOST_NOTHING)
        take_back(r, segment, first);
    return status;
}

static tamis_status check_accumulate(tamis_reducer *r, const tamis_step *step) {
    if (r->started)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: tamis_reducer_accumulate was called while a step is under way",
                        r->comm->rank);
    TAM_TRY(tam_refuse(r, "tamis_reducer_accumulate"));
    return check_start(r, step);
}

tamis_status tamis_reducer_accumulate(tamis_reducer *r, const tamis_step *step) {
    tamis_step own;
    TAM_TRY(read_step(r, step, "tamis_reducer_accumulate", &own));
    TAM_TRY(check_accumulate(r, &own));
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < r->nbuckets && status == TAMIS_OK; i++) {
        tam_bucket *b = &r->buckets[i];
        step_set_target(b, &own);
        b->view.target.thresholds = b->never;
        status = r->driver->accumulate(b, own.stream);
        b->begun = b->begun || status == TAMIS_OK;
    }
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        tam_comm_lose(r->comm, status);
    return status;
}
